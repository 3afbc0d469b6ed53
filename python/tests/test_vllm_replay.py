"""Recorded calls of the real vLLM 0.32 scheduler, replayed through HearthConnector on a real agent.

The recording has chunked prefill, preemption, an abort, n > 1, a cache salt and a reset of all
caches. Each block has bytes that follow from its hash: a block that a load or store takes from a
wrong place is noticed when it is read.
"""

from __future__ import annotations

import inspect
import time
import unittest
from contextlib import closing
from types import SimpleNamespace
from typing import Any, Dict, List, Set, Tuple

from . import real_agent, recordings
from . import vllm_stand_ins as stand_ins
from .vllm_connector_engine import ConnectorEngine
from .vllm_engine import (
    BLOCK_BYTES,
    BLOCK_TOKENS,
    HANG_SECONDS,
    content,
    empty_output,
    scheduler_output,
)



class Replay:
    def __init__(self, test: unittest.TestCase, engine: ConnectorEngine) -> None:
        self.test = test
        self.engine = engine
        self.requests: Dict[str, Any] = {}
        self.loads: Dict[str, Any] = {}
        #: First block of a request's load.
        self.firsts: Dict[str, List[int]] = {}
        self.waiting: Set[str] = set()
        self.restored = 0

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
        self.engine.scheduler.on_new_request(self.request(plain))

    def match(self, result: List[Any], plain: Dict[str, Any], computed: int) -> None:
        request = self.request(plain)
        if result[0] is None:
            return
        deadline = time.monotonic() + HANG_SECONDS
        while True:
            found = self.engine.scheduler.get_num_new_matched_tokens(request, computed)
            if found[0] is not None:
                break
            self.test.assertLess(time.monotonic(), deadline, "a lookup that is not answered")
            # vLLM schedules again, with a new budget for waiting.
            self.empty_step()
        # All stores have ended in a replay; the recorded engine may have asked before that.
        self.test.assertGreaterEqual(found[0], result[0])

    def allocated(
        self, _result: Any, plain: Dict[str, Any], block_ids: List[int], external: int
    ) -> None:
        request = self.request(plain)
        self.firsts[request.request_id] = block_ids
        blocks = SimpleNamespace(get_block_ids=lambda: (block_ids,))
        self.engine.scheduler.update_state_after_alloc(request, blocks, external)

    def step(self, _result: Any, output: Dict[str, Any]) -> None:
        for name, new in output["hashes"].items():
            self.extend(self.requests[name], new)
        scheduled = output["new"] + output["cached"]

        def forward() -> None:
            for name, before in scheduled:
                self.compute(name, before, output["scheduled"][name], output["tables"][name])
            # A request may share blocks that another one computes in the same step.
            for name, before in scheduled:
                self.verify(name, before, output["tables"][name])

        self.follow(*self.engine.step(scheduler_output(output), forward))

    def empty_step(self) -> None:
        self.follow(*self.engine.step(empty_output()))

    def follow(self, plan: Any, sent: Set[str]) -> None:
        self.loads.update({job.request: job for job in plan.loads})
        self.waiting.update(plan.delayed)
        self.waiting -= sent

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
        deadline = time.monotonic() + HANG_SECONDS
        while not self.is_settled():
            self.test.assertLess(time.monotonic(), deadline, "a transfer that does not end")
            self.empty_step()
        for name in self.engine.report():
            job, keys = self.loads.pop(name), self.requests[name].block_hashes
            first = self.firsts[name].index(job.block_ids[0])
            for index, block in enumerate(job.block_ids, first):
                self.test.assertEqual(self.engine.read(block), content(keys[index]))
            self.restored += len(job.block_ids)

    def is_settled(self) -> bool:
        stored = self.engine.stored_jobs() == self.engine.open_work()[0]
        return stored and not self.waiting and set(self.loads) <= self.engine.received()

    def finished(self, _result: Any, plain: Dict[str, Any]) -> None:
        request = self.request(plain)
        self.engine.scheduler.request_finished(request, [])

    def reset(self, result: Any) -> None:
        self.test.assertEqual(self.engine.scheduler.reset_cache(), result)


def metrics_of(module: Any, figures: List[Dict[str, Any]]) -> Dict[str, Any]:
    """The metrics that vLLM's endpoint has after these figures."""
    import prometheus_client

    types = {getattr(prometheus_client, kind): stand_ins.Metric for kind in stand_ins.Metric.KINDS}
    made = module.HearthConnector.build_prom_metrics(
        SimpleNamespace(kv_transfer_config=None), types, ["engine"], {0: ["0"]}
    )
    total = module.HearthConnector.build_kv_connector_stats({})
    for data in figures:
        total = total.aggregate(module.HearthConnector.build_kv_connector_stats(data))
    made.observe(total.to_dict(), engine_idx=0)
    total.reset()
    assert total.is_empty()
    return {name: metric.values for name, metric in made._metrics.items()}


