"""Recorded calls of the real vLLM 0.32 scheduler, replayed against a real agent.

The recording has chunked prefill, preemption, aborts, n > 1 and a prefix cache reset, first with
an empty agent and then with a full one. Each block has bytes that follow from its key: a block
that a load or store takes from a wrong place is noticed when it is read.
"""

from __future__ import annotations

import gzip
import json
import time
import unittest
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List, Set

from hearth_vllm.plan import StepPlan, StepReport

from . import real_agent
from .vllm_engine import (
    BLOCK_TOKENS,
    HANG_SECONDS,
    Engine,
    content,
    empty_output,
    scheduler_output,
)

RECORDING = Path(__file__).parent / "fixtures" / "vllm-0.32-calls.jsonl.gz"


class Replay:
    def __init__(self, test: unittest.TestCase, engine: Engine) -> None:
        self.test = test
        self.engine = engine
        self.requests: Dict[str, Any] = {}
        self.delayed: List[str] = []
        self.loads: Dict[str, Any] = {}
        self.waiting: Set[str] = set()

    def run(self, line: Dict[str, Any]) -> None:
        getattr(self, line["call"])(line["result"], *line["args"])

    def request(self, plain: Dict[str, Any]) -> Any:
        """The request as vLLM had it at this call."""
        known = self.requests.get(plain["request_id"])
        request = known or SimpleNamespace(kv_hints=None, block_hashes=[], all_token_ids=[])
        self.extend(request, plain.pop("block_hashes"))
        for name, value in plain.items():
            setattr(request, name, value)
        self.requests[request.request_id] = request
        return request

    def extend(self, request: Any, new: List[Any]) -> None:
        first, hashes = new
        self.test.assertEqual(first, len(request.block_hashes))
        request.block_hashes.extend(bytes.fromhex(key) for key in hashes)

    def added(self, _result: Any, plain: Dict[str, Any]) -> None:
        self.engine.scheduler.added(self.request(plain))

    def match(self, result: List[Any], plain: Dict[str, Any], computed: int) -> None:
        request = self.request(plain)
        if result[0] is None:
            return
        deadline = time.monotonic() + HANG_SECONDS
        while True:
            found = self.engine.scheduler.match(request, computed)
            if found[0] is not None:
                break
            self.test.assertLess(time.monotonic(), deadline, "a lookup that is not answered")
            # vLLM schedules again, with a new budget for waiting.
            self.start(self.engine.scheduler.step(empty_output()))
        # All stores have ended in a replay; the recorded engine may have asked before that.
        self.test.assertGreaterEqual(found[0], result[0])

    def allocated(
        self, _result: Any, plain: Dict[str, Any], block_ids: List[int], external: int
    ) -> None:
        self.engine.scheduler.allocated(self.request(plain), block_ids, external)

    def step(self, _result: Any, output: Dict[str, Any]) -> None:
        for name, new in output["hashes"].items():
            self.extend(self.requests[name], new)
        plan = self.engine.scheduler.step(scheduler_output(output))
        worker = self.engine.worker
        worker.preempt(plan)
        scheduled = output["new"] + output["cached"]
        for name, before in scheduled:
            self.compute(name, before, output["scheduled"][name], output["tables"][name])
        # A request may share blocks that another one computes in the same step.
        for name, before in scheduled:
            self.verify(name, before, output["tables"][name])
        self.start(plan)

    def start(self, plan: StepPlan) -> None:
        self.engine.worker.start_loads(plan)
        self.engine.worker.start_stores(plan)
        self.loads.update({job.request: job for job in plan.loads})
        self.delayed.extend(plan.delayed)

    def compute(self, name: str, before: int, tokens: int, table: List[int]) -> None:
        """Writes the blocks that the step completes."""
        keys = self.requests[name].block_hashes
        for index in range(before // BLOCK_TOKENS, (before + tokens) // BLOCK_TOKENS):
            if index < len(keys):
                self.engine.write(table[index], keys[index])

    def verify(self, name: str, before: int, table: List[int]) -> None:
        """The blocks of earlier tokens have the bytes of their keys."""
        keys = self.requests[name].block_hashes
        for index in range(before // BLOCK_TOKENS):
            self.test.assertEqual(self.engine.read(table[index]), content(keys[index]))

    def reported(self, _result: Any, *_recorded: Any) -> None:
        plan, self.delayed = StepPlan(delayed=self.delayed), []
        self.waiting.update(plan.delayed)
        received: Set[str] = set()
        report = StepReport()
        deadline = time.monotonic() + HANG_SECONDS
        delayed = plan
        while True:
            sent, loaded = self.engine.worker.finished(delayed)
            delayed = StepPlan()
            self.waiting -= sent
            received |= loaded
            part = self.engine.worker.report()
            if part is not None:
                report.merge(part)
            open_jobs = self.engine.scheduler.open_work()[0] - len(report.stored)
            if not self.waiting and not open_jobs and set(self.loads) <= received:
                break
            self.test.assertLess(time.monotonic(), deadline, "a transfer that does not end")
            time.sleep(0.001)
        for name in received:
            job = self.loads.pop(name)
            for key, block in zip(job.keys, job.block_ids):
                self.test.assertEqual(self.engine.read(block), content(key))
            self.engine.restored += len(job.keys)
        self.engine.scheduler.reported(report, received, self.engine.worker.errors())

    def finished(self, _result: Any, plain: Dict[str, Any]) -> None:
        self.engine.scheduler.finished(self.request(plain))


@unittest.skipUnless(real_agent.COMMAND, "HEARTH_TEST_AGENT does not say how to start an agent")
class RecordedCalls(unittest.TestCase):
    def test_all_blocks_are_where_the_real_scheduler_expects_them(self) -> None:
        with gzip.open(RECORDING, "rt", encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        with real_agent.RealAgent() as agent:
            engine = Engine(agent.path)
            self.addCleanup(engine.close)
            replay = Replay(self, engine)
            for line in lines:
                replay.run(line)
            # The recording is useful only if blocks were loaded.
            self.assertGreater(engine.restored, 100)
            self.assertFalse(engine.scheduler.open_work()[0])
            self.assertEqual(engine.scheduler.open_work()[2], 0)


if __name__ == "__main__":
    unittest.main()
