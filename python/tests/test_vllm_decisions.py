"""hearth_vllm without vLLM: lookups, prefill speed, announcements, store jobs, block tables."""

from __future__ import annotations

import unittest
from threading import Event
from types import SimpleNamespace
from typing import Any, List

from hearth_vllm.guards import Guard
from hearth_vllm.handoff import Handoff
from hearth_vllm.keys import BlockKeys
from hearth_vllm.metrics import Stats
from hearth_vllm.outputs import BlockTables
from hearth_vllm.plan import StepReport
from hearth_vllm.rates import PrefillRate
from hearth_vllm.scheduler import EngineScheduler
from hearth_vllm.search import HIT, MISS, SLOW, STALLED, Search
from hearth_vllm.settings import Settings
from hearth_vllm.stores import Stores

from .real_agent import until
from .scripted_store import Faulty, Ticket
from .vllm_engine import scheduler_output

BLOCK_TOKENS = 32


def request(tokens: List[int], prompt: int = 0, **more: Any) -> Any:
    count = len(tokens) // BLOCK_TOKENS
    return SimpleNamespace(
        request_id="r",
        all_token_ids=tokens,
        num_tokens=len(tokens),
        num_prompt_tokens=prompt or len(tokens),
        block_hashes=[bytes([i]) * 32 for i in range(count)],
        **more,
    )


class Lookups(unittest.TestCase):
    def setUp(self) -> None:
        self.now, self.ticket = 0.0, Ticket()
        keys = [bytes(32)] * 8
        self.search = Search(self.ticket, keys, 2, now=0.0, stall_s=0.1, limit_s=0.3)
        self.long = Search(self.ticket, keys, 2, now=0.0, stall_s=0.1, limit_s=2.0)

    def poll(self, now: float) -> bool:
        self.now = now
        return self.search.poll(0.0, lambda: self.now)

    def test_an_answer_decides_how_many_blocks_are_ready(self) -> None:
        self.assertFalse(self.poll(0.01))
        self.ticket.last_progress = 0.02
        self.ticket.answer = SimpleNamespace(leading=8, ready=5, outcome="ok")
        self.assertTrue(self.poll(1.5))
        self.assertEqual((self.search.outcome, self.search.ready), (HIT, 5))
        # The reply came after 20 ms, whenever vLLM asked for it.
        self.assertEqual(self.search.waited_s, 0.02)

    def test_nothing_ready_is_a_miss(self) -> None:
        self.ticket.answer = SimpleNamespace(leading=8, ready=0, outcome="ok")
        self.assertTrue(self.poll(0.01))
        self.assertEqual(self.search.outcome, MISS)

    def test_100_ms_without_progress_end_a_lookup(self) -> None:
        self.ticket.last_progress, self.ticket.ready_now = 0.05, 3
        self.assertFalse(self.poll(0.149))
        self.assertTrue(self.poll(0.151))
        self.assertEqual((self.search.outcome, self.search.ready), (STALLED, 0))
        # The ready blocks of a long prompt are worth another stall.
        self.assertTrue(self.long.poll(0.0, lambda: 0.151))
        self.assertEqual((self.long.outcome, self.long.ready), (STALLED, 3))

    def test_a_lookup_slower_than_computing_ends_with_the_blocks_that_are_ready(self) -> None:
        self.ticket.last_progress, self.ticket.ready_now = 0.25, 3
        self.assertFalse(self.poll(0.29))
        self.ticket.last_progress = 0.29
        self.assertTrue(self.poll(0.31))
        self.assertEqual((self.search.outcome, self.search.ready), (SLOW, 3))

    def test_an_abandoned_lookup_is_cancelled_once(self) -> None:
        self.search.abandon(0.25)
        self.assertTrue(self.ticket.cancelled)
        self.assertTrue(self.poll(9.0))
        self.assertEqual(self.search.waited_s, 0.25)

    def test_a_reservation_is_counted_from_the_answer(self) -> None:
        search = Search(
            self.ticket, [bytes(32)] * 8, 2, now=0.0, stall_s=0.1, limit_s=60.0, hold_s=8.0
        )
        # A lookup in progress is not begun again, however long it takes.
        self.assertTrue(search.covers(2, 10, 59.0))
        self.ticket.last_progress = 30.0
        self.ticket.answer = SimpleNamespace(leading=8, ready=8, outcome="ok")
        self.assertTrue(search.poll(0.0, lambda: 30.0))
        self.assertTrue(search.covers(3, 10, 37.9))
        self.assertFalse(search.covers(3, 10, 38.1))
        self.assertFalse(search.covers(1, 10, 30.0))


