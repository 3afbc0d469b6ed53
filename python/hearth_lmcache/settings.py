"""Settings of the L2 adapter: what ``adapter_params`` may hold."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Dict, Mapping, Optional

_TEXTS = ("socket", "name", "namespace", "tenant_salt", "key_file")
_FLAGS = ("peers", "prefetch", "tenant_salt_secret")
_NUMBERS = {
    "stall_ms": (1, 60_000),
    "hold_ms": (1, 60_000),
    "store_threads": (1, 16),
    "load_threads": (1, 16),
    "listed_keys_max": (0, 10_000_000),
}
_KEYS = (*_TEXTS, *_FLAGS, *_NUMBERS)


@dataclass(frozen=True)
class Settings:
    #: Path of the agent's engine socket. Default: $HEARTH_SOCKET, then /run/hearth/engine.sock.
    socket: Optional[str] = None
    #: Name of this engine in the agent's status and receipts.
    name: str = "lmcache"
    #: Must match for two LMCache servers to share objects, besides LMCache's own keys: type of
    #: the cached values, serde, weights. LMCache's keys do not contain these.
    namespace: str = "default"
    #: Separates the tenants of one agent.
    tenant_salt: Optional[str] = None
    #: The salt is a secret: it stays in this process and becomes the key of the namespace.
    tenant_salt_secret: bool = False
    #: File with the secret of the namespace (mode 600): objects are stored with MACs under it, and
    #: objects without the right MAC are not used.
    key_file: Optional[str] = None
    #: Count and read objects of other hosts as well.
    peers: bool = False
    #: Bring locked objects from SSD to RAM while LMCache plans the load.
    prefetch: bool = True
    #: A request without progress for this time is given up. Milliseconds.
    stall_ms: int = 100
    #: How long locked objects stay in RAM if LMCache does not unlock them. Milliseconds.
    hold_ms: int = 30_000
    store_threads: int = 1
    load_threads: int = 1
    #: Keys that the listing and the usage report remember; the oldest are forgotten first.
    listed_keys_max: int = 1_000_000


def parse(params: Optional[Mapping[str, Any]]) -> Settings:
    """Settings from ``adapter_params``. ValueError with the fix for a mistaken one."""
    values: Dict[str, Any] = {}
    for key, value in (params or {}).items():
        if key not in _KEYS:
            close = get_close_matches(key, _KEYS, 1)
            meant = f": use {close[0]!r}" if close else ""
            known = ", ".join(sorted(_KEYS))
            raise ValueError(f"hearth_lmcache: unknown setting {key!r}{meant} (settings: {known})")
        values[key] = _checked(key, value)
    return Settings(**values)


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
    return ValueError(f"hearth_lmcache: setting {key!r} is {value!r}, expected {expected}")
