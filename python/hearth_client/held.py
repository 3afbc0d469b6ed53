"""Slots of the arena that this process has a reference to."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Union
from weakref import ref

from .arena import Arena, view_of
from .layout import LAYER_ALL, MAC_BYTES, Handle, Outcome, Readable
from .memory import Piece, piece_of
from .namespace_key import Macs, NamespaceKey
from .native import NATIVE, kernels
from .xxh3 import xxh3_64


class Held:
    """Base of reads and writes: a range of the arena, and the threads that still use it."""

    _is_writable = False

    def __init__(
        self,
        digest: bytes,
        outcome: Outcome,
        handle: Handle,
        arena: Arena,
        offset: int,
        length: int,
    ) -> None:
        self.digest = digest
        self.outcome = outcome
        self.handle = handle
        #: Bytes of the block, 0 unless ``outcome`` is OK.
        self.length = length
        #: The key of the namespace, if it has one.
        self.key: Optional[NamespaceKey] = None
        self.layer = LAYER_ALL
        self._arena: Optional[Arena] = arena
        self._offset = offset
        self._view: Optional[memoryview] = None
        #: The ctypes array behind all views of the block.
        self._export: Optional["ref[Any]"] = None

    @property
    def view(self) -> memoryview:
        """The block's bytes in the arena; empty unless ``outcome`` is OK.

        ValueError: the block was given back.
        """
        if self.outcome != Outcome.OK:
            return memoryview(b"")
        if self._view is None:
            export = self._open().export(self._offset, self.length)
            self._export = ref(export)
            self._view = view_of(export, self._is_writable)
        return self._view

    @property
    def address(self) -> int:
        """Where the block's bytes are in this process. Not checked: use ``view`` where you can."""
        return self._open().address + self._offset

    def _open(self) -> Arena:
        if self._arena is None:
            raise ValueError("a block that was given back, or that has no slot")
        return self._arena

    def _forget_view(self) -> Any:
        """Drops this object's own view. Answers the array if something else still refers to it."""
        self._view = None
        return None if self._export is None else self._export()

    def _keep_view(self, export: Any) -> None:
        self._view = view_of(export, self._is_writable)

    def _close(self) -> None:
        self._view = self._export = self._arena = None


class WritableSlot(Held):
    """A slot to be written: fill ``view``, then commit it. Of use until committed or aborted.

    ``outcome`` is OK, or why there is no slot: PRESENT and PENDING mean there is nothing to write.
    """

    _is_writable = True

    #: MAC of the bytes that ``write`` copied; None before a write or without a key.
    mac: Optional[bytes] = None

    def write(self, data: Readable) -> None:
        """Copies the whole block in. ValueError unless ``data`` has exactly the reserved length."""
        source = memoryview(data).cast("B")
        if source.nbytes != self.length:
            raise ValueError(f"{source.nbytes} bytes for a block of {self.length}")
        self._open().write(self._offset, source)
        if self.key is not None:
            # Computed from the caller's bytes: other processes may write to the arena.
            self.mac = mac_of(self.key, self.digest, self.layer, piece_of(source))

    def mac_now(self) -> Optional[bytes]:
        """The MAC that ``write`` computed, else one of the slot's bytes; None without a key."""
        if self.key is None or self.mac is not None or self.outcome != Outcome.OK:
            return self.mac
        return mac_of(self.key, self.digest, self.layer, Piece(self.address, self.length))


class ReadableBlock(Held):
    """A block acquired for reading: copy ``view``, verify the copy, then release."""

    #: XXH3-64 of the block's bytes.
    checksum = 0
    #: Their MAC; zeros: the block has none.
    mac = bytes(MAC_BYTES)
    #: A copy did not verify: ``release`` reports the block to the agent, which drops it if its
    #: bytes in the arena are damaged.
    is_damaged = False

    def verify(self, copy: Union[Readable, Sequence[Piece], None] = None) -> bool:
        """Whether a copy is what was committed: by its MAC if the namespace has a key.

        The copy is one object, or a sequence of ``Piece`` that has the block's bytes in order.
        Without one, the arena's own bytes are verified.
        """
        if copy is None:
            copy = self._open().read(self._offset, self.length)
        if not isinstance(copy, (list, tuple)) and self.key is None:
            is_right = checksum_of(copy) == self.checksum
        else:
            pieces = copy if isinstance(copy, (list, tuple)) else [piece_of(copy)]
            is_right = kernels().verify_pieces([pieces], [self.checksum], self._macs())[0]
        self.is_damaged = self.is_damaged or not is_right
        return is_right

    def scatter_to(self, target: Piece) -> bool:
        """Copies the block to memory of its length. True: the copy verifies."""
        macs = self._macs()
        slots, sums = [self.address], [self.checksum]
        is_right = kernels().scatter_pieces([[target]], slots, sums, macs)[0]
        self.is_damaged = self.is_damaged or not is_right
        return is_right

    def _macs(self) -> Any:
        return None if self.key is None else Macs(self.key, self.digest, self.mac, self.layer)

    def copy(self) -> Optional[bytes]:
        """A verified copy; None if the block is missing or the copy does not verify."""
        if self.outcome != Outcome.OK:
            return None
        data = self._open().read(self._offset, self.length)
        return data if self.verify(data) else None


def mac_of(key: NamespaceKey, digest: bytes, layer: int, piece: Piece) -> bytes:
    macs = Macs(key, digest, layer=layer)
    kernels().mac_pieces([[piece]], macs)
    return macs.packed()


def checksum_of(data: Any) -> int:
    return xxh3_64(data) if NATIVE is None else NATIVE.xxh3(data)
