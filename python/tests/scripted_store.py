"""Stores in place of the agent, for decisions that depend on time or on a bug in a call."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, Dict, List, Optional


class Ticket:
    """A lookup whose answer the test gives."""

    def __init__(self) -> None:
        self.answer: Optional[Any] = None
        self.ready_now = 0
        self.last_progress = 0.0
        self.cancelled = False

    def found(self, blocks: int, at: float) -> None:
        self.last_progress = at
        self.answer = SimpleNamespace(leading=blocks, ready=blocks, outcome="ok")

    def done(self) -> bool:
        return self.answer is not None

    def wait(self, _seconds: float) -> bool:
        return self.done()

    def result(self) -> Any:
        return self.answer

    def cancel(self) -> None:
        self.cancelled = True


class Store:
    """Each lookup gets a ticket; announcements and withdrawals are kept."""

    connected, incarnation = True, 0

    def __init__(self) -> None:
        self.tickets: List[Ticket] = []
        self.asked: List[List[bytes]] = []
        self.options: List[Dict[str, Any]] = []
        self.announced: List[List[bytes]] = []
        self.withdrawn: List[bytes] = []
        self.beats: List[int] = []

    def lookup(self, keys: List[bytes], **options: Any) -> Ticket:
        self.tickets.append(Ticket())
        self.asked.append(list(keys))
        self.options.append(options)
        return self.tickets[-1]

    def unhold(self, _ticket: Ticket) -> None:
        pass

    def announce(self, keys: List[bytes], _ttl_ms: int) -> None:
        self.announced.append(list(keys))

    def withdraw(self, keys: List[bytes]) -> None:
        self.withdrawn += keys

    def beat(self, ttl_ms: int) -> None:
        self.beats.append(ttl_ms)

    def command(self, _body: Any) -> Any:
        return SimpleNamespace(done=lambda: False)

    def poll(self) -> None:
        pass

    def close(self) -> None:
        pass


class Faulty:
    """A store with a bug in each call; `calls` names those that were made."""

    connected, incarnation = True, 0

    def __init__(self) -> None:
        self.calls: List[str] = []
        self._reader, self._writer = os.pipe()

    def fileno(self) -> int:
        return self._reader

    def wake(self) -> None:
        """The listener polls the store."""
        os.write(self._writer, b"\0")

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)

    def __getattr__(self, name: str) -> Any:
        def call(*_arguments: Any, **_options: Any) -> None:
            self.calls.append(name)
            raise RuntimeError(f"a bug in {name}")

        return call
