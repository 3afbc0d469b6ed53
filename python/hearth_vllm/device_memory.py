"""vLLM's KV cache on a GPU, as memory that KvStore copies from and to. Imports torch.

Blocks are collected in a buffer on the device by one kernel per span, and copied between this
buffer and the agent's arena by one transfer per block, on a stream of their own. The arena is
registered with CUDA in this process. The same code runs on CPU tensors, without streams.
With ``hearth.agent_stores`` the agent copies from the blocks to the arena.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from array import array
from contextlib import nullcontext
from typing import Any, List, Optional, Sequence, Tuple

import torch

from hearth_client.agent_stores import AgentStores
from hearth_client.copiers import Slots
from hearth_client.memory import Piece
from hearth_client.namespace_key import Macs

from .geometry import Span

logger = logging.getLogger("vllm.hearth")

#: Size of the buffer on the device; one block if a block is larger.
_BUFFER_BYTES = 32 << 20
_REGISTER_PORTABLE = 1


class DeviceMemory:
    """The paged KV cache of one worker. `spans` are relative to addresses of `owners`' storages."""

    def __init__(
        self,
        spans: Sequence[Span],
        owners: Sequence[torch.Tensor],
        store: Any,
        agent_stores: Optional[AgentStores] = None,
    ) -> None:
        self.agent_stores = agent_stores
        self.block_bytes = sum(size for _, _, size in spans)
        self._device = owners[0].device
        self._is_cuda = self._device.type == "cuda"
        self._views = [_view(span, owners) for span in spans]
        self._store = store
        self._lock = threading.Lock()
        #: Address, size and owner of the arena that was registered last.
        self._arena: Optional[Tuple[int, int, object]] = None
        self._is_registered = False
        blocks = max(1, _BUFFER_BYTES // self.block_bytes)
        #: A load and a store run at the same time; threads of one kind take turns.
        self._lanes = {
            name: _Lane(self._device, blocks, self.block_bytes) for name in ("in", "out")
        }

    def mark(self) -> Any:
        """An event behind the work that vLLM has submitted; None on a CPU, which has done it."""
        if not self._is_cuda:
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def copier(self, kernels: Any, block_ids: Sequence[int]) -> "DeviceCopier":
        """The engine's side of one transfer."""
        return DeviceCopier(self, kernels, block_ids)

    def register_arena(self) -> None:
        """Registers the arena with CUDA, again after each reconnect.

        A registered arena stays mapped. CUDA would otherwise copy the pages of the old arena if the
        next one were mapped at the same address.
        """
        arena = self._store.arena if self._is_cuda else None
        if arena is None or self._is_current(arena):
            return
        # No lane copies while its arena is unregistered.
        with self._lock, self._lanes["in"].lock, self._lanes["out"].lock:
            if self._is_current(arena):
                return
            with torch.cuda.device(self._device):
                runtime = torch.cuda.cudart()
                if self._is_registered and self._arena is not None:
                    runtime.cudaHostUnregister(self._arena[0])
                code = int(runtime.cudaHostRegister(arena[0], arena[1], _REGISTER_PORTABLE))
            self._arena, self._is_registered = arena, code == 0
        if code != 0:
            logger.warning("arena not registered with CUDA, copies are slower: error %d", code)

    def _is_current(self, arena: Tuple[int, int, object]) -> bool:
        return self._arena is not None and self._arena[:2] == arena[:2]

    def take_out(self, ids: Sequence[int], slots: Sequence[int]) -> None:
        """Copies blocks to slots."""
        for lane, index, part in self._chunks("out", ids, slots):
            at = 0
            for view in self._views:
                end = at + view.shape[1]
                lane.buffer[: len(part), at:end] = view.index_select(0, index)
                at = end
            for row, slot in enumerate(part):
                _host(slot, self.block_bytes).copy_(lane.buffer[row], non_blocking=True)

    def bring_in(self, ids: Sequence[int], slots: Sequence[int]) -> None:
        """Copies slots to blocks."""
        for lane, index, part in self._chunks("in", ids, slots):
            for row, slot in enumerate(part):
                lane.buffer[row].copy_(_host(slot, self.block_bytes), non_blocking=True)
            at = 0
            for view in self._views:
                end = at + view.shape[1]
                view.index_copy_(0, index, lane.buffer[: len(part), at:end])
                at = end

    def _chunks(self, name: str, ids: Sequence[int], slots: Sequence[int]) -> Any:
        """Buffer, block indexes and slots of each part; a part has ended when the next begins."""
        self.register_arena()
        lane = self._lanes[name]
        with lane.lock, lane.context():
            step = lane.buffer.shape[0]
            for at in range(0, len(ids), step):
                part = list(slots[at : at + step])
                chosen = torch.tensor(list(ids[at : at + step]), dtype=torch.long)
                try:
                    yield lane, chosen.to(self._device), part
                finally:
                    # Also after an error: slots and blocks are given back when this returns.
                    lane.synchronize()


class _Lane:
    """A buffer on the device and a stream."""

    def __init__(self, device: torch.device, blocks: int, block_bytes: int) -> None:
        self.lock = threading.Lock()
        self.buffer = torch.empty((blocks, block_bytes), dtype=torch.uint8, device=device)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def context(self) -> Any:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def synchronize(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()


class DeviceCopier:
    """One transfer: blocks by their index in the call, as hearth_client.copiers.Copier."""

    def __init__(self, memory: DeviceMemory, kernels: Any, block_ids: Sequence[int]) -> None:
        self._memory = memory
        self._kernels = kernels
        self._ids = list(block_ids)
        self.uniform: Optional[int] = memory.block_bytes

    def length_of(self, _index: int) -> int:
        return self._memory.block_bytes

    def gather(self, indices: Sequence[int], slots: Slots) -> Optional[Sequence[int]]:
        ids, by_agent = [self._ids[i] for i in indices], self._memory.agent_stores
        # With a key the MACs are computed here, of bytes that are there.
        if by_agent is not None and slots.macs is None and by_agent.store(ids, slots):
            return None
        addresses = slots.addresses
        self._memory.take_out(ids, addresses)
        if slots.macs is not None:
            self._kernels.mac_pieces(self._pieces(addresses), slots.macs)
        return [self._kernels.xxh3_at(slot, self._memory.block_bytes) for slot in addresses]

    def scatter(
        self,
        indices: Sequence[int],
        slots: "array[int]",
        checksums: "array[int]",
        macs: Optional[Macs] = None,
    ) -> Sequence[bool]:
        """Verifies the slots, which do not change while referenced, and then copies them."""
        good = self._kernels.verify_pieces(self._pieces(slots), checksums, macs)
        right = [i for i, is_good in enumerate(good) if is_good]
        self._memory.bring_in(
            [self._ids[indices[i]] for i in right], [slots[i] for i in right]
        )
        return good

    def _pieces(self, slots: "array[int]") -> List[List[Piece]]:
        return [[Piece(slot, self._memory.block_bytes)] for slot in slots]


def _host(address: int, length: int) -> torch.Tensor:
    """The bytes of a slot."""
    return torch.frombuffer((ctypes.c_ubyte * length).from_address(address), dtype=torch.uint8)


def _view(span: Span, owners: Sequence[torch.Tensor]) -> torch.Tensor:
    """A span as a tensor of bytes: one row per block."""
    base, stride, size = span
    for owner in owners:
        storage = owner.untyped_storage()
        offset = base - storage.data_ptr()
        if 0 <= offset < storage.nbytes():
            whole = torch.empty(0, dtype=torch.uint8, device=owner.device).set_(storage)
            blocks = (storage.nbytes() - offset - size) // stride + 1
            return torch.as_strided(whole, (blocks, size), (stride, 1), offset)
    raise ValueError("a span of the KV cache lies in none of its tensors")


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
