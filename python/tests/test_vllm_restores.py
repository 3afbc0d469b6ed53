"""How long requests wait for Hearth, and what a bug in the connector costs them."""

from __future__ import annotations

import unittest
from types import SimpleNamespace
from typing import Any, Dict, List, Optional, Tuple

from hearth_vllm.guards import Guard
from hearth_vllm.handoff import Handoff
from hearth_vllm.keys import BlockKeys
from hearth_vllm.metrics import Stats
from hearth_vllm.plan import StepReport
from hearth_vllm.rates import PrefillRate
from hearth_vllm.restores import Restores
from hearth_vllm.scheduler import EngineScheduler
from hearth_vllm.settings import Settings
from hearth_vllm.tracked import Tracked

from .real_agent import until
from .scripted_store import Faulty, Store
from .vllm_engine import BLOCK_TOKENS, Prompt, empty_output, scheduler_output

KEYS = [bytes([i]) * 32 for i in range(8)]


class Waits(unittest.TestCase):
    def setUp(self) -> None:
        self.now, self.store, self.stats = 0.0, Store(), Stats()

    def restores(self, tokens_per_second: float, **settings: Any) -> Restores:
        chosen, keys = Settings(**settings), BlockKeys()
        made = Restores(
            chosen,
            block_tokens=BLOCK_TOKENS,
            readers=1,
            may_load=True,
            keys=keys,
            rate=PrefillRate(tokens_per_second),
            stats=self.stats,
            clock=lambda: self.now,
        )
        handoff = Handoff(chosen, self.store, keys, BLOCK_TOKENS, Guard(self.stats))
        made.attach(self.store, handoff, None)
        return made

    def deadlines(self) -> List[int]:
        return [options["deadline_ms"] for options in self.store.options]

    def excess(self) -> Optional[List[float]]:
        taken = self.stats.take() or {}
        return taken.get("histograms", {}).get("excess_wait_seconds")

    def test_a_lookup_in_progress_is_not_begun_again_when_its_reservation_would_end(self) -> None:
        restores = self.restores(1.0, hold_ms=1_000)
        request = Prompt("r", KEYS)
        state = Tracked(request)
        for step in range(300):
            self.now = step / 10
            for ticket in self.store.tickets:
                ticket.last_progress = self.now
            self.assertEqual(restores.match(state, request, 0), (None, False))
        self.assertEqual(len(self.store.tickets), 1)
        self.store.tickets[0].found(8, at=self.now)
        self.assertEqual(restores.match(state, request, 0), (8 * BLOCK_TOKENS, True))
        # vLLM has no room for a while: the reservation ends, and the blocks are looked up again.
        self.now += 0.9
        self.assertEqual(restores.match(state, request, 0), (None, False))
        self.assertEqual(len(self.store.tickets), 2)

    def test_repeated_lookups_share_one_budget_and_all_their_time_is_recorded(self) -> None:
        restores = self.restores(1e9)
        request = Prompt("r", KEYS)
        state = Tracked(request)
        self.assertEqual(restores.match(state, request, 64), (None, False))
        self.now = 0.03
        # vLLM evicted a block of its own: the lookup does not cover it.
        self.assertEqual(restores.match(state, request, 32), (None, False))
        self.assertEqual(self.deadlines(), [37, 15])
        self.now = 0.046
        self.assertEqual(restores.match(state, request, 32), (0, False))
        self.assertEqual([round(one, 3) for one in self.excess() or []], [0.046])
        self.assertEqual(restores.match(state, request, 0), (0, False))
        self.assertEqual(len(self.store.tickets), 2)

    def test_a_load_gets_what_the_lookup_left_of_the_budget(self) -> None:
        restores = self.restores(1e9)
        request = Prompt("r", KEYS)
        state = Tracked(request)
        self.assertEqual(restores.match(state, request, 0), (None, False))
        self.now = 0.02
        self.store.tickets[0].found(8, at=self.now)
        self.assertEqual(restores.match(state, request, 0), (256, True))
        restores.allocated(state, request, request.table, 256)
        (job,) = restores.step_begins(False)
        self.assertEqual(job.deadline_ms, 30)
        restores.reported(StepReport(loaded={"r": 0.025}), set())
        self.assertEqual(restores.received("r", state), KEYS)
        self.assertEqual([round(one, 3) for one in self.excess() or []], [0.045])

    def test_a_wait_for_a_producer_ends_when_computing_would_have(self) -> None:
        restores = self.restores(1_000.0)
        params = {"do_remote_prefill": True, "hearth": {"source": "prefill", "wait": True}}
        request = Prompt("r", KEYS, kv_transfer_params=params)
        restores.match(Tracked(request), request, 0)
        # Three quarters of 256 ms and the stall limit.
        self.assertEqual(self.deadlines(), [267])