class Rates(unittest.TestCase):
    def test_prefill_speed_is_learned_from_long_steps_only(self) -> None:
        rate = PrefillRate()
        rate.step_begins(0.0, 2_000)
        rate.step_ended(1.0)
        self.assertAlmostEqual(rate.seconds(4_000), 2.0)
        rate.step_begins(1.0, 8)
        rate.step_ended(9.0)
        rate.step_ended(10.0)
        self.assertAlmostEqual(rate.seconds(4_000), 2.0)

    def test_a_step_is_measured_although_the_next_one_was_scheduled(self) -> None:
        rate = PrefillRate()
        rate.step_begins(0.0, 2_000)
        rate.step_begins(0.1, 1)
        rate.step_ended(1.0)
        self.assertAlmostEqual(rate.seconds(4_000), 2.0)
        rate.step_begins(1.0, 2_000)
        rate.step_ended(5.0)
        rate.step_ended(6.0)
        self.assertAlmostEqual(rate.seconds(4_000), 2.0)

    def test_a_suspended_step_predicts_a_time_that_fits_a_deadline(self) -> None:
        rate = PrefillRate()
        rate.step_begins(0.0, 64)
        rate.step_ended(86_400.0)
        self.assertLess(1000 * rate.seconds(1_000_000), 1 << 32)

    def test_a_given_speed_is_kept(self) -> None:
        rate = PrefillRate(1_000)
        rate.step_begins(0.0, 2_000)
        rate.step_ended(1.0)
        self.assertEqual(rate.seconds(1_000), 1.0)


class Scheduler(unittest.TestCase):
    def setUp(self) -> None:
        self.scheduler = EngineScheduler(Settings(), block_tokens=BLOCK_TOKENS)
        self.request = request([1] * 128)

    def counted(self) -> Any:
        taken = self.scheduler.stats.take()
        assert taken is not None
        return taken["counters"]["load_blocks"], taken["histograms"]["load_seconds"]

    def test_a_load_counts_what_each_rank_reported_in_an_earlier_step(self) -> None:
        self.scheduler.allocated(self.request, [7, 8, 9], 96)
        self.scheduler.reported(StepReport(loaded={"r": 0.75}), set(), {8})
        self.scheduler.reported(StepReport(loaded={"r": 0.25}), {"r"}, set())
        self.assertEqual(self.counted(), ({"restored": 1, "failed": 2}, [0.75]))
        # Another request may get the block: only its own load is counted.
        other = request([2] * 128)
        other.request_id = "other"
        self.scheduler.allocated(other, [8], 32)
        self.scheduler.reported(StepReport(loaded={"other": 0.5}), {"other"}, set())
        self.assertEqual(self.counted(), ({"restored": 1}, [0.5]))

    def test_a_lookup_that_raises_computes_the_prompt(self) -> None:
        self.scheduler.attach(Faulty())
        self.addCleanup(self.scheduler.close)
        with self.assertLogs("vllm.hearth", "ERROR"):
            self.assertEqual(self.scheduler.match(self.request, 0), (0, False))
        self.assertEqual(self.scheduler.match(self.request, 0), (0, False))
        self.assertEqual(self.scheduler.store.calls, ["lookup"])

    def test_a_store_that_fails_after_a_reset_is_not_repeated(self) -> None:
        self.scheduler.store = SimpleNamespace(connected=True, incarnation=0)
        first = self.scheduler.step(self.output(0, 96))
        self.assertEqual([job.block_ids for job in first.stores], [[7, 8, 9]])
        self.scheduler.reset()
        self.scheduler.reported(StepReport(stored={0: (1, [0])}), set(), set())
        self.assertEqual(self.scheduler.step(self.output(96, 32)).stores, [])

    def output(self, before: int, tokens: int) -> Any:
        self.scheduler.added(self.request)
        return scheduler_output(
            {
                "new": [["r", before]],
                "cached": [],
                "scheduled": {"r": tokens},
                "total": tokens,
                "tables": {"r": [7, 8, 9, 10]},
            }
        )


