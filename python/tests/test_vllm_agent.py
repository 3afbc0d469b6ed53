"""hearth_vllm's decisions with real agents: hand-off, hints, faults of the agent."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
import time
import unittest
from hashlib import sha256
from pathlib import Path
from typing import Any, Dict, List

from hearth_vllm.plan import StepPlan, StepReport
from hearth_vllm.settings import Settings
from hearth_vllm.worker import EngineWorker

from . import real_agent
from .vllm_engine import (
    BLOCK_BYTES,
    BLOCK_TOKENS,
    PATIENT,
    Engine,
    Prompt,
    ask,
    compute,
    content,
    empty_output,
    scheduler_output,
    settle,
    until,
)

KEYS = [sha256(f"block {i}".encode()).digest() for i in range(40)]


def envelope(*actions: Dict[str, Any]) -> Dict[str, Any]:
    numbered = [
        {"action_id": str(i), "action_version": "1", "payload": {}, **one}
        for i, one in enumerate(actions)
    ]
    return {"protocol_version": "1", "message_id": "m", "actions": numbered}


@unittest.skipUnless(real_agent.COMMAND, "HEARTH_TEST_AGENT does not say how to start an agent")
class WithAgent(unittest.TestCase):
    agent: real_agent.RealAgent

    @classmethod
    def setUpClass(cls) -> None:
        cls.agent = real_agent.RealAgent(64, ssd=True)
        cls.addClassCleanup(cls.agent.__exit__)

    def engine(self, settings: Settings = PATIENT) -> Engine:
        engine = Engine(self.agent.path, settings)
        self.addCleanup(engine.close)
        return engine

    def keys(self, count: int) -> List[bytes]:
        """Keys of this test alone."""
        return [sha256(self.id().encode() + key).digest() for key in KEYS[:count]]

    def test_a_finished_request_keeps_its_blocks_until_they_are_stored(self) -> None:
        engine = self.engine()
        prompt = Prompt("r", self.keys(6))
        engine.scheduler.added(prompt)
        self.assertEqual(ask(engine, prompt), 0)
        compute(engine, prompt, 0, 6)
        self.assertEqual(engine.scheduler.finished(prompt), (True, None))
        self.assertEqual(settle(engine), {"r"})
        self.assertEqual(engine.scheduler.open_work()[2], 0)
        again = Prompt("again", prompt.block_hashes)
        self.assertEqual(ask(engine, again), 6 * BLOCK_TOKENS)
        # vLLM's own prefix cache has two blocks: the rest comes from Hearth.
        other = Prompt("other", prompt.block_hashes)
        self.assertEqual(ask(engine, other, computed=2 * BLOCK_TOKENS), 4 * BLOCK_TOKENS)

    def test_blocks_of_a_reset_cache_are_not_found(self) -> None:
        engine = self.engine()
        prompt = Prompt("r", self.keys(4))
        compute_all(engine, prompt)
        self.assertTrue(engine.scheduler.reset())
        self.assertEqual(ask(engine, Prompt("s", prompt.block_hashes)), 0)

    def test_a_consumer_waits_for_what_a_producer_computes(self) -> None:
        # Longer than the stall limit: the producer's announcements are the progress.
        settings = Settings(stall_ms=2_000, recompute_tokens_per_second=1.0, announce_ms=1_000)
        producer, consumer = self.engine(), self.engine(settings)
        keys = self.keys(8)
        first = Prompt("p", keys, kv_transfer_params={"do_remote_decode": True})
        producer.scheduler.added(first)
        self.assertEqual(ask(producer, first), 0)
        compute(producer, first, 0, 2)
        settle(producer)
        params = {"do_remote_prefill": True, "hearth": {"wait": True}}
        second = Prompt("d", keys, kv_transfer_params=params)
        consumer.scheduler.added(second)
        asked: List[Any] = []

        def is_waiting() -> bool:
            asked.append(consumer.scheduler.match(second, 0)[0])
            search = consumer.scheduler.search_of("d")
            return search is not None and search.ticket.ready_now >= 2

        until(is_waiting, "two blocks being ready")
        self.assertEqual(set(asked), {None})
        compute(producer, first, 2, 8)
        delayed, answer = producer.scheduler.finished(first)
        self.assertTrue(delayed)
        assert answer is not None
        self.assertEqual(answer["hearth"]["blocks"], 8)
        self.assertTrue(answer["do_remote_prefill"])
        self.assertTrue(answer["hearth"]["source"])
        settle(producer)
        self.assertEqual(ask(consumer, second), 8 * BLOCK_TOKENS)

    def test_a_consumer_is_answered_when_the_producer_stops(self) -> None:
        settings = Settings(stall_ms=30_000, recompute_tokens_per_second=1.0, wait_ms=600_000)
        consumer, keys = self.engine(settings), self.keys(4)
        words = [sys.executable, "-m", "tests.producer", self.agent.path]
        producer = subprocess.Popen(
            [*words, *(key.hex() for key in keys)],
            cwd=Path(__file__).parent.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.addCleanup(producer.communicate)
        self.addCleanup(producer.kill)
        assert producer.stdout is not None
        self.assertEqual(producer.stdout.readline(), b"announced\n")
        prompt = Prompt("d", keys, kv_transfer_params={"do_remote_prefill": True})
        consumer.scheduler.added(prompt)

        def is_waiting() -> bool:
            self.assertIsNone(consumer.scheduler.match(prompt, 0)[0])
            ticket = consumer.scheduler.search_of("d").ticket  # type: ignore[union-attr]
            return bool(ticket.last_progress > ticket.started)

        until(is_waiting, "heartbeats of the agent")
        producer.send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        self.assertEqual(ask(consumer, prompt), 0)
        self.assertIsNone(producer.poll())
        # The last heartbeat counts for two seconds. The announcements would count for 60.
        self.assertLess(time.monotonic() - stopped, 45.0)

    def test_a_sampled_prefix_is_computed_and_a_planted_block_raises_an_alarm(self) -> None:
        keys = self.keys(6)
        writer = self.engine()
        prompt = Prompt("w", keys[:5])
        writer.scheduler.added(prompt)
        self.assertEqual(ask(writer, prompt), 0)
        for block, key in zip(prompt.table, keys):
            writer.write(block, key)
        # One element of block 1 was rounded in another way. Block 3 is of other tokens, block 4
        # in its second layer only.
        rounded, wrong = bytearray(content(keys[1])), content(keys[0])
        rounded[7] ^= 1
        half = content(keys[4])[: BLOCK_BYTES // 2] + wrong[BLOCK_BYTES // 2 :]
        for index, data in ((1, bytes(rounded)), (3, wrong), (4, half)):
            at = prompt.table[index] * BLOCK_BYTES
            writer.ranks[0].bytes[at : at + BLOCK_BYTES] = data  # type: ignore[assignment]
        writer.worker.start_stores(planned(writer, prompt))
        settle(writer)
        reader = self.engine(dataclasses.replace(PATIENT, verify_one_in=1))
        sample = Prompt("r", keys)
        reader.scheduler.added(sample)
        self.assertEqual(ask(reader, sample), 0)
        with self.assertLogs("hearth_vllm", "ERROR") as logs:
            compute(reader, sample, 0, 6)
            settle(reader)
        counted = (reader.worker.stats.take() or {})["counters"]
        self.assertEqual(counted["verified_blocks"], {"equal": 3, "mismatch": 2})
        self.assertEqual(counted["store_blocks"], {"present": 5, "ok": 1})
        self.assertIn(keys[3].hex(), logs.output[0])
        self.assertIn(keys[4].hex(), logs.output[1])
        # Blocks that were not sampled are restored.
        other = self.engine()
        self.assertEqual(ask(other, Prompt("o", keys)), 6 * BLOCK_TOKENS)

    def test_a_block_is_a_hit_when_every_rank_has_it(self) -> None:
        engine = Engine(self.agent.path, tp_size=2)
        self.addCleanup(engine.close)
        prompt = Prompt("r", self.keys(4))
        engine.scheduler.added(prompt)
        self.assertEqual(ask(engine, prompt), 0)
        for part, rank in zip(KEYS, engine.ranks):
            for block, key in zip(prompt.table, prompt.block_hashes):
                rank.write(block, key + part)
        plan = planned(engine, prompt)
        engine.ranks[0].worker.start_stores(plan)
        first = reported(engine.ranks[0].worker)
        engine.scheduler.reported(first, set(), set())
        self.assertEqual(engine.scheduler.open_work()[0], 1)
        self.assertEqual(ask(engine, Prompt("s", prompt.block_hashes)), 0)
        engine.ranks[1].worker.start_stores(plan)
        engine.scheduler.reported(reported(engine.ranks[1].worker), set(), set())
        self.assertEqual(engine.scheduler.open_work()[0], 0)
        again = Prompt("t", prompt.block_hashes, at=20)
        self.assertEqual(ask(engine, again), 4 * BLOCK_TOKENS)
        engine.scheduler.allocated(again, again.table, 4 * BLOCK_TOKENS)
        load = engine.scheduler.step(empty_output())
        for part, rank in zip(KEYS, engine.ranks):
            rank.worker.start_loads(load)
            until(lambda rank=rank: "t" in rank.worker.finished(StepPlan())[1], "the load")
            self.assertEqual(rank.worker.errors(), set())
            for block, key in zip(again.table, prompt.block_hashes):
                self.assertEqual(rank.read(block), content(key + part))

    def test_with_mla_one_rank_stores_and_every_rank_loads(self) -> None:
        engine = Engine(self.agent.path, tp_size=2, mla=True)
        self.addCleanup(engine.close)
        prompt = Prompt("r", self.keys(3))
        engine.scheduler.added(prompt)
        for block, key in zip(prompt.table, prompt.block_hashes):
            engine.write(block, key)
        plan = planned(engine, prompt)
        for rank in engine.ranks:
            rank.worker.start_stores(plan)
            engine.scheduler.reported(reported(rank.worker), set(), set())
        again = Prompt("t", prompt.block_hashes, at=20)
        self.assertEqual(ask(engine, again), 3 * BLOCK_TOKENS)
        engine.scheduler.allocated(again, again.table, 3 * BLOCK_TOKENS)
        load = engine.scheduler.step(empty_output())
        for rank in engine.ranks:
            rank.worker.start_loads(load)
            until(lambda rank=rank: "t" in rank.worker.finished(StepPlan())[1], "the load")
            for block, key in zip(again.table, prompt.block_hashes):
                self.assertEqual(rank.read(block), content(key))

    def test_hints_become_commands_with_an_outcome_for_each_block(self) -> None:
        engine = self.engine()
        hints = envelope(
            {"action_type": "pin", "payload": {"prefix_tokens": 64, "ttl_seconds": 60}},
            {"action_type": "pin", "payload": {"prefix_tokens": 1, "from_token": 1}},
            {"action_type": "juggle"},
            {"action_type": "retain", "payload": {"priority": {"of": object()}}},
        )
        prompt = Prompt("h", self.keys(4), kv_transfer_params={"kv_hints": hints})
        engine.scheduler.added(prompt)
        self.assertEqual(ask(engine, prompt), 0)
        compute(engine, prompt, 0, 4)
        settle(engine)
        until(lambda: settle(engine) or not engine.scheduler.open_work()[1], "the receipts")
        _, answer = engine.scheduler.finished(prompt)
        assert answer is not None
        pin, wrong, _ = answer["hearth"]["kv_hints"]["outcomes"]
        self.assertEqual(pin["blocks"], {"accepted": 2})
        self.assertEqual(list(wrong["blocks"]), ["rejected"])
        self.assertIn("exclude each other", wrong["reason"])

    def test_lookups_of_a_stopped_agent_end_and_later_ones_hit_again(self) -> None:
        engine = self.engine(Settings(stall_ms=100, recompute_tokens_per_second=1.0))
        prompt = Prompt("r", self.keys(4))
        compute_all(engine, prompt)
        self.agent.stop()
        try:
            self.assertEqual(ask(engine, Prompt("s", prompt.block_hashes)), 0)
        finally:
            self.agent.resume()
        store = engine.scheduler.store
        until(lambda: store.connected, "the agent answering again")
        self.assertEqual(ask(engine, Prompt("t", prompt.block_hashes)), 4 * BLOCK_TOKENS)


def planned(engine: Engine, prompt: Prompt) -> StepPlan:
    """The plan of a step that computes all blocks of a prompt."""
    tokens = prompt.num_tokens
    output = {"new": [[prompt.request_id, 0]], "cached": [], "total": tokens}
    scheduled = {"scheduled": {prompt.request_id: tokens}}
    tables = {"tables": {prompt.request_id: prompt.table}}
    return engine.scheduler.step(scheduler_output({**output, **scheduled, **tables}))


def reported(worker: EngineWorker) -> StepReport:
    found: List[StepReport] = []

    def has_report() -> bool:
        report = worker.report()
        if report is not None:
            found.append(report)
        return bool(found)

    until(has_report, "a report")
    return found[0]


def compute_all(engine: Engine, prompt: Prompt) -> None:
    engine.scheduler.added(prompt)
    compute(engine, prompt, 0, len(prompt.block_hashes))
    settle(engine)
    engine.scheduler.finished(prompt)


@unittest.skipUnless(real_agent.COMMAND, "HEARTH_TEST_AGENT does not say how to start an agent")
class WithoutAgent(unittest.TestCase):
    def test_an_engine_serves_before_the_agent_starts_and_after_it_ended(self) -> None:
        agent = real_agent.RealAgent(ssd=True)
        self.addCleanup(agent.__exit__)
        engine = Engine(agent.path)
        self.addCleanup(engine.close)
        keys = [sha256(b"restart" + key).digest() for key in KEYS[:4]]
        compute_all(engine, Prompt("r", keys))
        until(lambda: agent_wrote(agent, 4), "four files")
        agent.kill()
        until(lambda: not engine.scheduler.store.connected, "the lost connection")
        lost = Prompt("s", keys)
        self.assertEqual(ask(engine, lost), 0)
        compute(engine, lost, 0, 4)
        settle(engine)
        agent.start()
        until(lambda: engine.scheduler.store.connected, "the next connection")
        self.assertEqual(ask(engine, Prompt("t", keys)), 4 * BLOCK_TOKENS)


def agent_wrote(agent: real_agent.RealAgent, files: int) -> bool:
    import glob
    import os

    return len(glob.glob(os.path.join(agent.folder, "ssd", "**", "*.kvb"), recursive=True)) >= files


if __name__ == "__main__":
    unittest.main()
