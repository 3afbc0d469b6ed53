"""One request on its way."""

from __future__ import annotations

import time
from typing import Callable, Optional, Tuple

from . import protocol
from .errors import HearthError, ProtocolError, RefusedError
from .layout import Header

#: Takes in one reply: its count and body.
Take = Callable[[int, bytes], None]
#: The same; True: another reply to the request follows.
TakeSome = Callable[[int, bytes], bool]
#: Makes the error that ended a request or a connection: each thread raises one of its own.
Failure = Callable[[], HearthError]


class Request:
    """A request, and its reply when it is there."""

    __slots__ = (
        "abandoned",
        "body",
        "count",
        "done",
        "error",
        "give_back",
        "number",
        "on_reply",
        "op",
        "sent_at",
    )

    def __init__(self, number: int, op: int, give_back: Optional[Take]) -> None:
        self.number = number
        self.op = op
        self.done = False
        self.count = 0
        self.body = b""
        self.error: Optional[Failure] = None
        #: Called with a reply that arrives too late, to return the slots that it granted.
        self.give_back = give_back
        self.abandoned = False
        #: Called with each reply by the thread that reads.
        self.on_reply: Optional[TakeSome] = None
        #: Time (monotonic).
        self.sent_at = time.monotonic()

    def result(self) -> Tuple[int, bytes]:
        """Count and body of the reply; refusals and a lost connection are raised."""
        if self.error is not None:
            raise self.error()
        return self.count, self.body


def failure_of(header: Header, body: bytes) -> Failure:
    """The exception for a reply whose status is not 0."""
    try:
        text = protocol.read_error(body)
    except ValueError as lie:
        reason = f"the agent broke the protocol: {lie}"
        return lambda: ProtocolError(reason)
    return lambda: RefusedError(header.status, text)
