"""KV hints of requests, executed for SGLang.

SGLang carries the envelope to ``Req.kv_hints`` and executes none of it. ``plugin.py`` hands each
hinted request to this module. A thread of its own names the prompt's pages and executes the
actions: `share` and `prefetch` at once, commands when all ranks have stored the pages. A hint never
fails or delays a request.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from queue import Empty, Full, Queue
from typing import Any, Callable, List, Optional, Sequence, Set

from hearth_client.kv_hints import Action, command_body, read_actions, source_of

from .keys import event_hash, page_key

logger = logging.getLogger("hearth_sglang")

_REQUESTS_MAX = 1024
#: A request that stores no page for this time was aborted, or SGLang has not begun it.
_STORE_SECONDS_MAX = 120.0
_CLOSE_SECONDS_MAX = 10.0
#: How long a `prefetch` may take that waits for another engine.
_PREFETCH_MS_MAX = 30_000
#: How often answers of the agent are taken in while some are outstanding; how often pages that
#: are waited for are looked up, and announcements renewed.
_POLL_SECONDS, _TICK_SECONDS = 0.02, 0.5
_ANNOUNCE_MS = 2_000


@dataclass
class _Waiting:
    """An action whose pages SGLang has not stored on all ranks."""

    action: Action
    pages: List[bytes]
    left: Set[bytes]
    until: float = field(default_factory=lambda: time.monotonic() + _STORE_SECONDS_MAX)

    def stored(self, pages: Sequence[bytes]) -> bool:
        """Some of these were waited for by this action, and none is any more."""
        before = len(self.left)
        self.left.difference_update(pages)
        if len(self.left) < before:
            self.until = time.monotonic() + _STORE_SECONDS_MAX
        return before > 0 and not self.left


class Hints:
    """Hints of one server. ``requested`` and ``stored`` return at once.

    ``no_share`` answers why SGLang would not store pages as they are computed; None: it does.
    """

    def __init__(
        self,
        store: Any,
        tiers: int,
        name: str,
        page_tokens: int,
        no_share: Callable[[], Optional[str]] = lambda: None,
    ) -> None:
        #: Blocks by final outcome: accepted, clipped, deferred, rejected, missing, ignored.
        self.outcomes: Counter = Counter()
        self._store, self._tiers, self._name = store, tiers, name
        self.page_tokens = page_tokens
        self._no_share = no_share
        self._queue: "Queue[Optional[Callable[[], None]]]" = Queue(_REQUESTS_MAX)
        self._waiting: List[_Waiting] = []
        self._announced: List[_Waiting] = []
        #: Actions without a final outcome.
        self._open: List[Action] = []
        self._next_tick = 0.0
        self._thread: Optional[threading.Thread] = None
        self._lock = threading.Lock()

    def requested(self, envelope: Any, pages: Callable[[], Sequence[str]]) -> None:
        """A request with hints came; ``pages`` names the full pages of its prompt."""
        self._do(lambda: self._request(envelope, [page_key(name) for name in pages()]))

    def stored(self, pages: Sequence[bytes]) -> None:
        """This rank's pages are in the agent now, or another writer is about to commit them."""
        if self._waiting or self._announced:
            self._do(lambda: self._mark(pages))

    def close(self) -> None:
        if self._thread is not None:
            try:
                self._queue.put_nowait(None)
            except Full:
                return  # The thread is a daemon: it ends with the process.
            self._thread.join(_CLOSE_SECONDS_MAX)

    def _do(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="hearth-hints", daemon=True)
                self._thread.start()
        try:
            self._queue.put_nowait(work)
        except Full:
            self.outcomes["ignored"] += 1

    # --- in the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            try:
                is_asking = any(action.ticket is not None for action in self._open)
                work = self._queue.get(timeout=_POLL_SECONDS if is_asking else _TICK_SECONDS)
                if work is None:
                    return
                work()
            except Empty:
                pass
            except Exception:
                logger.exception("KV hint not executed")
            try:
                self._poll()
                self._tick()
            except Exception:
                logger.exception("KV hints not followed")

    def _request(self, envelope: Any, pages: List[bytes]) -> None:
        actions, ignored = read_actions(envelope)
        if ignored:
            self.outcomes["ignored"] += ignored
        for action in actions:
            self._open.append(action)
            try:
                if not action.decided:
                    self._start(action, pages)
            except ValueError as error:  # A part of the payload is invalid.
                action.reject(f"payload: {error}", action.asked)

    def _start(self, action: Action, pages: List[bytes]) -> None:
        chosen = action.selection
        if chosen.open_token is not None:
            action.reject("selection: SGLang's generated tokens are not selected")
        elif chosen.names and action.kind == "share":
            action.reject("selection: a page that is announced is named by its request")
        elif chosen.names:
            self._command(action, list(chosen.names))
        else:
            first, end, clipped = chosen.blocks(len(pages) * self.page_tokens, self.page_tokens)
            if clipped:
                action.reason = "selection exceeds the prompt"
            self._of_pages(action, pages[first:end], clipped)

    def _of_pages(self, action: Action, pages: List[bytes], clipped: bool) -> None:
        action.asked = len(pages)
        if not pages:
            action.blocks["clipped"] += 1
            action.decided = True
        elif not self._store.connected:
            action.reject("agent: not connected", len(pages))
        elif action.kind == "share":
            self._share(action, pages, clipped)
        elif action.kind == "prefetch":
            self._prefetch(action, pages)
        else:
            waiting = _Waiting(action, pages, set(pages))
            if not self._ready(waiting):
                self._waiting.append(waiting)

    def _share(self, action: Action, pages: List[bytes], clipped: bool) -> None:
        """Announces the pages that are not stored, until they are."""
        why_not = self._no_share()
        if why_not is not None:
            action.reject(why_not, len(pages))
            return
        here = self._store.exists(pages, tiers=self._tiers)
        if here < len(pages):
            self._store.announce(pages[here:], _ANNOUNCE_MS)
            self._announced.append(_Waiting(action, pages[here:], set(pages[here:])))
        action.blocks["clipped" if clipped else "accepted"] += len(pages)
        action.decided = True

    def _prefetch(self, action: Action, pages: List[bytes]) -> None:
        action.ticket = self._store.lookup(
            pages,
            tiers=self._tiers,
            hold=False,
            fetch=True,
            wait=action.payload.get("wait") is True,
            source=source_of(action),
            deadline_ms=_PREFETCH_MS_MAX,
        )

    def _mark(self, pages: Sequence[bytes]) -> None:
        for announced in list(self._announced):
            if announced.stored(pages):
                self._announced.remove(announced)
        for waiting in list(self._waiting):
            if waiting.stored(pages) and self._ready(waiting):
                self._waiting.remove(waiting)

    def _ready(self, waiting: _Waiting) -> bool:
        """Sends the command if all ranks have committed all pages, or after the time limit."""
        here = self._store.connected and self._store.exists(waiting.pages, tiers=self._tiers)
        if here < len(waiting.pages) and time.monotonic() < waiting.until:
            return False
        # After the limit the receipt says which pages are missing.
        self._command(waiting.action, [event_hash(page) for page in waiting.pages])
        return True

    def _tick(self) -> None:
        now = time.monotonic()
        if now < self._next_tick:
            return
        self._next_tick = now + _TICK_SECONDS
        self._waiting = [one for one in self._waiting if not self._ready(one)]
        ended = [one for one in self._announced if one.until <= now]
        self._announced = [one for one in self._announced if one.until > now]
        for one in self._announced:
            self._store.announce([key for key in one.pages if key in one.left], _ANNOUNCE_MS)
        for one in ended:
            self._store.withdraw([key for key in one.pages if key in one.left])

    def _command(self, action: Action, names: List[Any]) -> None:
        action.asked = len(names)
        if self._store.connected:
            action.ticket = self._store.command(command_body(action, names, {}, self._name))
        else:
            action.reject("agent: not connected", len(names))

    def _poll(self) -> None:
        """Takes in answers that have come, and counts outcomes that are final."""
        for action in list(self._open):
            if not action.decided and action.ticket is not None and action.ticket.done():
                action.take()
            if action.decided:
                self._open.remove(action)
                self.outcomes.update(action.blocks)
                logger.debug("KV hint executed: %s", action.answer())
