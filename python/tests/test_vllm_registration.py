"""Registration of the arena with a stand-in for the CUDA runtime."""

from __future__ import annotations

import threading
import unittest
from weakref import ref

from hearth_client.errors import HearthError
from hearth_vllm.registration import Registration

from .cuda_runtime import Runtime
from .real_agent import until

STEP = 4096
OLD, NEW = 1 << 20, 1 << 30
SIZE = 3 * STEP + 100
SLICES = [STEP, STEP, STEP, 100]


class Owner:
    pass


def slices(base: int) -> "dict[int, int]":
    return {base + at * STEP: size for at, size in enumerate(SLICES)}


class Registering(unittest.TestCase):
    def setUp(self) -> None:
        self.runtime = Runtime()
        self.registration = Registration(lambda: self.runtime, STEP)
        self.addCleanup(self.registration.close)
        self.addCleanup(self.runtime.open.set)
        self.owner = Owner()

    def announce(self, base: int = OLD) -> None:
        self.registration.announce((base, SIZE, self.owner))

    def registered(self) -> None:
        until(lambda: self.registration.registered_bytes == SIZE, "a registered arena")

    def test_an_arena_is_registered_slice_by_slice_by_another_thread(self) -> None:
        self.announce()
        self.registered()
        self.assertEqual(self.runtime.registered, slices(OLD))
        self.assertNotIn(threading.current_thread(), self.runtime.threads)

    def test_neither_an_announcement_nor_a_copy_waits_for_a_registration(self) -> None:
        self.runtime.open.clear()
        self.announce()
        until(lambda: self.runtime.waiting, "a registration in progress")
        use = self.registration.use(OLD + 10)
        self.assertEqual(self.registration.registered_bytes, 0)
        use.end()
        self.announce(NEW)
        self.runtime.open.set()
        until(lambda: self.runtime.registered == slices(NEW), "the arena that came last")

    def test_an_arena_stays_mapped_and_registered_until_its_copies_have_ended(self) -> None:
        self.announce()
        self.registered()
        use, owner = self.registration.use(OLD), ref(self.owner)
        self.owner = Owner()
        self.announce(NEW)
        self.registered()
        self.assertEqual(self.runtime.registered, {**slices(OLD), **slices(NEW)})
        self.assertIsNotNone(owner())
        with self.assertRaisesRegex(HearthError, "replaced"):
            self.registration.use(OLD + STEP)
        use.end()
        use.end()
        until(lambda: self.runtime.registered == slices(NEW), "the end of the old arena")
        until(lambda: owner() is None, "the end of the old mapping")

    def test_a_range_is_cut_where_slices_meet(self) -> None:
        self.announce()
        use = self.registration.use(OLD)
        self.addCleanup(use.end)
        self.assertEqual(list(use.pieces(OLD + 10, 20)), [(OLD + 10, 20)])
        self.assertEqual(list(use.pieces(OLD, STEP)), [(OLD, STEP)])
        wanted = [(OLD + STEP - 1, 1), (OLD + STEP, STEP), (OLD + 2 * STEP, 5)]
        self.assertEqual(list(use.pieces(OLD + STEP - 1, STEP + 6)), wanted)
        unknown = self.registration.use(NEW)
        self.assertEqual(list(unknown.pieces(NEW + 1, 3 * STEP)), [(NEW + 1, 3 * STEP)])

    def test_a_refused_slice_ends_the_registration_and_is_logged_once(self) -> None:
        self.runtime.codes = [0, 2]
        with self.assertLogs("vllm.hearth", "WARNING") as logs:
            self.announce()
            until(lambda: logs.records, "a warning")
        self.assertEqual(len(logs.records), 1)
        self.assertIn(f"error 2 at {STEP} of {SIZE} bytes", logs.records[0].getMessage())
        self.assertEqual(self.runtime.registered, {OLD: STEP})
        self.announce(NEW)
        until(lambda: self.runtime.registered == slices(NEW), "the next arena")

    def test_close_unregisters_everything(self) -> None:
        self.announce()
        self.registered()
        self.registration.close()
        until(lambda: not self.runtime.registered, "nothing registered")
        (thread,) = self.runtime.threads
        until(lambda: not thread.is_alive(), "the end of the thread")
        self.announce(NEW)
        self.assertEqual(self.registration.registered_bytes, 0)
        self.assertFalse(self.runtime.registered)


if __name__ == "__main__":
    unittest.main()
