"""The kernels of the client: copies with checksums, and digests of blocks.

``kernels()`` answers the native library ``libhearth_client.so`` (``Native``), which releases the
GIL while it copies, or, if that cannot be loaded, the same calls in Python (``PurePython``). The
library is searched in this order: the file that ``HEARTH_CLIENT_LIBRARY`` names (``none``: no
library), ``_native/`` in this package, and the build folder of a source checkout.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import sys
import time
from array import array
from pathlib import Path
from typing import Iterable, List, Optional, Protocol, Sequence, Union

from .memory import PagedMemory, Piece, pack_pieces, piece_of
from .pure import PurePython, equal_counts
from .xxh3 import xxh3_64

ABI = 2
FILE_NAME = "libhearth_client.so"
VARIABLE = "HEARTH_CLIENT_LIBRARY"
_LOG = logging.getLogger("hearth_client")
_TARGETS = {"x86_64": "linux-x64", "aarch64": "linux-arm64"}
_DIGEST_BYTES = 32
_MEASURED_BYTES = 64 * 1024

Readable = Union[bytes, bytearray, memoryview]

_u32, _u64, _address = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
_SIGNATURES = {
    "hearth_client_abi": (_u32,),
    "hearth_client_xxh3": (None, _address, _u64, _address),
    "hearth_client_xxh3_128": (None, _address, _u64, _address),
    "hearth_client_chain_digests": (ctypes.c_int32, _address, _address, _u32, _u32, _address),
    "hearth_client_prefix_digests": (ctypes.c_int32, _address, _address, _u64, _u32, _address),
    "hearth_client_namespace_key": (ctypes.c_int32, _address, _u32, _address),
    "hearth_client_mac_key": (ctypes.c_int32, _address, _u32, _address),
    "hearth_client_mac_pieces": (ctypes.c_int32, _address, _address, _u32, _address),
    "hearth_client_gather": (
        ctypes.c_int32, _address, _u32, _address, _u32, _address, _address, _address,
    ),
    "hearth_client_scatter": (
        ctypes.c_int32, _address, _u32, _address, _u32, _address, _address, _address, _address,
    ),
    "hearth_client_gather_pieces": (
        ctypes.c_int32, _address, _address, _u32, _address, _address, _address,
    ),
    "hearth_client_scatter_pieces": (
        ctypes.c_int32, _address, _address, _u32, _address, _address, _address, _address,
    ),
    "hearth_client_verify_pieces": (
        ctypes.c_int32, _address, _address, _u32, _address, _address, _address,
    ),
}


def _at(values: array[int]) -> int:
    return values.buffer_info()[0]


def _u32s(values: Sequence[int]) -> array[int]:
    if isinstance(values, array) and values.typecode == "I":
        return values
    return array("I", values)


def _u64s(values: Sequence[int]) -> array[int]:
    if isinstance(values, array) and values.typecode == "Q":
        return values
    return array("Q", values)


class MacsLike(Protocol):
    """As ``namespace_key.Macs``."""

    address: int


def _of(macs: Optional[MacsLike]) -> Optional[int]:
    return None if macs is None else macs.address


def _split_digests(packed: bytes) -> List[bytes]:
    return [packed[at : at + _DIGEST_BYTES] for at in range(0, len(packed), _DIGEST_BYTES)]


class Native:
    """The calls of ``libhearth_client.so``. Addresses are numbers; all calls release the GIL."""

    #: Whether this class computes digests (BLAKE3).
    has_digests = True

    def __init__(self, path: str) -> None:
        """OSError: the file cannot be loaded, or has another ABI."""
        library = ctypes.CDLL(path)
        try:
            abi = library.hearth_client_abi()
            if abi != ABI:
                raise OSError(f"{path} has ABI {abi}, this client needs {ABI}")
            for name, (result, *arguments) in _SIGNATURES.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
                setattr(self, name[len("hearth_client") :], function)
        except AttributeError as error:
            raise OSError(f"{path} is not {FILE_NAME}: {error}") from None
        self.path = path
        self._library = library

    def xxh3(self, data: Readable) -> int:
        """XXH3-64, seed 0."""
        piece = piece_of(data)
        return self.xxh3_at(piece.address, piece.bytes)

    def xxh3_at(self, address: int, length: int) -> int:
        out = _u64()
        self._xxh3(address, length, ctypes.addressof(out))
        return out.value

    def xxh3_128(self, data: Readable) -> bytes:
        """XXH3-128, seed 0, in its canonical form: 16 bytes, big endian."""
        piece, out = piece_of(data), bytearray(16)
        self._xxh3_128(piece.address, piece.bytes, piece_of(out).address)
        return bytes(out)

    def chain_digests(self, namespace_id: bytes, keys: Sequence[bytes]) -> List[bytes]:
        """Digests of an engine's chain keys, which have equal lengths: 4 to 64 bytes, times 4."""
        return _split_digests(self.packed_chain_digests(namespace_id, keys))

    def packed_chain_digests(self, namespace_id: bytes, keys: Sequence[bytes]) -> bytes:
        """The same digests, one behind the other."""
        if not keys:
            return b""
        items = b"".join(keys)
        size = len(keys[0])
        if len(items) != size * len(keys):
            raise ValueError("chain keys have equal lengths")
        out = bytearray(_DIGEST_BYTES * len(keys))
        result = self._chain_digests(
            _key(namespace_id), items, size, len(keys), piece_of(out).address
        )
        if result < 0:
            raise ValueError(f"chain keys of {size} bytes: 4 to 64, a multiple of 4, are allowed")
        return bytes(out)

    def prefix_digests(
        self, namespace_id: bytes, tokens: Iterable[int], block_tokens: int
    ) -> List[bytes]:
        """Digests of each full block of a prompt, from its tokens."""
        prompt = _u32s(tokens if isinstance(tokens, (list, array)) else list(tokens))
        if block_tokens < 1:
            raise ValueError(f"blocks of {block_tokens} tokens")
        out = bytearray(_DIGEST_BYTES * (len(prompt) // block_tokens))
        if out:
            self._prefix_digests(
                _key(namespace_id), _at(prompt), len(prompt), block_tokens, piece_of(out).address
            )
        return _split_digests(bytes(out))

    def namespace_key(self, manifest: bytes) -> bytes:
        """``hello.namespace_id`` of a connection with this encoded manifest."""
        out = bytearray(_DIGEST_BYTES)
        self._namespace_key(manifest, len(manifest), piece_of(out).address)
        return bytes(out)

    def mac_key(self, secret: bytes) -> bytes:
        """Key and identifier of a namespace's secret, 16 bytes each."""
        out = bytearray(_DIGEST_BYTES)
        self._mac_key(secret, len(secret), piece_of(out).address)
        return bytes(out)

    def mac_pieces(self, blocks: Sequence[Sequence[Piece]], macs: MacsLike) -> None:
        """Computes the MACs of blocks that lie in pieces of memory."""
        pieces, starts = pack_pieces(blocks)
        self._ok(self._mac_pieces(_at(pieces), _at(starts), len(blocks), macs.address))

    def gather(
        self,
        memory: PagedMemory,
        block_ids: Sequence[int],
        slots: Sequence[int],
        macs: Optional[MacsLike] = None,
    ) -> List[int]:
        """Copies blocks of the memory to slots; answers the XXH3-64 of the bytes copied.

        With ``macs`` also their MACs, in there.
        """
        n = equal_counts(block_ids, slots)
        ids, to, sums = _u32s(block_ids), _u64s(slots), array("Q", bytes(8 * n))
        regions = memory.packed
        self._ok(
            self._gather(
                *(_at(regions), len(memory.regions), _at(ids), n, _at(to), _at(sums)), _of(macs)
            )
        )
        return sums.tolist()

    def scatter(
        self,
        memory: PagedMemory,
        block_ids: Sequence[int],
        slots: Sequence[int],
        checksums: Sequence[int],
        macs: Optional[MacsLike] = None,
    ) -> List[bool]:
        """Copies slots to blocks of the memory; True: the bytes copied have the checksum.

        With ``macs``: they have the MAC.
        """
        n = equal_counts(block_ids, slots, checksums)
        ids, source, sums, ok = _u32s(block_ids), _u64s(slots), _u64s(checksums), bytearray(n)
        regions, out = memory.packed, piece_of(ok).address
        self._ok(
            self._scatter(
                *(_at(regions), len(memory.regions), _at(ids), n, _at(source), _at(sums)),
                *(out, _of(macs)),
            )
        )
        return [flag == 1 for flag in ok]

    def gather_pieces(
        self,
        blocks: Sequence[Sequence[Piece]],
        slots: Sequence[int],
        macs: Optional[MacsLike] = None,
    ) -> List[int]:
        """As ``gather``, from the pieces of each block."""
        n = equal_counts(blocks, slots)
        (pieces, starts), to = pack_pieces(blocks), _u64s(slots)
        sums = array("Q", bytes(8 * n))
        self._ok(self._gather_pieces(_at(pieces), _at(starts), n, _at(to), _at(sums), _of(macs)))
        return sums.tolist()

    def scatter_pieces(
        self,
        blocks: Sequence[Sequence[Piece]],
        slots: Sequence[int],
        checksums: Sequence[int],
        macs: Optional[MacsLike] = None,
    ) -> List[bool]:
        """As ``scatter``, to the pieces of each block."""
        n = equal_counts(blocks, slots, checksums)
        (pieces, starts), source, sums = pack_pieces(blocks), _u64s(slots), _u64s(checksums)
        ok = bytearray(n)
        out = piece_of(ok).address
        self._ok(
            self._scatter_pieces(
                *(_at(pieces), _at(starts), n, _at(source), _at(sums), out), _of(macs)
            )
        )
        return [flag == 1 for flag in ok]

    def verify_pieces(
        self,
        blocks: Sequence[Sequence[Piece]],
        checksums: Sequence[int],
        macs: Optional[MacsLike] = None,
    ) -> List[bool]:
        """Whether the pieces of each block have its checksum or, with ``macs``, its MAC."""
        n = equal_counts(blocks, checksums)
        (pieces, starts), sums, ok = pack_pieces(blocks), _u64s(checksums), bytearray(n)
        out = piece_of(ok).address
        self._ok(self._verify_pieces(_at(pieces), _at(starts), n, _at(sums), out, _of(macs)))
        return [flag == 1 for flag in ok]

    @staticmethod
    def _ok(result: int) -> None:
        if result < 0:
            raise ValueError("the native library refused the arguments")


def _key(namespace_id: bytes) -> bytes:
    if len(namespace_id) != _DIGEST_BYTES:
        raise ValueError(f"a namespace has {_DIGEST_BYTES} bytes, given {len(namespace_id)}")
    return bytes(namespace_id)


Kernels = Union[Native, PurePython]


def _candidates() -> List[str]:
    named = os.environ.get(VARIABLE)
    if named is not None:
        return [] if named in ("", "none") else [named]
    if sys.platform != "linux" or sys.byteorder != "little":
        return []
    package = Path(__file__).resolve().parent
    files = [package / "_native" / FILE_NAME]
    checkout, target = package.parents[1], _TARGETS.get(platform.machine())
    if target is not None and (checkout / "build.zig").is_file():
        files.append(checkout / "dist" / "native" / target / FILE_NAME)
    return [str(file) for file in files if file.is_file()]


def load() -> Optional[Native]:
    """The native library, or None; a library that is there and cannot be used is logged."""
    for path in _candidates():
        try:
            return Native(path)
        except OSError as error:
            _LOG.warning("native library not loaded: %s", error)
    return None


#: The native library; None: there is none for this host.
NATIVE: Optional[Native] = load()
_pure: Optional[PurePython] = None


def kernels() -> Kernels:
    """The native library, or else the same calls in Python, whose speed is logged once."""
    global _pure
    if NATIVE is not None:
        return NATIVE
    if _pure is None:
        _pure = PurePython()
        _LOG.warning(
            "no native library (%s): blocks are verified in Python at %.0f MB/s, and the agent "
            "computes all digests; install the wheel of hearth-client for this platform",
            FILE_NAME,
            _measured_rate(),
        )
    return _pure


def _measured_rate() -> float:
    """10^6 bytes a second of the checksum."""
    data = bytes(_MEASURED_BYTES)
    start = time.perf_counter()
    xxh3_64(data)
    return _MEASURED_BYTES / 1e6 / max(time.perf_counter() - start, 1e-9)
