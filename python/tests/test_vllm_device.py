"""hearth_vllm's device memory on CPU tensors, with a real agent. Skipped without PyTorch."""

from __future__ import annotations

import ctypes
import os
import threading
import unittest
from array import array
from hashlib import sha256
from types import SimpleNamespace
from typing import Any, Callable, List
from unittest import mock

from hearth_client import Manifest, Outcome, transfer
from hearth_client.copiers import Slots
from hearth_client.hash_threads import HashThreads
from hearth_client.kv_store import KvStore, PagedMemory, Region, Role
from hearth_client.namespace_key import NamespaceKey
from hearth_client.native import NATIVE, kernels
from hearth_vllm.geometry import describe
from hearth_vllm.registration import Registration

from .cuda_runtime import Runtime
from .real_agent import HANG_SECONDS, until

SOCKET = os.environ.get("HEARTH_SOCKET", "")

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]


class CountedHashes(HashThreads):
    """Counts the chunks that are being copied and not verified yet."""

    def __init__(self) -> None:
        super().__init__(1)
        self.now, self.most = 0, 0

    def verify(self, *words: Any) -> Callable[[], List[bool]]:
        result = super().verify(*words)
        self.now += 1
        self.most = max(self.most, self.now)

        def later() -> List[bool]:
            self.now -= 1
            return result()

        return later


@unittest.skipUnless(torch is not None, "PyTorch is not installed")
class Tensors(unittest.TestCase):
    """Three layers of 16 blocks; two blocks are a chunk."""

    #: Bytes of an element.
    element = 4
    key: Any = None

    def setUp(self) -> None:
        from hearth_vllm import device_memory

        for module in (transfer, device_memory):
            patch = mock.patch.object(module, "CHUNK_BLOCKS", 2)
            patch.start()
            self.addCleanup(patch.stop)
        self.runtime = Runtime()
        self.registration = Registration(lambda: self.runtime, slice_bytes=5 * 4096)
        self.addCleanup(self.registration.close)
        self.addCleanup(self.runtime.open.set)
        manifest = Manifest("device", "float32", self.id(), 32, tenant_salt=os.urandom(8).hex())
        self.store = KvStore(
            manifest,
            socket=SOCKET or "/dev/null",
            engine_id=os.urandom(16),
            role=Role.WORKER,
            stall_ms=30_000,
            key=self.key,
            on_arena=self.registration.announce,
        )
        self.addCleanup(self.store.close)
        kind = {4: torch.int32, 1: torch.uint8}[self.element]
        raw = torch.randint(0, 256, (3, 16, 2, 32, 7), dtype=kind)
        # The layers of two tensors, one with the block dimension behind keys and values.
        self.caches = {"l.0": raw[0], "l.1": raw[1], "l.2": raw[2].transpose(0, 1).contiguous()}
        self.geometry = describe(self.caches, 16)
        self.memory = self.device_memory(HashThreads(3))
        self.keys = [sha256(bytes([i])).digest() for i in range(7)]

    def device_memory(self, hash_threads: HashThreads) -> Any:
        from hearth_vllm.device_memory import DeviceMemory, tensors_of

        return DeviceMemory(
            *(self.geometry.spans, tensors_of(self.caches), self.registration),
            hash_threads=hash_threads,
        )

    def bytes_of(self, blocks: List[int]) -> List[bytes]:
        spans = self.geometry.spans
        return [
            b"".join(ctypes.string_at(base + block * stride, size) for base, stride, size in spans)
            for block in blocks
        ]

    def put(self, blocks: List[int]) -> List[bytes]:
        """Stores the blocks; answers their bytes."""
        keys = self.keys[: len(blocks)]
        outcomes = self.store.put(keys, [None, *keys[:-1]], self.memory, blocks)
        self.assertEqual(outcomes, [Outcome.OK] * len(blocks))
        return self.bytes_of(blocks)

    def get(self, blocks: List[int]) -> List[Outcome]:
        return self.store.get(self.keys[: len(blocks)], self.memory, blocks)

    def buffers(self) -> List[int]:
        """Free buffers of both directions."""
        return [lane._free.qsize() for lane in (self.memory.loads, self.memory.stores)]


