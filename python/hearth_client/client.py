"""The client an engine uses."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from struct import error as StructError
from struct import pack
from types import TracebackType
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Type, TypeVar, Union

from . import protocol
from .connection import Connection
from .errors import HearthError, RefusedError
from .manifest import Manifest
from .protocol import (
    LAYER_ALL,
    TIER_ANY,
    AliasKind,
    Block,
    Commit,
    Handle,
    Hello,
    IdentifyKind,
    Match,
    Op,
    Outcome,
    Readable,
    SessionStatus,
)
from .xxh3 import xxh3_64

_Answer = TypeVar("_Answer")


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


_Held = Union[WritableSlot, ReadableBlock]
_AnyHeld = TypeVar("_AnyHeld", WritableSlot, ReadableBlock)


def _alias_bytes(alias: Union[int, bytes]) -> bytes:
    if isinstance(alias, bytes):
        return alias
    try:
        return pack("<Q", alias)
    except StructError as error:
        raise ValueError(f"an alias is an unsigned 64-bit number or bytes, not {alias}") from error


class Client:
    """A connection to the agent on this host, and the arena mapped into this process.

    All methods may be called from several threads; one request is on its way at a time. Expected outcomes
    are values. Raised are ValueError (an argument cannot be right: nothing was sent), RefusedError (the
    agent refused the frame), ProtocolError and ConnectionClosed (the connection is over, with every
    handle; making a new Client is up to the caller).

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
        self._lock = threading.RLock()
        self._held: Dict[int, _Held] = {}
        self._connection = Connection(path, encoded, name, timeout)
        self._arena = memoryview(self._connection.arena)

    @property
    def hello(self) -> Hello:
        """What the agent said of itself and its limits."""
        return self._connection.hello

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

        A block whose bytes another object exports (an array, say) is not given back: the agent sets its
        slot aside until this process ends, and the arena stays mapped as long as the object lives.
        """
        with self._lock:
            try:
                self._give_back([one for one in self._held.values() if _invalidate(one)])
            except HearthError:
                pass  # The connection is over already, which is what close is for.
            finally:
                self._held.clear()
                self._connection.close()
            self._arena.release()
            try:
                self._connection.arena.close()
            except BufferError:
                pass  # Views of it are in use; it is unmapped with the last of them.

    # --- names ------------------------------------------------------------------------------------

    def identify(self, tokens: Sequence[int]) -> List[bytes]:
        """Digests of the full blocks of a prompt, given its tokens from the start."""
        try:
            items = pack(f"<{len(tokens)}I", *tokens)
        except StructError as error:
            raise ValueError("tokens are unsigned 32-bit numbers") from error
        digests = self._identify(IdentifyKind.TOKENS, LAYER_ALL, len(tokens), items)
        return self._same_length(digests, len(tokens) // self.hello.block_tokens)

    def identify_chain_keys(self, keys: Sequence[bytes], layer: int = LAYER_ALL) -> List[bytes]:
        """Digests for SHA-256 page keys of 32 bytes."""
        items = b"".join(keys)
        digests = self._identify(IdentifyKind.CHAIN_KEYS, layer, len(keys), items)
        return self._same_length(digests, len(keys))

    def identify_engine_hashes(
        self, hashes: Sequence[int], layer: int = LAYER_ALL
    ) -> List[Optional[bytes]]:
        """Digests for 64-bit engine hashes; None for one that was never given as an alias."""
        try:
            items = pack(f"<{len(hashes)}Q", *hashes)
        except StructError as error:
            raise ValueError("engine hashes are unsigned 64-bit numbers") from error
        digests = self._identify(IdentifyKind.ENGINE_HASHES, layer, len(hashes), items)
        unknown = bytes(protocol.DIGEST_BYTES)
        found = self._same_length(digests, len(hashes))
        return [None if digest == unknown else digest for digest in found]

    def _identify(self, kind: IdentifyKind, layer: int, count: int, items: bytes) -> List[bytes]:
        return self._ask(
            Op.IDENTIFY,
            lambda number: protocol.identify_request(number, kind, layer, count, items),
            protocol.read_identify,
        )

    def alias(
        self, pairs: Sequence[Tuple[bytes, Union[int, bytes]]], layer: int = LAYER_ALL
    ) -> List[Outcome]:
        """Gives blocks other names: pairs of digest and 64-bit engine hash, or SHA-256 (32 bytes)."""
        kinds = {isinstance(alias, bytes) for _digest, alias in pairs}
        if len(kinds) > 1:
            raise ValueError("aliases of one call are all numbers or all bytes")
        kind = AliasKind.SHA256 if True in kinds else AliasKind.ENGINE_HASH
        items = [(digest, _alias_bytes(alias)) for digest, alias in pairs]
        return self._outcomes(
            Op.ALIAS,
            len(items),
            lambda number: protocol.alias_request(number, kind, layer, items),
        )

    # --- lookups ----------------------------------------------------------------------------------

    def match(
        self, digests: Sequence[bytes], *, layer: int = LAYER_ALL, tiers: int = TIER_ANY
    ) -> Match:
        """How much of a prefix is there. A hint: nothing is held."""
        self._check_items(len(digests))
        answer = self._ask(
            Op.MATCH,
            lambda number: protocol.match_request(number, layer, tiers, digests),
            protocol.read_match,
        )
        self._same_length(answer.best, len(digests))
        return answer

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

    def _readable(self, digest: bytes, one: protocol.Acquired) -> ReadableBlock:
        view = self._view(one.outcome, one.offset, one.bytes).toreadonly()
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

    def _writable(self, block: Block, one: protocol.Slot) -> WritableSlot:
        if one.outcome == Outcome.OK and one.capacity < block.bytes:
            raise self._connection.broken(f"a slot of {one.capacity} bytes for {block.bytes}")
        view = self._view(one.outcome, one.offset, block.bytes)
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
                answers = self._exchange(number, Op.COMMIT, frame, _reader_of_outcomes(Op.COMMIT))
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

    # --- the engine's GPU, sessions, signs of life ------------------------------------------------

    def gpu_stored(self, blocks: Sequence[Block], *, layer: int = LAYER_ALL) -> List[Outcome]:
        """Tells the agent what the engine's GPU holds now."""
        self._check_items(len(blocks))
        return self._outcomes(
            Op.GPU_STORED,
            len(blocks),
            lambda number: protocol.gpu_stored_request(number, layer, blocks),
        )

    def gpu_evicted(self, digests: Sequence[bytes], *, layer: int = LAYER_ALL) -> List[Outcome]:
        """Tells the agent what the engine's GPU no longer holds."""
        self._check_items(len(digests))
        return self._outcomes(
            Op.GPU_EVICTED,
            len(digests),
            lambda number: protocol.gpu_evicted_request(number, layer, digests),
        )

    def session_commit(self, session: int, digest: bytes, *, layer: int = LAYER_ALL) -> Outcome:
        """The session now ends in this block. MISS: the block is not here."""
        (outcome,) = self._outcomes(
            Op.SESSION_COMMIT,
            1,
            lambda number: protocol.session_commit_request(number, session, layer, digest),
        )
        return outcome

    def session_release(self, session: int) -> Outcome:
        """Ends a session: its blocks age like any others. MISS: there is none."""
        (outcome,) = self._outcomes(
            Op.SESSION_RELEASE,
            1,
            lambda number: protocol.session_request(Op.SESSION_RELEASE, number, session),
        )
        return outcome

    def session_status(self, session: int) -> SessionStatus:
        """What of a session is in RAM."""
        return self._ask(
            Op.SESSION_STATUS,
            lambda number: protocol.session_request(Op.SESSION_STATUS, number, session),
            protocol.read_session_status,
        )

    def ping(self, payload: bytes = b"") -> bytes:
        """Sends up to 64 bytes (a multiple of 8) there and back; renews the lease."""
        answer = self._ask(
            Op.PING,
            lambda number: protocol.ping_request(number, payload),
            lambda _count, body: body,
        )
        if answer != payload:
            raise self._connection.broken("another ping came back")
        return answer

    # --- how --------------------------------------------------------------------------------------

    def _ask(
        self,
        op: Op,
        frame_of: Callable[[int], bytes],
        read: Callable[[int, bytes], _Answer],
    ) -> _Answer:
        with self._lock:
            number = self._connection.next_id()
            return self._exchange(number, op, frame_of(number), read)

    def _exchange(
        self, number: int, op: Op, frame: bytes, read: Callable[[int, bytes], _Answer]
    ) -> _Answer:
        self._connection.send(frame)
        count, body = self._connection.receive(number, op)
        try:
            return read(count, body)
        except ValueError as error:
            raise self._connection.broken(error) from error

    def _outcomes(self, op: Op, count: int, frame_of: Callable[[int], bytes]) -> List[Outcome]:
        self._check_items(count)
        answers = self._ask(op, frame_of, _reader_of_outcomes(op))
        return self._same_length(answers, count)

    def _check_items(self, count: int) -> None:
        if count > self.hello.items_max:
            raise ValueError(f"{count} items in one call, {self.hello.items_max} are allowed")

    def _same_length(self, answers: List[_Answer], wanted: int) -> List[_Answer]:
        if len(answers) != wanted:
            raise self._connection.broken(f"{len(answers)} answers to {wanted} questions")
        return answers

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

    def _check_held(self, held: Sequence[_Held]) -> None:
        for one in held:
            if id(one) not in self._held:
                raise ValueError("a block that is not held: refused, or given back already")

    def _let_go(self, held: Sequence[_Held]) -> None:
        """Invalidates the views. BufferError, and all stay held, where one of them is exported."""
        for one in held:
            one.view.release()
        for one in held:
            self._held.pop(id(one), None)

    def _give_back(self, held: Sequence[_Held]) -> None:
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


def _invalidate(held: _Held) -> bool:
    try:
        held.view.release()
    except BufferError:
        return False
    return True


def _reader_of_outcomes(op: Op) -> Callable[[int, bytes], List[Outcome]]:
    return lambda count, body: protocol.read_outcomes(op, count, body)
