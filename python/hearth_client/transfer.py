"""Blocks between an engine's memory and the arena, in pipelined chunks: both directions.

The frames of a transfer are built from arrays, since a call moves thousands of blocks a second:
``protocol.py`` has the same frames in a form that can be read.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from functools import partial
from typing import Any, Callable, Deque, List, NamedTuple, Optional, Tuple

from . import protocol
from .connection import Connection
from .copiers import Copier
from .errors import HearthError, RefusedError
from .layout import Op, Outcome
from .link import Link
from .replies import words_of
from .request import Request
from .stats import Stats

#: Blocks and bytes of one chunk, and requests ahead of the copies. The agent verifies a chunk of a
#: put while the next one is copied; smaller chunks cost more in frames than they gain in overlap.
CHUNK_BLOCKS = 64
CHUNK_BYTES = 32 * 1024 * 1024
_AHEAD = 2
#: Seconds that the agent may take for an ACQUIRE without a deadline, and for a RESERVE.
ACQUIRE_S = 2.0
#: Seconds for a COMMIT or a REPORT.
COMMIT_S = 10.0

OK = int(Outcome.OK)
OUTCOMES = {int(outcome): outcome for outcome in Outcome}


class Part(NamedTuple):
    """A chunk whose slots were asked for."""

    start: int
    end: int
    request: Request


class GaveUp(Exception):
    """The agent did not answer in time, or the connection is over."""


class Transfer:
    """One call on one connection. Raises GaveUp, and nothing else of this package.

    A subclass asks for the slots of a chunk (``_ask``), begins its copy when the reply is there
    (``_begin``), and finishes it (``_finish``).
    """

    def __init__(self, link: Link, connection: Connection, copier: Copier, stats: Stats) -> None:
        self._link = link
        self._connection = connection
        self._copier = copier
        self._stats = stats
        arena = connection.__dict__.get("arena")
        if arena is None:
            raise GaveUp("gone")
        self._base = arena.address
        self._arena_bytes = arena.size
        try:
            #: Keeps the arena mapped during the copies, whatever happens to the connection.
            self._guard = arena.export(0, 1)
        except ValueError:
            raise GaveUp("gone") from None  # Unmapped meanwhile: the connection was lost.
        self._key = link.key
        self._digests = b""
        self._should_stop: Callable[[], bool] = lambda: False
        self._parts: Deque[Part] = deque()
        #: Copies that have begun, in order.
        self._copies: Deque[Any] = deque()

    # --- one chunk after another ------------------------------------------------------------------

    def _ask(self, start: int, end: int) -> None:
        """Submits the request for the slots of a chunk."""
        raise NotImplementedError

    def _begin(self, part: Part, body: bytes) -> Optional[Any]:
        """Begins the copy of a chunk. None: no slot was granted."""
        raise NotImplementedError

    def _finish(self, copy: Any) -> None:
        """Waits until a copy has ended, and gives back or commits its slots.

        Also of a call that ended early.
        """
        raise NotImplementedError

    def _limit_s(self) -> float:
        """Seconds that the call waits for the slots of the next chunk. GaveUp: its time is over."""
        raise NotImplementedError

    def _move(self, count: int) -> None:
        """Moves all chunks. Slots are asked for ahead of the copies, whose number is bounded."""
        bounds, parts, copies = deque(self._bounds(count)), self._parts, self._copies
        try:
            try:
                while (bounds or parts or copies) and not self._should_stop():
                    while bounds and len(parts) < _AHEAD:
                        self._ask(*bounds.popleft())
                    self._connection.flush()
                    if self._may_begin():
                        body = self.wait(parts[0].request, self._limit_s())
                        if self._should_stop():
                            return
                        self._limit_s()  # The reply may have come too late to begin a copy.
                        copy = self._begin(parts.popleft(), body)
                        if copy is not None:
                            copies.append(copy)
                    if copies and not self._may_begin():
                        self._finish(copies.popleft())
            finally:
                self.abandon()
                while copies:
                    self._finish(copies.popleft())
                self._connection.flush()
        except HearthError:
            raise GaveUp("gone") from None

    def _may_begin(self) -> bool:
        """Whether to begin a copy now; no slot waits for the agent's reply to another chunk."""
        if not self._parts or len(self._copies) >= self._copier.depth:
            return False
        if self._copies and not self._parts[0].request.done:
            self._connection.poll()
            return self._parts[0].request.done
        return True

    # --- waiting ----------------------------------------------------------------------------------

    def wait(self, request: Request, limit_s: float) -> bytes:
        """The reply's body.

        GaveUp: no sign of life for ``stall_ms``, no reply within the limit, or the caller stops.
        """
        connection, stall = self._connection, self._link.stall_s
        began = time.monotonic()
        if not connection.wait(request, min(stall / 2, limit_s)):
            self._outlast(request, began, limit_s)
        self._stats.waited(time.monotonic() - began)
        if request.error is not None:
            error = request.error()
            raise GaveUp("refused" if isinstance(error, RefusedError) else "gone")
        return request.body

    def _outlast(self, request: Request, began: float, limit_s: float) -> None:
        """Waits while the agent answers PINGs."""
        connection, stall = self._connection, self._link.stall_s
        alive_at = max(request.sent_at, connection.received_at)
        probe: Optional[Request] = None
        while not request.done:
            if probe is None or probe.done:
                probe = connection.submit(Op.PING, lambda n: protocol.ping_request(n, b""))
            left = began + limit_s - time.monotonic()
            connection.wait(request, max(min(stall / 4, left), 0.0))
            now = time.monotonic()
            alive_at = max(alive_at, connection.received_at)
            is_hung, is_stopped = now - alive_at > stall, self._should_stop()
            if not is_hung and not is_stopped and now - began < limit_s:
                continue
            if connection.abandon(request):
                connection.abandon(probe)
                self._stats.waited(now - began)
                if is_hung:
                    self._link.report_stall(connection)
                raise GaveUp("stalled" if is_hung else "stopped" if is_stopped else "late")

    def abandon(self) -> None:
        """Stops waiting for all chunks; what their replies grant is given back."""
        while self._parts:
            request = self._parts.popleft().request
            give_back = request.give_back
            if not self._connection.abandon(request) and request.error is None and give_back:
                self._quietly(partial(give_back, request.count, request.body))

    @staticmethod
    def _quietly(send: Callable[[], Any]) -> None:
        try:
            send()
        except (HearthError, ValueError):
            return  # The handles ended with the connection.

    def _words(self, body: bytes, words: int, count: int) -> "array[int]":
        try:
            return words_of(body, words, count)
        except ValueError as error:
            raise self._connection.broken(error) from error

    def _bounds(self, count: int) -> List[Tuple[int, int]]:
        """Start and end of each chunk."""
        most = min(CHUNK_BLOCKS, self._connection.hello.items_max)
        uniform = self._copier.uniform
        if uniform is not None:
            most = max(min(most, CHUNK_BYTES // max(uniform, 1)), 1)
            return [(at, min(at + most, count)) for at in range(0, count, most)]
        bounds, start, size = [], 0, 0
        for index in range(count):
            size += self._copier.length_of(index)
            if index > start and (size > CHUNK_BYTES or index - start == most):
                bounds.append((start, index))
                start, size = index, self._copier.length_of(index)
        if count > start:
            bounds.append((start, count))
        return bounds

    def _send_handles(self, op: Op, handles: bytes) -> None:
        count = len(handles) // 8
        if count == 0:
            return
        number = self._connection.next_id()
        self._connection.queue(protocol.request(op, number, count, handles, no_reply=True))

    def _submit(
        self, op: Op, start: int, end: int, body: bytes, give_back: Callable[[int, bytes], None]
    ) -> None:
        request = self._connection.submit(
            op,
            lambda number: protocol.request(op, number, end - start, body),
            give_back=give_back,
            queued=True,
        )
        self._parts.append(Part(start, end, request))
