"""Transfers: copies that end later than they begin, deadlines of whole calls, hash threads."""

from __future__ import annotations

import ctypes
import os
import time
import unittest
from array import array
from struct import pack, unpack_from
from typing import Any, List
from unittest import mock

from hearth_client import Outcome, transfer, xxh3_64
from hearth_client.copiers import PagedCopier
from hearth_client.hash_threads import HashThreads
from hearth_client.layout import Op
from hearth_client.namespace_key import Macs, NamespaceKey
from hearth_client.native import NATIVE, kernels

from .kv_pool import BLOCK_BYTES, Pool, content, keys_of, parents_of, store
from .real_agent import COMMAND, RealAgent, until
from .scripted_agent import ScriptedAgent, Step, frame, hello_body

PONG: Step = lambda op, number, _count, body: frame(op, number, 0, body)


class LateCopier(PagedCopier):
    """Copies when a chunk is finished, as a device that is slow to begin."""

    depth = 2

    def __init__(self, owner: "LateMemory", kernels_: Any, block_ids: Any) -> None:
        super().__init__(kernels_, owner.pool.memory, block_ids)
        self._log = owner.log

    def gather(self, indices: Any, slots: Any) -> Any:
        return self._later(indices, lambda: super(LateCopier, self).gather(indices, slots)())

    def scatter(self, indices: Any, slots: Any, checksums: Any, macs: Any = None) -> Any:
        scatter = super().scatter
        return self._later(indices, lambda: scatter(indices, slots, checksums, macs)())

    def _later(self, indices: Any, copy: Any) -> Any:
        self._log.append(("begin", indices[0]))

        def finish() -> Any:
            self._log.append(("finish", indices[0]))
            return copy()

        return finish


class LateMemory:
    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.log: List[tuple] = []

    def copier(self, kernels_: Any, block_ids: Any) -> LateCopier:
        return LateCopier(self, kernels_, block_ids)


@unittest.skipUnless(COMMAND, "HEARTH_TEST_AGENT does not name how to start an agent")
class LateCopies(unittest.TestCase):
    def setUp(self) -> None:
        patch = mock.patch.object(transfer, "CHUNK_BLOCKS", 2)
        patch.start()
        self.addCleanup(patch.stop)
        self.agent = RealAgent()
        self.addCleanup(self.agent.__exit__)
        self.store = store(self.agent.path)
        self.addCleanup(self.store.close)
        self.keys, self.memory = keys_of(8), LateMemory(Pool(8).fill())

    def put(self, **options: Any) -> List[Outcome]:
        parents = parents_of(self.keys)
        memory: Any = self.memory
        return self.store.put(self.keys, parents, memory, range(8), **options)

    def test_each_chunk_is_finished_in_order_and_two_at_most_are_in_progress(self) -> None:
        self.assertEqual(self.put(), [Outcome.OK] * 8)
        target: Any = LateMemory(Pool(8))
        self.assertEqual(self.store.get(self.keys, target, range(8)), [Outcome.OK] * 8)
        self.assertTrue(all(target.pool.is_right(block, block) for block in range(8)))
        for log in (self.memory.log, target.log):
            for what in ("begin", "finish"):
                self.assertEqual([at for name, at in log if name == what], [0, 2, 4, 6])
            begun = 0
            for name, _at in log:
                begun += 1 if name == "begin" else -1
                self.assertIn(begun, (0, 1, 2))

    def test_a_chunk_that_was_begun_before_the_call_was_stopped_is_not_stored(self) -> None:
        log = self.memory.log
        outcomes = self.put(should_stop=lambda: ("finish", 2) in log)
        self.assertEqual(outcomes[2:], [Outcome.SKIPPED] * 6)
        self.assertEqual({name for name, at in log if at == 2}, {"begin", "finish"})
        target = Pool(8)
        got = self.store.get(self.keys, target.memory, range(8))
        self.assertEqual([one == Outcome.OK for one in got[2:]], [False] * 6)

    def test_a_copy_that_fails_gives_back_all_slots(self) -> None:
        def fail(*_words: Any) -> Any:
            raise RuntimeError("a copy that fails")

        with mock.patch.object(PagedCopier, "gather", fail):
            with self.assertRaisesRegex(RuntimeError, "a copy that fails"):
                self.put()
        # Slots that the agent granted after the error are returned when its reply is read.
        stored = {Outcome.OK, Outcome.PRESENT}
        until(lambda: set(self.put()) <= stored, "slots that were given back")


