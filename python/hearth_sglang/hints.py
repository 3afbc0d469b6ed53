"""KV hints of requests, executed for SGLang.

SGLang carries the envelope to ``Req.kv_hints`` and executes none of it. ``plugin.py`` hands each
hinted request to this module; a thread of its own names the prompt's pages, waits until the backup
thread has stored them, and sends the agent the command. A hint never fails or delays a request.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from queue import Empty, Full, Queue
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set

from .keys import event_hash, page_key

logger = logging.getLogger("hearth_sglang")

PROTOCOL_VERSION = "1"
#: Executed when the request comes, or when its pages are stored.
AT_ONCE, STORED = ("prefetch",), ("pin", "retain", "demote", "transient")

_ACTIONS_MAX = 64
_NAME_MAX = 128
_RETAIN_MAX = 99
_REQUESTS_MAX = 1024
_STORE_SECONDS_MAX = 120.0
_RECEIPT_SECONDS_MAX = 10.0
_SELECTIONS = ("prefix_tokens", "from_token", "block_hashes")
_OUTCOMES = {"done": "accepted", "already": "accepted", "held": "rejected"}


@dataclass
class _Waiting:
    """An action whose pages are not all stored."""

    action: Any
    pages: List[bytes]
    left: Set[bytes]
    until: float = field(default_factory=lambda: time.monotonic() + _STORE_SECONDS_MAX)


class Hints:
    """Hints of one rank. ``requested`` and ``stored`` return at once."""

    def __init__(self, store: Any, tiers: int, name: str, page_tokens: int) -> None:
        #: Blocks by outcome: accepted, deferred, rejected, missing, ignored.
        self.outcomes: Counter = Counter()
        self._store, self._tiers, self._name = store, tiers, name
        self.page_tokens = page_tokens
        self._queue: "Queue[Optional[Callable[[], None]]]" = Queue(_REQUESTS_MAX)
        self._waiting: List[_Waiting] = []
        self._thread: Optional[threading.Thread] = None
        self._lock = threading.Lock()

    def requested(self, envelope: Any, pages: Callable[[], Sequence[str]]) -> None:
        """A request with hints came; ``pages`` names the full pages of its prompt."""
        self._do(lambda: self._request(envelope, [page_key(name) for name in pages()]))

    def stored(self, pages: Sequence[bytes]) -> None:
        """These pages are in the agent now."""
        if self._waiting:
            self._do(lambda: self._mark(pages))

    def close(self) -> None:
        if self._thread is not None:
            try:
                self._queue.put_nowait(None)
            except Full:
                return  # The thread is a daemon: it ends with the process.
            self._thread.join(_RECEIPT_SECONDS_MAX)

    def _do(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="hearth-hints", daemon=True)
                self._thread.start()
        try:
            self._queue.put_nowait(work)
        except Full:
            self.outcomes["ignored"] += 1

    def _run(self) -> None:
        while True:
            try:
                work = self._queue.get(timeout=1.0)
                if work is None:
                    return
                work()
            except Empty:
                self._expire()
            except Exception:
                logger.exception("KV hint failed")

    # --- in the thread ----------------------------------------------------------------------------

    def _request(self, envelope: Any, pages: List[bytes]) -> None:
        if str(_get(envelope, "protocol_version")) != PROTOCOL_VERSION:
            self.outcomes["ignored"] += 1
            return
        for action in list(_get(envelope, "actions") or [])[:_ACTIONS_MAX]:
            kind = _get(action, "action_type")
            if kind not in AT_ONCE + STORED or str(_get(action, "action_version")) != "1":
                self.outcomes["ignored"] += 1
                continue
            chosen = self._selected(_payload(action), pages)
            if chosen is None:
                self.outcomes["rejected"] += 1
            elif kind in AT_ONCE:
                self._prefetch(chosen)
            elif _payload(action).get("block_hashes") is not None:
                self._command(action, list(_payload(action)["block_hashes"]))
            else:
                self._when_stored(action, chosen)

    def _selected(self, payload: Mapping[str, Any], pages: List[bytes]) -> Optional[List[bytes]]:
        """Pages that the payload names; None if it cannot be right."""
        given = [name for name in _SELECTIONS if payload.get(name) is not None]
        if len(given) > 1:
            return None
        if not given:
            return pages
        value = payload[given[0]]
        if given == ["block_hashes"]:
            return [] if isinstance(value, list) else None
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            return None
        if given == ["prefix_tokens"]:
            return pages[: value // self.page_tokens]
        return pages[-(-value // self.page_tokens) :]

    def _prefetch(self, pages: List[bytes]) -> None:
        if not pages or not self._store.connected:
            self.outcomes["missing"] += len(pages)
            return
        self._store.lookup(pages, tiers=self._tiers, family=False, hold=False, fetch=True)
        self.outcomes["accepted"] += len(pages)

    def _when_stored(self, action: Any, pages: List[bytes]) -> None:
        if not pages:
            return
        here = 0
        if self._store.connected:
            here = self._store.exists(pages, tiers=self._tiers, family=False)
        waiting = _Waiting(action, pages, set(pages[here:]))
        if waiting.left:
            self._waiting.append(waiting)
        else:
            self._command(action, [event_hash(page) for page in pages])

    def _mark(self, pages: Sequence[bytes]) -> None:
        for waiting in list(self._waiting):
            waiting.left.difference_update(pages)
            if not waiting.left:
                self._waiting.remove(waiting)
                self._command(waiting.action, [event_hash(page) for page in waiting.pages])
        self._expire()

    def _expire(self) -> None:
        """A request that was aborted stores no more: the command covers what is there."""
        now = time.monotonic()
        for waiting in [one for one in self._waiting if one.until < now]:
            self._waiting.remove(waiting)
            stored = [page for page in waiting.pages if page not in waiting.left]
            self.outcomes["missing"] += len(waiting.left)
            if stored:
                self._command(waiting.action, [event_hash(page) for page in stored])

    def _command(self, action: Any, names: List[Any]) -> None:
        if not self._store.connected:
            self.outcomes["rejected"] += len(names)
            return
        ticket = self._store.command(command_body(action, names, self._name))
        if not ticket.wait(_RECEIPT_SECONDS_MAX):
            self.outcomes["deferred"] += len(names)
            return
        receipt = ticket.result()
        counts = receipt.get("counts") if isinstance(receipt, Mapping) else None
        for word, count in (counts or {"rejected": len(names)}).items():
            if count:
                self.outcomes[_OUTCOMES.get(word, word)] += count


def command_body(action: Any, names: List[Any], issuer: str) -> Dict[str, Any]:
    """The command of docs/commands.md that executes an action."""
    payload, kind = _payload(action), _get(action, "action_type")
    if kind == "transient":
        return {"type": "Think", "block_hashes": names, "transient": True}
    owner = str(payload.get("owner") or payload.get("session_id") or issuer)[:_NAME_MAX]
    body: Dict[str, Any] = {"block_hashes": names, "owner": owner}
    ttl = payload.get("ttl_seconds")
    if kind == "retain":
        body.update(type="Cache", retain=_priority(payload.get("priority")))
        return body if ttl is None else {**body, "retain_seconds": ttl}
    if ttl is not None:
        body["ttl_seconds"] = ttl
    if kind == "pin":
        return {**body, "type": "Cache", "pin": True}
    session = payload.get("session_id")
    lease = f"session-{session}" if session else f"hint-{_get(action, 'action_id')}"
    return {**body, "type": "Pause", "lease_id": lease[:_NAME_MAX]}


def _priority(value: Any) -> int:
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    return max(1, min(_RETAIN_MAX, int(value))) if known else 1


def _payload(action: Any) -> Mapping[str, Any]:
    payload = _get(action, "payload")
    return payload if isinstance(payload, Mapping) else {}


def _get(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)
