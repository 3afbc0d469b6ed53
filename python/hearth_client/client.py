"""The client an engine uses."""

from __future__ import annotations

from contextlib import contextmanager
from types import TracebackType
from typing import Any, Iterator, List, Optional, Sequence, Type, Union

from . import protocol
from .calls import reader_of_outcomes
from .connection import Connection
from .errors import RefusedError
from .held import ReadableBlock, WritableSlot
from .layout import (
    LAYER_ALL,
    TIER_ANY,
    Acquired,
    Block,
    Commit,
    Op,
    Outcome,
    Readable,
    Slot,
)
from .manifest import Manifest
from .memory import piece_of
from .namespace_key import NamespaceKey
from .notifier import Notifier
from .slots import SlotCalls


class Client(SlotCalls):
    """A connection to the agent on this host, and the arena mapped into this process.

    All methods may be called from several threads, whose requests are on their way together.
    Expected outcomes are values. Raised are ValueError (an argument cannot be right: nothing was
    sent), RefusedError (the agent refused the frame), TimedOut (no reply in time: the connection
    stays), ProtocolError and ConnectionClosed (the connection is over, with every handle). A Client
    does not reconnect, as KvStore does: the caller makes a new one.

    A thread renews the lease while slots are held. A process that forks uses the client in the
    parent only.
    """

    def __init__(
        self,
        path: str,
        manifest: Union[Manifest, bytes],
        *,
        name: str = "",
        timeout: float = 30.0,
        key: Optional[NamespaceKey] = None,
    ) -> None:
        """Connects and greets. ``timeout`` in seconds bounds each wait for the agent.

        ``key``: blocks are stored with MACs under it, and what was not does not verify.
        """
        if key is not None:
            if isinstance(manifest, bytes):
                raise ValueError("with a key the manifest is given as a Manifest, not encoded")
            manifest = key.applied(manifest)
        encoded = manifest if isinstance(manifest, bytes) else manifest.encode()
        connection = Connection(path, encoded, name, timeout, has_macs=key is not None)
        super().__init__(connection)
        self._key = key
        self._notifier: Optional[Notifier] = None

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

        A block that other objects still refer to (an array, say) is not given back: the agent sets
        its slot aside until this process ends, and the arena stays mapped while the object lives.
        """
        try:
            self._end_slots()
        finally:
            self._close_gpu()
            self._connection.close()
            if self._notifier is not None:
                self._notifier.close()
        self._arena.close()

    # --- an event loop ----------------------------------------------------------------------------

    def fileno(self) -> int:
        """A descriptor that is readable if there is something for ``poll`` to take in."""
        with self._lock:
            if self._notifier is None:
                self._notifier = Notifier()
                self._connection.watch(self._notifier)
            return self._notifier.fileno()

    def poll(self) -> None:
        """Takes in replies that have come, for tickets. Never blocks."""
        if self._notifier is not None:
            self._notifier.clear()
        self._connection.poll()

    # --- reading ----------------------------------------------------------------------------------

    def acquire(
        self,
        digests: Sequence[bytes],
        *,
        layer: int = LAYER_ALL,
        tiers: int = TIER_ANY,
        deadline_ms: int = 0,
        stop_at_miss: bool = False,
        namespace: int = 0,
    ) -> List[ReadableBlock]:
        """Keeps blocks in place for reading, one answer for each digest, until ``release``."""
        self._check_items(len(digests))
        answers = self._ask(
            Op.ACQUIRE,
            lambda number: protocol.acquire_request(
                number, layer, tiers, deadline_ms, stop_at_miss, digests, namespace
            ),
            self._read_acquire,
            self._release_late,
        )
        self._same_length(answers, len(digests))
        return [self._readable(digest, layer, one) for digest, one in zip(digests, answers)]

    def _read_acquire(self, count: int, body: bytes) -> List[Acquired]:
        return protocol.read_acquire(count, body, self._key is not None)

    def _release_late(self, count: int, body: bytes) -> None:
        answers = self._read_acquire(count, body)
        handles = [(one.slot, one.generation) for one in answers if one.outcome == Outcome.OK]
        self._send_handles(Op.RELEASE, handles)

    def _readable(self, digest: bytes, layer: int, one: Acquired) -> ReadableBlock:
        self._check_place(one.outcome, one.offset, one.length)
        handle = (one.slot, one.generation)
        block = ReadableBlock(digest, one.outcome, handle, self._arena, one.offset, one.length)
        block.checksum, block.mac = one.checksum, one.mac
        block.key, block.layer = self._key, layer
        return self._hold(block)

    @contextmanager
    def acquired(
        self,
        digests: Sequence[bytes],
        *,
        layer: int = LAYER_ALL,
        tiers: int = TIER_ANY,
        deadline_ms: int = 0,
        stop_at_miss: bool = False,
        namespace: int = 0,
    ) -> Iterator[List[ReadableBlock]]:
        """``acquire`` for the length of a ``with`` block."""
        blocks = self.acquire(
            digests,
            layer=layer,
            tiers=tiers,
            deadline_ms=deadline_ms,
            stop_at_miss=stop_at_miss,
            namespace=namespace,
        )
        try:
            yield blocks
        finally:
            self.release(blocks)

    def release(self, blocks: Sequence[ReadableBlock]) -> None:
        """Gives blocks back; ``block.view`` ends here.

        Blocks whose copies did not verify are reported. The agent gets a block back when nothing
        refers to its bytes any more. While an array or
        another object made from its view lives, the bytes stay as they are.
        """
        self._let_go(blocks)

    # --- writing ----------------------------------------------------------------------------------

    def reserve(
        self,
        blocks: Sequence[Block],
        *,
        layer: int = LAYER_ALL,
        session: int = 0,
        namespace: int = 0,
    ) -> List[WritableSlot]:
        """Room to write blocks, one answer for each. Commit or abort those that are OK."""
        self._check_items(len(blocks))
        answers = self._ask(
            Op.RESERVE,
            lambda number: protocol.reserve_request(number, layer, session, blocks, namespace),
            protocol.read_reserve,
            self._abort_late,
        )
        self._same_length(answers, len(blocks))
        return [self._writable(block, layer, one) for block, one in zip(blocks, answers)]

    def _abort_late(self, count: int, body: bytes) -> None:
        answers = protocol.read_reserve(count, body)
        handles = [(one.slot, one.generation) for one in answers if one.outcome == Outcome.OK]
        self._send_handles(Op.ABORT, handles)

    def _writable(self, block: Block, layer: int, one: Slot) -> WritableSlot:
        if one.outcome == Outcome.OK and one.capacity < block.length:
            raise self._connection.broken(f"a slot of {one.capacity} bytes for {block.length}")
        length = block.length if one.outcome == Outcome.OK else 0
        self._check_place(one.outcome, one.offset, length)
        handle = (one.slot, one.generation)
        slot = WritableSlot(block.digest, one.outcome, handle, self._arena, one.offset, length)
        slot.key, slot.layer = self._key, layer
        return self._hold(slot)

    def commit(
        self,
        slots: Sequence[WritableSlot],
        *,
        checksums: Optional[Sequence[int]] = None,
        reply: bool = True,
    ) -> List[Outcome]:
        """Makes written blocks visible; their ``view`` ends here.

        The agent computes the checksums (XXH3-64) and compares them with those given here. With
        ``reply`` False the call does not wait, and answers nothing. BufferError: an object made
        from a view still exists; nothing was sent.
        """
        if checksums is not None and len(checksums) != len(slots):
            raise ValueError(f"{len(checksums)} checksums for {len(slots)} slots")
        given: Sequence[Optional[int]] = [None] * len(slots) if checksums is None else checksums
        items = [Commit(*slot.handle, sum_, slot.mac_now()) for slot, sum_ in zip(slots, given)]
        self._check_items(len(items))
        protocol.commit_request(0, items)  # ValueError before the slots are let go.
        self._take_unreferenced(slots)
        if not reply:
            self._post(lambda number: protocol.commit_request(number, items, no_reply=True))
            return []
        try:
            answers = self._ask(
                Op.COMMIT,
                lambda number: protocol.commit_request(number, items),
                reader_of_outcomes(Op.COMMIT),
            )
        except RefusedError:
            # Nothing was committed, and the slots are this object's no more.
            self._send_handles(Op.ABORT, [slot.handle for slot in slots])
            raise
        return self._same_length(answers, len(items))

    def abort(self, slots: Sequence[WritableSlot]) -> None:
        """Gives slots back unwritten, as ``release`` does."""
        self._let_go(slots)

    # --- whole blocks -----------------------------------------------------------------------------

    def get(self, digests: Sequence[bytes], *, layer: int = LAYER_ALL) -> List[Optional[bytes]]:
        """Verified copies of blocks, None for each that is not to be had."""
        found: List[Optional[bytes]] = []
        for start in range(0, len(digests), self.hello.items_max):
            part = digests[start : start + self.hello.items_max]
            with self.acquired(part, layer=layer) as blocks:
                found.extend(block.copy() for block in blocks)
        return found

    def get_into(
        self, digests: Sequence[bytes], targets: Sequence[Any], *, layer: int = LAYER_ALL
    ) -> List[Outcome]:
        """Copies blocks into writable objects: a ``bytearray``, a NumPy array.

        OK: the target has the verified bytes. Otherwise its bytes are undefined: MISS and the other
        outcomes of an ACQUIRE, CORRUPT (the agent has been told, and drops a block whose bytes in
        the arena are damaged), or TOO_LARGE for a target of another size.
        """
        pieces = [piece_of(target) for target in targets]
        if len(pieces) != len(digests):
            raise ValueError(f"{len(pieces)} targets for {len(digests)} digests")
        if any(memoryview(target).readonly for target in targets):
            raise ValueError("a target that is read-only")
        outcomes: List[Outcome] = []
        for start in range(0, len(digests), self.hello.items_max):
            end = start + self.hello.items_max
            with self.acquired(digests[start:end], layer=layer) as blocks:
                outcomes += self._scatter(blocks, pieces[start:end])
        return outcomes

    @staticmethod
    def _scatter(blocks: Sequence[ReadableBlock], pieces: Sequence[Any]) -> List[Outcome]:
        outcomes = [block.outcome for block in blocks]
        fitting = [
            at
            for at, (block, piece) in enumerate(zip(blocks, pieces))
            if block.outcome == Outcome.OK and block.length == piece.bytes
        ]
        verified = [blocks[at].scatter_to(pieces[at]) for at in fitting]
        right = {at for at, is_right in zip(fitting, verified) if is_right}
        for at, block in enumerate(blocks):
            if block.outcome == Outcome.OK and at not in right:
                block.is_damaged = at in fitting
                outcomes[at] = Outcome.CORRUPT if at in fitting else Outcome.TOO_LARGE
        return outcomes

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
