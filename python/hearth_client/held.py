"""Slots of the arena that this process holds."""

from __future__ import annotations

from typing import Optional, Union

from .layout import Handle, Outcome, Readable
from .xxh3 import xxh3_64


class WritableSlot:
    """A slot to be written: fill ``view``, then commit it. Of use until committed or aborted."""

    def __init__(self, digest: bytes, outcome: Outcome, handle: Handle, view: memoryview) -> None:
        self.digest = digest
        #: OK, or why there is no slot: PRESENT and PENDING mean there is nothing to write.
        self.outcome = outcome
        self.handle = handle
        #: The block's bytes in the arena; empty unless ``outcome`` is OK.
        self.view = view

    def write(self, data: Readable) -> None:
        """Copies the whole block in. ValueError unless ``data`` has exactly the reserved length."""
        source = memoryview(data).cast("B")
        if source.nbytes != self.view.nbytes:
            raise ValueError(f"{source.nbytes} bytes for a block of {self.view.nbytes}")
        self.view[:] = source


class ReadableBlock:
    """A block held for reading: copy ``view``, verify the copy, then release."""

    def __init__(
        self, digest: bytes, outcome: Outcome, handle: Handle, checksum: int, view: memoryview
    ) -> None:
        self.digest = digest
        self.outcome = outcome
        self.handle = handle
        #: XXH3-64 of the block's bytes.
        self.checksum = checksum
        #: The block's bytes in the arena, read-only; empty unless ``outcome`` is OK.
        self.view = view

    def verify(self, copy: Optional[Readable] = None) -> bool:
        """Whether the copy, or without one the arena's own bytes, is what was committed."""
        return xxh3_64(self.view if copy is None else copy) == self.checksum

    def copy(self) -> Optional[bytes]:
        """A verified copy; None where there is no block or the copy does not verify."""
        if self.outcome != Outcome.OK:
            return None
        data = bytes(self.view)
        return data if self.verify(data) else None


Held = Union[WritableSlot, ReadableBlock]
