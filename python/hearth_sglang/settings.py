"""Settings of the HiCache backend: what ``--hicache-storage-backend-extra-config`` may hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Mapping, Optional

from hearth_client import settings as shared

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
    #: Time limit of one read. Milliseconds; 0: the time that SGLang takes to compute its pages.
    load_deadline_ms: int = 0
    #: Prefill speed of the server, for that prediction.
    recompute_tokens_per_second: float = 2_000.0
    #: How long found blocks stay in RAM for the read that follows. Milliseconds.
    hold_ms: int = 10_000
    #: Whether SGLang calls the v1 functions (`interface_v1`), which copy pages once.
    zero_copy: bool = False


_FORM = shared.Form(
    where="--hicache-storage-backend-extra-config",
    ranges={
        "stall_ms": (1, 60_000),
        "load_deadline_ms": (0, 600_000),
        "recompute_tokens_per_second": (1, 1e9),
        "hold_ms": (1, 60_000),
    },
    text_bytes_max={"socket": 107, "name": 24},
    others=SGLANG_KEYS,
    derived=("zero_copy",),
)


def parse(extra_config: Optional[Mapping[str, Any]]) -> Settings:
    """Settings from SGLang's extra config. ValueError with the fix for a mistaken one."""
    settings = shared.read(Settings, extra_config, _FORM)
    return replace(settings, zero_copy=bool((extra_config or {}).get("interface_v1", 0)))
