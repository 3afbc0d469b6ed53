"""Requests whose answers come later."""

from __future__ import annotations

import json
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Sequence, Set

from . import protocol
from . import protocol_engine as frames
from .connection import Connection
from .errors import HearthError, RefusedError
from .layout import LAYER_ALL, Lookup, LookupFlag, Op
from .request import Request

_NOTHING = Lookup(0, 0, 0, False, False, False, 0, b"", [])

#: Called with the connection of a ticket that was given up.
OnStall = Callable[[Connection], None]
#: Called with a result, and the seconds it took.
OnResult = Callable[["LookupResult", float], None]


@dataclass(frozen=True)
class LookupResult:
    """The part of a prefix that the agent has."""

    #: Blocks present without a gap.
    leading: int
    #: The blocks among them that are in RAM, and reserved for this engine if it asked for that.
    ready: int
    #: Blocks behind ``leading`` that are being written or are announced.
    announced: int
    #: The best tier of each leading block, as a bit of ``Tier``; empty unless ``outcome`` is "ok".
    tiers: List[int]
    #: "ok"; "stalled": no progress for ``stall_ms``; "gone": no agent, or it refused.
    outcome: str
    #: Digests of the blocks, if they were asked for.
    digests: List[bytes]
    #: The agent forgot the parent digest: ask with the whole prompt.
    unknown_parent: bool = False


class Ticket:
    """A request in progress. ``done`` never blocks; all methods may be called from any thread."""

    def __init__(
        self,
        connection: Optional[Connection],
        *,
        stall_s: Optional[float] = None,
        on_stall: Optional[OnStall] = None,
    ) -> None:
        self._connection = connection
        self._request: Optional[Request] = None
        self._stall_s = stall_s
        self._on_stall = on_stall
        self._result: Any = None
        self.started = time.monotonic()
        #: Time (``time.monotonic()``) of the last reply, partial replies included.
        self.last_progress = self.started

    @property
    def request(self) -> Request:
        """The request as sent. ValueError: there was none."""
        if self._request is None:
            raise ValueError("no request was sent: the agent is not connected")
        return self._request

    def done(self) -> bool:
        """Whether the result is there; takes in replies that have come."""
        request, has_looked = self._request, False
        if self._result is None and request is not None and not request.done:
            assert self._connection is not None
            has_looked = self._connection.poll() is not None
        return self._settle(has_looked)

    def wait(self, timeout: float) -> bool:
        """Whether the result is there within ``timeout`` seconds."""
        until, has_looked = time.monotonic() + timeout, False
        while not self._settle(has_looked):
            now = time.monotonic()
            left = until - now
            if left <= 0:
                return self.done()
            if self._stall_s is not None:
                left = min(left, max(self.last_progress + self._stall_s - now, 0.0) + 0.001)
            assert self._connection is not None and self._request is not None
            self._connection.wait(self._request, left)
            has_looked = True
        return True

    def result(self) -> Any:
        """The result. ValueError: it is not there yet."""
        if not self._settle(False):
            raise ValueError("the ticket is not done: call done() or wait() before result()")
        return self._result

    def cancel(self) -> None:
        """Stops waiting; what the reply grants is given back."""
        if self._request is not None and self._connection is not None:
            self._connection.abandon(self._request)
        if self._result is None:
            self._result = self._failed("gone", "cancelled")

    def _settle(self, has_looked: bool) -> bool:
        """``has_looked``: the socket was just read; only then can a missing reply be a stall."""
        request, connection = self._request, self._connection
        if self._result is not None:
            return True
        if request is None or connection is None:
            self._result = self._failed("gone", "no agent")
        elif request.done:
            self._result = self._finished(request)
        elif has_looked and self._is_stalled() and connection.abandon(request):
            self._result = self._failed("stalled", "no progress")
            if self._on_stall is not None:
                self._on_stall(connection)
        return self._result is not None

    def _is_stalled(self) -> bool:
        limit = self._stall_s
        return limit is not None and time.monotonic() - self.last_progress > limit

    def _finished(self, request: Request) -> Any:
        if request.error is None:
            return self._read(request)
        error = request.error()
        outcome = "refused" if isinstance(error, RefusedError) else "gone"
        return self._failed(outcome, str(error))

    def _read(self, request: Request) -> Any:
        raise NotImplementedError

    def _failed(self, outcome: str, reason: str) -> Any:
        raise NotImplementedError


