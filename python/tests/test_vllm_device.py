"""hearth_vllm's device memory on CPU tensors, with a real agent. Skipped without PyTorch."""

from __future__ import annotations

import os
import unittest
from hashlib import sha256

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


if __name__ == "__main__":
    unittest.main()
