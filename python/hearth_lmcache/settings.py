"""Settings of the L2 adapter: what ``adapter_params`` may hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional

from hearth_client import settings as shared

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
    #: Time limit of one load. Milliseconds; 0: the time that the engine takes to compute its
    #: chunks.
    load_deadline_ms: int = 0
    #: Prefill speed of the engine, for that prediction.
    recompute_tokens_per_second: float = 2_000.0
    #: LMCache's ``--chunk-size``, for the same.
    chunk_tokens: int = 256
    #: How long locked objects stay in RAM if LMCache does not unlock them. Milliseconds.
    hold_ms: int = 30_000
    store_threads: int = 1
    load_threads: int = 1
    #: Keys that the listing and the usage report remember; the oldest are forgotten first.
    listed_keys_max: int = 1_000_000


_FORM = shared.Form(
    where="adapter_params",
    ranges={
        "stall_ms": (1, 60_000),
        "load_deadline_ms": (0, 600_000),
        "recompute_tokens_per_second": (1, 1e9),
        "chunk_tokens": (1, 1 << 20),
        "hold_ms": (1, 60_000),
        "store_threads": (1, 16),
        "load_threads": (1, 16),
        "listed_keys_max": (0, 10_000_000),
    },
    text_bytes_max={"socket": 107, "name": 32},
)


def parse(params: Optional[Mapping[str, Any]]) -> Settings:
    """Settings from ``adapter_params``. ValueError with the fix for a mistaken one."""
    return shared.read(Settings, params, _FORM)
