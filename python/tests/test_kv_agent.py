"""KvStore and an agent that is killed, stopped, restarted or full."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path
from typing import Any, List
from unittest import mock

from hearth_client import Outcome, Tier
from hearth_client.copiers import PagedCopier
from hearth_client.kv_store import KvStore, Piece, Role
from hearth_client.layout import Hello

from .kv_pool import BLOCK_BYTES, Messages, Pool, content, keys_of, parents_of, ready, store
from .real_agent import COMMAND, HANG_SECONDS, RealAgent, until

FOLDER = Path(__file__).resolve().parents[1]
#: A worker process of the engine: gets blocks and prints how many were right.
WORKER = """
import sys
from tests.kv_pool import Pool, keys_of, store
count = int(sys.argv[2])
with store(sys.argv[1], role=2) as worker:
    pool = Pool(count)
    outcomes = worker.get(keys_of(count), pool.memory, range(count))
    print(sum(o == 0 for o in outcomes), sum(pool.is_right(b, b) for b in range(count)))
"""


class Absent(unittest.TestCase):
    def test_without_an_agent_everything_is_a_miss(self) -> None:
        messages = Messages()
        keys, pool = keys_of(3), Pool(3)
        with store("/nonexistent/engine.sock", logger=messages.logger) as one:
            self.assertFalse(one.connected)
            self.assertEqual(one.incarnation, 0)
            self.assertEqual(one.get(keys, pool.memory, range(3)), [Outcome.MISS] * 3)
            put = one.put(keys, parents_of(keys), pool.memory, range(3))
            self.assertEqual(put, [Outcome.SKIPPED] * 3)
            ticket = one.lookup(keys)
            self.assertTrue(ticket.done())
            self.assertEqual(ticket.result().outcome, "gone")
            self.assertEqual(one.exists(keys), 0)
            self.assertEqual(one.command({"type": "Flush"}).result()["status"], "gone")
            one.announce(keys, 100)
            one.withdraw(keys)
            one.beat(100)
            one.unhold(ticket)
            self.assertGreaterEqual(one.fileno(), 0)
            one.poll()
            until(lambda: one._link._delay > 0.3, "a backoff that grows")
            self.assertEqual(len(messages.lines), 1)

    def test_arguments_that_cannot_be_right(self) -> None:
        pool = Pool(1)
        with store("/nonexistent/engine.sock") as one:
            for call in (
                lambda: one.get(keys_of(2), pool.memory, [0]),
                lambda: one.get([b"short"], pool.memory, [0]),
                lambda: one.put(keys_of(1), [], pool.memory, [0]),
                lambda: one.lookup([b"short"]),
                lambda: one.announce([b"short"], 1),
            ):
                with self.assertRaises(ValueError):
                    call()
        for options in ({"engine_id": b"short"}, {"engine_id": bytes(16)}, {"stall_ms": 0}):
            with self.assertRaises(ValueError):
                store("/nonexistent/engine.sock", **options)


@unittest.skipUnless(COMMAND, "HEARTH_TEST_AGENT does not say how to start an agent")
class Agent(unittest.TestCase):
    def open(self, ram_mib: int = 32, *, ssd: bool = False) -> RealAgent:
        agent = RealAgent(ram_mib, ssd=ssd)
        self.addCleanup(agent.__exit__)
        return agent

    def connect(self, agent: RealAgent, **options: Any) -> KvStore:
        one = store(agent.path, **options)
        self.addCleanup(one.close)
        self.assertTrue(one.connected)
        return one

    def fill(self, one: KvStore, count: int, size: int = 32) -> List[bytes]:
        keys, pool = keys_of(count, size), Pool(count).fill()
        outcomes = one.put(keys, parents_of(keys), pool.memory, range(count))
        self.assertEqual(outcomes, [Outcome.OK] * count)
        return keys

    def check_got(self, one: KvStore, keys: List[bytes]) -> None:
        pool, ids = Pool(len(keys)), list(reversed(range(len(keys))))
        self.assertEqual(one.get(keys, pool.memory, ids), [Outcome.OK] * len(keys))
        for block in range(len(keys)):
            self.assertTrue(pool.is_right(ids[block], block), block)

    def test_what_is_put_is_found_and_got(self) -> None:
        agent = self.open()
        one = self.connect(agent)
        for size in (32, 16):
            with self.subTest(size=size):
                keys = self.fill(one, 150, size)
                self.assertEqual(ready(one.lookup(keys)), (150, 150, "ok"))
                self.assertEqual(one.exists([*keys, bytes(size)]), 150)
                self.check_got(one, keys)
                again = one.put(keys, parents_of(keys), Pool(150).memory, range(150))
                self.assertEqual(set(again), {Outcome.PRESENT})
        stats = one.stats.snapshot()
        self.assertEqual((stats["put_blocks"], stats["got_blocks"]), (300, 300))
        self.assertEqual(stats["put_bytes"], 300 * BLOCK_BYTES)
        self.assertEqual(stats["hit_blocks"], 600)

    def test_pieces_aliases_and_other_lengths(self) -> None:
        agent = self.open()
        one = self.connect(agent)
        data = [bytearray(content(at, 1000 + at)) for at in range(5)]
        arrays = [(ctypes.c_char * len(one_)).from_buffer(one_) for one_ in data]
        pieces = [
            [Piece(ctypes.addressof(array), 700), Piece(ctypes.addressof(array) + 700, size - 700)]
            for array, size in zip(arrays, map(len, data))
        ]
        keys = keys_of(5)
        put = one.put_pieces(keys, parents_of(keys), pieces, aliases=[7, 8, 9, 10, 11], session=3)
        self.assertEqual(put, [Outcome.OK] * 5)
        for one_ in data:
            one_[:] = bytes(len(one_))
        self.assertEqual(one.get_pieces(keys, pieces), [Outcome.OK] * 5)
        self.assertEqual(data, [content(at, 1000 + at) for at in range(5)])
        wrong = [pieces[1], pieces[1]]
        self.assertEqual(one.get_pieces(keys[:2], wrong), [Outcome.TOO_LARGE, Outcome.OK])

    def test_misses_leave_the_others_alone(self) -> None:
        agent = self.open()
        one = self.connect(agent)
        keys, pool = self.fill(one, 3), Pool(4)
        mixed = [keys[0], bytes(31) + b"\1", keys[2], bytes(31) + b"\2"]
        outcomes = one.get(mixed, pool.memory, [3, 2, 1, 0])
        self.assertEqual(outcomes, [Outcome.OK, Outcome.MISS, Outcome.OK, Outcome.MISS])
        self.assertTrue(pool.is_right(3, 0) and pool.is_right(1, 2))
        self.assertEqual(one.stats.failures["miss"], 2)

    def test_a_put_that_is_stopped_stores_no_chunk_that_ended_after_that(self) -> None:
        agent = self.open()
        one = self.connect(agent)
        keys, pool, copied = keys_of(200), Pool(200).fill(), []
        gather = PagedCopier.gather

        def counted(copier: PagedCopier, *words: Any) -> Any:
            copied.append(gather(copier, *words))
            return copied[-1]

        with mock.patch.object(PagedCopier, "gather", counted):
            outcomes = one.put(
                *(keys, parents_of(keys), pool.memory, range(200)),
                should_stop=lambda: len(copied) == 2,
            )
        self.assertEqual(outcomes[:64], [Outcome.OK] * 64)
        self.assertEqual(outcomes[64:], [Outcome.SKIPPED] * 136)
        self.assertEqual(ready(one.lookup(keys))[:2], (64, 64))

    def test_an_arena_that_is_full(self) -> None:
        agent = self.open(4)
        one = self.connect(agent)
        keys, pool = keys_of(400), Pool(400).fill()
        held = one.lookup(keys_of(1))
        outcomes = one.put(keys, parents_of(keys), pool.memory, range(400))
        stored = outcomes.count(Outcome.OK)
        self.assertGreater(stored, 0)
        self.assertLessEqual(set(outcomes), {Outcome.OK, Outcome.FULL, Outcome.REJECTED})
        self.assertTrue(one.connected)
        self.assertTrue(held.wait(HANG_SECONDS))

    def test_a_changed_bit_is_corrupt(self) -> None:
        agent = self.open()
        one = self.connect(agent)
        keys, pool = self.fill(one, 3), Pool(3)
        arena = one._link.usable().arena
        whole = arena.read(0, arena.size)
        at = whole.index(content(1))
        arena.write(at + 100, bytes([content(1)[100] ^ 4]))
        outcomes = one.get(keys, pool.memory, range(3))
        self.assertEqual(outcomes, [Outcome.OK, Outcome.CORRUPT, Outcome.OK])

    def test_a_killed_agent_and_its_successor(self) -> None:
        greeted: List[Hello] = []
        messages = Messages()
        agent = self.open()
        one = self.connect(agent, on_connect=greeted.append, logger=messages.logger)
        keys, pool = self.fill(one, 10), Pool(10)
        first = one.incarnation
        ticket = one.lookup(keys, wait=True, deadline_ms=60_000)
        agent.kill()
        self.assertTrue(ticket.wait(HANG_SECONDS))
        until(lambda: not one.connected, "a lost connection")
        self.assertEqual(one.get(keys, pool.memory, range(10)), [Outcome.MISS] * 10)
        put = one.put(keys, parents_of(keys), pool.memory, range(10))
        self.assertEqual(put, [Outcome.SKIPPED] * 10)
        agent.start()
        until(lambda: one.connected, "a new connection")
        self.assertEqual(len(greeted), 2)
        self.assertNotEqual(one.incarnation, first)
        self.assertEqual(greeted[1].incarnation, one.incarnation)
        self.assertEqual(one.exists(keys), 0)
        self.check_got(one, self.fill(one, 10))
        self.assertLessEqual(len(messages.lines), 3)

    def test_an_agent_killed_during_transfers(self) -> None:
        agent = self.open()
        one = self.connect(agent)
        keys = self.fill(one, 100)
        stop, wrong = threading.Event(), []

        def work() -> None:
            pool = Pool(100)
            while not stop.is_set():
                outcomes = one.get(keys, pool.memory, range(100))
                for block, outcome in enumerate(outcomes):
                    if outcome == Outcome.OK and not pool.is_right(block, block):
                        wrong.append(block)
                one.put(keys, parents_of(keys), pool.memory, range(100))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        got = one.stats.got_blocks
        until(lambda: one.stats.got_blocks > got, "transfers")
        agent.kill()
        until(lambda: not one.connected, "a lost connection")
        stop.set()
        for thread in threads:
            thread.join(HANG_SECONDS)
            self.assertFalse(thread.is_alive())
        self.assertEqual(wrong, [])

    def test_a_stopped_agent_is_given_up_and_found_again(self) -> None:
        messages = Messages()
        agent = self.open()
        one = self.connect(agent, logger=messages.logger, stall_ms=1000)
        keys, pool = self.fill(one, 10), Pool(10)
        agent.stop()
        began = time.monotonic()
        self.assertEqual(one.get(keys, pool.memory, range(10)), [Outcome.MISS] * 10)
        waited = time.monotonic() - began
        self.assertGreaterEqual(waited, 1.0)
        self.assertFalse(one.connected)
        calls = 1000
        began = time.monotonic()
        for _ in range(calls):
            self.assertTrue(one.lookup(keys).done())
        self.assertLess((time.monotonic() - began) / calls, 0.05)
        incarnation = one.incarnation
        agent.resume()
        until(lambda: one.connected, "an agent that answers again")
        self.assertEqual(one.incarnation, incarnation)
        self.check_got(one, keys)
        self.assertEqual(len(messages.lines), 2)
        # The slots that the late reply handed out are free: the agent can end.
        self.assertEqual(one._link.usable()._pending, {})

    def test_a_lookup_at_a_stopped_agent_stalls(self) -> None:
        agent = self.open()
        one = self.connect(agent, stall_ms=1000)
        keys = self.fill(one, 10)
        agent.stop()
        ticket = one.lookup(keys, wait=True)
        until(ticket.done, "a ticket that is given up")
        self.assertEqual(ticket.result().outcome, "stalled")
        self.assertFalse(one.connected)
        agent.resume()
        until(lambda: one.connected, "an agent that answers again")
        self.assertEqual(ready(one.lookup(keys)), (10, 10, "ok"))

    def test_blocks_on_ssd_survive_a_restart_and_are_fetched(self) -> None:
        agent = self.open(ssd=True)
        one = self.connect(agent)
        keys = self.fill(one, 40)
        until(lambda: one.exists(keys, tiers=Tier.SSD) == 40, "blocks on SSD")
        agent.kill()
        agent.start()
        until(lambda: one.connected, "a new connection")
        until(lambda: one.exists(keys) == 40, "a restored index")
        result = ready(one.lookup(keys, deadline_ms=30_000))
        self.assertEqual(result, (40, 40, "ok"))
        self.check_got(one, keys)

    def test_a_worker_gets_what_the_scheduler_reserved(self) -> None:
        agent = self.open(8)
        scheduler = self.connect(agent, role=Role.SCHEDULER)
        keys = self.fill(scheduler, 32)
        ticket = scheduler.lookup(keys, hold_ms=60_000)
        self.assertEqual(ready(ticket), (32, 32, "ok"))
        self.assertNotEqual(ticket.hold, 0)
        flood, pool = keys_of(2000, first=1000), Pool(2000)
        scheduler.put(flood, [None] * 2000, pool.memory, range(2000))
        environment = {**os.environ, "PYTHONPATH": str(FOLDER)}
        done = subprocess.run(
            [sys.executable, "-c", WORKER, agent.path, "32"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
        )
        self.assertEqual((done.stdout, done.stderr), ("32 32\n", ""))

    def test_a_lookup_waits_for_what_is_announced(self) -> None:
        agent = self.open()
        scheduler = self.connect(agent, role=Role.SCHEDULER)
        other = self.connect(agent, engine_id=bytes(range(2, 18)), role=Role.WORKER)
        keys = keys_of(5)
        other.announce(keys, 30_000)
        until(lambda: self.announced(scheduler, keys) == 5, "an announcement")
        ticket = scheduler.lookup(keys, wait=True, deadline_ms=60_000)
        self.assertFalse(ticket.done())
        self.fill(other, 5)
        self.assertEqual(ready(ticket), (5, 5, "ok"))

    def announced(self, one: KvStore, keys: List[bytes]) -> int:
        ticket = one.lookup(keys, hold=False, fetch=False)
        assert ticket.wait(HANG_SECONDS)
        announced: int = ticket.result().announced
        return announced

    def test_a_command_is_answered_by_a_receipt(self) -> None:
        agent = self.open()
        one = self.connect(agent)
        keys = self.fill(one, 3)
        ticket = one.command({"type": "Flush"})
        self.assertTrue(ticket.wait(HANG_SECONDS))
        self.assertEqual(ticket.result()["status"], "ok")
        self.assertEqual(one.exists(keys), 0)

    def test_a_command_with_many_blocks_is_answered_by_one_receipt(self) -> None:
        one = self.connect(self.open())
        hashes = list(range(1, 2501))
        ticket = one.command({"type": "Cache", "block_hashes": hashes, "pin": False})
        self.assertTrue(ticket.wait(HANG_SECONDS))
        receipt = ticket.result()
        self.assertEqual(receipt["counts"]["missing"], len(hashes))
        self.assertEqual([block["block"] for block in receipt["blocks"]], hashes)


if __name__ == "__main__":
    unittest.main()
