"""KvStore against a scripted agent: silence, late replies, heartbeats and lies."""

from __future__ import annotations

import os
import time
import unittest
from struct import pack
from types import SimpleNamespace
from typing import List, Tuple
from unittest import mock

from hearth_client import Outcome, transfer, transfer_put, xxh3_64
from hearth_client.arena import Arena
from hearth_client.layout import FEATURE_ENGINE, Op
from hearth_client.names import Names
from hearth_client.native import PurePython

from .golden import A, B
from .kv_pool import BLOCK_BYTES, Pool, content, store
from .real_agent import HANG_SECONDS, until
from .scripted_agent import Held, ScriptedAgent, Step, frame, hello_body, reply

ARENA_BYTES = 1 << 16
ENGINE = hello_body(features=FEATURE_ENGINE)
PONG: Step = lambda op, number, _count, body: frame(op, number, 0, body)
JOINED: Step = reply(pack("<II", 1, 0), 0)
HANDLE = pack("<II", 3, 1)
DATA = content(0)


def acquired(offset: int = 0, length: int = BLOCK_BYTES) -> bytes:
    return pack("<IIIIQQ", 0, 3, 1, length, offset, xxh3_64(DATA))


def partial(held: Held, ready: int) -> Step:
    """Answers a request, and sends a partial reply to the lookup that is held back."""
    body = pack("<IIIIII", 2, ready, 9, 1, 0, 0)
    return lambda op, number, _count, text: held.reply(body, 0) + frame(op, number, 0, text)


def sent(agent: ScriptedAgent, op: Op) -> List[bytes]:
    return [request[3] for request in list(agent.requests) if request[0] == op]