@unittest.skipUnless(SOCKET, "HEARTH_SOCKET does not name a running agent's socket")
class DeviceTensors(Tensors):
    SOURCES, TARGETS = [3, 1, 4, 15, 9, 2, 6], [0, 12, 13, 14, 1, 2, 5]

    def test_blocks_have_the_same_bytes_as_through_host_memory(self) -> None:
        before = self.put(self.SOURCES)
        host = PagedMemory([Region(*span) for span in self.geometry.spans], self.caches)
        got = self.store.get(self.keys, host, [5, 6, 7, 8, 10, 11, 0])
        self.assertEqual(got, [Outcome.OK] * 7)
        self.assertEqual(self.bytes_of([5, 6, 7, 8, 10, 11, 0]), before)
        for cache in self.caches.values():
            cache.zero_()
        self.assertEqual(self.get(self.TARGETS), [Outcome.OK] * 7)
        self.assertEqual(self.bytes_of(self.TARGETS), before)
        self.assertEqual(self.buffers(), [2, 2])

    def test_blocks_that_the_agent_does_not_copy_are_copied_by_the_worker(self) -> None:
        asked = []

        def refuse(ids: object, _slots: object) -> bool:
            asked.append(ids)
            return False

        self.memory.agent_stores = SimpleNamespace(store=refuse)
        wanted = self.put([3])
        # With a key the worker computes the MACs, of bytes that are there.
        self.assertEqual(asked, [[3]] if self.key is None else [])
        self.assertEqual(self.get([7]), [Outcome.OK])
        self.assertEqual(self.bytes_of([7]), wanted)

    def test_a_chunk_is_copied_before_the_one_in_front_of_it_is_verified(self) -> None:
        before = self.put(self.SOURCES)
        hashes = CountedHashes()
        self.memory = self.device_memory(hashes)

        def is_paired() -> bool:
            # A chunk does not wait for a reply of the agent that is not there yet.
            self.assertEqual(self.get(self.TARGETS), [Outcome.OK] * 7)
            self.assertEqual(self.bytes_of(self.TARGETS), before)
            return hashes.most >= 2

        until(is_paired, "a load with two chunks in progress")
        self.assertEqual((hashes.now, hashes.most), (0, 2))

    def test_a_block_is_read_in_the_order_of_its_layers(self) -> None:
        target = bytearray(self.memory.block_bytes)
        self.memory.read_block(3, target)
        self.assertEqual(bytes(target), self.bytes_of([3])[0])

    def test_only_blocks_that_verify_are_written(self) -> None:
        before = self.put(self.SOURCES)
        arena = self.store._link.usable().arena
        found = ctypes.string_at(arena.address, arena.size).find(before[4])
        self.assertGreaterEqual(found, 0)
        ctypes.memset(arena.address + found + 100, before[4][100] ^ 1, 1)
        old = self.bytes_of([1])
        got = self.get(self.TARGETS)
        self.assertEqual(got, [Outcome.OK] * 4 + [Outcome.CORRUPT] + [Outcome.OK] * 2)
        self.assertEqual(self.bytes_of(self.TARGETS), [*before[:4], *old, *before[5:]])

    def test_loads_at_once_share_the_buffers(self) -> None:
        before = self.put([3])
        outcomes: List[List[Outcome]] = []

        def load(block: int) -> None:
            for _ in range(20):
                outcomes.append(self.store.get(self.keys[:1] * 5, self.memory, [block] * 5))

        threads = [threading.Thread(target=load, args=(block,)) for block in (4, 5, 6, 7)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_SECONDS)
        self.assertEqual(outcomes, [[Outcome.OK] * 5] * 80)
        self.assertEqual(self.bytes_of([4, 5, 6, 7]), before * 4)

    def test_blocks_are_copied_while_the_arena_is_being_registered(self) -> None:
        self.runtime.open.clear()
        self.registration.announce(self.mapped())
        until(lambda: self.runtime.waiting, "a registration in progress")
        before = self.put(self.SOURCES)
        self.assertEqual(self.get(self.TARGETS), [Outcome.OK] * 7)
        self.assertEqual(self.bytes_of(self.TARGETS), before)
        self.assertLess(self.registration.registered_bytes, self.mapped()[1])

    def test_a_copy_crosses_no_registration(self) -> None:
        from hearth_vllm import device_memory

        address, size, _owner = self.mapped()
        until(lambda: self.registration.registered_bytes == size, "a registered arena")
        parts: List[tuple] = []
        real = device_memory._host

        def host(at: int, length: int) -> Any:
            parts.append((at - address, length))
            return real(at, length)

        with mock.patch.object(device_memory, "_host", host):
            before = self.put(self.SOURCES)
            self.assertEqual(self.get(self.TARGETS), [Outcome.OK] * 7)
        self.assertEqual(self.bytes_of(self.TARGETS), before)
        step = 5 * 4096
        self.assertEqual({at // step - (at + size - 1) // step for at, size in parts}, {0})
        self.assertGreater(len(parts), 0)

    def mapped(self) -> "tuple[int, int, object]":
        arena = self.store._link.usable().arena
        return arena.address, arena.size, arena.export(0, 1)


class OddTensors(DeviceTensors):
    """Spans that are not made of words of 8 bytes."""

    element = 1


@unittest.skipUnless(NATIVE is not None, "the native library is not built")
class KeyedTensors(DeviceTensors):
    key = NamespaceKey(b"a secret of a test, 1") if NATIVE is not None else None


class FailingCopies(Tensors):
    def test_a_copy_that_fails_has_ended_when_it_returns(self) -> None:
        memory, ended = self.memory, []
        for lane in (memory.loads, memory.stores):
            for buffer in [lane.take(True) for _ in range(2)]:
                buffer.synchronize = lambda: ended.append(True)
                lane.give(buffer)
        slots = array("Q", [self.caches["l.0"].data_ptr()])
        copier = memory.copier(kernels(), [1 << 30])
        with self.assertRaises(IndexError):
            copier.gather([0], Slots(slots, b"", None, None))
        sums = array("Q", [kernels().xxh3_at(slots[0], memory.block_bytes)])
        finish = copier.scatter([0], slots, sums)
        with self.assertRaises(IndexError):
            finish()
        with self.assertRaisesRegex(RuntimeError, "failed before"):
            finish()
        self.assertEqual((ended, self.buffers()), ([True, True], [2, 2]))


@unittest.skipUnless(torch is not None, "PyTorch is not installed")
class VerifiedElements(unittest.TestCase):
    def test_rounding_is_within_the_tolerance_and_other_tokens_are_not(self) -> None:
        from hearth_vllm.verify import TOLERANCE, difference_of, tensor_norms

        for kind, cache in (("bfloat16", "auto"), ("float16", "auto"), ("uint8", "fp8")):
            norms = tensor_norms(kind, cache)
            assert norms is not None
            name = "float8_e4m3fn" if kind == "uint8" else kind

            def as_bytes(values: Any, name: str = name) -> bytearray:
                elements = values.to(getattr(torch, name)).view(torch.uint8)
                return bytearray(elements.numpy().tobytes())

            layers = [torch.randn(4096), 0.01 * torch.randn(4096)]
            computed = as_bytes(torch.cat(layers))
            spans = [len(computed) // 2] * 2
            difference = difference_of(norms, spans)
            noise = [layer * (1 + 0.004 * torch.randn(4096)) for layer in layers]
            self.assertLess(difference(as_bytes(torch.cat(noise)), computed), TOLERANCE)
            self.assertGreater(difference(as_bytes(torch.cat(noise)), computed), 0)
            # The small layer alone is of other tokens.
            planted = torch.cat([layers[0], 0.01 * torch.randn(4096)])
            self.assertGreater(difference(as_bytes(planted), computed), TOLERANCE)
            planted[0] = float("nan")
            self.assertGreater(difference(as_bytes(planted), computed), TOLERANCE)
        self.assertIsNone(tensor_norms("uint8", "fp8_ds_mla"))
        self.assertIsNone(tensor_norms("int8", "auto"))


if __name__ == "__main__":
    unittest.main()
