"""The client's GPU side and a running agent: HEARTH_SOCKET names its socket, HEARTH_TEST_CUDA the
driver's library, which may be a stand-in."""

from __future__ import annotations

import logging
import os
import threading
import time
import unittest
from array import array
from hashlib import sha256
from typing import Any, Callable, List, Sequence, Union

from hearth_client import (
    Block,
    Client,
    CudaError,
    GpuMemory,
    Manifest,
    Outcome,
    Piece,
    ReadableBlock,
    WritableSlot,
)

from hearth_client.agent_stores import AgentStores
from hearth_client.copiers import Slots
from hearth_client.kv_store import KvStore, Region

from .cuda_memory import CudaMemory, Tensor

SOCKET = os.environ.get("HEARTH_SOCKET", "")
LIBRARY = os.environ.get("HEARTH_TEST_CUDA", "")
BLOCK_BYTES = 4096
#: Bytes between the halves of a block on the GPU, as between keys and values.
HALF = BLOCK_BYTES // 2
APART = 65_536


def payload(digest: bytes) -> bytes:
    return digest * (BLOCK_BYTES // len(digest))


@unittest.skipUnless(SOCKET and LIBRARY, "HEARTH_SOCKET and HEARTH_TEST_CUDA name no agent and GPU")
class Gpu(unittest.TestCase):
    def setUp(self) -> None:
        self.salt = f"{self.id()}-{os.getpid()}-{time.time_ns()}"
        self.client = self.connect()
        self.cuda = CudaMemory(LIBRARY)
        self.digests = self.client.identify(list(range(16)))

    def connect(self) -> Client:
        manifest = Manifest("gpu-test", "bfloat16", "test:flat", 4, tenant_salt=self.salt)
        client = Client(SOCKET, manifest, name="python gpu test")
        self.addCleanup(client.close)
        return client

    def pieces(self, blocks: Sequence[Union[WritableSlot, ReadableBlock]]) -> List[Piece]:
        """The second half of each block lies first, far from the first."""
        return [
            Piece(block, half * HALF, (1 - half) * APART + at * HALF, HALF)
            for at, block in enumerate(blocks)
            for half in (0, 1)
        ]

    def compute(self, pointer: int) -> None:
        for at, digest in enumerate(self.digests):
            for half in (0, 1):
                data = payload(digest)[half * HALF : (half + 1) * HALF]
                self.cuda.write(pointer + (1 - half) * APART + at * HALF, data)

    def store(self, memory: GpuMemory, pointer: int) -> None:
        self.compute(pointer)
        parents = [None, *self.digests]
        slots = self.client.reserve(
            [Block(digest, BLOCK_BYTES, parent) for digest, parent in zip(self.digests, parents)]
        )
        outcomes = self.client.store_from_gpu(memory, self.pieces(slots))
        self.assertEqual(outcomes, [Outcome.OK] * 8)
        self.assertEqual(self.client.commit(slots), [Outcome.OK] * 4)

    def check(self, pointer: int) -> None:
        """Stored from the GPU, read in the arena; loaded, and read on the GPU."""
        memory = self.client.register_gpu_memory(pointer, 2 * APART, library=LIBRARY)
        self.store(memory, pointer)
        self.assertEqual(self.client.get(self.digests), [payload(one) for one in self.digests])
        self.cuda.write(pointer, bytes(2 * APART))
        with self.client.acquired(self.digests) as blocks:
            loaded = self.client.load_to_gpu(memory, self.pieces(blocks), verify=True)
        self.assertEqual(loaded, [Outcome.OK] * 8)
        for at, digest in enumerate(self.digests):
            first = self.cuda.read(pointer + APART + at * HALF, HALF)
            second = self.cuda.read(pointer + at * HALF, HALF)
            self.assertEqual(first + second, payload(digest))
        self.client.unregister_gpu_memory(memory)
        with self.assertRaises(ValueError):
            self.client.load_to_gpu(memory, [])

    def test_allocated_memory(self) -> None:
        self.check(self.cuda.allocate(2 * APART))

    def test_a_part_of_an_allocation(self) -> None:
        self.check(self.cuda.allocate(4 * APART) + APART)

    def test_mapped_memory_of_several_segments(self) -> None:
        start, size = self.cuda.mapped(2)
        # The parts of a block lie in both segments, and one piece in both.
        self.check(start + size - APART - 5 * HALF // 2)

    def test_mapped_memory_of_more_segments_than_one_request_takes(self) -> None:
        start, size = self.cuda.mapped(66)
        # Around the border of two requests.
        at = start + 64 * size - APART
        memory = self.client.register_gpu_memory(start, 66 * size, library=LIBRARY)
        self.assertEqual(len(memory.parts), 66)
        self.store(GpuMemory(at, 2 * APART, memory.parts), at)
        self.assertEqual(self.client.get(self.digests), [payload(one) for one in self.digests])
        self.client.unregister_gpu_memory(memory)

    def test_a_part_that_cannot_be_exported_is_nobodys(self) -> None:
        start, size = self.cuda.mapped(2)
        holed, _size = self.cuda.mapped(3, hole=1)
        with self.assertRaises(CudaError):
            self.client.register_gpu_memory(holed, 3 * size, library=LIBRARY)
        # The part before the hole is not used as the first part of this memory.
        self.check(start + size - APART)

    def test_a_tensor(self) -> None:
        pointer = self.cuda.allocate(2 * APART)
        memory = self.client.register_gpu_memory(Tensor(pointer, [2, APART // 2]), library=LIBRARY)
        self.assertEqual((memory.pointer, memory.length), (pointer, 2 * APART))
        with self.assertRaises(ValueError):
            self.client.register_gpu_memory(Tensor(pointer, [2, 2], False), library=LIBRARY)

    def test_layers_come_in_order_whatever_is_asked_in_between(self) -> None:
        pointer = self.cuda.allocate(2 * APART)
        memory = self.client.register_gpu_memory(pointer, 2 * APART, library=LIBRARY)
        self.store(memory, pointer)
        with self.client.acquired(self.digests) as blocks:
            layers = [[piece] for piece in self.pieces(blocks)] * 10
            loads = self.client.load_layers_to_gpu(memory, layers)
            self.assertEqual(len(loads), 80)
            self.assertEqual(loads.wait(3), [Outcome.OK])
            self.assertEqual(self.client.match(self.digests).leading, 4)
            self.assertEqual(list(loads), [[Outcome.OK]] * 80)

    def test_what_is_not_the_connections(self) -> None:
        pointer = self.cuda.allocate(2 * APART)
        memory = self.client.register_gpu_memory(pointer, 2 * APART, library=LIBRARY)
        self.store(memory, pointer)
        with self.connect() as other, self.client.acquired(self.digests) as blocks:
            pieces = self.pieces(blocks)
            theirs = other.register_gpu_memory(pointer, 2 * APART, library=LIBRARY)
            other.unregister_gpu_memory(theirs)
            self.assertEqual(other.load_to_gpu(memory, pieces[:1]), [Outcome.STALE])
            wrong = [piece._replace(block_offset=BLOCK_BYTES - 1) for piece in pieces[:1]]
            self.assertEqual(self.client.load_to_gpu(memory, wrong), [Outcome.REJECTED])
            far = [piece._replace(memory_offset=2 * APART) for piece in pieces[:1]]
            with self.assertRaises(ValueError):
                self.client.load_to_gpu(memory, far)

    def test_what_is_no_memory_of_a_gpu(self) -> None:
        with self.assertRaises(CudaError) as caught:
            self.client.register_gpu_memory(4096, 4096, library=LIBRARY)
        self.assertNotEqual(caught.exception.code, 0)
        with self.assertRaises(CudaError):
            self.client.register_gpu_memory(4096, 4096, library="/nonexistent/libcuda.so.1")
        with self.assertRaises(ValueError):
            self.client.register_gpu_memory(4096)

    def test_a_thread_without_a_context(self) -> None:
        pointer = self.cuda.allocate(2 * APART)
        seen: List[int] = []

        def register() -> None:
            seen.append(self.client.register_gpu_memory(pointer, 4096, library=LIBRARY).length)

        thread = threading.Thread(target=register)
        thread.start()
        thread.join(30)
        self.assertEqual(seen, [4096])

    def test_devices(self) -> None:
        self.assertTrue(self.client.has_gpu)
        (device,) = self.client.gpu_devices()
        self.assertFalse(device.lost)

    def test_nothing_is_offered_where_nobody_wants_a_block(self) -> None:
        offer = self.client.gpu_warm(wait_ms=20)
        self.assertEqual((offer.number, offer.digests), (0, []))
        again = self.client.gpu_warm(offer, [], wait_ms=20)
        self.assertEqual(again.number, 0)

    def test_several_threads(self) -> None:
        pointer = self.cuda.allocate(2 * APART)
        memory = self.client.register_gpu_memory(pointer, 2 * APART, library=LIBRARY)
        self.store(memory, pointer)
        seen: List[List[Outcome]] = []
        with self.client.acquired(self.digests) as blocks:
            pieces = self.pieces(blocks)

            def load() -> None:
                for _ in range(20):
                    seen.append(self.client.load_to_gpu(memory, pieces))

            threads = [threading.Thread(target=load) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
        self.assertEqual(seen, [[Outcome.OK] * 8] * 80)


class Pages:
    """Blocks of two layers on a GPU; the agent copies the stored ones."""

    def __init__(self, stores: AgentStores) -> None:
        self.stores = stores

    def copier(self, _kernels: Any, block_ids: Sequence[int]) -> "Pages":
        self.ids = block_ids
        return self

    uniform = BLOCK_BYTES
    depth = 1

    def length_of(self, _index: int) -> int:
        return BLOCK_BYTES

    def gather(self, indices: Sequence[int], slots: Any) -> Callable[[], None]:
        if not self.stores.store([self.ids[at] for at in indices], slots):
            raise AssertionError("the agent does not copy")
        return lambda: None


@unittest.skipUnless(SOCKET and LIBRARY, "HEARTH_SOCKET and HEARTH_TEST_CUDA name no agent and GPU")
class StoresByTheAgent(unittest.TestCase):
    def setUp(self) -> None:
        salt = f"{self.id()}-{os.getpid()}-{time.time_ns()}"
        manifest = Manifest("gpu-stores", "bfloat16", "test:flat", 4, tenant_salt=salt)
        self.store = KvStore(manifest, socket=SOCKET, stall_ms=30_000)
        self.addCleanup(self.store.close)
        self.client = Client(SOCKET, manifest)
        self.addCleanup(self.client.close)
        self.cuda = CudaMemory(LIBRARY)
        #: Keys in one allocation, values in another one.
        self.pointers = [self.cuda.allocate(APART), self.cuda.allocate(APART)]
        self.keys = [sha256(bytes([at])).digest() for at in range(7)]

    def pages(self, **options: Any) -> Pages:
        regions = [Region(pointer + HALF, HALF, HALF) for pointer in self.pointers]
        allocations = [(pointer, APART) for pointer in self.pointers]
        return Pages(AgentStores(regions, allocations, library=LIBRARY, **options))

    def fill(self, block: int, key: bytes) -> None:
        for half, pointer in enumerate(self.pointers):
            self.cuda.write(pointer + (block + 1) * HALF, payload(key)[half * HALF :][:HALF])

    def put(self, pages: Pages, keys: Sequence[bytes], blocks: Sequence[int]) -> List[Outcome]:
        for block, key in zip(blocks, keys):
            self.fill(block, key)
        memory: Any = pages
        return self.store.put(keys, [None] * len(keys), memory, blocks)

    def check(self, keys: Sequence[bytes]) -> None:
        digests = self.client.identify_chain_keys(keys)
        self.assertEqual(self.client.get(digests), [payload(key) for key in keys])

    def test_blocks_of_two_allocations_are_stored(self) -> None:
        blocks = [3, 1, 4, 15, 9, 2, 6]
        self.assertEqual(self.put(self.pages(), self.keys, blocks), [Outcome.OK] * 7)
        self.check(self.keys)

    def test_memory_is_registered_again_after_a_reconnect(self) -> None:
        pages = self.pages()
        self.assertEqual(self.put(pages, self.keys[:2], [0, 1]), [Outcome.OK] * 2)
        connection = self.store._link.usable()
        assert connection is not None
        connection.close()
        limit = time.monotonic() + 60
        while self.store._link.usable() is None and time.monotonic() < limit:
            time.sleep(0.01)
        self.assertEqual(self.put(pages, self.keys[2:], [2, 3, 4, 5, 6]), [Outcome.OK] * 5)
        self.check(self.keys)

    def test_a_copy_that_the_agent_refuses_stores_nothing(self) -> None:
        pages = self.pages()
        beyond = APART // HALF
        memory: Any = pages
        outcomes = []
        with self.assertRaises(ValueError):
            outcomes = self.store.put(self.keys[:1], [None], memory, [beyond])
        self.assertEqual(outcomes, [])
        digests = self.client.identify_chain_keys(self.keys[:1])
        self.assertEqual(self.client.get(digests), [None])
        # The slot was given back: the block can be stored.
        self.assertEqual(self.put(pages, self.keys[:1], [5]), [Outcome.OK])
        self.check(self.keys[:1])

    def test_memory_that_the_agent_cannot_take_is_said_once(self) -> None:
        messages = logging.getLogger(self.id())
        stores = AgentStores(
            [Region(4096, HALF, HALF)], [(4096, APART)], library=LIBRARY, logger=messages
        )
        connection = self.store._link.usable()
        assert connection is not None
        slots = Slots(array("Q"), b"", connection, lambda _request, _limit: b"")
        with self.assertLogs(messages) as logs:
            self.assertEqual([stores.store([0], slots) for _ in range(3)], [False] * 3)
        self.assertEqual(len(logs.output), 1)
        self.assertIn("stores are copied by this process", logs.output[0])


if __name__ == "__main__":
    unittest.main()
