"""A vLLM engine without vLLM: both sides of the connector around a memory in this process."""

from __future__ import annotations

import ctypes
import math
import os
import time
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Set, Tuple

from hearth_client import Manifest
from hearth_client.kv_store import KvStore, PagedMemory, Region, Role
from hearth_vllm.plan import StepPlan
from hearth_vllm.scheduler import EngineScheduler
from hearth_vllm.settings import Settings
from hearth_vllm.verify import difference_of
from hearth_vllm.worker import EngineWorker

BLOCK_TOKENS = 32
BLOCKS = 150
BLOCK_BYTES = 4096
HANG_SECONDS = 60.0
#: A host under load answers late; a test that is not about this waits.
PATIENT = Settings(stall_ms=30_000, recompute_tokens_per_second=1.0)


def until(condition: Callable[[], Any], what: str = "the condition") -> None:
    limit = time.monotonic() + HANG_SECONDS
    while not condition():
        if time.monotonic() > limit:
            raise AssertionError(f"{what} did not come true")
        time.sleep(0.001)


def content(key: bytes) -> bytes:
    return (key * (BLOCK_BYTES // len(key) + 1))[:BLOCK_BYTES]


def byte_norms(stored: memoryview, computed: memoryview) -> Tuple[float, float]:
    changes = sum((one - two) ** 2 for one, two in zip(stored, computed))
    return math.sqrt(changes), math.sqrt(sum(two * two for two in computed))


class Rank:
    """One worker and its memory."""

    def __init__(
        self, path: str, name: bytes, settings: Settings, manifest: Manifest, stores: bool = True
    ) -> None:
        self.bytes = (ctypes.c_char * (BLOCKS * BLOCK_BYTES))()
        region = Region(ctypes.addressof(self.bytes), BLOCK_BYTES, BLOCK_BYTES)
        store = KvStore(
            manifest, socket=path, engine_id=name, role=Role.WORKER, stall_ms=settings.stall_ms
        )
        memory = PagedMemory([region], self.bytes)
        difference = difference_of(byte_norms, [BLOCK_BYTES // 2] * 2)
        self.worker = EngineWorker(
            settings, store, memory, blocks=1 << 20, stores=stores, difference=difference
        )

    def write(self, block: int, key: bytes) -> None:
        at = block * BLOCK_BYTES
        self.bytes[at : at + BLOCK_BYTES] = content(key)  # type: ignore[assignment]

    def read(self, block: int) -> bytes:
        at = block * BLOCK_BYTES
        return bytes(self.bytes[at : at + BLOCK_BYTES])


class Engine:
    """A scheduler and its workers; most tests use the first worker only.

    `tp_size` ranks hold a part of each block each, or with `mla` the whole block each.
    """

    def __init__(
        self, path: str, settings: Settings = PATIENT, tp_size: int = 1, mla: bool = False
    ) -> None:
        name, shards = os.urandom(16), 1 if mla else tp_size
        manifests = [
            Manifest("model", "float32", "test", BLOCK_TOKENS, tp_size=shards, tp_rank=rank)
            for rank in range(shards)
        ]
        self.ranks = [
            Rank(path, name, settings, manifests[rank % shards], not mla or rank == 0)
            for rank in range(tp_size)
        ]
        self.scheduler = EngineScheduler(
            settings,
            block_tokens=BLOCK_TOKENS,
            blocks=BLOCKS,
            ranks=tp_size,
            readers=tp_size if mla else 1,
        )
        self.scheduler.attach(
            KvStore(
                manifests[0],
                socket=path,
                engine_id=name,
                role=Role.SCHEDULER,
                stall_ms=settings.stall_ms,
            )
        )
        self.worker = self.ranks[0].worker
        self.write, self.read = self.ranks[0].write, self.ranks[0].read

    def close(self) -> None:
        for rank in self.ranks:
            rank.worker.close()
        self.scheduler.close()


def scheduler_output(plain: Dict[str, Any]) -> Any:
    tables = plain["tables"]
    state = SimpleNamespace(
        get_block_ids=lambda name: [tables[name]] if name in tables else None
    )
    return SimpleNamespace(
        scheduled_new_reqs=[
            SimpleNamespace(req_id=name, num_computed_tokens=count) for name, count in plain["new"]
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[name for name, _ in plain["cached"]],
            num_computed_tokens=[count for _, count in plain["cached"]],
        ),
        num_scheduled_tokens=plain["scheduled"],
        total_num_scheduled_tokens=plain["total"],
        kv_connector_block_state=state,
    )


def empty_output() -> Any:
    return scheduler_output({"new": [], "cached": [], "scheduled": {}, "total": 0, "tables": {}})


class Prompt:
    """A request of full blocks that starts at block `at` of the engine's memory."""

    def __init__(self, name: str, keys: List[bytes], at: int = 1, **more: Any) -> None:
        self.request_id = name
        self.block_hashes = keys
        self.num_tokens = self.num_prompt_tokens = len(keys) * BLOCK_TOKENS
        self.all_token_ids = [1] * self.num_tokens
        self.num_preemptions = 0
        self.kv_hints = None
        self.kv_transfer_params: Any = None
        self.table = list(range(at, at + len(keys)))
        for member, value in more.items():
            setattr(self, member, value)


def compute(engine: Engine, prompt: Prompt, first: int, end: int) -> None:
    """One step that computes the blocks `first` to `end` and plans their stores."""
    for index in range(first, end):
        engine.write(prompt.table[index], prompt.block_hashes[index])
    name = prompt.request_id
    tokens = (end - first) * BLOCK_TOKENS
    before = [[name, first * BLOCK_TOKENS]]
    plan = engine.scheduler.step(
        scheduler_output(
            {
                "new": before if first == 0 else [],
                "cached": before if first else [],
                "scheduled": {name: tokens},
                "total": tokens,
                "tables": {name: prompt.table},
            }
        )
    )
    engine.worker.start_stores(plan)


def settle(engine: Engine) -> Set[str]:
    """Reports until no store or load is in progress; the requests that were sent."""
    sent: Set[str] = set()

    def is_settled() -> bool:
        plan = engine.scheduler.step(empty_output())
        engine.worker.start_loads(plan)
        left, received = engine.worker.finished(plan)
        sent.update(left)
        report, errors = engine.worker.report(), engine.worker.errors()
        engine.scheduler.reported(report, received, errors)
        return not engine.scheduler.open_work()[0]

    until(is_settled, "the end of all stores")
    return sent


def ask(engine: Engine, prompt: Prompt, computed: int = 0) -> int:
    """Tokens that Hearth has of a prompt."""
    found: Dict[str, int] = {}

    def is_decided() -> bool:
        tokens, _ = engine.scheduler.match(prompt, computed)
        if tokens is None:
            engine.scheduler.step(empty_output())
            return False
        found["tokens"] = tokens
        return True

    until(is_decided, "an answer")
    return found["tokens"]
