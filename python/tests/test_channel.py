"""Requests on their way together, late replies and partial ones, against a scripted agent."""

from __future__ import annotations

import os
import select
import threading
import unittest
from struct import pack
from typing import List

from hearth_client import (
    Block,
    Client,
    ConnectionClosed,
    LookupTicket,
    Manifest,
    Outcome,
    ProtocolError,
    TimedOut,
)
from hearth_client import protocol
from hearth_client.layout import FEATURE_ENGINE, Op

from .golden import A, B
from .scripted_agent import HANG_SECONDS, Held, ScriptedAgent, Step, frame, hello_body, reply

MANIFEST = Manifest("demo/model", "bfloat16", "test:flat", 16)
PONG: Step = reply(b"", 0)
HANDLE = pack("<II", 3, 1)
ENGINE = hello_body(features=FEATURE_ENGINE)


def lookup_body(leading: int, ready: int, hold: int, more: bool, count: int = 0) -> bytes:
    tiers = bytes(2 if at < leading else 0 for at in range(count))
    return pack("<IIIIII", leading, ready, hold, int(more), 0, 0) + tiers + bytes(-count % 8)


def ops(agent: ScriptedAgent) -> List[int]:
    return [request[0] for request in agent.requests]


@unittest.skipUnless(hasattr(os, "memfd_create"), "needs memfd_create (Linux)")
class Pipelining(unittest.TestCase):
    def client(self, agent: ScriptedAgent, timeout: float = HANG_SECONDS) -> Client:
        one = Client(agent.path, MANIFEST, timeout=timeout)
        self.addCleanup(one.close)
        return one

    def test_replies_find_their_requests_in_any_order(self) -> None:
        held = [Held(), Held()]

        def all_at_once(op: int, number: int, _count: int, body: bytes) -> bytes:
            later = [one.reply(text, 0) for one, text in zip(held, (b"first...", b"second.."))]
            return frame(op, number, 0, body) + later[1] + later[0]

        with ScriptedAgent([*held, all_at_once]) as agent:
            connection = self.client(agent)._connection
            requests = [
                connection.submit(Op.PING, lambda number: protocol.ping_request(number, b""))
                for _ in range(3)
            ]
            bodies = [connection.result(request, HANG_SECONDS)[1] for request in requests]
            self.assertEqual(bodies, [b"first...", b"second..", b""])

    def test_a_thread_that_reads_hands_over_the_replies_of_others(self) -> None:
        held = Held()

        def both(_op: int, number: int, _count: int, body: bytes) -> bytes:
            return held.reply(b"slow....", 0) + frame(Op.PING, number, 0, body)

        with ScriptedAgent([held, both]) as agent:
            one = self.client(agent)
            slow = one._connection.submit(
                Op.PING, lambda number: protocol.ping_request(number, b"slow....")
            )
            answers: List[bytes] = []
            reader = threading.Thread(
                target=lambda: answers.append(one._connection.result(slow, HANG_SECONDS)[1])
            )
            reader.start()
            self.assertEqual(one.ping(b"fast...."), b"fast....")
            reader.join(HANG_SECONDS)
            self.assertEqual(answers, [b"slow...."])

    def test_many_threads_use_one_connection(self) -> None:
        echo: Step = lambda op, number, _count, body: frame(op, number, 0, body)
        rounds, failures = 50, []

        def work(thread: int) -> None:
            try:
                for at in range(rounds):
                    payload = pack("<II", thread, at)
                    assert one.ping(payload) == payload
            except BaseException as error:
                failures.append(error)

        with ScriptedAgent([echo] * (8 * rounds)) as agent:
            one = self.client(agent)
            threads = [threading.Thread(target=work, args=(at,)) for at in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(HANG_SECONDS)
        self.assertEqual(failures, [])

    def test_the_end_of_the_connection_wakes_all_threads(self) -> None:
        hang_up = threading.Event()

        def wait_then_hang_up(*_request: object) -> None:
            hang_up.wait(HANG_SECONDS)

        with ScriptedAgent([Held(), Held(), wait_then_hang_up]) as agent:
            one = self.client(agent)
            errors: List[BaseException] = []

            def work() -> None:
                try:
                    one.ping()
                except ConnectionClosed as error:
                    errors.append(error)

            threads = [threading.Thread(target=work) for _ in range(3)]
            for thread in threads:
                thread.start()
            agent.until(Op.PING, 3)
            hang_up.set()
            for thread in threads:
                thread.join(HANG_SECONDS)
            self.assertEqual(len(errors), 3)

    def test_close_wakes_a_thread_that_waits(self) -> None:
        with ScriptedAgent([Held()]) as agent:
            one = self.client(agent)
            errors: List[BaseException] = []

            def work() -> None:
                try:
                    one.ping()
                except ConnectionClosed as error:
                    errors.append(error)

            thread = threading.Thread(target=work)
            thread.start()
            agent.until(Op.PING)
            one.close()
            thread.join(HANG_SECONDS)
            self.assertEqual(len(errors), 1)

    def test_requests_that_the_socket_does_not_accept_go_out_later(self) -> None:
        gate = threading.Event()

        def slow(op: int, number: int, _count: int, body: bytes) -> bytes:
            gate.wait(HANG_SECONDS)
            return frame(op, number, 0, body)

        with ScriptedAgent([slow, PONG, PONG]) as agent:
            one = self.client(agent)
            connection = one._connection
            first = connection.submit(Op.PING, lambda n: protocol.ping_request(n, b""))
            agent.until(Op.PING)
            keys = [A] * 4000
            for _ in range(40):
                one._post(lambda n: protocol.gpu_evicted_request(n, 0, keys, no_reply=True))
            self.assertTrue(connection._outbox.is_waiting)
            gate.set()
            connection.result(first, HANG_SECONDS)
            self.assertEqual(one.ping(), b"")
            self.assertEqual(ops(agent).count(Op.GPU_EVICTED), 40)


@unittest.skipUnless(hasattr(os, "memfd_create"), "needs memfd_create (Linux)")
class LateReplies(unittest.TestCase):
    client = Pipelining.client

    def late(self, body: bytes, count: int, call: str, *arguments: object) -> List[object]:
        """The requests after a call whose reply came too late; the reply comes with a PING's."""
        held = Held()

        def both(op: int, number: int, _count: int, _body: bytes) -> bytes:
            return held.reply(body, count) + frame(op, number, 0, b"")

        with ScriptedAgent([held, both, PONG], hello=ENGINE) as agent:
            one = self.client(agent)
            with self.assertRaises(TimedOut), one.deadline(0.02):
                getattr(one, call)(*arguments)
            one.ping()
            one.ping()
            return [(request[0], request[3]) for request in agent.requests[1:]]

    def test_blocks_of_a_late_acquire_are_released(self) -> None:
        body = pack("<IIIIQQ", 0, 3, 1, 512, 0, 0) + pack("<IIIIQQ", 1, 0, 0, 0, 0, 0)
        sent = self.late(body, 2, "acquire", [A, B])
        self.assertEqual(sent, [(Op.PING, b""), (Op.RELEASE, HANDLE), (Op.PING, b"")])

    def test_slots_of_a_late_reserve_are_aborted(self) -> None:
        body = pack("<IIIIQ", 0, 3, 1, 512, 0)
        sent = self.late(body, 1, "reserve", [Block(A, 512)])
        self.assertEqual(sent, [(Op.PING, b""), (Op.ABORT, HANDLE), (Op.PING, b"")])

    def test_a_late_reply_that_lies_ends_the_connection(self) -> None:
        held = Held()

        def both(op: int, number: int, _count: int, _body: bytes) -> bytes:
            return held.reply(b"12345678", 1) + frame(op, number, 0, b"")

        with ScriptedAgent([held, both]) as agent:
            one = self.client(agent)
            with self.assertRaises(TimedOut), one.deadline(0.02):
                one.acquire([A])
            with self.assertRaises((ProtocolError, ConnectionClosed)):
                one.ping()
                one.ping()

    def test_deadlines_nest_and_end(self) -> None:
        with ScriptedAgent([Held(), PONG]) as agent:
            one = self.client(agent)
            with one.deadline(HANG_SECONDS):
                with self.assertRaises(TimedOut), one.deadline(0.02):
                    one.ping()
                one.ping()

    def test_a_commit_without_a_reply(self) -> None:
        slot = pack("<IIIIQ", 0, 3, 1, 512, 0)
        with ScriptedAgent([reply(slot, 1), PONG]) as agent:
            one = self.client(agent)
            slots = one.reserve([Block(A, 512)])
            self.assertEqual(one.commit(slots, checksums=[7], reply=False), [])
            one.ping()
            self.assertEqual(agent.requests[1], (Op.COMMIT, 2, 1, pack("<IIQII", 3, 1, 7, 1, 0)))

    def test_the_lease_is_renewed_while_slots_are_held(self) -> None:
        slot = pack("<IIIIQ", 0, 3, 1, 512, 0)
        with ScriptedAgent([reply(slot, 1)], hello=hello_body(lease_ms=30)) as agent:
            one = self.client(agent)
            one.reserve([Block(A, 512)])
            agent.until(Op.PING, 2)


@unittest.skipUnless(hasattr(os, "memfd_create"), "needs memfd_create (Linux)")
class Tickets(unittest.TestCase):
    client = Pipelining.client

    def until_done(self, one: Client, ticket: LookupTicket) -> None:
        """As an event loop does: polls the descriptor, never blocks in the client."""
        poller = select.poll()
        poller.register(one.fileno(), select.POLLIN)
        while not ticket.done():
            self.assertTrue(poller.poll(1000 * HANG_SECONDS))
            one.poll()

    def test_partial_replies_report_progress(self) -> None:
        gate = threading.Event()
        held = Held()

        def partial(op: int, number: int, _count: int, _body: bytes) -> bytes:
            return held.reply(lookup_body(2, 1, 9, True), 0) + frame(op, number, 0, b"")

        def final(op: int, number: int, _count: int, _body: bytes) -> bytes:
            gate.wait(HANG_SECONDS)
            return held.reply(lookup_body(2, 2, 9, False, 3), 3) + frame(op, number, 0, b"")

        with ScriptedAgent([held, partial, final], hello=ENGINE) as agent:
            one = self.client(agent)
            ticket = one.lookup([A, B, A], hold=True, fetch=True, progress=True)
            self.assertFalse(ticket.done())
            before = ticket.last_progress
            one.ping()
            self.assertFalse(ticket.done())
            self.assertEqual((ticket.ready_now, ticket.hold), (1, 9))
            self.assertGreater(ticket.last_progress, before)
            with self.assertRaises(ValueError):
                ticket.result()
            gate.set()
            one._connection.submit(Op.PING, lambda n: protocol.ping_request(n, b""))
            self.until_done(one, ticket)
            result = ticket.result()
            self.assertEqual((result.leading, result.ready, result.outcome), (2, 2, "ok"))
            self.assertEqual(result.tiers, [2, 2])

    def test_the_descriptor_is_readable_if_another_thread_took_the_reply(self) -> None:
        held = Held()

        def both(op: int, number: int, _count: int, _body: bytes) -> bytes:
            return held.reply(lookup_body(0, 0, 0, False, 1), 1) + frame(op, number, 0, b"")

        with ScriptedAgent([held, both], hello=ENGINE) as agent:
            one = self.client(agent)
            one.fileno()
            one.poll()
            ticket = one.lookup([A])
            thread = threading.Thread(target=one.ping)
            thread.start()
            self.until_done(one, ticket)
            thread.join(HANG_SECONDS)

    def test_a_reservation_that_nothing_waits_for_is_ended(self) -> None:
        held = Held()

        def both(op: int, number: int, _count: int, _body: bytes) -> bytes:
            return held.reply(lookup_body(1, 1, 9, False, 1), 1) + frame(op, number, 0, b"")

        with ScriptedAgent([held, both, PONG], hello=ENGINE) as agent:
            one = self.client(agent)
            ticket = one.lookup([A], hold=True)
            ticket.cancel()
            self.assertEqual(ticket.result().outcome, "gone")
            one.ping()
            one.ping()
            self.assertEqual(agent.requests[2][::3], (Op.UNHOLD, pack("<II", 9, 0)))

    def test_unhold_of_an_answered_lookup(self) -> None:
        answer = reply(lookup_body(1, 1, 9, False, 1), 1)
        with ScriptedAgent([answer, PONG], hello=ENGINE) as agent:
            one = self.client(agent)
            ticket = one.lookup([A], hold=True)
            self.assertTrue(ticket.wait(HANG_SECONDS))
            ticket.unhold()
            one.ping()
            self.assertEqual(agent.requests[1][::3], (Op.UNHOLD, pack("<II", 9, 0)))

    def test_a_command_and_its_receipt(self) -> None:
        receipt = b'{"status": "ok"}'
        answer = reply(pack("<II", len(receipt), 0) + receipt, 0)
        with ScriptedAgent([answer], hello=ENGINE) as agent:
            ticket = self.client(agent).command({"type": "Flush"})
            self.assertTrue(ticket.wait(HANG_SECONDS))
            self.assertEqual(ticket.result(), {"status": "ok"})
            sent = pack("<II", 17, 0) + b'{"type": "Flush"}' + bytes(7)
            self.assertEqual(agent.requests[0][3], sent)

    def test_names_and_announcements_by_keys_of_16_bytes(self) -> None:
        script = [reply(A, 1), reply(bytes(8), 1), reply(pack("<II32s", 2, 0, B), 0)]
        with ScriptedAgent(script, hello=ENGINE) as agent:
            one = self.client(agent)
            self.assertEqual(one.identify_chain_keys([A[:16]]), [A])
            self.assertEqual(one.announce([A[:16]], 500), [Outcome.OK])
            self.assertEqual(one.namespace(salt="s"), (2, B))
            for call in (
                lambda: one.identify_chain_keys([A[:15]]),
                lambda: one.identify_chain_keys([A, A[:16]]),
                lambda: one.announce([A[:8]], 500),
                lambda: one.namespace(salt=""),
                lambda: one.join(bytes(16)),
            ):
                with self.assertRaises(ValueError):
                    call()
            self.assertEqual(ops(agent), [Op.IDENTIFY, Op.ANNOUNCE, Op.NAMESPACE])


if __name__ == "__main__":
    unittest.main()