class LookupTicket(Ticket):
    """A LOOKUP in progress."""

    #: The agent's latest reply.
    _seen = _NOTHING
    #: Combined result of the earlier parts of the prefix.
    _before = _NOTHING
    _is_wanted = True
    _digests = False
    _fetches = False

    def __init__(
        self,
        connection: Optional[Connection],
        *,
        stall_s: Optional[float] = None,
        on_stall: Optional[OnStall] = None,
        on_result: Optional[OnResult] = None,
    ) -> None:
        super().__init__(connection, stall_s=stall_s, on_stall=on_stall)
        self._on_result = on_result
        self._rest: Deque[frames.LookupQuestion] = deque()
        self._holds: List[int] = []
        #: Reservations that were given back.
        self._given_back: Set[int] = set()

    def start(self, *questions: frames.LookupQuestion) -> "LookupTicket":
        """Sends it. ValueError: an argument cannot be right, and nothing was sent.

        Of several questions, which are parts of one prefix, each is sent when all blocks of the one
        before are there.
        """
        if self._connection is not None:
            self._digests = bool(questions[0].flags & LookupFlag.DIGESTS)
            self._fetches = bool(questions[0].flags & LookupFlag.FETCH)
            self._rest = deque(questions[1:])
            self._ask(questions[0])
        return self

    def _ask(self, question: frames.LookupQuestion) -> None:
        assert self._connection is not None
        self._request = self._connection.submit(
            Op.LOOKUP,
            lambda number: frames.lookup_request(number, question),
            give_back=self._late,
            on_reply=self._take,
        )

    def start_match(self, digests: Sequence[bytes], tiers: int) -> "LookupTicket":
        """Asks an agent that does not know LOOKUP."""
        assert self._connection is not None
        self._request = self._connection.submit(
            Op.MATCH,
            lambda number: protocol.match_request(number, LAYER_ALL, tiers, digests),
            on_reply=self._take_match,
        )
        return self

    def _take_match(self, count: int, body: bytes) -> bool:
        leading, best = protocol.read_match(count, body)
        tiers = bytes(int(tier) for tier in best)
        self._seen = _NOTHING._replace(leading=leading, ready=leading, tiers=tiers)
        return False

    @property
    def ready_now(self) -> int:
        """Leading blocks that are in RAM by now."""
        return self._seen.ready

    @property
    def leading_now(self) -> int:
        return self._seen.leading

    @property
    def hold(self) -> int:
        """Number of the reservation, 0: none."""
        return self._seen.hold

    def unhold(self) -> None:
        """Ends the reservation, now or when the reply comes. Nothing waits for that."""
        self._is_wanted = False
        connection, request = self._connection, self._request
        if connection is None or request is None:
            return
        connection.abandon(request)
        self._unhold_all()

    def cancel(self) -> None:
        super().cancel()
        self.unhold()

    def _take(self, count: int, body: bytes) -> bool:
        part = frames.read_lookup(count, body, self._digests)
        self.last_progress = time.monotonic()
        self._seen = _joined(self._before, part)
        whole = count == (part.ready if self._fetches else part.leading)
        if not part.more and self._rest and self._is_wanted and whole:
            self._before = self._seen
            if part.hold != 0:
                self._holds.append(part.hold)
            try:
                self._ask(self._rest.popleft())
            except HearthError:
                return False  # The blocks found so far are the answer.
        if not self._is_wanted:
            # Also a part that was asked for while another thread called unhold().
            self._unhold_all()
        return part.more

    def _late(self, _count: int, _body: bytes) -> None:
        # Blocks that were ready before the caller gave up are reserved for its readers.
        if not self._is_wanted:
            self._unhold_all()

    def _unhold_all(self) -> None:
        holds, connection = [*self._holds, self._seen.hold], self._connection
        some = [hold for hold in dict.fromkeys(holds) if hold not in self._given_back | {0}]
        if not some or connection is None:
            return
        self._given_back.update(some)
        try:
            connection.post(lambda number: frames.unhold_request(number, some, no_reply=True))
        except HearthError:
            return  # They ended with the connection.

    def _read(self, request: Request) -> LookupResult:
        seen = self._seen
        result = LookupResult(
            *(seen.leading, seen.ready, seen.announced, list(seen.tiers[: seen.leading]), "ok"),
            *(seen.digests, seen.unknown_parent),
        )
        if self._on_result is not None:
            self._on_result(result, self.last_progress - self.started)
        return result

    def _failed(self, outcome: str, reason: str) -> LookupResult:
        if self._seen.ready == 0:
            self._is_wanted = False
        seen = self._seen if outcome == "stalled" else _NOTHING
        word = "stalled" if outcome == "stalled" else "gone"
        return LookupResult(seen.leading, seen.ready, seen.announced, [], word, [])


def _joined(before: Lookup, part: Lookup) -> Lookup:
    return part._replace(
        leading=before.leading + part.leading,
        ready=before.ready + part.ready,
        tiers=before.tiers + part.tiers,
        digests=before.digests + part.digests,
    )


class CommandTicket(Ticket):
    """A COMMAND in progress: its result is the receipt. Without an agent, ``status`` is "gone"."""

    def start(self, json_bytes: bytes) -> "CommandTicket":
        if self._connection is not None:
            self._request = self._connection.submit(
                Op.COMMAND, lambda number: frames.command_request(number, json_bytes)
            )
        return self

    def _read(self, request: Request) -> Dict[str, object]:
        assert self._connection is not None
        try:
            receipt = json.loads(frames.read_command(request.count, request.body))
            if not isinstance(receipt, dict):
                raise ValueError("COMMAND: a receipt that is not an object")
        except ValueError as error:
            return self._failed("gone", str(self._connection.broken(error)))
        return receipt

    def _failed(self, outcome: str, reason: str) -> Dict[str, object]:
        status = "rejected" if outcome == "refused" else "gone"
        return {"status": status, "reason": f"{outcome}: {reason}"}
