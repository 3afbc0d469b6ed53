"""Calls that take no slots: names, lookups, notices, signs of life."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from struct import error as StructError
from struct import pack
from typing import Callable, Iterator, List, Optional, Sequence, Tuple, TypeVar, Union

from . import protocol
from .connection import Connection
from .layout import (
    DIGEST_BYTES,
    LAYER_ALL,
    TIER_ANY,
    AliasKind,
    Block,
    Hello,
    IdentifyKind,
    Match,
    Op,
    Outcome,
    SessionItem,
    SessionPage,
    SessionStatus,
)
from .request import Request, Take

_Answer = TypeVar("_Answer")


class Calls:
    """Calls of a Client that take no slots. Use Client."""

    def __init__(self, connection: Connection) -> None:
        #: Guards what this object keeps; never taken while it waits for the agent.
        self._lock = threading.RLock()
        self._connection = connection
        self._limits = threading.local()

    @property
    def hello(self) -> Hello:
        """The agent's greeting: its identity and its limits."""
        return self._connection.hello

    @contextmanager
    def deadline(self, seconds: float) -> Iterator[None]:
        """Bounds the calls of this thread in a ``with`` block, all of them together.

        A call that is not answered by then raises TimedOut and stays connected; slots that the
        late reply hands out are given back.
        """
        before = getattr(self._limits, "until", None)
        until = time.monotonic() + seconds
        self._limits.until = until if before is None else min(before, until)
        try:
            yield
        finally:
            self._limits.until = before

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
        """Digests for an engine's chain keys: SHA-256 of 32 bytes, or XXH3-128 of 16 bytes."""
        kind = kind_of_keys(keys)
        digests = self._identify(kind, layer, len(keys), b"".join(keys))
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
        unknown = bytes(DIGEST_BYTES)
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
        """Gives blocks other names: pairs of digest and engine hash (u64) or SHA-256 (32 bytes)."""
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
        """How much of a prefix is there. A hint: no slot is kept for the caller."""
        self._check_items(len(digests))
        answer = self._ask(
            Op.MATCH,
            lambda number: protocol.match_request(number, layer, tiers, digests),
            protocol.read_match,
        )
        self._same_length(answer.best, len(digests))
        return answer

    # --- the engine's GPU, sessions, signs of life ------------------------------------------------

    def gpu_stored(self, blocks: Sequence[Block], *, layer: int = LAYER_ALL) -> List[Outcome]:
        """Reports blocks that the engine's GPU holds now."""
        self._check_items(len(blocks))
        return self._outcomes(
            Op.GPU_STORED,
            len(blocks),
            lambda number: protocol.gpu_stored_request(number, layer, blocks),
        )

    def gpu_evicted(self, digests: Sequence[bytes], *, layer: int = LAYER_ALL) -> List[Outcome]:
        """Reports blocks that the engine's GPU no longer holds."""
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
        """The blocks of a session that are in RAM."""
        return self._ask(
            Op.SESSION_STATUS,
            lambda number: protocol.session_request(Op.SESSION_STATUS, number, session),
            protocol.read_session_status,
        )

    def session_list(self, after: int = 0, most: int = 0) -> SessionPage:
        """A page of this namespace's sessions; ``next`` of it is the ``after`` of the next."""
        return self._sessions(0, after, most)

    def session_tiers(self, session: int) -> Optional[SessionItem]:
        """The parts of a session in RAM and on SSD; None: no such session exists."""
        found = self._sessions(session, 0, 1).sessions if session != 0 else []
        return found[0] if found else None

    def _sessions(self, session: int, after: int, most: int) -> SessionPage:
        return self._ask(
            Op.SESSION_LIST,
            lambda number: protocol.session_list_request(number, session, after, most),
            protocol.read_session_list,
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
        give_back: Optional[Take] = None,
    ) -> _Answer:
        self._before_call()
        limit = self._time_left()
        return self._connection.ask(op, frame_of, read, timeout=limit, give_back=give_back)

    def _before_call(self) -> None:
        """Hook: sends frames that travel with the next call."""

    def _time_left(self) -> float:
        until = getattr(self._limits, "until", None)
        timeout = self._connection.timeout
        return timeout if until is None else min(timeout, max(until - time.monotonic(), 0.0))

    def _receive(self, request: Request, read: Callable[[int, bytes], _Answer]) -> _Answer:
        """Reads the reply to a request that was sent ahead."""
        count, body = self._connection.result(request, self._time_left())
        try:
            return read(count, body)
        except ValueError as error:
            raise self._connection.broken(error) from error

    def _post(self, frame_of: Callable[[int], bytes]) -> None:
        self._before_call()
        self._connection.post(frame_of)

    def _outcomes(self, op: Op, count: int, frame_of: Callable[[int], bytes]) -> List[Outcome]:
        self._check_items(count)
        answers = self._ask(op, frame_of, reader_of_outcomes(op))
        return self._same_length(answers, count)

    def _check_items(self, count: int) -> None:
        if count > self.hello.items_max:
            raise ValueError(f"{count} items in one call, {self.hello.items_max} are allowed")

    def _same_length(self, answers: List[_Answer], wanted: int) -> List[_Answer]:
        if len(answers) != wanted:
            raise self._connection.broken(f"{len(answers)} answers to {wanted} questions")
        return answers


def kind_of_keys(keys: Sequence[bytes]) -> IdentifyKind:
    """ValueError: the keys have different lengths, or another one than 16 or 32 bytes."""
    sizes = set(map(len, keys)) or {32}
    if sizes == {32}:
        return IdentifyKind.CHAIN_KEYS
    if sizes == {16}:
        return IdentifyKind.SHORT_KEYS
    raise ValueError(f"chain keys have 16 or 32 bytes each, given {sorted(sizes)}")


def _alias_bytes(alias: Union[int, bytes]) -> bytes:
    if isinstance(alias, bytes):
        return alias
    try:
        return pack("<Q", alias)
    except StructError as error:
        raise ValueError(f"an alias is an unsigned 64-bit number or bytes, not {alias}") from error


def reader_of_outcomes(op: Op) -> Callable[[int, bytes], List[Outcome]]:
    return lambda count, body: protocol.read_outcomes(op, count, body)
