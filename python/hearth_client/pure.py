"""The kernels of the client in Python, for a host without the native library."""

from __future__ import annotations

import ctypes
from typing import Iterable, List, Sequence, Union

from .memory import PagedMemory, Piece
from .xxh3 import xxh3_64

Readable = Union[bytes, bytearray, memoryview]


def equal_counts(*values: Sequence[object]) -> int:
    counts = {len(value) for value in values}
    if len(counts) != 1:
        raise ValueError(f"one item for each block is required, given {[len(v) for v in values]}")
    return counts.pop()


class PurePython:
    """The calls of ``Native`` without the library.

    Without BLAKE3, so that the agent names the blocks, and without MACs: a namespace key is refused
    before a call could need one.
    """

    has_digests = False
    path = ""

    def xxh3(self, data: Readable) -> int:
        return xxh3_64(data)

    def xxh3_at(self, address: int, length: int) -> int:
        return xxh3_64(_view(address, length))

    def xxh3_128(self, data: Readable) -> bytes:
        raise NotImplementedError("XXH3-128 needs the native library")

    def chain_digests(self, namespace_id: bytes, keys: Sequence[bytes]) -> List[bytes]:
        raise NotImplementedError("digests need the native library; use IDENTIFY")

    def prefix_digests(
        self, namespace_id: bytes, tokens: Iterable[int], block_tokens: int
    ) -> List[bytes]:
        raise NotImplementedError("digests need the native library; use IDENTIFY")

    def namespace_key(self, manifest: bytes) -> bytes:
        raise NotImplementedError("namespace keys need the native library; use hello.namespace_id")

    def mac_pieces(self, blocks: Sequence[Sequence[Piece]], macs: object) -> None:
        raise NotImplementedError("a namespace key needs the native library")

    def gather(
        self,
        memory: PagedMemory,
        block_ids: Sequence[int],
        slots: Sequence[int],
        macs: None = None,
    ) -> List[int]:
        return self.gather_pieces([memory.pieces(block) for block in block_ids], slots)

    def scatter(
        self,
        memory: PagedMemory,
        block_ids: Sequence[int],
        slots: Sequence[int],
        checksums: Sequence[int],
        macs: None = None,
    ) -> List[bool]:
        blocks = [memory.pieces(block) for block in block_ids]
        return self.scatter_pieces(blocks, slots, checksums)

    def gather_pieces(
        self, blocks: Sequence[Sequence[Piece]], slots: Sequence[int], macs: None = None
    ) -> List[int]:
        equal_counts(blocks, slots)
        sums = []
        for pieces, slot in zip(blocks, slots):
            # Joined first: the checksum and the slot see the same bytes.
            data = _joined(pieces)
            ctypes.memmove(slot, data, len(data))
            sums.append(xxh3_64(data))
        return sums

    def scatter_pieces(
        self,
        blocks: Sequence[Sequence[Piece]],
        slots: Sequence[int],
        checksums: Sequence[int],
        macs: None = None,
    ) -> List[bool]:
        equal_counts(blocks, slots, checksums)
        ok = []
        for pieces, slot, checksum in zip(blocks, slots, checksums):
            data = ctypes.string_at(slot, sum(piece.bytes for piece in pieces))
            ok.append(xxh3_64(data) == checksum)
            at = 0
            for address, length in pieces:
                ctypes.memmove(address, data[at : at + length], length)
                at += length
        return ok

    def verify_pieces(
        self,
        blocks: Sequence[Sequence[Piece]],
        checksums: Sequence[int],
        macs: None = None,
    ) -> List[bool]:
        equal_counts(blocks, checksums)
        return [xxh3_64(_joined(pieces)) == want for pieces, want in zip(blocks, checksums)]


def _view(address: int, length: int) -> memoryview:
    return memoryview((ctypes.c_char * length).from_address(address)).cast("B")


def _joined(pieces: Iterable[Piece]) -> bytes:
    return b"".join(ctypes.string_at(address, length) for address, length in pieces)
