"""Host memory of an engine, described by addresses: what KvStore copies from and to."""

from __future__ import annotations

import ctypes
from array import array
from itertools import chain
from typing import Any, Iterable, List, NamedTuple, Optional, Sequence, Tuple

_U64_MAX = 0xFFFF_FFFF_FFFF_FFFF
#: Regions of one memory, or pieces of one block, that the native library accepts.
PARTS_MAX = 65_536


class Region(NamedTuple):
    """Equal spans at equal distances: block ``b`` has ``bytes`` bytes at ``base + b * stride``."""

    base: int
    stride: int
    bytes: int


class Piece(NamedTuple):
    """A span of memory. The caller keeps the memory allocated while it is used."""

    address: int
    bytes: int


class PagedMemory:
    """The paged KV cache of an engine: block ``b`` is the concatenation of its span in each region.

    Addresses are those of this process. ``keep_alive`` is any object that owns the memory.
    ``blocks``: number of blocks; a call that names another one is refused. None: the caller makes
    sure that every block it names exists.
    ValueError: a region is empty, reaches beyond 64 bits, or overlaps its own next block.
    """

    __slots__ = ("block_bytes", "blocks", "keep_alive", "packed", "regions")

    def __init__(
        self,
        regions: Sequence[Region],
        keep_alive: object = None,
        *,
        blocks: Optional[int] = None,
    ) -> None:
        if not 1 <= len(regions) <= PARTS_MAX:
            raise ValueError(f"{len(regions)} regions: 1 to {PARTS_MAX} are allowed")
        for region in regions:
            if region.bytes < 1 or region.base < 1 or region.stride < region.bytes:
                raise ValueError(f"{region}: base and bytes are >= 1, stride is >= bytes")
            if region.base + region.stride * max(blocks or 1, 1) > _U64_MAX:
                raise ValueError(f"{region} reaches beyond 64 bits")
        self.blocks = blocks
        self.regions: Tuple[Region, ...] = tuple(Region(*region) for region in regions)
        #: Bytes of one block: the sum over the regions.
        self.block_bytes = sum(region.bytes for region in regions)
        self.keep_alive = keep_alive
        #: The regions as the native library reads them: base, stride and bytes of each.
        self.packed = array("Q", chain.from_iterable(self.regions))

    def check(self, block_ids: Sequence[int]) -> None:
        """ValueError: a block that the memory does not have."""
        if self.blocks is not None and block_ids and max(block_ids) >= self.blocks:
            raise ValueError(f"block {max(block_ids)} of a memory of {self.blocks} blocks")

    def pieces(self, block: int) -> List[Piece]:
        """The spans of one block, in order."""
        return [Piece(base + block * stride, size) for base, stride, size in self.regions]


def pack_pieces(blocks: Sequence[Iterable[Piece]]) -> Tuple[array[int], array[int]]:
    """All pieces as address and bytes, and for each block the index of its first piece.

    The second array has one more item than there are blocks: the number of pieces.
    """
    flat: List[Piece] = []
    starts = array("I", (0,))
    for pieces in blocks:
        flat.extend(pieces)
        starts.append(len(flat))
    return array("Q", chain.from_iterable(flat)), starts


class _PyBuffer(ctypes.Structure):
    """``Py_buffer`` of CPython, unchanged since 3.0."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


def _exported(data: object) -> Piece:
    """By the buffer protocol of CPython's C interface, which reads read-only objects too."""
    view = _PyBuffer()
    _get_buffer(data, ctypes.byref(view), 0)
    try:
        return Piece(view.buf or 0, view.len)
    finally:
        _release_buffer(ctypes.byref(view))


def _exported_portably(data: Any) -> Piece:
    """Without CPython: writable objects, and ``bytes``."""
    if isinstance(data, bytes):
        return Piece(ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0, len(data))
    view = memoryview(data)
    if not view.contiguous:
        raise BufferError("the bytes are not contiguous")
    if view.nbytes == 0:
        return Piece(0, 0)
    return Piece(ctypes.addressof(ctypes.c_char.from_buffer(view)), view.nbytes)


if hasattr(ctypes, "pythonapi"):
    _get_buffer = ctypes.pythonapi.PyObject_GetBuffer
    _get_buffer.argtypes = (ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int)
    _get_buffer.restype = ctypes.c_int
    _release_buffer = ctypes.pythonapi.PyBuffer_Release
    _release_buffer.argtypes = (ctypes.POINTER(_PyBuffer),)
    _release_buffer.restype = None
    _piece_of = _exported
else:
    _piece_of = _exported_portably


def piece_of(data: object) -> Piece:
    """Address and size of an object's bytes: ``bytes``, ``bytearray``, ``memoryview``, NumPy array.

    The piece is valid while the object exists and is not resized. BufferError: the bytes are not
    contiguous. TypeError: the object exports no bytes. PyTorch: ``Piece(tensor.data_ptr(), …)``.
    """
    return _piece_of(data)
