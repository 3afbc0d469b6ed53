"""Configurations that the connector refuses at start, each in one line with the fix."""

from __future__ import annotations

from typing import Any, List

#: Kinds of attention whose blocks hold the KV of their tokens for all later tokens.
_FULL_KINDS = ("FullAttentionSpec", "MLAAttentionSpec")
#: Drafters without a KV cache of their own.
_DRAFTERS = ("ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator")


def check(config: Any, cache_config: Any) -> None:
    """ValueError: Hearth cannot keep the KV cache of this configuration."""
    _check_parallel(config.parallel_config)
    _check_speculation(config.speculative_config)
    groups = cache_config.kv_cache_groups
    kinds = sorted({kind for group in groups for kind in spec_kinds(group.kv_cache_spec)})
    if len(groups) != 1:
        raise ValueError(
            f"Hearth keeps one KV cache group, this model has {len(groups)} ({', '.join(kinds)}): "
            "add --disable-hybrid-kv-cache-manager, or serve the model without Hearth"
        )
    wrong = [kind for kind in kinds if kind not in _FULL_KINDS]
    if wrong:
        raise ValueError(
            f"Hearth keeps full attention and MLA, this model has {', '.join(wrong)}: "
            "add --disable-hybrid-kv-cache-manager, or serve the model without Hearth"
        )
    # vLLM's model runner V2 zeroes new blocks before it ends the stores of preempted requests.
    if getattr(cache_config, "needs_kv_cache_zeroing", False):
        raise ValueError(
            "Hearth keeps a KV cache of one precision, vLLM zeroes blocks of this one while they "
            "are stored: use one --kv-cache-dtype for all layers, or serve the model without Hearth"
        )
    if getattr(getattr(config, "model_config", None), "enable_sleep_mode", False):
        raise ValueError(
            "sleep mode unmaps the KV cache while blocks of it may be on their way to Hearth: "
            "remove --enable-sleep-mode"
        )
    if getattr(config.cache_config, "calculate_kv_scales", False):
        raise ValueError(
            "--calculate-kv-scales derives the scales of the KV cache from the first batch, so "
            "blocks do not fit other engines: remove it, or use scales of the checkpoint"
        )


def spec_kinds(spec: Any) -> List[str]:
    """Class names of a group's specs, those of a uniform group one by one."""
    inner = getattr(spec, "kv_cache_specs", None)
    if isinstance(inner, dict):
        return [type(one).__name__ for one in inner.values()]
    return [type(spec).__name__]


def _check_parallel(parallel: Any) -> None:
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        size = getattr(parallel, name, 1)
        if size > 1:
            raise ValueError(
                f"Hearth does not support context parallelism ({name} is {size}): set it to 1"
            )


def _check_speculation(speculative: Any) -> None:
    if speculative is None:
        return
    method = str(speculative.method)
    if method not in _DRAFTERS:
        raise ValueError(
            f"Hearth does not keep the KV cache of the {method} drafter: use one of "
            f"{', '.join(_DRAFTERS)}, or serve without speculative decoding"
        )


def set_failure_policy(transfer: Any) -> bool:
    """Makes vLLM recompute blocks that do not load; True if it was set here."""
    if transfer.kv_load_failure_policy == "recompute":
        return False
    try:
        transfer.kv_load_failure_policy = "recompute"
    except Exception:
        raise ValueError(
            "a load that fails would fail the request: add "
            '"kv_load_failure_policy":"recompute" to --kv-transfer-config'
        ) from None
    return True
