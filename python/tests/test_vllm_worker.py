"""Transfers of one vLLM worker with a real agent: order, preemption, failures, backlog."""

from __future__ import annotations

import ctypes
import os
import threading
import time
import unittest
from hashlib import sha256
from typing import Any, Callable, List, Optional

from hearth_client import Manifest
from hearth_client.copiers import PagedCopier
from hearth_client.kv_store import KvStore, PagedMemory, Region, Role
from hearth_vllm.plan import LoadJob, StepPlan, StepReport, StoreJob
from hearth_vllm.settings import Settings
from hearth_vllm.worker import EngineWorker

SOCKET = os.environ.get("HEARTH_SOCKET", "")
BLOCK_BYTES = 4096
HANG_SECONDS = 60.0


def until(condition: Callable[[], Any]) -> None:
    limit = time.monotonic() + HANG_SECONDS
    while not condition():
        if time.monotonic() > limit:
            raise AssertionError("the condition did not come true")
        time.sleep(0.001)


class HeldStore(KvStore):
    """A real store whose puts wait until the test lets them pass."""

    def __init__(self, *words: Any, **more: Any) -> None:
        self.open = threading.Event()
        self.open.set()
        self.puts = 0
        super().__init__(*words, **more)

    def put(self, *words: Any, **more: Any) -> Any:
        self.puts += 1
        assert self.open.wait(HANG_SECONDS)
        return super().put(*words, **more)


class HeldMemory:
    """Memory whose copies do not end until the test opens it."""

    def __init__(self, memory: PagedMemory) -> None:
        self.block_bytes = memory.block_bytes
        self.copying, self.open = threading.Event(), threading.Event()
        self._memory = memory

    def copier(self, kernels: Any, block_ids: List[int]) -> PagedCopier:
        copier = PagedCopier(kernels, self._memory, block_ids)
        gather = copier.gather

        def held(*words: Any) -> Any:
            finish = gather(*words)
            self.copying.set()
            assert self.open.wait(HANG_SECONDS)
            return finish

        copier.gather = held  # type: ignore[method-assign]
        return copier


