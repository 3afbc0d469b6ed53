"""vLLM's KV cache on a GPU, as memory that KvStore copies from and to. Imports torch.

Blocks are collected in a buffer on the device by one kernel per span, and copied between this
buffer and the agent's arena by one transfer per run of slots. Each buffer has a stream: while one
chunk is hashed and its blocks are written, the next one is copied. The arena is registered with
CUDA in this process. The same code runs on CPU tensors, without streams.
With ``hearth.agent_stores`` the agent copies from the blocks to the arena.
"""

from __future__ import annotations

import ctypes
import queue
from array import array
from collections import deque
from contextlib import nullcontext
from typing import Any, Deque, Iterator, List, Optional, Sequence, Tuple

import torch

from hearth_client.agent_stores import AgentStores
from hearth_client.copiers import FinishGather, FinishScatter, Slots
from hearth_client.hash_threads import HashThreads
from hearth_client.namespace_key import Macs
from hearth_client.transfer import CHUNK_BLOCKS, CHUNK_BYTES

from .geometry import Span
from .registration import ArenaUse, Registration

#: Chunks of one direction on their way, by all threads together. Each has 32 MiB on the device.
_BUFFERS = 2


class DeviceMemory:
    """The paged KV cache of one worker. `spans` are relative to addresses of `owners`' storages."""

    def __init__(
        self,
        spans: Sequence[Span],
        owners: Sequence[torch.Tensor],
        registration: Registration,
        agent_stores: Optional[AgentStores] = None,
        hash_threads: Optional[HashThreads] = None,
    ) -> None:
        self.agent_stores = agent_stores
        self.registration = registration
        self.hash_threads = hash_threads or HashThreads()
        self.block_bytes = sum(size for _, _, size in spans)
        self._device = owners[0].device
        word = _word(spans, owners)
        self.views = [_view(span, owners, word) for span in spans]
        blocks = max(1, min(CHUNK_BLOCKS, CHUNK_BYTES // self.block_bytes))
        #: A load and a store run at the same time; threads of one kind share buffers.
        self.loads, self.stores = (_Lane(self._device, blocks, self.views) for _ in range(2))

    def mark(self) -> Any:
        """An event behind the work that vLLM has submitted; None on a CPU, which has done it."""
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def read_block(self, block: int, target: bytearray) -> None:
        """Copies a block, layer by layer, to memory of `block_bytes` bytes."""
        room, at = torch.frombuffer(target, dtype=torch.uint8), 0
        for view in self.views:
            row = view[block].contiguous().view(torch.uint8)
            room[at : at + len(row)].copy_(row)
            at += len(row)

    def copier(self, kernels: Any, block_ids: Sequence[int]) -> "DeviceCopier":
        """The engine's side of one transfer."""
        return DeviceCopier(self, kernels, block_ids)


class _Buffer:
    """Room for a chunk on the device, and a stream on which its copies run in order."""

    def __init__(self, device: torch.device, blocks: int, views: Sequence[torch.Tensor]) -> None:
        widths = [view.shape[1] for view in views]
        self._device = device
        self._words = torch.empty((blocks, sum(widths)), dtype=views[0].dtype, device=device)
        #: The part of all blocks that belongs to each view.
        self.columns = torch.split(self._words, widths, dim=1)
        self._bytes = self._words.view(-1).view(torch.uint8)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def context(self) -> Any:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def indexes(self, ids: Sequence[int]) -> torch.Tensor:
        """On the device; without waiting for the copies that the stream has to do."""
        found = torch.tensor(ids, dtype=torch.long)
        if self._stream is None:
            return found
        return found.pin_memory().to(self._device, non_blocking=True)

    def part(self, at: int, length: int) -> torch.Tensor:
        """Bytes of the buffer: block by block."""
        return self._bytes[at : at + length]

    def synchronize(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()


class _Lane:
    """The buffers of one direction."""

    def __init__(self, device: torch.device, blocks: int, views: Sequence[torch.Tensor]) -> None:
        self._free: "queue.SimpleQueue[_Buffer]" = queue.SimpleQueue()
        for _ in range(_BUFFERS):
            self._free.put(_Buffer(device, blocks, views))

    def take(self, wait: bool) -> Optional[_Buffer]:
        try:
            return self._free.get(wait)
        except queue.Empty:
            return None

    def give(self, buffer: _Buffer) -> None:
        self._free.put(buffer)


class _Chunk:
    """A chunk on its way through a buffer: begun when it is made."""

    def __init__(
        self,
        copier: "DeviceCopier",
        lane: _Lane,
        buffer: _Buffer,
        ids: Sequence[int],
        slots: "array[int]",
    ) -> None:
        self._memory, self._kernels = copier.memory, copier.kernels
        self._lane, self._buffer, self._ids, self._slots = lane, buffer, ids, slots
        self._result: Any = None
        self._use: Optional[ArenaUse] = None
        self.is_ended = False

    def begin(self) -> "_Chunk":
        try:
            self._use = self._memory.registration.use(self._slots[0])
            with self._buffer.context():
                self._begin()
        except BaseException:
            self._end()
            raise
        return self

    def finish(self) -> Any:
        """The result, when all copies have ended, also after an error. May be called again."""
        if not self.is_ended:
            try:
                with self._buffer.context():
                    self._result = self._finish()
            finally:
                self._end()
        if self._result is None:
            raise RuntimeError("a copy between the device and the arena failed before")
        return self._result

    def _end(self) -> None:
        self.is_ended = True
        try:
            self._buffer.synchronize()
        finally:
            if self._use is not None:
                self._use.end()
            self._lane.give(self._buffer)

    def _begin(self) -> None:
        raise NotImplementedError

    def _finish(self) -> Any:
        raise NotImplementedError

    def _pairs(self) -> Iterator[Tuple[torch.Tensor, torch.Tensor]]:
        """Parts of the buffer, and the bytes of the slots that belong to them."""
        length, slots = self._memory.block_bytes, self._slots
        assert self._use is not None
        row = 0
        while row < len(slots):
            end = row + 1
            while end < len(slots) and slots[end] == slots[end - 1] + length:
                end += 1
            at = row * length
            for address, size in self._use.pieces(slots[row], (end - row) * length):
                yield self._buffer.part(at, size), _host(address, size)
                at += size
            row = end


class _Load(_Chunk):
    """Slots are copied to the buffer while they are hashed; then blocks that verified are written.

    Slots do not change while they are referenced.
    """

    def verify_with(self, checksums: "array[int]", macs: Optional[Macs]) -> "_Load":
        self._checksums, self._macs = checksums, macs
        return self

    def _begin(self) -> None:
        memory = self._memory
        self._index = self._buffer.indexes(self._ids)
        for room, slot in self._pairs():
            room.copy_(slot, non_blocking=True)
        # Last: no thread hashes slots that are given back because a copy could not be begun.
        self._verdicts = memory.hash_threads.verify(
            *(self._kernels, self._slots, memory.block_bytes), self._checksums, self._macs
        )

    def _finish(self) -> List[bool]:
        good, index = self._verdicts(), self._index
        rows = torch.tensor([row for row, is_good in enumerate(good) if is_good], dtype=torch.long)
        is_whole = len(rows) == len(good)
        if not is_whole:
            rows = rows.to(index.device)
            index = index.index_select(0, rows)
        for view, column in zip(self._memory.views, self._buffer.columns):
            source = column[: len(good)] if is_whole else column.index_select(0, rows)
            view.index_copy_(0, index, source)
        return good


class _Store(_Chunk):
    """Blocks are collected in the buffer and copied to slots; then these are hashed."""

    def sign_with(self, macs: Optional[Macs]) -> "_Store":
        self._macs = macs
        return self

    def _begin(self) -> None:
        index = self._buffer.indexes(self._ids)
        for view, column in zip(self._memory.views, self._buffer.columns):
            column[: len(index)] = view.index_select(0, index)
        for room, slot in self._pairs():
            slot.copy_(room, non_blocking=True)

    def _finish(self) -> List[int]:
        self._buffer.synchronize()
        memory = self._memory
        return memory.hash_threads.checksums(
            self._kernels, self._slots, memory.block_bytes, self._macs
        )()


class DeviceCopier:
    """One transfer: blocks by their index in the call, as hearth_client.copiers.Copier."""

    depth = 2

    def __init__(self, memory: DeviceMemory, kernels: Any, block_ids: Sequence[int]) -> None:
        self.memory = memory
        self.kernels = kernels
        self._ids = list(block_ids)
        self._chunks: Deque[_Chunk] = deque()
        self.uniform: Optional[int] = memory.block_bytes

    def length_of(self, _index: int) -> int:
        return self.memory.block_bytes

    def gather(self, indices: Sequence[int], slots: Slots) -> FinishGather:
        ids, by_agent = [self._ids[i] for i in indices], self.memory.agent_stores
        # With a key the MACs are computed here, of bytes that are there.
        if by_agent is not None and slots.macs is None and by_agent.store(ids, slots):
            return lambda: None
        lane = self.memory.stores
        chunk = _Store(self, lane, self._buffer(lane), ids, slots.addresses)
        return self._began(chunk.sign_with(slots.macs))

    def scatter(
        self,
        indices: Sequence[int],
        slots: "array[int]",
        checksums: "array[int]",
        macs: Optional[Macs] = None,
    ) -> FinishScatter:
        lane, ids = self.memory.loads, [self._ids[i] for i in indices]
        chunk = _Load(self, lane, self._buffer(lane), ids, slots)
        return self._began(chunk.verify_with(checksums, macs))

    def _began(self, chunk: _Chunk) -> Any:
        self._chunks.append(chunk.begin())
        return chunk.finish

    def _buffer(self, lane: _Lane) -> _Buffer:
        """Waits only while this transfer has no buffer: two would wait for each other."""
        buffer = lane.take(False)
        if buffer is None:
            while self._chunks:
                self._chunks.popleft().finish()
            buffer = lane.take(True)
            assert buffer is not None
        self._chunks = deque(one for one in self._chunks if not one.is_ended)
        return buffer


def _host(address: int, length: int) -> torch.Tensor:
    """The bytes of a slot."""
    return torch.frombuffer((ctypes.c_ubyte * length).from_address(address), dtype=torch.uint8)


def _word(spans: Sequence[Span], owners: Sequence[torch.Tensor]) -> torch.dtype:
    """The words in which all spans can be copied: a kernel copies one word per thread."""
    numbers = [number for span in spans for number in span]
    numbers += [address for address, _size in allocations_of(owners)]
    return torch.int64 if all(number % 8 == 0 for number in numbers) else torch.uint8


def _view(span: Span, owners: Sequence[torch.Tensor], word: torch.dtype) -> torch.Tensor:
    """A span as a tensor of words: one row per block."""
    base, stride, size = span
    for owner in owners:
        storage = owner.untyped_storage()
        offset = base - storage.data_ptr()
        if 0 <= offset < storage.nbytes():
            whole = torch.empty(0, dtype=word, device=owner.device).set_(storage)
            blocks = (storage.nbytes() - offset - size) // stride + 1
            unit = word.itemsize
            shape, strides = (blocks, size // unit), (stride // unit, 1)
            return torch.as_strided(whole, shape, strides, offset // unit)
    raise ValueError("a span of the KV cache lies in none of its tensors")


def open_runtime(device: torch.device) -> Any:
    """CUDA's runtime for the calling thread."""
    torch.cuda.set_device(device)
    return torch.cuda.cudart()


def allocations_of(owners: Sequence[torch.Tensor]) -> List[Tuple[int, int]]:
    """Address and bytes of each storage, once."""
    storages = [owner.untyped_storage() for owner in owners]
    return sorted({(storage.data_ptr(), storage.nbytes()) for storage in storages})


def tensors_of(caches: Any) -> List[torch.Tensor]:
    """All tensors of vLLM's dictionary of KV caches."""
    found: List[torch.Tensor] = []
    for cache in caches.values():
        found.extend(cache if isinstance(cache, (list, tuple)) else (cache,))
    return found