class Announced(unittest.TestCase):
    def setUp(self) -> None:
        self.store = Store()
        self.scheduler = EngineScheduler(Settings(), block_tokens=BLOCK_TOKENS)
        self.handoff = Handoff(
            Settings(), self.store, BlockKeys(), BLOCK_TOKENS, Guard(Stats())
        )
        self.addCleanup(self.handoff.close)
        self.scheduler.store = self.store
        self.scheduler._handoff = self.handoff

    def prompt(self, name: str, keys: List[bytes]) -> Prompt:
        params = {"do_remote_decode": True}
        return Prompt(name, keys, kv_transfer_params=params)

    def store_step(self, prompt: Prompt, blocks: int) -> int:
        plan = self.scheduler.step(computed(prompt, blocks))
        (job,) = plan.stores
        return job.job

    def test_heartbeats_come_until_the_last_block_is_stored(self) -> None:
        prompt = self.prompt("r", KEYS)
        self.scheduler.added(prompt)
        self.handoff.added(prompt)
        number = self.store_step(prompt, 8)
        self.assertTrue(self.scheduler.finished(prompt)[0])
        sent = len(self.store.beats)
        until(lambda: len(self.store.beats) > sent + 2, "heartbeats while blocks are stored")
        self.assertEqual(set(self.store.beats), {100})
        self.scheduler.reported(StepReport(stored={number: (1, [])}), set(), set())
        self.handoff.settled("r")
        sent = len(self.store.beats)
        self.assertFalse(self.handoff._wake.wait(0.1))
        self.assertLessEqual(len(self.store.beats), sent + 1)

    def test_blocks_whose_store_failed_for_the_last_time_are_withdrawn(self) -> None:
        prompt, other = self.prompt("r", KEYS), self.prompt("s", KEYS[:7])
        self.scheduler.added(prompt)
        self.handoff.added(prompt)
        self.handoff.added(other)
        for _ in range(2):
            number = self.store_step(prompt, 8)
            self.scheduler.reported(StepReport(stored={number: (1, [6, 7])}), set(), set())
            self.scheduler._requests["r"].offered = 0
            self.scheduler._stores.forget()
            self.assertEqual(self.store.withdrawn, [])
        number = self.store_step(prompt, 8)
        self.scheduler.reported(StepReport(stored={number: (1, [6, 7])}), set(), set())
        # The other request still announces block 6.
        self.assertEqual(self.store.withdrawn, [KEYS[7]])

    def test_an_ended_request_withdraws_what_was_not_stored(self) -> None:
        prompt = self.prompt("r", KEYS)
        self.scheduler.added(prompt)
        self.handoff.added(prompt)
        number = self.store_step(prompt, 4)
        self.scheduler.finished(prompt)
        self.assertEqual(set(self.store.withdrawn), set(KEYS[4:]))
        self.scheduler.reported(StepReport(stored={number: (1, [3])}), set(), set())
        self.assertIn(KEYS[3], self.store.withdrawn)


def computed(prompt: Prompt, blocks: int) -> Any:
    tokens, name = blocks * BLOCK_TOKENS, prompt.request_id
    output = {"new": [[name, 0]], "cached": [], "scheduled": {name: tokens}, "total": tokens}
    return scheduler_output({**output, "tables": {name: prompt.table}})


