"""hearth_vllm's device memory on CPU tensors, with a real agent. Skipped without PyTorch."""

from __future__ import annotations

import os
import unittest
from contextlib import nullcontext
from hashlib import sha256
from threading import Thread
from types import SimpleNamespace
from unittest import mock
from weakref import ref

from hearth_client import Manifest, Outcome
from hearth_client.kv_store import KvStore, PagedMemory, Region, Role
from hearth_vllm.geometry import describe

SOCKET = os.environ.get("HEARTH_SOCKET", "")

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]


@unittest.skipUnless(torch is not None, "PyTorch is not installed")
@unittest.skipUnless(SOCKET, "HEARTH_SOCKET does not name a running agent's socket")
class DeviceTensors(unittest.TestCase):
    def setUp(self) -> None:
        from hearth_vllm.device_memory import DeviceMemory, tensors_of

        manifest = Manifest("device", "float32", self.id(), 32, tenant_salt=os.urandom(8).hex())
        self.store = KvStore(manifest, socket=SOCKET, engine_id=os.urandom(16), role=Role.WORKER)
        self.addCleanup(self.store.close)
        raw = torch.randn(3, 16, 2, 32, 8)
        # The layers of two tensors, one with the block dimension behind keys and values.
        self.caches = {"l.0": raw[0], "l.1": raw[1], "l.2": raw[2].transpose(0, 1).contiguous()}
        self.geometry = describe(self.caches, 16)
        self.memory = DeviceMemory(
            self.geometry.spans, tensors_of(self.caches), self.store
        )
        self.keys = [sha256(bytes([i])).digest() for i in range(6)]

    def bytes_of(self, block: int) -> bytes:
        import ctypes

        return b"".join(
            ctypes.string_at(base + block * stride, size)
            for base, stride, size in self.geometry.spans
        )

    def test_blocks_have_the_same_bytes_as_through_host_memory(self) -> None:
        parents = [None, *self.keys[:-1]]
        put = self.store.put(self.keys, parents, self.memory, [3, 1, 4, 15, 9, 2])
        self.assertEqual(put, [Outcome.OK] * 6)
        before = [self.bytes_of(block) for block in (3, 1, 4, 15, 9, 2)]
        host = PagedMemory([Region(*span) for span in self.geometry.spans], self.caches)
        self.assertEqual(self.store.get(self.keys, host, [5, 6, 7, 8, 10, 11]), [Outcome.OK] * 6)
        self.assertEqual([self.bytes_of(block) for block in (5, 6, 7, 8, 10, 11)], before)
        for cache in self.caches.values():
            cache.zero_()
        got = self.store.get(self.keys, self.memory, [0, 12, 13, 14, 1, 2])
        self.assertEqual(got, [Outcome.OK] * 6)
        self.assertEqual([self.bytes_of(block) for block in (0, 12, 13, 14, 1, 2)], before)

    def test_blocks_that_the_agent_does_not_copy_are_copied_by_the_worker(self) -> None:
        asked = []

        def refuse(ids: object, _slots: object) -> bool:
            asked.append(ids)
            return False

        self.memory.agent_stores = SimpleNamespace(store=refuse)
        wanted = self.bytes_of(3)
        put = self.store.put(self.keys[:1], [None], self.memory, [3])
        self.assertEqual((put, asked), ([Outcome.OK], [[3]]))
        self.assertEqual(self.store.get(self.keys[:1], self.memory, [7]), [Outcome.OK])
        self.assertEqual(self.bytes_of(7), wanted)


class _Cuda:
    """Stands for the CUDA runtime: the arenas that are registered."""

    def __init__(self) -> None:
        self.registered: "dict[int, int]" = {}

    def cudaHostRegister(self, address: int, size: int, _flags: int) -> int:
        self.registered[address] = size
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        del self.registered[address]
        return 0


class _Owner:
    pass


@unittest.skipUnless(torch is not None, "PyTorch is not installed")
class Registration(unittest.TestCase):
    def setUp(self) -> None:
        from hearth_vllm.device_memory import DeviceMemory, tensors_of

        self.owner = _Owner()
        self.store = SimpleNamespace(arena=(1 << 20, 4096, self.owner))
        caches = {"l.0": torch.zeros(4, 64)}
        spans = describe(caches, 4).spans
        self.memory = DeviceMemory(spans, tensors_of(caches), self.store)
        self.memory._is_cuda = True
        self.cuda = _Cuda()
        for name, double in (
            ("cudart", lambda: self.cuda), ("device", lambda _device: nullcontext())
        ):
            patch = mock.patch.object(torch.cuda, name, double)
            patch.start()
            self.addCleanup(patch.stop)

    def test_a_registered_arena_stays_mapped_until_the_next_one_is_registered(self) -> None:
        self.memory.register_arena()
        owner = ref(self.owner)
        del self.owner
        self.store.arena = (1 << 21, 4096, _Owner())
        self.assertIsNotNone(owner())
        self.memory.register_arena()
        self.assertEqual(self.cuda.registered, {1 << 21: 4096})
        self.assertIsNone(owner())

    def test_an_arena_is_unregistered_when_no_lane_copies(self) -> None:
        self.memory.register_arena()
        self.store.arena = (1 << 21, 4096, _Owner())
        thread = Thread(target=self.memory.register_arena)
        with self.memory._lanes["in"].lock:
            thread.start()
            thread.join(0.1)
            self.assertEqual(self.cuda.registered, {1 << 20: 4096})
        thread.join()
        self.assertEqual(self.cuda.registered, {1 << 21: 4096})

    def test_a_copy_that_fails_has_ended_when_it_returns(self) -> None:
        self.memory._is_cuda = False
        ended = []
        self.memory._lanes["out"].synchronize = lambda: ended.append(True)
        with self.assertRaises(IndexError):
            self.memory.take_out([1 << 30], [0])
        self.assertEqual(ended, [True])


if __name__ == "__main__":
    unittest.main()