@unittest.skipUnless(SOCKET, "HEARTH_SOCKET does not name a running agent's socket")
class Transfers(unittest.TestCase):
    def setUp(self) -> None:
        manifest = Manifest("worker", "float32", "test", 32, tenant_salt=os.urandom(8).hex())
        self.store = HeldStore(
            manifest, socket=SOCKET, engine_id=os.urandom(16), role=Role.WORKER, stall_ms=30_000
        )
        self.bytes = (ctypes.c_char * (64 * BLOCK_BYTES))()
        region = Region(ctypes.addressof(self.bytes), BLOCK_BYTES, BLOCK_BYTES)
        self.memory: Any = PagedMemory([region], self.bytes)
        self.keys = [sha256(bytes([i])).digest() for i in range(32)]

    def worker(self, stores: bool = True, **settings: Any) -> EngineWorker:
        worker = EngineWorker(
            Settings(**settings), self.store, self.memory, blocks=64, stores=stores
        )
        self.addCleanup(worker.close)
        return worker

    def job(self, number: int, request: str, first: int, end: int) -> StoreJob:
        parent = self.keys[first - 1] if first else None
        return StoreJob(number, request, self.keys[first:end], parent, list(range(first, end)))

    def fill(self, block: int, value: int) -> None:
        at = block * BLOCK_BYTES
        self.bytes[at : at + BLOCK_BYTES] = bytes([value]) * BLOCK_BYTES  # type: ignore[assignment]

    def report(self, worker: EngineWorker, jobs: int) -> StepReport:
        whole = StepReport()

        def ended() -> bool:
            part = worker.report()
            if part is not None:
                whole.merge(part)
            return len(whole.stored) >= jobs

        until(ended)
        return whole

    def load(self, worker: EngineWorker, keys: List[bytes], blocks: List[int]) -> List[int]:
        """Loads, and returns the blocks that failed."""
        worker.start_loads(StepPlan(loads=[LoadJob("load", keys, blocks)]))
        received: set = set()

        def ended() -> bool:
            received.update(worker.finished(StepPlan())[1])
            return "load" in received

        until(ended)
        return sorted(worker.errors())

    def test_stored_blocks_are_loaded_to_other_places(self) -> None:
        worker = self.worker()
        for block in range(4):
            self.fill(block, block + 1)
        worker.start_stores(StepPlan(stores=[self.job(1, "a", 0, 4)]))
        self.assertEqual(self.report(worker, 1).stored, {1: (1, [])})
        self.assertEqual(self.load(worker, self.keys[:4], [10, 11, 12, 13]), [])
        for block in range(4):
            at = (10 + block) * BLOCK_BYTES
            self.assertEqual(bytes(self.bytes[at : at + 4]), bytes([block + 1]) * 4)
        report = worker.report()
        assert report is not None
        self.assertEqual(list(report.loaded), ["load"])

    def test_blocks_from_the_first_missing_one_on_are_load_errors(self) -> None:
        worker = self.worker()
        worker.start_stores(StepPlan(stores=[self.job(1, "a", 0, 2), self.job(2, "a", 3, 5)]))
        self.report(worker, 2)
        self.assertEqual(self.load(worker, self.keys[:5], [20, 21, 22, 23, 24]), [22, 23, 24])
        self.assertEqual(worker.errors(), set())

    def test_a_load_that_waited_out_its_deadline_in_the_queue_is_not_begun(self) -> None:
        worker = self.worker()
        worker.start_stores(StepPlan(stores=[self.job(1, "a", 0, 2)]))
        self.report(worker, 1)
        job = LoadJob("load", self.keys[:2], [20, 21], deadline_ms=50)
        long_ago = time.monotonic() - 1
        self.assertEqual(worker._load(job, None, long_ago), 0)
        self.assertEqual(worker._load(job, None, time.monotonic() + 60), 2)

    def test_a_request_is_sent_when_its_last_store_ended(self) -> None:
        worker = self.worker()
        self.store.open.clear()
        worker.start_stores(StepPlan(stores=[self.job(1, "a", 0, 2)]))
        until(lambda: self.store.puts == 1)
        self.assertEqual(worker.finished(StepPlan(delayed=["a", "b"])), ({"b"}, set()))
        self.store.open.set()
        sent: set = set()
        until(lambda: sent.update(worker.finished(StepPlan())[0]) or sent)
        self.assertEqual(sent, {"a"})

    def test_a_preemption_does_not_wait_and_drops_what_has_not_been_copied(self) -> None:
        self.memory = HeldMemory(self.memory)
        worker = self.worker()
        jobs = [self.job(1, "a", 0, 2), self.job(2, "a", 2, 4), self.job(3, "b", 4, 6)]
        worker.start_stores(StepPlan(stores=jobs))
        until(self.memory.copying.is_set)
        # The copy of job 1 cannot end before this returns.
        worker.preempt(StepPlan(preempted=["a"]))
        self.fill(0, 99)
        self.memory.open.set()
        report = self.report(worker, 3)
        self.assertEqual(report.stored, {1: (1, [0, 1]), 2: (1, [0, 1]), 3: (1, [])})
        self.assertEqual(self.load(worker, self.keys[:6], [20, 21, 22, 23, 24, 25])[:1], [20])
        self.assertEqual(self.store.stats.put_blocks, 2)

    def test_stores_beyond_the_backlog_are_dropped(self) -> None:
        worker = self.worker(store_backlog_blocks=3)
        self.store.open.clear()
        worker.start_stores(StepPlan(stores=[self.job(1, "a", 0, 2), self.job(2, "a", 2, 4)]))
        self.assertEqual(self.report(worker, 1).stored, {2: (1, [0, 1])})
        self.store.open.set()
        self.assertEqual(self.report(worker, 1).stored, {1: (1, [])})

    def test_a_rank_that_does_not_store_reports_jobs_at_once(self) -> None:
        worker = self.worker(stores=False)
        worker.start_stores(StepPlan(stores=[self.job(1, "a", 0, 2)]))
        report: Optional[StepReport] = worker.report()
        assert report is not None
        self.assertEqual((report.stored, self.store.puts), ({1: (1, [])}, 0))


if __name__ == "__main__":
    unittest.main()
