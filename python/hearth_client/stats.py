"""Counters of a KvStore."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Dict, List

#: Upper bounds of the buckets of ``waits``, in seconds; the last bucket has none.
WAIT_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class Stats:
    """Counters since the store was made. Read them as attributes, or all with ``snapshot``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.lookups = 0
        #: Lookups with at least one leading block, and the blocks they found.
        self.hits = 0
        self.hit_blocks = 0
        self.got_blocks = 0
        self.got_bytes = 0
        self.got_seconds = 0.0
        self.put_blocks = 0
        self.put_bytes = 0
        self.put_seconds = 0.0
        #: Blocks and requests that did not succeed, by reason.
        self.failures: "Counter[str]" = Counter()
        #: Seconds that calls waited for the agent: counts for each bound of ``WAIT_BOUNDS``.
        self.waits: List[int] = [0] * (len(WAIT_BOUNDS) + 1)
        self.wait_seconds = 0.0
        self.wait_seconds_max = 0.0

    def add(self, **counts: float) -> None:
        with self._lock:
            for name, value in counts.items():
                setattr(self, name, getattr(self, name) + value)

    def fail(self, reason: str, count: int = 1) -> None:
        if count > 0:
            with self._lock:
                self.failures[reason] += count

    def waited(self, seconds: float) -> None:
        at = 0
        while at < len(WAIT_BOUNDS) and seconds > WAIT_BOUNDS[at]:
            at += 1
        with self._lock:
            self.waits[at] += 1
            self.wait_seconds += seconds
            self.wait_seconds_max = max(self.wait_seconds_max, seconds)

    def snapshot(self) -> Dict[str, object]:
        with self._lock:
            numbers = {name: value for name, value in vars(self).items() if name[0] != "_"}
            return {**numbers, "failures": dict(self.failures), "waits": list(self.waits)}
