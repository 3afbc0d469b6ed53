"""Frames of a transfer whose items may carry MACs."""

from __future__ import annotations

from array import array
from typing import Optional, Sequence

from .layout import DIGEST_BYTES, MAC_BYTES
from .namespace_key import Macs, NamespaceKey

_CHECKSUM_GIVEN, _MAC_GIVEN = 1, 2
#: 32-bit words of an item of ACQUIRE's reply, and of the MAC behind it.
_ACQUIRED_WORDS, _MAC_WORDS = 8, 4

_Key = Optional[NamespaceKey]


def acquired_words(key: _Key) -> int:
    return _ACQUIRED_WORDS + (0 if key is None else _MAC_WORDS)


def macs_of(key: _Key, digests: bytes, indices: Sequence[int]) -> Optional[Macs]:
    """For MACs that are to be computed of some of the blocks."""
    return None if key is None else Macs(key, _chosen(digests, DIGEST_BYTES, indices))


def acquired_macs(
    key: _Key, digests: bytes, indices: Sequence[int], items: Sequence[int], body: bytes
) -> Optional[Macs]:
    """The MACs in the items of a reply, which are those of the blocks ``indices``."""
    if key is None:
        return None
    width = 4 * acquired_words(key)
    found = b"".join([body[width * (at + 1) - MAC_BYTES : width * (at + 1)] for at in items])
    return Macs(key, _chosen(digests, DIGEST_BYTES, indices), found)


def commit_items(
    handles: bytes, checksums: Optional[Sequence[int]], macs: Optional[Macs]
) -> bytes:
    """The items of a COMMIT; ``handles`` are 8 bytes each."""
    count, width = len(handles) // 8, 3 if macs is None else 5
    items = array("Q", bytes(8 * width * count))
    items[0::width] = array("Q", handles)
    flags = (_CHECKSUM_GIVEN if checksums is not None else 0) | (_MAC_GIVEN if macs else 0)
    items[2::width] = array("Q", (flags,)) * count
    if checksums is not None:
        items[1::width] = array("Q", checksums)
    if macs is not None:
        halves = array("Q", macs.packed())
        items[3::width], items[4::width] = halves[0::2], halves[1::2]
    return items.tobytes()


def _chosen(packed: bytes, size: int, indices: Sequence[int]) -> bytes:
    first, last = indices[0], indices[-1]
    if last - first + 1 == len(indices):
        return packed[size * first : size * (last + 1)]
    return b"".join([packed[size * at : size * (at + 1)] for at in indices])