class Interface(unittest.TestCase):
    def test_each_method_that_the_connector_overrides_takes_what_vllm_passes(self) -> None:
        with stand_ins.installed() as module:
            prometheus = __import__("hearth_vllm.prometheus", fromlist=["HearthStats"])
            pairs: List[Tuple[type, str]] = [
                (module.HearthConnector, "KVConnectorBase_V1"),
                (module.HearthReport, "KVConnectorWorkerMetadata"),
                (prometheus.HearthStats, "KVConnectorStats"),
                (prometheus.HearthPromMetrics, "KVConnectorPromMetrics"),
            ]
        checked = 0
        for own, base in pairs:
            recorded = stand_ins.INTERFACE["classes"][base]["members"]
            for name, value in vars(own).items():
                if name.startswith("_") and name != "__init__" or not callable_of(value):
                    continue
                if name == "__init__" and name not in recorded:
                    continue
                with self.subTest(f"{own.__name__}.{name}"):
                    self.assertIn(name, recorded, "vLLM has no such method: nothing calls it")
                    wanted = stand_ins.signature_of(base, name).parameters
                    found = inspect.signature(callable_of(value)).parameters
                    self.assertEqual(
                        [(one.name, one.kind) for one in found.values()],
                        [(one.name, one.kind) for one in wanted.values()],
                    )
                    checked += 1
        self.assertGreater(checked, 25)

    def test_the_stand_in_of_the_base_class_has_the_abstract_methods_of_vllm(self) -> None:
        with stand_ins.installed() as module:
            partial = type("Partial", (module.KVConnectorBase_V1,), {})
            with self.assertRaisesRegex(TypeError, "start_load_kv"):
                partial(None, None, None)

    def test_the_connector_is_not_for_the_hybrid_memory_allocator(self) -> None:
        self.assertEqual(
            stand_ins.INTERFACE["classes"]["SupportsHMA"]["abstract"],
            ["request_finished_all_groups"],
        )
        with stand_ins.installed() as module:
            self.assertFalse(hasattr(module.HearthConnector, "request_finished_all_groups"))


def callable_of(value: Any) -> Any:
    if isinstance(value, property):
        return value.fget
    value = getattr(value, "__func__", value)
    return value if inspect.isfunction(value) else None


class Metrics(unittest.TestCase):
    def test_the_figures_of_both_sides_add_up_at_vllms_endpoint(self) -> None:
        scheduler = {
            "counters": {"lookups": {"hit": 2, "miss": 1}},
            "histograms": {"lookup_seconds": [0.01]},
            "gauges": {"excess_wait_seconds_max": 0.5},
        }
        ranks = [
            {"counters": {"loaded_bytes": {"": 4096}}, "gauges": {"store_backlog_blocks": 3}},
            {"counters": {"loaded_bytes": {"": 4096}}, "gauges": {"store_backlog_blocks": 7}},
        ]
        with stand_ins.installed() as module:
            found = metrics_of(module, [scheduler, *ranks])
        self.assertEqual(found["lookups"], {("0", "hit"): [2], ("0", "miss"): [1]})
        self.assertEqual(found["loaded_bytes"], {("0",): [8192]})
        self.assertEqual(found["lookup_seconds"], {("0",): [0.01]})
        self.assertEqual(found["excess_wait_seconds_max"], {("0",): [0.5]})
        self.assertEqual(found["store_backlog_blocks"], {("0",): [7]})


@unittest.skipUnless(real_agent.COMMAND, "HEARTH_TEST_AGENT does not say how to start an agent")
class RecordedCalls(unittest.TestCase):
    def test_the_recording_has_every_kind_of_request(self) -> None:
        lines = recordings.read(recordings.FILES["vllm"])
        found = recordings.FEATURES["vllm"](lines)
        self.assertEqual([name for name, count in found.items() if count == 0], [])

    def test_all_blocks_are_where_the_real_scheduler_expects_them(self) -> None:
        lines = recordings.read(recordings.FILES["vllm"])
        with real_agent.RealAgent() as agent, stand_ins.installed() as module:
            with closing(ConnectorEngine(module, agent.path)) as engine:
                replay = Replay(self, engine)
                for line in lines:
                    replay.run(line)
                # The recording is useful only if blocks were loaded.
                self.assertGreater(replay.restored, 100)
                self.assertFalse(engine.open_work()[0])
                self.assertEqual(engine.open_work()[2], 0)
                found = metrics_of(module, engine.stats())
        self.assertEqual(sum(found["loaded_bytes"][("0",)]), replay.restored * BLOCK_BYTES)
        self.assertGreater(sum(found["lookups"][("0", "hit")]), 0)
        self.assertGreater(sum(found["stored_bytes"][("0",)]), 0)


if __name__ == "__main__":
    unittest.main()
