"""The namespace of a vLLM engine: everything that must match before blocks are shared."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional

from hearth_client import Manifest
from hearth_client.weights import revision_of

from .settings import Settings
from .versions import parse

#: Version of the connector's block layout; a change of byte order increases it.
LAYOUT_VERSION = "1"
_VOLATILE_CONFIG = ("transformers_version", "_name_or_path", "_commit_hash", "torch_dtype")


def build_manifest(
    settings: Settings,
    config: Any,
    *,
    version: str,
    layout: str,
    cache_dtype: str,
    block_tokens: int,
    kind: str,
    seed: str,
    backend: str,
    tp_rank: int,
    pp_rank: int,
) -> Manifest:
    """The manifest of one worker; `layout`, `cache_dtype` and `backend` describe its tensors."""
    model, parallel, cache = config.model_config, config.parallel_config, config.cache_config
    mla = bool(getattr(model, "use_mla", False))
    pp_size = parallel.pipeline_parallel_size
    extra: Dict[str, str] = {
        "attention": kind,
        "backend": backend,
        "compute_dtype": _name(model.dtype),
        "config": config_digest(model.hf_config),
        "hash": f"{cache.prefix_caching_hash_algo}:{seed}",
        "keys": "vllm-chain",
        "kv_cache_dtype": str(cache.cache_dtype),
    }
    if pp_size > 1:
        extra["pp_partition"] = _partition(config, pp_size)
    release = parse(version) or (0, 0)
    return Manifest(
        model=settings.model or str(model.model),
        dtype=cache_dtype,
        layout=f"vllm:{release[0]}.{release[1]}:{LAYOUT_VERSION}:{layout}",
        block_tokens=block_tokens,
        weights_revision=settings.weights_revision or weights_revision(config),
        quantisation=str(model.quantization) if model.quantization else None,
        tp_size=1 if mla else parallel.tensor_parallel_size,
        tp_rank=0 if mla else tp_rank,
        pp_size=pp_size,
        pp_rank=pp_rank,
        extra=extra,
    )


def to_plain(manifest: Manifest) -> Dict[str, Any]:
    """Built-in types only: workers send it to the scheduler."""
    return {
        name: dict(value) if isinstance(value, Mapping) else value
        for name, value in vars(manifest).items()
    }


def of_family(plain: List[Dict[str, Any]]) -> Manifest:
    """The scheduler's manifest from those of all workers. ValueError: they are not one family."""
    manifests = [replace(Manifest(**one), tp_rank=0, pp_rank=0) for one in plain]
    first = manifests[0]
    for other in manifests[1:]:
        if other != first:
            names = [name for name, value in vars(first).items() if vars(other)[name] != value]
            raise ValueError(
                f"workers of one engine differ in {', '.join(names)}: Hearth stores equal block "
                "layouts on all ranks only"
            )
    return first


def weights_revision(config: Any) -> str:
    """The commit of the model on the Hub, else a digest of samples of every tensor's bytes."""
    model = config.model_config
    load_format = str(getattr(config.load_config, "load_format", "auto"))
    if load_format.split(".")[-1].lower() == "dummy":
        return f"dummy:{model.seed}"
    path = str(model.model)
    found = revision_of(path)
    if found is not None:
        return found
    revision = getattr(model.hf_config, "_commit_hash", None) or model.revision
    return f"commit:{revision}" if revision else "unknown"


def config_digest(hf_config: Any) -> str:
    """Digest of the model's configuration with all overrides, such as rope scaling."""
    values = json.loads(hf_config.to_json_string(use_diff=False))
    for name in _VOLATILE_CONFIG:
        values.pop(name, None)
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _partition(config: Any, pp_size: int) -> str:
    from vllm.distributed.utils import get_pp_indices

    layers = config.model_config.get_total_num_hidden_layers()
    cuts = [get_pp_indices(layers, rank, pp_size) for rank in range(pp_size)]
    return ",".join(f"{first}-{end}" for first, end in cuts)


def _name(dtype: Any) -> str:
    return str(dtype).replace("torch.", "")


def seed_of(algorithm: str, environment: Mapping[str, str], fixed: Optional[str]) -> str:
    """The seed of vLLM's block hashes. `fixed`: vLLM's own default for cryptographic hashes.

    ValueError: the hashes would differ after a restart.
    """
    seed = environment.get("PYTHONHASHSEED")
    if seed is not None:
        return seed
    if "xxhash" in algorithm:
        raise ValueError(
            f"--prefix-caching-hash-algo {algorithm} draws a random seed at each start, so nothing "
            "could be restored: set PYTHONHASHSEED=0 for all engines, or use sha256"
        )
    if fixed is None:
        raise ValueError(
            "this vLLM draws a random seed for its block hashes at each start, so nothing could be "
            "restored: set PYTHONHASHSEED=0 for all engines"
        )
    return fixed
