"""The client against an agent that lies, falls silent or hangs up; test_agent has a real one."""

from __future__ import annotations

import os
import unittest
from struct import pack
from typing import List

from hearth_client import (
    Block,
    Client,
    ConnectionClosed,
    FrameStatus,
    Manifest,
    Outcome,
    ProtocolError,
    RefusedError,
    TimedOut,
    xxh3_64,
)
from hearth_client.layout import Op

from .golden import A, B
from .scripted_agent import ScriptedAgent, Step, frame, hello_body, refusal, reply

MANIFEST = Manifest("demo/model", "bfloat16", "test:flat", 16)
DATA = bytes(range(256)) * 2


def client(agent: ScriptedAgent, timeout: float = 10.0) -> Client:
    return Client(agent.path, MANIFEST, name="test", timeout=timeout)


def slot(outcome: int, number: int = 0, length: int = 0, offset: int = 0) -> bytes:
    return pack("<IIIIQ", outcome, number, 1 if outcome == 0 else 0, length, offset)


def acquired(number: int, length: int, offset: int, checksum: int) -> bytes:
    return slot(0, number, length, offset) + pack("<Q", checksum)


MISS = slot(1) + bytes(8)
OUTCOME_OK = reply(bytes(8), 1)


def arena_descriptors() -> int:
    """Descriptors of this process that lead to an arena, the scripted agent's own included."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found += "memfd:arena" in os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:
            continue
    return found


@unittest.skipUnless(hasattr(os, "memfd_create"), "needs memfd_create (Linux)")
class Greeting(unittest.TestCase):
    def test_maps_the_arena_and_leaves_no_descriptor(self) -> None:
        with ScriptedAgent([]) as agent:
            before = arena_descriptors()
            with client(agent) as one:
                self.assertEqual(one.hello.block_tokens, 16)
                os.pwrite(agent.arena, b"hearth", 100)
                self.assertEqual(one._arena.read(100, 6), b"hearth")
            self.assertEqual(arena_descriptors(), before)

    def test_a_refusal_is_raised_with_status_and_text(self) -> None:
        with ScriptedAgent([], refuse=(FrameStatus.VERSION, "this agent speaks 9")) as agent:
            with self.assertRaises(RefusedError) as caught:
                client(agent)
            self.assertEqual(caught.exception.status, FrameStatus.VERSION)
            self.assertEqual(caught.exception.text, "this agent speaks 9")

    def test_lies_about_the_arena(self) -> None:
        lies = {
            "no descriptor": ScriptedAgent([], descriptors=0),
            "two descriptors": ScriptedAgent([], descriptors=2),
            "an arena smaller than announced": ScriptedAgent([], arena_bytes=4096),
            "an arena of no bytes": ScriptedAgent([], hello=hello_body(arena_bytes=0)),
            "a version that was not offered": ScriptedAgent([], hello=hello_body(version=2)),
            "no items at all": ScriptedAgent([], hello=hello_body(items_max=0)),
            "a greeting cut short": ScriptedAgent([], hello=hello_body()[:-8]),
        }
        for what, agent in lies.items():
            with self.subTest(what), agent:
                before = arena_descriptors()
                with self.assertRaises(ProtocolError):
                    client(agent)
                self.assertEqual(arena_descriptors(), before)

    def test_nobody_there(self) -> None:
        with self.assertRaises(OSError):
            Client("/nonexistent/hearth.sock", MANIFEST)


@unittest.skipUnless(hasattr(os, "memfd_create"), "needs memfd_create (Linux)")
class Replies(unittest.TestCase):
    def test_a_reply_in_single_bytes(self) -> None:
        with ScriptedAgent([reply(b"12345678", 0)], piecewise=True) as agent, client(agent) as one:
            self.assertEqual(one.ping(b"12345678"), b"12345678")

    def test_broken_replies_end_the_connection(self) -> None:
        ok = slot(0, 1, 512, 0)
        scripts: "dict[str, Step]" = {
            "to another operation": lambda op, number, _n, _b: frame(Op.PING, number, 0, b""),
            "of another length": reply(b"12345678", 1),
            "for fewer blocks": reply(b"", 0),
            "for more blocks": reply(ok * 2, 2),
            "with an unknown outcome": reply(slot(12), 1),
            "with a slot for a block that has none": reply(pack("<IIIIQ", 2, 1, 0, 0, 0), 1),
            "with a slot that is too small": reply(slot(0, 1, 511, 0), 1),
            "outside the arena": reply(slot(0, 1, 512, (1 << 16) - 511), 1),
            "far outside the arena": reply(slot(0, 1, 512, (1 << 64) - 8), 1),
            "of a request instead of a reply": lambda op, number, _n, _b: pack(
                "<IBBHII", 16, op, 0, 0, number, 0
            ),
            "of 2 GiB": lambda op, number, _n, _b: pack("<IBBHII", 1 << 31, op, 1, 0, number, 0),
            "with another id": lambda op, number, _n, _b: pack(
                "<IBBHII", 16, op, 1, 0, number + 1, 0
            ),
        }
        for what, step in scripts.items():
            with self.subTest(what), ScriptedAgent([step]) as agent, client(agent) as one:
                with self.assertRaises(ProtocolError):
                    one.reserve([Block(A, 512)])
                with self.assertRaises(ConnectionClosed):
                    one.ping()

    def test_a_refused_frame_leaves_the_connection_open(self) -> None:
        script: List[Step] = [
            lambda op, number, _n, _b: refusal(op, number, FrameStatus.DRAINING, "stopping"),
            reply(b"", 0),
        ]
        with ScriptedAgent(script) as agent, client(agent) as one:
            with self.assertRaises(RefusedError) as caught:
                one.match([A])
            self.assertEqual(caught.exception.status, FrameStatus.DRAINING)
            self.assertEqual(one.ping(), b"")

    def test_a_word_about_the_connection_ends_it(self) -> None:
        cut_off: Step = lambda *_request: refusal(0, 0, FrameStatus.OVERSTAYED, "30 s of silence")
        with ScriptedAgent([cut_off]) as agent, client(agent) as one:
            with self.assertRaises(RefusedError) as caught:
                one.ping()
            self.assertEqual(caught.exception.status, FrameStatus.OVERSTAYED)
            with self.assertRaises(ConnectionClosed):
                one.ping()

    def test_an_agent_that_hangs_up_ends_the_connection(self) -> None:
        with ScriptedAgent([]) as agent, client(agent) as one:
            with self.assertRaises(ConnectionClosed):
                one.ping()

    def test_a_silent_agent_times_out_and_the_connection_goes_on(self) -> None:
        script = [lambda *_request: b"", reply(b"12345678", 0)]
        with ScriptedAgent(script) as agent, client(agent, timeout=0.05) as one:
            with self.assertRaises(TimedOut):
                one.ping()
            one._connection.timeout = 60.0
            self.assertEqual(one.ping(b"12345678"), b"12345678")


@unittest.skipUnless(hasattr(os, "memfd_create"), "needs memfd_create (Linux)")
class Holding(unittest.TestCase):
    def test_put_writes_where_it_was_told(self) -> None:
        script = [reply(slot(0, 3, 1024, 4096), 1), OUTCOME_OK]
        with ScriptedAgent(script) as agent, client(agent) as one:
            self.assertEqual(one.put(A, None, DATA, alias=9, transient=True), Outcome.OK)
            self.assertEqual(os.pread(agent.arena, len(DATA) + 1, 4096), DATA + b"\0")
        self.assertEqual([request[0] for request in agent.requests], [Op.RESERVE, Op.COMMIT])
        self.assertEqual(agent.requests[1][3], pack("<IIQII", 3, 1, 0, 0, 0))

    def test_get_copies_verified_blocks_and_releases_them(self) -> None:
        good = acquired(3, len(DATA), 4096, xxh3_64(DATA))
        bad = acquired(4, len(DATA), 8192, xxh3_64(DATA) ^ 1)
        with ScriptedAgent([reply(good + bad + MISS, 3)]) as agent, client(agent) as one:
            os.pwrite(agent.arena, DATA, 4096)
            os.pwrite(agent.arena, DATA, 8192)
            self.assertEqual(one.get([A, B, A]), [DATA, None, None])
        self.assertEqual(agent.requests[1][:3], (Op.RELEASE, 2, 2))
        self.assertEqual(agent.requests[1][3], pack("<IIII", 3, 1, 4, 1))

    def test_views_are_read_only_and_end_with_the_release(self) -> None:
        with ScriptedAgent([reply(acquired(3, 512, 0, 0), 1)]) as agent, client(agent) as one:
            with one.acquired([A]) as (block,):
                with self.assertRaises(TypeError):
                    block.view[0] = 1
            with self.assertRaises(ValueError):
                bytes(block.view)
            one.release([block])  # not held any more: passed over
        self.assertEqual(len(agent.requests), 2)

    def test_close_gives_back_all_but_slots_that_are_referred_to(self) -> None:
        script = [
            reply(slot(0, 1, 512, 0) + slot(3), 2),
            reply(acquired(2, 512, 0, 0) + acquired(3, 512, 0, 0), 2),
        ]
        with ScriptedAgent(script) as agent:
            one = client(agent)
            one.reserve([Block(A, 512), Block(B, 512)])
            kept, _released = one.acquire([A, B])
            export = memoryview(kept.view)
            one.close()
            self.assertEqual(bytes(export), bytes(512))
            one.close()
            with self.assertRaises(ConnectionClosed):
                one.ping()
            del export
        given_back = [(request[0], request[3]) for request in agent.requests[2:]]
        self.assertEqual(
            given_back, [(Op.ABORT, pack("<II", 1, 1)), (Op.RELEASE, pack("<II", 3, 1))]
        )

    def test_wrong_arguments_send_nothing(self) -> None:
        script = [reply(slot(0, 1, 512, 0), 1), OUTCOME_OK]
        hello = hello_body(items_max=2)
        with ScriptedAgent(script, hello=hello) as agent, client(agent) as one:
            (held,) = one.reserve([Block(A, 512)])
            sent = len(agent.requests)
            for call in (
                lambda: held.write(b"short"),
                lambda: one.commit([held], checksums=[]),
                lambda: one.commit([held], checksums=[-1]),
                lambda: one.match([A, B, A]),
                lambda: one.acquire([b"short"]),
                lambda: one.identify([-1]),
                lambda: one.identify_engine_hashes([1 << 64]),
                lambda: one.alias([(A, 1), (B, B)]),
                lambda: one.ping(b"1"),
            ):
                with self.assertRaises(ValueError):
                    call()
            self.assertEqual(len(agent.requests), sent)
            held.write(DATA)
            self.assertEqual(one.commit([held], checksums=[7]), [Outcome.OK])
            with self.assertRaises(ValueError):
                one.commit([held])

    def test_a_refused_commit_aborts(self) -> None:
        script: List[Step] = [
            reply(slot(0, 1, 512, 0), 1),
            lambda op, number, _n, _b: refusal(op, number, FrameStatus.INTERNAL, "no"),
            reply(b"", 0),
        ]
        with ScriptedAgent(script) as agent, client(agent) as one:
            with self.assertRaises(RefusedError):
                one.commit(one.reserve([Block(A, 512)]))
            one.ping()
        sent = [request[0] for request in agent.requests]
        self.assertEqual(sent, [Op.RESERVE, Op.COMMIT, Op.ABORT, Op.PING])


if __name__ == "__main__":
    unittest.main()