class Announcements(unittest.TestCase):
    def test_an_announcement_is_renewed_whenever_it_was_made(self) -> None:
        announced: List[bytes] = []
        store = SimpleNamespace(
            announce=lambda keys, _ttl_ms: announced.extend(keys),
            withdraw=lambda _keys: None,
            beat=lambda _ttl_ms: None,
        )
        guard = Guard(Stats())
        handoff = Handoff(Settings(announce_ms=200), store, BlockKeys(), BLOCK_TOKENS, guard)
        self.addCleanup(handoff.close)
        first, second = request([1] * 32), request([2] * 64)
        second.request_id, second.block_hashes = "second", [b"2" * 32]
        pending = [second]

        class Wake(Event):
            """An announcement comes while the thread is about to wait."""

            def clear(self) -> None:
                if pending and not handoff._announced:
                    handoff.announce(pending.pop(), [b"2" * 32])
                super().clear()

        handoff._wake = Wake()
        handoff.announce(first, first.block_hashes)
        handoff.settled("r")
        handoff._wake.set()
        until(lambda: announced.count(b"2" * 32) > 2, "renewals")


class StoreJobs(unittest.TestCase):
    def setUp(self) -> None:
        self.stores = Stores(BlockKeys(), blocks=8, ranks=2, refresh_seconds=60)
        self.request = request([1] * 320)
        self.table = list(range(100, 110))

    def plan(self, first: int, end: int, now: float = 0.0, transient: Any = None) -> List[Any]:
        return self.stores.plan(
            self.request, self.table, first, end, transient=transient, now=now
        )

    def test_a_job_has_the_parent_of_its_first_block(self) -> None:
        (job,) = self.plan(2, 5)
        self.assertEqual(job.keys, self.request.block_hashes[2:5])
        self.assertEqual(job.parents(), self.request.block_hashes[1:4])
        self.assertEqual(job.block_ids, [102, 103, 104])
        self.assertIsNone(self.plan(0, 1)[0].parent)

    def test_blocks_are_known_when_every_rank_stored_them(self) -> None:
        (job,) = self.plan(0, 4)
        report = StepReport()
        report.add(job.job, [])
        self.assertEqual(self.stores.report(report, 1.0), [])
        other = StepReport()
        other.add(job.job, [2])
        self.assertEqual(self.stores.report(other, 1.0), [(job, [2])])
        self.assertEqual([one.first for one in self.plan(0, 5, now=2.0)], [2, 4])
        # After the refresh time the agent is asked again.
        self.assertEqual([one.first for one in self.plan(0, 5, now=100.0)], [0])

    def test_transient_blocks_get_jobs_of_their_own(self) -> None:
        jobs = self.plan(0, 6, transient=[(2, 4)])
        self.assertEqual(
            [(one.first, len(one.keys), one.transient) for one in jobs],
            [(0, 2, False), (2, 2, True), (4, 2, False)],
        )


class Tables(unittest.TestCase):
    def test_tables_of_older_releases_are_followed_by_their_increments(self) -> None:
        tables = BlockTables()
        new = SimpleNamespace(req_id="a", block_ids=([1, 2],))
        empty = SimpleNamespace(req_ids=[], new_block_ids=[], resumed_req_ids=set())
        first = SimpleNamespace(scheduled_new_reqs=[new], scheduled_cached_reqs=empty)
        tables.update(first)
        more = SimpleNamespace(req_ids=["a"], new_block_ids=[([3],)], resumed_req_ids=set())
        second = SimpleNamespace(scheduled_new_reqs=[], scheduled_cached_reqs=more)
        tables.update(second)
        self.assertEqual(tables.get(second, "a"), [1, 2, 3])
        again = SimpleNamespace(req_ids=["a"], new_block_ids=[([9],)], resumed_req_ids={"a"})
        tables.update(SimpleNamespace(scheduled_new_reqs=[], scheduled_cached_reqs=again))
        self.assertEqual(tables.get(second, "a"), [9])


if __name__ == "__main__":
    unittest.main()
