"""GPU memory that is registered with the agent, and pieces of it."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Iterator, List, NamedTuple, Optional, Protocol, Tuple

from .layout import CopyItem, Handle


class GpuMemory:
    """Memory on a GPU that the agent knows. Unregister it before it is freed."""

    def __init__(self, pointer: int, length: int, parts: List[Tuple[int, int, int]]) -> None:
        self.pointer = pointer
        self.length = length
        #: First byte, length and number of each part: allocations that lie next to each other.
        self.parts = parts


class Slot(Protocol):
    """A slot that this connection has reserved or acquired."""

    @property
    def handle(self) -> Handle: ...


class Piece(NamedTuple):
    """Bytes of a block that is held, and where they lie in the memory."""

    block: Slot
    block_offset: int
    memory_offset: int
    length: int


#: Longer than any part.
_FAR = 1 << 64


def address_of(memory: Any, length: Optional[int]) -> Tuple[int, int]:
    if isinstance(memory, int):
        if length is None:
            raise ValueError("an address comes with its length in bytes")
        return memory, length
    if not memory.is_contiguous():
        raise ValueError("a tensor that is not contiguous has no one address")
    size: int = memory.numel() * memory.element_size()
    pointer: int = memory.data_ptr()
    return pointer, size if length is None else length


def items_of(memory: GpuMemory, piece: Piece) -> Iterator[CopyItem]:
    """The piece, cut where the memory's parts meet."""
    slot, generation = piece.block.handle
    at = memory.pointer + piece.memory_offset
    end = at + piece.length
    # The last part that begins at or before the piece: there may be thousands.
    index = bisect_right(memory.parts, (at, _FAR, 0)) - 1
    while index < len(memory.parts) and memory.parts[index][0] < end:
        start, length, number = memory.parts[index]
        index += 1
        first, last = max(at, start), min(end, start + length)
        offset = piece.block_offset + first - at
        yield CopyItem(slot, generation, number, offset, first - start, last - first)
