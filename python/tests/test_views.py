"""Objects made from a block's view keep its slot, whichever library made them."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import unittest
from struct import pack
from typing import Any, Callable, Dict, List

from hearth_client import Block, Client, Manifest, Outcome, xxh3_64
from hearth_client.layout import Op

from .golden import A, B
from .scripted_agent import ScriptedAgent, Step, reply

MANIFEST = Manifest("demo/model", "bfloat16", "test:flat", 16)
DATA = bytes(range(256)) * 2
OFFSET = 4096
HANDLE = pack("<II", 3, 1)

ACQUIRED: Step = reply(pack("<IIIIQQ", 0, 3, 1, len(DATA), OFFSET, xxh3_64(DATA)), 1)
RESERVED: Step = reply(pack("<IIIIQ", 0, 3, 1, len(DATA), OFFSET), 1)
PONG: Step = reply(b"", 0)

Derive = Callable[[memoryview], Any]


def _numpy(name: str) -> Derive:
    import numpy

    if name == "frombuffer":
        return lambda view: numpy.frombuffer(view, dtype=numpy.uint8)
    return numpy.asarray


def _torch(view: memoryview) -> Any:
    import torch

    return torch.frombuffer(view, dtype=torch.uint8)


def derivations() -> Dict[str, Derive]:
    """The ways to refer to a view's bytes that can be tried here; the others are named aloud."""
    found: Dict[str, Derive] = {
        "memoryview": memoryview,
        "a slice": lambda view: view[100:200],
        "a cast": lambda view: view.cast("I"),
        "the view itself": lambda view: view,
    }
    if importlib.util.find_spec("numpy") is not None:
        found["numpy.frombuffer"] = _numpy("frombuffer")
        found["numpy.asarray"] = _numpy("asarray")
    else:
        print(f"SKIPPED: numpy is not installed for {sys.executable}", file=sys.stderr)
    if importlib.util.find_spec("torch") is not None:
        found["torch.frombuffer"] = _torch
    else:
        print(f"SKIPPED: torch is not installed for {sys.executable}", file=sys.stderr)
    return found


DERIVATIONS = derivations() if hasattr(os, "memfd_create") else {}


def first_byte(derived: Any) -> int:
    return bytes(memoryview(derived.numpy() if hasattr(derived, "numpy") else derived))[0]


def sent(agent: ScriptedAgent) -> List[int]:
    return [request[0] for request in agent.requests]


@unittest.skipUnless(hasattr(os, "memfd_create"), "needs memfd_create (Linux)")
class Views(unittest.TestCase):
    def client(self, agent: ScriptedAgent) -> Client:
        return Client(agent.path, MANIFEST, timeout=60)

    def test_a_released_block_is_given_back_when_the_last_object_is_gone(self) -> None:
        for name, derive in DERIVATIONS.items():
            script = [ACQUIRED, PONG, PONG]
            with self.subTest(name), ScriptedAgent(script) as agent, self.client(agent) as one:
                os.pwrite(agent.arena, DATA, OFFSET)
                (block,) = one.acquire([A])
                derived = derive(block.view)
                one.release([block])
                one.ping()
                self.assertEqual(sent(agent), [Op.ACQUIRE, Op.PING])
                os.pwrite(agent.arena, b"\x77", OFFSET)
                self.assertEqual(first_byte(derived), DATA[100] if name == "a slice" else 0x77)
                del derived
                gc.collect()
                one.ping()
                self.assertEqual(sent(agent), [Op.ACQUIRE, Op.PING, Op.RELEASE, Op.PING])
                self.assertEqual(agent.requests[2][3], HANDLE)

    def test_a_block_that_nothing_refers_to_is_given_back_at_once(self) -> None:
        for name, derive in DERIVATIONS.items():
            script = [ACQUIRED, PONG]
            with self.subTest(name), ScriptedAgent(script) as agent, self.client(agent) as one:
                (block,) = one.acquire([A])
                first_byte(derive(block.view))
                one.release([block])
                one.ping()
                self.assertEqual(sent(agent), [Op.ACQUIRE, Op.RELEASE, Op.PING])
                with self.assertRaises(ValueError):
                    bytes(block.view)

    def test_a_slot_that_an_object_refers_to_is_not_committed(self) -> None:
        for name, derive in DERIVATIONS.items():
            script = [RESERVED, reply(bytes(8), 1)]
            with self.subTest(name), ScriptedAgent(script) as agent, self.client(agent) as one:
                (slot,) = one.reserve([Block(A, len(DATA))])
                derived = derive(slot.view)
                with self.assertRaises(BufferError):
                    one.commit([slot])
                self.assertEqual(sent(agent), [Op.RESERVE])
                del derived
                gc.collect()
                slot.view[:] = DATA
                self.assertEqual(one.commit([slot]), [Outcome.OK])
                self.assertEqual(sent(agent), [Op.RESERVE, Op.COMMIT])

    def test_an_object_outlives_the_client(self) -> None:
        for name, derive in DERIVATIONS.items():
            with self.subTest(name), ScriptedAgent([ACQUIRED]) as agent:
                os.pwrite(agent.arena, DATA, OFFSET)
                one = self.client(agent)
                (block,) = one.acquire([A])
                derived = derive(block.view)
                one.close()
                del one, block
                gc.collect()
                self.assertEqual(first_byte(derived), DATA[100] if name == "a slice" else DATA[0])
            self.assertEqual(sent(agent), [Op.ACQUIRE])

    def test_one_of_two_blocks_lingers(self) -> None:
        two = pack("<IIIIQQ", 0, 3, 1, 512, 0, 0) + pack("<IIIIQQ", 0, 4, 1, 512, 4096, 0)
        with ScriptedAgent([reply(two, 2), PONG]) as agent, self.client(agent) as one:
            blocks = one.acquire([A, B])
            kept = memoryview(blocks[0].view)
            one.release(blocks)
            one.ping()
            self.assertEqual(agent.requests[1][::3], (Op.RELEASE, pack("<II", 4, 1)))
            self.assertEqual(len(kept), 512)

    def test_a_thread_gives_back_what_lingered(self) -> None:
        from .scripted_agent import hello_body

        hello = hello_body(lease_ms=30)
        with ScriptedAgent([ACQUIRED], hello=hello) as agent, self.client(agent) as one:
            (block,) = one.acquire([A])
            kept = memoryview(block.view)
            one.release([block])
            agent.until(Op.PING)
            self.assertNotIn(Op.RELEASE, sent(agent))
            del kept
            agent.until(Op.RELEASE)


if __name__ == "__main__":
    unittest.main()
