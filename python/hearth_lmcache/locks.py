"""Which lookups hold which objects in RAM until LMCache unlocks them."""

from __future__ import annotations

from threading import Lock
from typing import Dict, List, Sequence

from hearth_client.kv_store import KvStore, Ticket


class _Held:
    __slots__ = ("left", "ticket")

    def __init__(self, ticket: Ticket, left: int) -> None:
        self.ticket = ticket
        self.left = left


class Locks:
    """Counts locks: an object may be locked by several lookups and is unlocked once for each."""

    def __init__(self) -> None:
        self._held: Dict[bytes, List[_Held]] = {}
        self._lock = Lock()

    def add(self, ticket: Ticket, keys: Sequence[bytes]) -> None:
        held = _Held(ticket, len(keys))
        with self._lock:
            for key in keys:
                self._held.setdefault(key, []).append(held)

    def remove(self, keys: Sequence[bytes], store: KvStore) -> None:
        """Takes one lock from each key; a lookup without locks gives its reservation back."""
        ended: List[Ticket] = []
        with self._lock:
            for key in keys:
                held = self._held.get(key)
                if not held:
                    continue
                one = held.pop(0)
                if not held:
                    del self._held[key]
                one.left -= 1
                if one.left == 0:
                    ended.append(one.ticket)
        for ticket in ended:
            store.unhold(ticket)

    def __len__(self) -> int:
        with self._lock:
            return len(self._held)
