"""Stores of a paged KV cache on a GPU that the agent copies.

Loads have no such form: an agent that hangs in the middle of one could write to blocks that the
engine has given to another request meanwhile. A store that is given up ends in an ABORT, so the
agent never shows what it copied too late.
"""

from __future__ import annotations

import logging
import threading
from struct import Struct
from typing import List, NamedTuple, Optional, Sequence, Tuple

from .calls import reader_of_outcomes
from .connection import Connection
from .copiers import Slots
from .cuda import CudaError
from .errors import HearthError
from .gpu import GpuCalls, GpuMemory, Piece
from .layout import Handle, Op, Outcome
from .memory import Region

#: Seconds for the registration on a new connection, and for the copy of one chunk.
_REGISTER_S = 2.0
_COPY_S = 10.0
_HANDLE = Struct("<II")


class _Slot(NamedTuple):
    handle: Handle


class _Registered(NamedTuple):
    connection: Connection
    calls: GpuCalls
    #: Empty: the agent cannot copy from this memory.
    memories: List[GpuMemory]


class AgentStores:
    """``regions``: as those of PagedMemory, with addresses of the GPU. ``allocations``: address and
    bytes of what they lie in. Registered again on each connection. Thread-safe.
    """

    def __init__(
        self,
        regions: Sequence[Region],
        allocations: Sequence[Tuple[int, int]],
        *,
        library: Optional[str] = None,
        logger: Optional[logging.Logger] = None,
    ) -> None:
        self._allocations = list(allocations)
        self._library = library
        self._log = logger or logging.getLogger("hearth_client")
        self._lock = threading.Lock()
        self._registered: Optional[_Registered] = None
        #: Per region: its allocation, its offset there, and its offset in the block.
        self._places: List[Tuple[int, int, int, Region]] = []
        within = 0
        for region in regions:
            allocation = self._allocation_of(region)
            offset = region.base - self._allocations[allocation][0]
            self._places.append((allocation, offset, within, region))
            within += region.bytes

    def _allocation_of(self, region: Region) -> int:
        for index, (pointer, size) in enumerate(self._allocations):
            if pointer <= region.base < pointer + size:
                return index
        raise ValueError(f"{region} lies in none of the allocations")

    def store(self, block_ids: Sequence[int], slots: Slots) -> bool:
        """Copies blocks to reserved slots; the work that writes the blocks has ended.

        False: the agent cannot copy from this memory, nothing was copied. HearthError: a copy
        failed; the caller aborts the slots.
        """
        registered = self._of(slots.connection)
        if not registered.memories:
            return False
        held = [_Slot(handle) for handle in _HANDLE.iter_unpack(slots.handles)]
        requests = []
        for index, memory in enumerate(registered.memories):
            pieces = [
                Piece(slot, within, offset + block * region.stride, region.bytes)
                for allocation, offset, within, region in self._places
                if allocation == index
                for slot, block in zip(held, block_ids)
            ]
            requests += registered.calls.submit_stores(memory, pieces)
        read = reader_of_outcomes(Op.GPU_STORE)
        for request, count in requests:
            outcomes = read(count, slots.wait(request, _COPY_S))
            bad = [one for one in outcomes if one != Outcome.OK]
            if bad or len(outcomes) != count:
                raise HearthError(f"the agent's copy from the GPU failed: {bad[:1] or outcomes}")
        return True

    def _of(self, connection: Connection) -> _Registered:
        with self._lock:
            if self._registered is None or self._registered.connection is not connection:
                calls = GpuCalls(connection)
                self._registered = _Registered(connection, calls, self._register(calls))
            return self._registered

    def _register(self, calls: GpuCalls) -> List[GpuMemory]:
        reason = "the agent has no GPU"
        if calls.has_gpu:
            try:
                with calls.deadline(_REGISTER_S):
                    return [
                        calls.register_gpu_memory(pointer, size, library=self._library)
                        for pointer, size in self._allocations
                    ]
            except (CudaError, HearthError, ValueError) as error:
                reason = str(error)
        self._log.warning("stores are copied by this process, not by the agent: %s", reason)
        return []
