"""Exceptions of the client. Expected outcomes (a miss, ``full``) are values instead."""

from __future__ import annotations

from .layout import FrameStatus


class HearthError(Exception):
    """Anything this package raises beside ValueError for wrong arguments."""


class RefusedError(HearthError):
    """The agent refused a whole frame: ``status`` says in which way, ``text`` what to do."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        self.text = text
        super().__init__(f"{status_name(status)}: {text}")


class ProtocolError(HearthError, ValueError):
    """The agent sent something the protocol does not allow. The connection is closed."""


class ConnectionClosed(HearthError, ConnectionError):
    """The connection is gone, and with it every handle. Make a new connection to continue."""


class TimedOut(HearthError, TimeoutError):
    """A reply was late. The connection stays open; what the reply grants is given back."""


def status_name(status: int) -> str:
    try:
        return FrameStatus(status).name.lower()
    except ValueError:
        return f"status {status}"
