"""Settings of the HiCache backend: what ``--hicache-storage-backend-extra-config`` may hold."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Dict, Mapping, Optional

#: Keys that SGLang itself reads from the same JSON object.
SGLANG_KEYS = frozenset(
    (
        "backend_name",
        "module_path",
        "class_name",
        "interface_v1",
        "allocator",
        "tp_lcm_size",
        "prefetch_threshold",
        "prefetch_timeout_base",
        "prefetch_timeout_per_ki_token",
        "hicache_storage_pass_prefix_keys",
    )
)

_TEXTS = ("socket", "name", "model", "weights_revision", "quantisation", "tenant_salt", "key_file")
_FLAGS = ("peers", "prefetch", "aliases", "hints", "tenant_salt_secret")
_NUMBERS = {"stall_ms": (1, 60_000), "load_deadline_ms": (0, 60_000), "hold_ms": (1, 60_000)}
_KEYS = (*_TEXTS, *_FLAGS, *_NUMBERS)


@dataclass(frozen=True)
class Settings:
    #: Path of the agent's engine socket. Default: $HEARTH_SOCKET, then /run/hearth/engine.sock.
    socket: Optional[str] = None
    #: Name of this engine in the agent's status and receipts.
    name: str = "sglang"
    #: Model in the manifest. Default: SGLang's own name of the model. Set it if hosts keep the
    #: same weights under different paths.
    model: Optional[str] = None
    #: Commit or digest of the weights. Default: the commit of the Hub snapshot, a digest of the
    #: weight files of a folder, or --revision.
    weights_revision: Optional[str] = None
    #: How weights or cache are quantised, if that changes the cached values.
    quantisation: Optional[str] = None
    #: Separates the tenants of one agent.
    tenant_salt: Optional[str] = None
    #: The salt is a secret: it stays in this process and becomes the key of the namespace.
    tenant_salt_secret: bool = False
    #: File with the secret of the namespace (mode 600): pages are stored with MACs under it, and
    #: pages without the right MAC are not used.
    key_file: Optional[str] = None
    #: Count and read blocks of other hosts as well.
    peers: bool = False
    #: Bring blocks from SSD to RAM as soon as a prompt has asked for them.
    prefetch: bool = True
    #: Name stored blocks by the 64-bit hashes that SGLang's KV events carry, so that routers can
    #: name them in commands.
    aliases: bool = True
    #: Execute the KV hints of requests (needs ``aliases`` and ``interface_v1``).
    hints: bool = True
    #: A request without progress for this time is given up. Milliseconds.
    stall_ms: int = 100
    #: Time limit of one read. Milliseconds; 0 = the agent's own limit.
    load_deadline_ms: int = 0
    #: How long found blocks stay in RAM for the read that follows. Milliseconds.
    hold_ms: int = 10_000
    #: Whether SGLang calls the v1 functions (`interface_v1`), which copy pages once.
    zero_copy: bool = False


def parse(extra_config: Optional[Mapping[str, Any]]) -> Settings:
    """Settings from SGLang's extra config. ValueError with the fix for a mistaken one."""
    values: Dict[str, Any] = {}
    for key, value in (extra_config or {}).items():
        if key in SGLANG_KEYS:
            continue
        if key not in _KEYS:
            raise ValueError(f"hearth_sglang: unknown setting {key!r}{_suggestion(key)}")
        values[key] = _checked(key, value)
    values["zero_copy"] = bool((extra_config or {}).get("interface_v1", 0))
    return Settings(**values)


def _suggestion(key: str) -> str:
    close = get_close_matches(key, (*_KEYS, *SGLANG_KEYS), 1)
    meant = f": use {close[0]!r}" if close else ""
    return f"{meant} (settings: {', '.join(sorted(_KEYS))})"


def _checked(key: str, value: Any) -> Any:
    if key in _TEXTS:
        if not isinstance(value, str) or not value:
            raise _mistake(key, value, "a text that is not empty")
    elif key in _FLAGS:
        if not isinstance(value, bool):
            raise _mistake(key, value, "true or false")
    else:
        least, most = _NUMBERS[key]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _mistake(key, value, f"a whole number from {least} to {most}")
    return value


def _mistake(key: str, value: Any, expected: str) -> ValueError:
    return ValueError(f"hearth_sglang: setting {key!r} is {value!r}, expected {expected}")
