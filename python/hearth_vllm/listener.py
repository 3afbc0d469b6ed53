"""A thread that takes in replies as they come and ends lookups that take too long."""

from __future__ import annotations

import os
import select
import threading
import time
from typing import Any, List

from .guards import Guard
from .search import Search

_IDLE_MS = 500
#: Behind an exception, which may come again at once.
_PAUSE_S = 0.1
#: A lookup is given up at most this much later than its limit.
_BUSY_MS = 5


class Listener:
    """Follows lookups while vLLM's own thread computes or waits for its workers.

    Without it, a lookup would end only when vLLM's scheduler runs again: on a slow engine a second
    after the reply, or a second after it should have been given up.
    """

    def __init__(self, store: Any, guard: Guard) -> None:
        self._store = store
        self._guard = guard
        self._lock = threading.Lock()
        self._active: List[Search] = []
        self._closed = False
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="hearth-replies", daemon=True)
        self._thread.start()

    def follow(self, search: Search) -> None:
        """Polls the lookup until it is decided."""
        with self._lock:
            self._active.append(search)
        self._wake()

    def close(self) -> None:
        """Ends the thread; call it before the store is closed."""
        self._closed = True
        self._wake()
        self._thread.join(timeout=1.0)

    def _wake(self) -> None:
        try:
            os.write(self._writer, b"\0")
        except BlockingIOError:
            return  # The pipe is full: the thread wakes anyway.

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._reader, select.POLLIN)
        poller.register(self._store.fileno(), select.POLLIN)
        while not self._closed:
            try:
                self._turn(poller)
            except Exception:
                self._guard.failed("replies")
                time.sleep(_PAUSE_S)

    def _turn(self, poller: Any) -> None:
        events = dict(poller.poll(_BUSY_MS if self._active else _IDLE_MS))
        if events.pop(self._reader, 0):
            os.read(self._reader, 4096)
        if events and not self._closed:
            self._store.poll()
        self._follow()

    def _follow(self) -> None:
        with self._lock:
            active = list(self._active)
        decided = [search for search in active if self._is_decided(search)]
        if decided:
            with self._lock:
                self._active = [one for one in self._active if one not in decided]

    def _is_decided(self, search: Search) -> bool:
        try:
            return search.poll(0.0, time.monotonic)
        except Exception:
            self._guard.failed("replies")
            search.fail(time.monotonic())
            return True
