"""One descriptor that is readable if a connection has something to take in."""

from __future__ import annotations

import os
import select
import socket
import threading


class Notifier:
    """An epoll descriptor over the connection's socket and a pipe.

    The pipe is for replies that another thread read from the socket meanwhile. The descriptor stays
    the same over reconnects.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._reader, select.EPOLLIN)
        self._is_closed = False

    def fileno(self) -> int:
        return self._epoll.fileno()

    def attach(self, sock: socket.socket) -> None:
        with self._lock:
            if not self._is_closed:
                try:
                    self._epoll.register(sock, select.EPOLLIN)
                except (OSError, ValueError):
                    return  # The connection ended meanwhile, which needs no descriptor.
        self.signal()

    def detach(self, sock: socket.socket) -> None:
        with self._lock:
            if not self._is_closed:
                try:
                    self._epoll.unregister(sock)
                except (OSError, ValueError):
                    return  # It was not attached.

    def signal(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            try:
                os.write(self._writer, b"\0")
            except BlockingIOError:
                return  # Full: it is readable already.

    def clear(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            try:
                while len(os.read(self._reader, 4096)) == 4096:
                    continue
            except BlockingIOError:
                return

    def close(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._epoll.close()
            os.close(self._reader)
            os.close(self._writer)
