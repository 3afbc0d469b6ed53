"""The namespace manifest of an SGLang rank."""

from __future__ import annotations

import os
from hashlib import sha256
from typing import Any, Dict, Optional

from hearth_client.manifest import Manifest
from hearth_client.weights import hub_commit, revision_of

from .pools import HostPool
from .settings import Settings


def server_arguments() -> Any:
    """SGLang's server arguments; None outside a server."""
    try:
        from sglang.srt.runtime_context import get_server_args

        return get_server_args()
    except Exception:  # Raised outside a server, by another class in each version.
        return None


def why_not_shared() -> Optional[str]:
    """Why pages are not stored as they are computed; None: they are."""
    try:
        from sglang.srt.runtime_context import get_memory

        policy = get_memory().hicache_write_policy
    except Exception:  # Raised outside a server, by another class in each version.
        policy = "unknown"
    if policy == "write_through":
        return None
    return f"share: needs --hicache-write-policy write_through, it is {policy}"


def manifest_of(config: Any, pool: HostPool, settings: Settings, arguments: Any) -> Manifest:
    """The manifest: two ranks share pages if theirs are equal.

    Ranks that hold the same bytes (MLA under tensor parallelism) get the same manifest. ValueError
    if SGLang gives no name of the model or no revision of its weights, and the settings neither.
    """
    model = settings.model or config.model_name
    if not model:
        raise ValueError(
            "hearth_sglang: SGLang gave no model name: "
            'set "model" in --hicache-storage-backend-extra-config'
        )
    revision = settings.weights_revision or _weights(arguments)
    if revision is None:
        raise ValueError(
            f"hearth_sglang: the revision of the weights of {model!r} is unknown, so other weights "
            'under this name would share its pages: set "weights_revision" in '
            "--hicache-storage-backend-extra-config"
        )
    replicated = bool(config.is_mla_model)
    return Manifest(
        model=str(model),
        dtype=_dtype(pool, arguments),
        layout=f"sglang:{pool.layout}",
        block_tokens=pool.page_size,
        weights_revision=revision,
        quantisation=settings.quantisation or _text(arguments, "quantization"),
        tp_size=1 if replicated else int(config.tp_size),
        tp_rank=0 if replicated else int(config.tp_rank),
        pp_size=int(config.pp_size),
        pp_rank=int(config.pp_rank),
        tenant_salt=None if settings.tenant_salt_secret else settings.tenant_salt,
        extra=_extra(config, pool, arguments),
    )


def _weights(arguments: Any) -> Optional[str]:
    """Which weights SGLang loaded: a commit of the Hub, or a digest. None: nothing here says it."""
    path, revision = _text(arguments, "model_path"), _text(arguments, "revision")
    if _text(arguments, "load_format") == "dummy":
        return "dummy"  # SGLang draws them with a fixed seed.
    local = None if path is None else revision_of(path)
    # A name of ModelScope means other weights than the same name of the Hub.
    if path is None or local is not None or _is_true("SGLANG_USE_MODELSCOPE"):
        return local
    return hub_commit(path, revision, _text(arguments, "download_dir"))


def _is_true(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true", "yes", "y", "on")


def _extra(config: Any, pool: HostPool, arguments: Any) -> Dict[str, str]:
    extra = {"geometry": pool.geometry, "keys": "sglang-pages"}
    overrides = _text(arguments, "json_model_override_args")
    if overrides not in (None, "{}"):
        extra["overrides"] = sha256(str(overrides).encode()).hexdigest()[:16]
    for name in ("attn_cp", "dcp"):
        size = int(getattr(config, f"{name}_size", 1) or 1)
        if size > 1:
            extra[name] = f"{int(getattr(config, f'{name}_rank', 0))}/{size}"
    return extra


def _dtype(pool: HostPool, arguments: Any) -> str:
    """The logical type: pools store each 8-bit float as uint8."""
    named = _text(arguments, "kv_cache_dtype")
    stored = str(getattr(pool.pool, "dtype", "unknown")).replace("torch.", "")
    return stored if named in (None, "auto") else f"{named}:{stored}"


def _text(arguments: Any, name: str) -> Optional[str]:
    value = getattr(arguments, name, None)
    return str(value) if value else None
