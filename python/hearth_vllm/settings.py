"""Settings of the connector: the keys of ``kv_connector_extra_config``."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields
from typing import Any, Dict, Mapping, Optional

PREFIX = "hearth."

_STORES = ("all", "prompt", "none")


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
    #: Execute the KV hints of requests.
    hints: bool = True

    @property
    def stall_s(self) -> float:
        return self.stall_ms / 1000


_RANGES: Dict[str, tuple] = {
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
}
_CHOICES = {"store": _STORES}
_TEXT_BYTES_MAX = {"socket": 107, "name": 24}


def read_settings(extra: Optional[Mapping[str, Any]]) -> Settings:
    """The settings of ``kv_connector_extra_config``. ValueError names the key and the fix."""
    known = {PREFIX + field.name: field for field in fields(Settings)}
    values: Dict[str, Any] = {}
    for key, value in (extra or {}).items():
        field = known.get(key)
        if field is None:
            raise ValueError(_unknown(str(key), list(known)))
        values[field.name] = _checked(key, field.name, field.default, value)
    return Settings(**values)


def _unknown(key: str, known: list) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    if not near:
        near = difflib.get_close_matches(PREFIX + key, known, n=1, cutoff=0.5)
    advice = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
    return f"kv_connector_extra_config has an unknown key {key!r}: {advice}"


def _checked(key: str, name: str, default: Any, value: Any) -> Any:
    where = f"kv_connector_extra_config[{key!r}] is {value!r}"
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ValueError(f"{where}: set it to true or false")
        return value
    if isinstance(default, str):
        return _checked_text(where, name, value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{where}: set it to a number")
    if isinstance(default, int) and value != int(value):
        raise ValueError(f"{where}: set it to a whole number")
    least, most = _RANGES[name]
    if not least <= value <= most:
        raise ValueError(f"{where}: set it to a number from {least} to {most}")
    return int(value) if isinstance(default, int) else float(value)


def _checked_text(where: str, name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where}: set it to a text")
    choices = _CHOICES.get(name)
    if choices is not None and value not in choices:
        raise ValueError(f"{where}: set it to one of {', '.join(choices)}")
    most = _TEXT_BYTES_MAX.get(name, 4096)
    if len(value.encode("utf-8")) > most:
        raise ValueError(f"{where}: shorten it to at most {most} bytes")
    return value
