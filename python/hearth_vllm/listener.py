"""A thread that takes in replies as they come, so that lookups end when they are answered."""

from __future__ import annotations

import select
import threading
from typing import Any

_TICK_MS = 500


class Listener:
    """Reads the scheduler's connection while vLLM's own thread computes or waits for workers."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hearth-replies", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; call it before the store is closed."""
        self._closed.set()
        self._thread.join(2 * _TICK_MS / 1000)

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._store.fileno(), select.POLLIN)
        while not self._closed.is_set():
            if poller.poll(_TICK_MS) and not self._closed.is_set():
                self._store.poll()
