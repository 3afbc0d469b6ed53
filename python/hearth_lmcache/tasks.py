"""Tasks that LMCache submits and asks about later, each kind with threads of its own."""

from __future__ import annotations

import threading
from logging import Logger
from queue import SimpleQueue
from typing import Any, Callable, Dict, List, Optional, Tuple

_Work = Callable[[], Any]


class TaskQueue:
    """Runs tasks in order, keeps their results until they are asked for, and signals a descriptor.

    A task that raises is logged once for its kind and gets the result of ``failed``.
    """

    def __init__(self, name: str, threads: int, notifier: Any, logger: Logger) -> None:
        self.notifier = notifier
        self._name = name
        self._logger = logger
        self._failed_before = False
        self._queue: "SimpleQueue[Optional[Tuple[int, _Work, _Work]]]" = SimpleQueue()
        self._results: Dict[int, Any] = {}
        self._next = 0
        self._lock = threading.Lock()
        self._threads: List[threading.Thread] = []
        for number in range(threads):
            thread = threading.Thread(
                target=self._run, name=f"hearth-{name}-{number}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def submit(self, work: _Work, failed: _Work) -> int:
        with self._lock:
            number = self._next
            self._next += 1
        self._queue.put((number, work, failed))
        return number

    def pop(self, number: int) -> Any:
        """The result of one task, once; None before it ends and afterwards."""
        with self._lock:
            return self._results.pop(number, None)

    def pop_all(self) -> Dict[int, Any]:
        with self._lock:
            results, self._results = self._results, {}
        return results

    def alive(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        """Ends after the tasks submitted so far; the descriptor is closed."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self.notifier.close()

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                return
            number, work, failed = item
            try:
                result = work()
            except Exception:
                self._log_once()
                result = failed()
            with self._lock:
                self._results[number] = result
            self.notifier.notify()

    def _log_once(self) -> None:
        known, self._failed_before = self._failed_before, True
        if not known:
            self._logger.exception("%s task failed, a miss (logged once)", self._name)
