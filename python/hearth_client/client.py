"""The client an engine uses."""

from __future__ import annotations

from contextlib import contextmanager
from types import TracebackType
from typing import Dict, Iterator, List, Optional, Sequence, Type, TypeVar, Union

from . import protocol
from .calls import reader_of_outcomes
from .connection import Connection
from .errors import HearthError, RefusedError
from .gpu import GpuCalls
from .held import Held, ReadableBlock, WritableSlot
from .layout import (
    LAYER_ALL,
    TIER_ANY,
    Acquired,
    Block,
    Commit,
    Handle,
    Op,
    Outcome,
    Readable,
    Slot,
)
from .manifest import Manifest

_AnyHeld = TypeVar("_AnyHeld", WritableSlot, ReadableBlock)


class Client(GpuCalls):
    """A connection to the agent on this host, and the arena mapped into this process.

    All methods may be called from several threads; one request is on its way at a time. Expected
    outcomes are values. Raised are ValueError (an argument cannot be right: nothing was sent),
    RefusedError (the agent refused the frame), ProtocolError and ConnectionClosed (the connection
    is over, with every handle; making a new Client is up to the caller).

    While slots are held the agent wants a sign of life at least every ``hello.lease_ms``: any call,
    ``ping()`` for one. A process that forks uses the client in the parent only.
    """

    def __init__(
        self,
        path: str,
        manifest: Union[Manifest, bytes],
        *,
        name: str = "",
        timeout: float = 30.0,
    ) -> None:
        """Connects and greets. ``timeout`` in seconds bounds each wait for the agent."""
        encoded = manifest if isinstance(manifest, bytes) else manifest.encode()
        super().__init__(Connection(path, encoded, name, timeout))
        self._held: Dict[int, Held] = {}
        self._arena = memoryview(self._connection.arena)

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives back what is held, closes the connection and unmaps the arena.

        A block whose bytes another object exports (an array, say) is not given back: the agent sets
        its slot aside until this process ends, and the arena stays mapped while the object lives.
        """
        with self._lock:
            try:
                self._give_back([one for one in self._held.values() if _invalidate(one)])
            except HearthError:
                pass  # The connection is over already, which is what close is for.
            finally:
                self._held.clear()
                self._close_gpu()
                self._connection.close()
            self._arena.release()
            try:
                self._connection.arena.close()
            except BufferError:
                pass  # Views of it are in use; it is unmapped with the last of them.

    # --- reading ----------------------------------------------------------------------------------

    def acquire(
        self,
        digests: Sequence[bytes],
        *,
        layer: int = LAYER_ALL,
        tiers: int = TIER_ANY,
        deadline_ms: int = 0,
        stop_at_miss: bool = False,
    ) -> List[ReadableBlock]:
        """Holds blocks for reading, one answer for each digest. Give them back with ``release``."""
        self._check_items(len(digests))
        with self._lock:
            answers = self._ask(
                Op.ACQUIRE,
                lambda number: protocol.acquire_request(
                    number, layer, tiers, deadline_ms, stop_at_miss, digests
                ),
                protocol.read_acquire,
            )
            self._same_length(answers, len(digests))
            return [self._readable(digest, one) for digest, one in zip(digests, answers)]

    def _readable(self, digest: bytes, one: Acquired) -> ReadableBlock:
        view = self._view(one.outcome, one.offset, one.length).toreadonly()
        handle = (one.slot, one.generation)
        return self._hold(ReadableBlock(digest, one.outcome, handle, one.checksum, view))

    @contextmanager
    def acquired(
        self,
        digests: Sequence[bytes],
        *,
        layer: int = LAYER_ALL,
        tiers: int = TIER_ANY,
        deadline_ms: int = 0,
        stop_at_miss: bool = False,
    ) -> Iterator[List[ReadableBlock]]:
        """``acquire`` for the length of a ``with`` block."""
        blocks = self.acquire(
            digests,
            layer=layer,
            tiers=tiers,
            deadline_ms=deadline_ms,
            stop_at_miss=stop_at_miss,
        )
        try:
            yield blocks
        finally:
            self.release(blocks)

    def release(self, blocks: Sequence[ReadableBlock]) -> None:
        """Gives blocks back; from here on their ``view`` is invalid.

        BufferError, and nothing is given back, while another object (an array, say) exports a view.
        """
        with self._lock:
            self._give_back(blocks)

    # --- writing ----------------------------------------------------------------------------------

    def reserve(
        self, blocks: Sequence[Block], *, layer: int = LAYER_ALL, session: int = 0
    ) -> List[WritableSlot]:
        """Room to write blocks, one answer for each. Commit or abort those that are OK."""
        self._check_items(len(blocks))
        with self._lock:
            answers = self._ask(
                Op.RESERVE,
                lambda number: protocol.reserve_request(number, layer, session, blocks),
                protocol.read_reserve,
            )
            self._same_length(answers, len(blocks))
            return [self._writable(block, one) for block, one in zip(blocks, answers)]

    def _writable(self, block: Block, one: Slot) -> WritableSlot:
        if one.outcome == Outcome.OK and one.capacity < block.length:
            raise self._connection.broken(f"a slot of {one.capacity} bytes for {block.length}")
        view = self._view(one.outcome, one.offset, block.length)
        return self._hold(
            WritableSlot(block.digest, one.outcome, (one.slot, one.generation), view)
        )

    def commit(
        self, slots: Sequence[WritableSlot], *, checksums: Optional[Sequence[int]] = None
    ) -> List[Outcome]:
        """Makes written blocks visible; their ``view`` is invalid from here on.

        The agent computes the checksums (XXH3-64) and compares them with those given here.
        """
        if checksums is not None and len(checksums) != len(slots):
            raise ValueError(f"{len(checksums)} checksums for {len(slots)} slots")
        given: Sequence[Optional[int]] = [None] * len(slots) if checksums is None else checksums
        items = [Commit(*slot.handle, sum_) for slot, sum_ in zip(slots, given)]
        self._check_items(len(items))
        with self._lock:
            self._check_held(slots)
            number = self._connection.next_id()
            frame = protocol.commit_request(number, items)
            self._let_go(slots)
            try:
                answers = self._exchange(number, Op.COMMIT, frame, reader_of_outcomes(Op.COMMIT))
            except RefusedError:
                # Nothing was committed, and the views are gone: the slots are of no more use.
                self._send_handles(Op.ABORT, [slot.handle for slot in slots])
                raise
            return self._same_length(answers, len(items))

    def abort(self, slots: Sequence[WritableSlot]) -> None:
        """Gives slots back unwritten."""
        with self._lock:
            self._give_back(slots)

    # --- whole blocks -----------------------------------------------------------------------------

    def get(self, digests: Sequence[bytes], *, layer: int = LAYER_ALL) -> List[Optional[bytes]]:
        """Verified copies of blocks, None for each that is not to be had."""
        found: List[Optional[bytes]] = []
        for start in range(0, len(digests), self.hello.items_max):
            part = digests[start : start + self.hello.items_max]
            with self.acquired(part, layer=layer) as blocks:
                found.extend(block.copy() for block in blocks)
        return found

    def put(
        self,
        digest: bytes,
        parent: Optional[bytes],
        data: Readable,
        *,
        layer: int = LAYER_ALL,
        session: int = 0,
        alias: Optional[int] = None,
        transient: bool = False,
    ) -> Outcome:
        """Stores one block. OK, or why it was not stored: PRESENT if it is there already."""
        length = memoryview(data).nbytes
        (slot,) = self.reserve(
            [Block(digest, length, parent, alias, transient)], layer=layer, session=session
        )
        if slot.outcome != Outcome.OK:
            return slot.outcome
        slot.write(data)
        return self.commit([slot])[0]

    # --- how --------------------------------------------------------------------------------------

    def _view(self, outcome: Outcome, offset: int, length: int) -> memoryview:
        if outcome != Outcome.OK:
            return memoryview(b"")
        if offset + length > self._arena.nbytes:
            raise self._connection.broken(f"{length} bytes at {offset} are not in the arena")
        return self._arena[offset : offset + length]

    def _hold(self, one: _AnyHeld) -> _AnyHeld:
        if one.outcome == Outcome.OK:
            self._held[id(one)] = one
        return one

    def _check_held(self, held: Sequence[Held]) -> None:
        for one in held:
            if id(one) not in self._held:
                raise ValueError("a block that is not held: refused, or given back already")

    def _let_go(self, held: Sequence[Held]) -> None:
        """Invalidates the views. BufferError, and all stay held, where one of them is exported."""
        for one in held:
            one.view.release()
        for one in held:
            self._held.pop(id(one), None)

    def _give_back(self, held: Sequence[Held]) -> None:
        """Aborts and releases. What holds no slot is passed over."""
        live = [one for one in held if id(one) in self._held]
        self._let_go(live)
        for op, kind in ((Op.ABORT, WritableSlot), (Op.RELEASE, ReadableBlock)):
            self._send_handles(op, [one.handle for one in live if isinstance(one, kind)])

    def _send_handles(self, op: Op, handles: Sequence[Handle]) -> None:
        """Nothing waits for the answers, so a connection that is over is no fault here."""
        for start in range(0, len(handles), self.hello.items_max):
            if self._connection.closed:
                return
            part = handles[start : start + self.hello.items_max]
            number = self._connection.next_id()
            self._connection.send(protocol.handles_request(op, number, part, no_reply=True))


def _invalidate(held: Held) -> bool:
    try:
        held.view.release()
    except BufferError:
        return False
    return True
