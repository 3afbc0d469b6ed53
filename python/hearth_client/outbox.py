"""Frames on their way out of a socket that does not block."""

from __future__ import annotations

import socket
import threading
from typing import Optional

#: Bytes that an agent which does not read may leave here.
_BYTES_MAX = 16 * 1024 * 1024


class Outbox:
    """Keeps frames whole and in order. Each method answers the error that ended the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._lock = threading.Lock()
        self._rest = bytearray()

    @property
    def is_waiting(self) -> bool:
        """Whether the socket did not accept everything yet."""
        return bool(self._rest)

    def send(self, frame: bytes) -> Optional[OSError]:
        """Sends what the socket accepts now; the rest goes out with later calls."""
        with self._lock:
            if self._rest:
                self._rest += frame
                failure = self._send_rest()
            else:
                failure = self._send_first(frame)
            if len(self._rest) > _BYTES_MAX:
                return OSError("the agent does not read")
            return failure

    def queue(self, frame: bytes) -> None:
        """Sends it with the next frame, or when it is flushed."""
        with self._lock:
            self._rest += frame

    def _send_first(self, frame: bytes) -> Optional[OSError]:
        try:
            sent = self._socket.send(frame)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            return error
        if sent < len(frame):
            self._rest += memoryview(frame)[sent:]
        return None

    def flush(self) -> Optional[OSError]:
        with self._lock:
            return self._send_rest()

    def _send_rest(self) -> Optional[OSError]:
        try:
            while self._rest:
                sent = self._socket.send(self._rest)
                del self._rest[:sent]
        except BlockingIOError:
            return None
        except OSError as error:
            return error
        return None

    def close(self) -> None:
        """Closes the socket, when no thread sends."""
        with self._lock:
            self._socket.close()
