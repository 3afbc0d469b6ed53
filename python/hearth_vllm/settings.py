"""Settings of the connector: the keys of ``kv_connector_extra_config``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional

from hearth_client import settings as shared

PREFIX = "hearth."


@dataclass(frozen=True)
class Settings:
    """Each field is set by ``hearth.NAME``; every field has a default."""

    #: Path of the agent's engine socket. Empty: $HEARTH_SOCKET, else /run/hearth/engine.sock.
    socket: str = ""
    #: Name of the model in the namespace. Empty: as vLLM was started.
    model: str = ""
    #: Revision of the weights. Empty: the commit of the Hub, else a digest of the weight files.
    weights_revision: str = ""
    #: File with the secret of the namespace (mode 600): blocks are stored with MACs under it, and
    #: blocks without the right MAC are not used. Empty: no key.
    key_file: str = ""
    #: Name of this engine in the agent's log and as the issuer of its commands.
    name: str = "vllm"
    #: Restore blocks from Hearth.
    load: bool = True
    #: Blocks to store: "all", "prompt" (no generated tokens) or "none".
    store: str = "all"
    #: Ask other agents for blocks that this host does not have.
    peers: bool = True
    #: Fewest blocks worth a load.
    min_blocks: int = 1
    #: Milliseconds that one scheduler step may wait for the agent.
    scheduler_ms: float = 2.0
    #: A lookup, load or store without progress for this many milliseconds is given up.
    stall_ms: int = 100
    #: Longest wait for blocks that another engine computes (disaggregated prefill).
    wait_ms: int = 30_000
    #: How long the agent keeps blocks for this engine between lookup and load.
    hold_ms: int = 10_000
    #: Prefill speed for the recompute estimate; 0: measured while the engine runs.
    recompute_tokens_per_second: float = 0.0
    #: The agent copies stored blocks from the GPU. False: this worker does, on a stream of its own.
    agent_stores: bool = False
    #: Threads of a worker that load blocks.
    load_threads: int = 2
    #: Threads of a worker that store blocks.
    store_threads: int = 1
    #: Blocks that may wait to be stored; more are dropped. 0: as many as vLLM has.
    store_backlog_blocks: int = 0
    #: After this many seconds a block that vLLM still uses is offered to the agent again.
    refresh_seconds: float = 60.0
    #: Lifetime of an announcement; it is renewed while the blocks are being computed.
    announce_ms: int = 2_000
    #: One in this many prefixes that could be restored is computed and compared; 0: none.
    verify_one_in: int = 0
    #: Execute the KV hints of requests.
    hints: bool = True

    @property
    def stall_s(self) -> float:
        return self.stall_ms / 1000


_FORM = shared.Form(
    where="kv_connector_extra_config",
    prefix=PREFIX,
    ranges={
        "min_blocks": (1, 65_536),
        "scheduler_ms": (0, 100),
        "stall_ms": (10, 60_000),
        "wait_ms": (0, 600_000),
        "hold_ms": (100, 60_000),
        "recompute_tokens_per_second": (0, 1e9),
        "load_threads": (1, 64),
        "store_threads": (1, 64),
        "store_backlog_blocks": (0, 1 << 30),
        "refresh_seconds": (1, 86_400),
        "announce_ms": (200, 60_000),
        "verify_one_in": (0, 1 << 30),
    },
    choices={"store": ("all", "prompt", "none")},
    text_bytes_max={"socket": 107, "name": 24},
)


def read_settings(extra: Optional[Mapping[str, Any]]) -> Settings:
    """The settings of ``kv_connector_extra_config``. ValueError names the key and the fix."""
    return shared.read(Settings, extra, _FORM)
