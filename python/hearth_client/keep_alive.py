"""A thread that renews the lease of a client that has slots."""

from __future__ import annotations

import threading
from typing import Callable, Optional
from weakref import WeakMethod


class KeepAlive:
    """Calls ``beat`` every ``seconds`` until it is stopped, or its object is gone."""

    def __init__(self, beat: Callable[[], None], seconds: float) -> None:
        self._beat = WeakMethod(beat)
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread: Optional[threading.Thread] = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Does nothing if it runs already."""
        if self._thread is not None:
            return
        with self._lock:
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(
                    target=_run,
                    args=(self._beat, self._stop, self._seconds),
                    name="hearth keep-alive",
                    daemon=True,
                )
                self._thread.start()

    def stop(self) -> None:
        self._stop.set()


def _run(
    beat_of: "WeakMethod[Callable[[], None]]", stop: threading.Event, seconds: float
) -> None:
    """A function, so that the thread does not keep the client alive."""
    while not stop.wait(seconds):
        beat = beat_of()
        if beat is None:
            return
        beat()
        del beat