@unittest.skipUnless(hasattr(os, "memfd_create"), "needs memfd_create (Linux)")
class Silence(unittest.TestCase):
    def test_a_late_acquire_is_released_and_the_breaker_closes(self) -> None:
        late, ping = Held(), Held()

        def wake_up(op: int, number: int, _count: int, body: bytes) -> bytes:
            return late.reply(acquired(), 1) + ping.reply(b"", 0) + frame(op, number, 0, body)

        gate: List[bool] = []

        def sleep(op: int, number: int, count: int, body: bytes) -> bytes:
            until(lambda: gate, "the end of the breaker's test")
            return wake_up(op, number, count, body)

        script = [late, ping, sleep, *[PONG] * 20]
        with ScriptedAgent(script) as agent:
            with store(agent.path, engine_id=b"", stall_ms=50) as one:
                pool = Pool(1)
                self.assertEqual(one.get([A], pool.memory, [0]), [Outcome.MISS])
                self.assertFalse(one.connected)
                self.assertEqual(one.get([A], pool.memory, [0]), [Outcome.MISS])
                self.assertEqual(len(sent(agent, Op.ACQUIRE)), 1)
                gate.append(True)
                until(lambda: one.connected, "an agent that answers again")
                agent.until(Op.RELEASE)
                self.assertEqual(sent(agent, Op.RELEASE), [HANDLE])
                self.assertEqual(dict(one.stats.failures), {"stalled": 1, "miss": 2, "gone": 1})

    def test_a_put_that_is_stopped_does_not_wait_for_its_commit(self) -> None:
        reserved = pack("<IIIIQ", 0, 3, 1, BLOCK_BYTES, 0)
        script = [reply(reserved, 1), Held(), *[PONG] * 1000]
        with ScriptedAgent(script) as agent, mock.patch.object(transfer_put, "COMMIT_S", 3600.0):
            with store(agent.path, engine_id=b"", stall_ms=1000) as one:
                outcomes = one.put(
                    *([A], [None], Pool(1).memory, [0]),
                    should_stop=lambda: bool(sent(agent, Op.COMMIT)),
                )
                self.assertEqual(outcomes, [Outcome.MISS])
                self.assertEqual(one.stats.failures["stopped"], 1)
                self.assertTrue(one.connected)

    def test_the_arena_stays_mapped_while_its_owner_exists(self) -> None:
        def is_mapped(address: int) -> bool:
            with open("/proc/self/maps", encoding="ascii") as file:
                return any(line.startswith(f"{address:x}-") for line in file)

        with ScriptedAgent([]) as agent:
            found: List[Tuple[int, int, object]] = []
            one = store(agent.path, engine_id=b"", on_arena=found.append)
            one.close()
            address, size, _owner = found.pop()
            self.assertEqual(size, ARENA_BYTES)
            self.assertTrue(is_mapped(address))
            del _owner
            self.assertFalse(is_mapped(address))

    def test_an_arena_that_was_unmapped_meanwhile_is_a_lost_connection(self) -> None:
        descriptor = os.memfd_create("arena")
        os.ftruncate(descriptor, 4096)
        arena = Arena(descriptor, 4096)
        os.close(descriptor)
        arena.close()
        with self.assertRaisesRegex(transfer.GaveUp, "gone"):
            transfer.Transfer(None, SimpleNamespace(arena=arena), None, None)

    def test_an_agent_that_answers_pings_is_waited_for(self) -> None:
        late, asked = Held(), []

        def sometimes(op: int, number: int, _count: int, body: bytes) -> bytes:
            asked.append(number)
            answer = late.reply(acquired(), 1) if len(asked) == 5 else b""
            return frame(op, number, 0, body) + answer

        with ScriptedAgent([late, *[sometimes] * 50]) as agent:
            os.pwrite(agent.arena, DATA, 0)
            with store(agent.path, engine_id=b"", stall_ms=1000) as one:
                pool = Pool(1)
                began = time.monotonic()
                self.assertEqual(one.get([A], pool.memory, [0]), [Outcome.OK])
                self.assertGreater(time.monotonic() - began, 1.0)
                self.assertTrue(pool.is_right(0, 0))
                self.assertTrue(one.connected)

    def test_an_acquire_behind_its_deadline_is_late(self) -> None:
        with ScriptedAgent([Held(), *[PONG] * 100]) as agent:
            with store(agent.path, engine_id=b"", stall_ms=200) as one:
                pool = Pool(1)
                outcomes = one.get([A], pool.memory, [0], deadline_ms=100)
                self.assertEqual(outcomes, [Outcome.MISS])
                self.assertEqual(one.stats.failures["late"], 1)
                self.assertTrue(one.connected)

    def test_a_lookup_stalls_from_its_last_heartbeat_on(self) -> None:
        late = Held()
        script = [JOINED, late, partial(late, 0), partial(late, 1), *[PONG] * 50]
        with ScriptedAgent(script, hello=ENGINE) as agent:
            with store(agent.path) as one:
                ticket = one.lookup([A, B], wait=True)
                connection = one._link.usable()
                assert connection is not None
                for ready in (0, 1):
                    before = ticket.last_progress
                    connection.submit(Op.PING, frame_of_ping)
                    until(lambda: not ticket.done() and ticket.leading_now == 2, "a heartbeat")
                    until(lambda: not ticket.done() and ticket.ready_now == ready, "a heartbeat")
                    until(lambda: not ticket.done() and ticket.last_progress > before, "progress")
                ticket._stall_s = 0.2
                self.assertTrue(ticket.wait(HANG_SECONDS))
                self.assertGreaterEqual(time.monotonic() - ticket.last_progress, 0.2)
                result = ticket.result()
                self.assertEqual((result.outcome, result.leading, result.ready), ("stalled", 2, 1))
                self.assertEqual(ticket.hold, 9)

    def test_the_reservation_of_a_stalled_lookup_without_blocks_is_ended(self) -> None:
        late = Held()
        answer = pack("<IIIIII", 1, 1, 9, 0, 0, 0) + b"\2" + bytes(7)

        def wake_up(op: int, number: int, _count: int, body: bytes) -> bytes:
            return late.reply(answer, 1) + frame(op, number, 0, body)

        with ScriptedAgent([JOINED, late, wake_up, *[PONG] * 20], hello=ENGINE) as agent:
            with store(agent.path, stall_ms=50) as one:
                ticket = one.lookup([A])
                self.assertTrue(ticket.wait(HANG_SECONDS))
                self.assertEqual(ticket.result().outcome, "stalled")
                agent.until(Op.UNHOLD)
                self.assertEqual(sent(agent, Op.UNHOLD), [pack("<II", 9, 0)])
                until(lambda: one.connected, "an agent that answers again")


