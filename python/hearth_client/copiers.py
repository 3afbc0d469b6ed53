"""An engine's side of a transfer: paged memory, or pieces of any memory."""

from __future__ import annotations

from array import array
from typing import Any, Callable, List, NamedTuple, Optional, Protocol, Sequence

from .connection import Connection
from .memory import PagedMemory, Piece
from .namespace_key import Macs
from .native import Kernels
from .request import Request


class Slots(NamedTuple):
    """Reserved slots of one chunk."""

    #: Address of each slot, in this process.
    addresses: "array[int]"
    #: Slot and generation of each, as frames name them.
    handles: bytes
    connection: Connection
    #: Waits for a reply, for this many seconds at most, while the agent lives.
    wait: Callable[[Request, float], bytes]
    #: MACs of the blocks, still to be computed, in a namespace with a key.
    macs: Optional[Macs] = None


#: Wait until a copy has ended, with or without an error; until then its slots are in use.
FinishGather = Callable[[], Optional[Sequence[int]]]
FinishScatter = Callable[[], Sequence[bool]]


class Copier(Protocol):
    """The engine's side of a transfer: blocks by their index in the call."""

    #: Bytes of each block, if all have the same length.
    uniform: Optional[int]
    #: Chunks that one call may have in progress. 1: a copy has ended when the call returns.
    depth: int

    def length_of(self, index: int) -> int: ...

    def gather(self, indices: Sequence[int], slots: Slots) -> FinishGather:
        """Begins to fill the slots.

        The result answers the checksum of each; None: the agent has copied and hashes them.
        Their MACs are written to ``slots.macs`` if it is given.
        """
        ...

    def scatter(
        self,
        indices: Sequence[int],
        slots: "array[int]",
        checksums: "array[int]",
        macs: Optional[Macs] = None,
    ) -> FinishScatter:
        """Begins to copy slots to blocks. The result answers whether each slot verified."""
        ...


class PagedCopier:
    """Blocks of a paged KV cache; block ``i`` of the call is block ``block_ids[i]`` of it."""

    depth = 1

    def __init__(
        self, kernels: Kernels, memory: PagedMemory, block_ids: Sequence[int]
    ) -> None:
        self._kernels = kernels
        self._memory = memory
        self._ids = array("I", block_ids)
        memory.check(self._ids)
        #: Bytes of each block.
        self.uniform: Optional[int] = memory.block_bytes

    def length_of(self, _index: int) -> int:
        return self._memory.block_bytes

    def gather(self, indices: Sequence[int], slots: Slots) -> FinishGather:
        ids, addresses = self._chosen(indices), slots.addresses
        sums = self._kernels.gather(self._memory, ids, addresses, slots.macs)
        return lambda: sums

    def scatter(
        self,
        indices: Sequence[int],
        slots: "array[int]",
        checksums: "array[int]",
        macs: Optional[Macs] = None,
    ) -> FinishScatter:
        ids = self._chosen(indices)
        good = self._kernels.scatter(self._memory, ids, slots, checksums, macs)
        return lambda: good

    def _chosen(self, indices: Sequence[int]) -> "array[int]":
        first, last = indices[0], indices[-1]
        if last - first + 1 == len(indices):
            return self._ids[first : last + 1]
        ids = self._ids
        return array("I", [ids[at] for at in indices])


class PieceCopier:
    """Blocks given as pieces of memory."""

    depth = 1

    def __init__(self, kernels: Kernels, pieces: Sequence[Sequence[Piece]]) -> None:
        self._kernels = kernels
        self._pieces = pieces
        self._lengths = [sum([size for _address, size in block]) for block in pieces]
        self.uniform: Optional[int] = self._lengths[0] if len(set(self._lengths)) == 1 else None

    def length_of(self, index: int) -> int:
        return self._lengths[index]

    def gather(self, indices: Sequence[int], slots: Slots) -> FinishGather:
        pieces = self._chosen(indices)
        sums = self._kernels.gather_pieces(pieces, slots.addresses, slots.macs)
        return lambda: sums

    def scatter(
        self,
        indices: Sequence[int],
        slots: "array[int]",
        checksums: "array[int]",
        macs: Optional[Macs] = None,
    ) -> FinishScatter:
        good = self._kernels.scatter_pieces(self._chosen(indices), slots, checksums, macs)
        return lambda: good

    def _chosen(self, indices: Sequence[int]) -> List[Sequence[Piece]]:
        return [self._pieces[at] for at in indices]


def copier_of(memory: Any, kernels: Kernels, block_ids: Sequence[int]) -> Copier:
    """The engine's side of a transfer. Memory of a device brings its own: ``memory.copier``."""
    make = getattr(memory, "copier", None)
    copier: Copier = make(kernels, block_ids) if make else PagedCopier(kernels, memory, block_ids)
    return copier