class Faults(unittest.TestCase):
    """A bug in any call costs what the call would have done, and no exception reaches vLLM."""

    def setUp(self) -> None:
        self.store = Faulty()
        self.scheduler = EngineScheduler(Settings(), block_tokens=BLOCK_TOKENS)
        self.scheduler.attach(self.store)
        self.addCleanup(self.scheduler.close)
        self.counted: Dict[str, float] = {}

    def errors(self) -> Dict[str, float]:
        taken = self.scheduler.stats.take() or {}
        for reason, count in taken.get("counters", {}).get("errors", {}).items():
            self.counted[reason] = self.counted.get(reason, 0) + count
        return self.counted

    def test_a_bug_in_the_store_is_logged_once_a_part_and_counted(self) -> None:
        params = {"do_remote_decode": True}
        with self.assertLogs("vllm.hearth", "ERROR") as logs:
            for name in ("r", "s"):
                prompt = Prompt(name, KEYS, kv_transfer_params=params)
                self.scheduler.added(prompt)
                self.assertEqual(self.scheduler.match(prompt, 0), (0, False))
                self.assertEqual(self.scheduler.finished(prompt)[0], False)
            self.store.wake()
            until(lambda: self.errors().get("replies"), "the listener's exceptions")
        self.assertLessEqual({"lookup", "hand-off", "replies"}, set(self.errors()))
        lookups = [line for line in logs.output if "exception in lookup" in line]
        self.assertEqual((len(lookups), self.errors()["lookup"]), (1, 2))
        self.assertIn("a bug in lookup", lookups[0])
        # The thread continues.
        before = self.errors()["replies"]
        until(lambda: self.errors()["replies"] > before, "the next turn of the listener")

    def test_a_load_that_cannot_be_planned_fails_instead_of_hanging(self) -> None:
        prompt = Prompt("r", KEYS)
        self.scheduler.added(prompt)
        self.broken("_restores", "allocated")
        with self.assertLogs("vllm.hearth", "ERROR"):
            self.scheduler.allocated(prompt, prompt.table, 3 * BLOCK_TOKENS)
        (job,) = self.scheduler.step(empty_output()).loads
        self.assertEqual((job.request, job.keys, job.block_ids), ("r", [], prompt.table[:3]))
        self.scheduler.reported(None, {"r"}, set(job.block_ids))
        self.assertEqual(self.scheduler.finished(prompt), (False, None))
        self.assertEqual(self.scheduler.open_work()[2], 0)

    def test_a_step_without_stores_still_brings_loads_and_preemptions(self) -> None:
        prompt = Prompt("r", KEYS)
        self.scheduler.added(prompt)
        self.scheduler.allocated(prompt, prompt.table, BLOCK_TOKENS)
        self.broken("_stores", "plan")
        with self.assertLogs("vllm.hearth", "ERROR"):
            plan = self.scheduler.step(computed(prompt, 8))
        self.assertEqual((len(plan.loads), plan.stores), (1, []))

    def test_nothing_is_stored_from_block_tables_that_could_not_be_followed(self) -> None:
        prompt = Prompt("r", KEYS)
        self.scheduler.added(prompt)
        follow = self.broken("_tables", "update")
        with self.assertLogs("vllm.hearth", "ERROR"):
            self.assertEqual(self.scheduler.step(computed(prompt, 4)).stores, [])
        self.scheduler._tables.update = follow  # type: ignore[method-assign]
        self.assertEqual(self.scheduler.step(computed(prompt, 8)).stores, [])

    def test_a_request_keeps_its_blocks_until_they_are_stored_whatever_fails(self) -> None:
        prompt = Prompt("r", KEYS)
        self.scheduler.added(prompt)
        (job,) = self.scheduler.step(computed(prompt, 8)).stores
        self.broken("_handoff", "finished")
        with self.assertLogs("vllm.hearth", "ERROR"):
            self.assertEqual(self.scheduler.finished(prompt), (True, None))
        self.broken("_stores", "report")
        with self.assertLogs("vllm.hearth", "ERROR"):
            self.scheduler.reported(StepReport(stored={job.job: (1, [])}), set(), set())
        self.assertEqual(self.errors(), {"answer": 1, "reports": 1})

    def broken(self, part: str, method: str) -> Any:
        owner = getattr(self.scheduler, part)
        before = getattr(owner, method)

        def call(*_arguments: Any, **_options: Any) -> Tuple[()]:
            raise RuntimeError(f"a bug in {method}")

        setattr(owner, method, call)
        return before


if __name__ == "__main__":
    unittest.main()
