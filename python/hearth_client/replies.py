"""Replies with many items, as arrays."""

from __future__ import annotations

from array import array
from typing import Sequence


def words_of(body: bytes, words: int, count: int) -> "array[int]":
    """A reply of ``count`` items as 32-bit numbers. ValueError: it has another length."""
    if len(body) != 4 * words * count:
        raise ValueError(f"a reply of {len(body)} bytes for {count} items")
    return array("I", body)


def handles_of(words: "array[int]", stride: int) -> bytes:
    """Slot and generation of each item, as ABORT, RELEASE and COMMIT want them."""
    packed = array("I", bytes(8 * (len(words) // stride)))
    packed[0::2] = words[1::stride]
    packed[1::2] = words[2::stride]
    return packed.tobytes()


def chosen_of(handles: bytes, chosen: Sequence[int]) -> bytes:
    return b"".join([handles[8 * at : 8 * at + 8] for at in chosen])


def without(handles: bytes, gone: Sequence[int]) -> bytes:
    """All but those at the places ``gone``."""
    if not gone:
        return handles
    return chosen_of(handles, sorted(set(range(len(handles) // 8)).difference(gone)))
