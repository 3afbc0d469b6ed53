"""Checksums and MACs of slots on several threads: native calls release the GIL."""

from __future__ import annotations

import os
from array import array
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Callable, List, Optional, TypeVar

from .memory import Piece
from .namespace_key import Macs
from .native import Kernels

#: One thread hashes 11 to 16 GB/s, and a link to a GPU has 25 to 55 GB/s.
_THREADS_MAX = 6
#: An engine and its agent need the other processors.
_SHARE = 4

_Item = TypeVar("_Item")


def thread_count() -> int:
    """Threads that hash for one process on this host: 1 on small ones."""
    return max(1, min(_THREADS_MAX, len(os.sched_getaffinity(0)) // _SHARE))


class HashThreads:
    """Each call begins the work and returns a function that waits for the result.

    With one thread that function does the work. All methods are thread-safe.
    """

    def __init__(self, threads: Optional[int] = None) -> None:
        self.threads = thread_count() if threads is None else threads
        self._pool = ThreadPoolExecutor(self.threads, "hearth-hash") if self.threads > 1 else None

    def verify(
        self,
        kernels: Kernels,
        slots: "array[int]",
        length: int,
        checksums: "array[int]",
        macs: Optional[Macs],
    ) -> Callable[[], List[bool]]:
        """Whether each slot has its checksum or, with ``macs``, its MAC."""

        def part(start: int, end: int) -> List[bool]:
            some = None if macs is None else macs.behind(start)
            pieces = _pieces(slots[start:end], length)
            return kernels.verify_pieces(pieces, checksums[start:end], some)

        return self._spread(part, len(slots))

    def checksums(
        self, kernels: Kernels, slots: "array[int]", length: int, macs: Optional[Macs]
    ) -> Callable[[], List[int]]:
        """The checksum of each slot; its MAC is written to ``macs``."""

        def part(start: int, end: int) -> List[int]:
            if macs is not None:
                kernels.mac_pieces(_pieces(slots[start:end], length), macs.behind(start))
            return [kernels.xxh3_at(slot, length) for slot in slots[start:end]]

        return self._spread(part, len(slots))

    def _spread(
        self, part: Callable[[int, int], List[_Item]], count: int
    ) -> Callable[[], List[_Item]]:
        if self._pool is None or count == 1:
            return lambda: part(0, count)
        step = -(-count // self.threads)
        futures = [
            self._pool.submit(part, at, min(at + step, count)) for at in range(0, count, step)
        ]

        def result() -> List[_Item]:
            wait(futures)  # All of them, also if one fails: the slots are given back then.
            return [item for future in futures for item in future.result()]

        return result


def _pieces(slots: "array[int]", length: int) -> List[List[Piece]]:
    return [[Piece(slot, length)] for slot in slots]