class Deadlines(unittest.TestCase):
    """One block is a chunk."""

    LIMIT_S = 0.3

    @staticmethod
    def acquired(op: int, number: int, count: int, _body: bytes) -> bytes:
        body = pack("<IIIIQQ", 0, 3, 1, BLOCK_BYTES, 0, xxh3_64(content(0)))
        return frame(op, number, count, body)

    def late(self, op: int, number: int, count: int, body: bytes) -> bytes:
        """Answers when the deadline is over: the agent works, but does not keep it."""
        while time.monotonic() < self.began + self.LIMIT_S + 1:
            time.sleep(0.01)
        return self.acquired(op, number, count, body)

    def test_the_deadline_is_that_of_the_whole_call(self) -> None:
        script = [self.acquired, self.late, *[self.acquired] * 2, *[PONG] * 1000]
        with ScriptedAgent(script, hello=hello_body(items_max=1)) as agent:
            os.pwrite(agent.arena, content(0), 0)
            with store(agent.path, engine_id=b"", stall_ms=20_000) as one:
                self.began = time.monotonic()
                limit = int(1000 * self.LIMIT_S)
                got = one.get(keys_of(4), Pool(4).memory, range(4), deadline_ms=limit)
                self.assertEqual(got[1:], [Outcome.MISS] * 3)
                self.assertEqual(one.stats.failures["late"], 1)
                self.assertTrue(one.connected)
                asked = [body for op, _, _, body in agent.requests if op == Op.ACQUIRE]
                left = [unpack_from("<I", body, 8)[0] for body in asked]
                self.assertTrue(all(0 < ms < limit for ms in left), left)


class ThreadsThatHash(unittest.TestCase):
    COUNT, BYTES = 7, 1024

    def setUp(self) -> None:
        self.bytes = (ctypes.c_char * (self.COUNT * self.BYTES)).from_buffer_copy(
            b"".join(content(block, self.BYTES) for block in range(self.COUNT))
        )
        base = ctypes.addressof(self.bytes)
        self.slots = array("Q", [base + block * self.BYTES for block in range(self.COUNT)])
        self.sums = array("Q", [xxh3_64(content(at, self.BYTES)) for at in range(self.COUNT)])

    def macs(self, found: Any = None) -> Any:
        return Macs(NamespaceKey(b"0123456789abcdef"), bytes(range(224)), found)

    def test_answer_the_checksum_of_each_slot(self) -> None:
        for count in (1, 2, 3, 16):
            threads = HashThreads(count)
            found = threads.checksums(kernels(), self.slots, self.BYTES, None)()
            self.assertEqual(found, list(self.sums))
            self.sums[5] ^= 1
            good = threads.verify(kernels(), self.slots, self.BYTES, self.sums, None)()
            self.assertEqual(good, [at != 5 for at in range(self.COUNT)])
            self.sums[5] ^= 1

    @unittest.skipUnless(NATIVE is not None, "the native library is not built")
    def test_compute_and_verify_the_mac_of_each_slot(self) -> None:
        one = self.macs()
        HashThreads(1).checksums(kernels(), self.slots, self.BYTES, one)()
        for count in (2, 3):
            threads, several = HashThreads(count), self.macs()
            threads.checksums(kernels(), self.slots, self.BYTES, several)()
            self.assertEqual(several.packed(), one.packed())
            wrong = bytearray(one.packed())
            wrong[16 * 4] ^= 1
            given = self.macs(bytes(wrong))
            good = threads.verify(kernels(), self.slots, self.BYTES, self.sums, given)()
            self.assertEqual(good, [at != 4 for at in range(self.COUNT)])


if __name__ == "__main__":
    unittest.main()