@unittest.skipUnless(hasattr(os, "memfd_create"), "needs memfd_create (Linux)")
class LongPrefixes(unittest.TestCase):
    """Prefixes of more blocks than one request may name: here two."""

    KEYS = [bytes([at]) * 32 for at in range(5)]
    HELLO = hello_body(features=FEATURE_ENGINE, items_max=2)

    @staticmethod
    def part(leading: int, ready: int, hold: int, count: int = 2) -> Step:
        tiers = bytes([2] * leading).ljust(8, b"\0")
        return reply(pack("<IIIIII", leading, ready, hold, 0, 0, 0) + tiers, count)

    def result(self, script: List[Step]) -> "tuple[ScriptedAgent, tuple[object, ...]]":
        with ScriptedAgent([JOINED, *script], hello=self.HELLO) as agent:
            with store(agent.path) as one:
                ticket = one.lookup(self.KEYS)
                self.assertTrue(ticket.wait(HANG_SECONDS))
                found = ticket.result()
                one.unhold(ticket)
        return agent, (found.leading, found.ready, found.tiers, found.outcome)

    def test_are_asked_for_in_parts(self) -> None:
        parts = [self.part(2, 2, 7), self.part(2, 2, 8), self.part(1, 1, 9, 1)]
        agent, found = self.result(parts)
        self.assertEqual(found, (5, 5, [2] * 5, "ok"))
        self.assertEqual(sent(agent, Op.UNHOLD), [pack("<IIIIII", 7, 0, 8, 0, 9, 0)])
        asked = b"".join(body[136:] for body in sent(agent, Op.LOOKUP))
        self.assertEqual(asked, b"".join(self.KEYS))

    def test_end_with_the_first_part_that_is_not_whole(self) -> None:
        agent, found = self.result([self.part(2, 2, 7), self.part(2, 1, 8)])
        self.assertEqual(found, (4, 3, [2] * 4, "ok"))
        self.assertEqual(len(sent(agent, Op.LOOKUP)), 2)


def frame_of_ping(number: int) -> bytes:
    from hearth_client import protocol

    return protocol.ping_request(number, b"")


@unittest.skipUnless(hasattr(os, "memfd_create"), "needs memfd_create (Linux)")
class Lies(unittest.TestCase):
    def test_a_reply_of_another_length_is_a_miss_and_ends_the_connection(self) -> None:
        for what, script in (("get", [reply(acquired(), 2)]), ("put", [reply(bytes(23), 1)])):
            with self.subTest(what), ScriptedAgent(list(script)) as agent:
                with store(agent.path, engine_id=b"") as one:
                    pool = Pool(2)
                    if what == "get":
                        outcomes = one.get([A, B], pool.memory, [0, 1])
                    else:
                        outcomes = one.put([A, B], [None, A], pool.memory, [0, 1])
                    self.assertEqual(len(outcomes), 2)
                    self.assertNotIn(Outcome.OK, outcomes)
                    until(lambda: not one.connected, "a lost connection")

    def test_a_slot_outside_the_arena_is_not_touched(self) -> None:
        outside = pack("<IIIIQ", 0, 3, 1, BLOCK_BYTES, ARENA_BYTES - 512)
        with ScriptedAgent([reply(outside, 1)]) as agent:
            with store(agent.path, engine_id=b"") as one:
                outcomes = one.put([A], [None], Pool(1).memory, [0])
                self.assertNotIn(Outcome.OK, outcomes)
        beyond = acquired(ARENA_BYTES - 512)
        with ScriptedAgent([reply(beyond, 1), PONG]) as agent:
            with store(agent.path, engine_id=b"") as one:
                self.assertEqual(one.get([A], Pool(1).memory, [0]), [Outcome.TOO_LARGE])
                agent.until(Op.RELEASE)

    def test_bytes_that_do_not_verify_are_corrupt(self) -> None:
        with ScriptedAgent([reply(acquired(), 1)]) as agent:
            with store(agent.path, engine_id=b"") as one:
                self.assertEqual(one.get([A], Pool(1).memory, [0]), [Outcome.CORRUPT])
                agent.until(Op.RELEASE)
                self.assertEqual(one.stats.failures["corrupt"], 1)


class NamesWithoutTheLibrary(unittest.TestCase):
    def test_the_agent_is_asked_once_for_each_key(self) -> None:
        asked: List[List[bytes]] = []

        def ask(keys: "List[bytes]") -> List[bytes]:
            asked.append(list(keys))
            return [bytes(31) + key[:1] for key in keys]

        names = Names(PurePython())
        from .test_protocol import HELLO

        first = names.digests(HELLO, [A, B, A], ask)
        self.assertEqual(first, [bytes(31) + key[:1] for key in (A, B, A)])
        self.assertEqual(names.digests(HELLO, [B, A], ask), [first[1], first[0]])
        self.assertEqual(asked, [[A, B]])
        other = HELLO._replace(namespace_id=B)
        names.digests(other, [A], ask)
        self.assertEqual(asked[1:], [[A]])
        with self.assertRaises(ValueError):
            names.digests(HELLO, [b"short"], ask)


if __name__ == "__main__":
    unittest.main()
