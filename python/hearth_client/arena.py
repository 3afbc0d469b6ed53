"""The agent's shared memory, mapped into this process."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

from .layout import Readable


class Arena:
    """The mapping. It stays mapped while an object made by ``export`` is alive."""

    def __init__(self, descriptor: int, size: int) -> None:
        """Maps ``size`` bytes of the descriptor, which may be closed afterwards."""
        self._map = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED)
        # The arena belongs to this process alone: a forked child must not touch it.
        if hasattr(mmap, "MADV_DONTFORK"):
            self._map.madvise(mmap.MADV_DONTFORK)
        self.size = size
        #: First byte of the mapping, an address of this process.
        self.address = ctypes.addressof(ctypes.c_ubyte.from_buffer(self._map))

    def export(self, offset: int, length: int) -> Any:
        """A ctypes array over a block's bytes, which each object made from it keeps alive.

        CPython's buffer exports are not enough to find users of a block: NumPy and PyTorch may drop
        theirs and keep a reference to the exporting object instead. A weak reference to the array
        ends with the last user of either kind.
        """
        return (ctypes.c_ubyte * length).from_buffer(self._map, offset)

    def read(self, offset: int, length: int) -> bytes:
        return self._map[offset : offset + length]

    def write(self, offset: int, data: Readable) -> None:
        self._map[offset : offset + memoryview(data).nbytes] = data

    def close(self) -> None:
        """Unmaps it, at the latest when the last exported array is gone."""
        try:
            self._map.close()
        except BufferError:
            return


def view_of(export: Any, writable: bool) -> memoryview:
    view = memoryview(export).cast("B")
    return view if writable else view.toreadonly()
