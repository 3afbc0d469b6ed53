"""One lookup of a request's blocks, from the first question until it is answered or given up."""

from __future__ import annotations

import threading
from typing import Any, Callable, List, Optional

#: Why a lookup ended; the label of ``vllm:hearth_lookups_total``.
HIT, MISS, GONE, STALLED, SLOW = "hit", "miss", "gone", "stalled", "slow"
DROPPED, ERROR = "dropped", "error"

#: Predicted computation, in stall limits, from which on ready blocks are loaded after a stall.
_STALLS_WORTH = 3
#: Time for a last look at the socket before a lookup is given up.
_LOOK_S = 0.001
_OUTCOMES = {"gone": GONE, "stalled": STALLED}


class Search:
    """A lookup in progress: `ready` blocks behind block `first` once `outcome` is set."""

    def __init__(
        self,
        ticket: Any,
        keys: List[bytes],
        first: int,
        *,
        now: float,
        stall_s: float,
        limit_s: float,
        hold_s: float = float("inf"),
    ) -> None:
        self.ticket = ticket
        self.keys = keys
        #: Index of the first block asked for.
        self.first = first
        self.started = now
        self.ready = 0
        self.leading = 0
        self.outcome: Optional[str] = None
        self.waited_s = 0.0
        self._stall_s = stall_s
        self._limit_s = limit_s
        #: The agent may drop the reservation this long after its answer.
        self._hold_s = hold_s
        #: The scheduler's thread and the listener poll.
        self._lock = threading.Lock()
        #: The scheduler has counted the outcome.
        self.counted = False

    def covers(self, first: int, end: int, now: float) -> bool:
        """True if this lookup's answer, when complete, covers the blocks `first` to `end`."""
        if first < self.first or end > self.first + len(self.keys):
            return False
        return self.outcome is None or now < self.started + self.waited_s + self._hold_s

    def poll(self, wait_s: float, clock: Callable[[], float]) -> bool:
        """True once `ready` is known. Waits at most `wait_s` seconds. Thread-safe."""
        with self._lock:
            if self.outcome is None:
                self._poll(wait_s, clock)
            return self.outcome is not None

    def abandon(self, now: float) -> None:
        """The request needs no answer any more."""
        with self._lock:
            if self.outcome is None:
                self.waited_s, self.outcome = now - self.started, DROPPED
                self.ticket.cancel()

    def fail(self, now: float) -> None:
        """The lookup cannot be followed."""
        with self._lock:
            if self.outcome is None:
                self.waited_s, self.outcome = now - self.started, ERROR

    def _poll(self, wait_s: float, clock: Callable[[], float]) -> None:
        ticket = self.ticket
        if ticket.done() or (wait_s > 0 and ticket.wait(wait_s)):
            result, now = ticket.result(), clock()
            if result.outcome == "ok":
                # The reply may have come long before vLLM's scheduler asks for it.
                now = min(now, max(self.started, ticket.last_progress))
            self._take(result, now)
            return
        now = clock()
        if self._is_silent(now):
            # The reply may be unread: this thread, or the one that reads, had to wait for the CPU.
            if ticket.wait(_LOOK_S):
                self._take(ticket.result(), clock())
            elif self._is_silent(clock()):
                self._give_up(STALLED, clock())
        elif now - self.started > self._limit_s:
            self._give_up(SLOW, now)

    def _is_silent(self, now: float) -> bool:
        return now - max(self.started, self.ticket.last_progress) > self._stall_s

    def _take(self, result: Any, now: float) -> None:
        self.ready, self.leading = result.ready, result.leading
        self.waited_s = now - self.started
        self.outcome = _OUTCOMES.get(result.outcome) or (HIT if result.ready else MISS)

    def _give_up(self, outcome: str, now: float) -> None:
        # An agent that stalled may stall the load too: that is worth it for long prompts only.
        worth = outcome == SLOW or self._limit_s > _STALLS_WORTH * self._stall_s
        self.ready = self.leading = self.ticket.ready_now if worth else 0
        self.waited_s = now - self.started
        self.outcome = outcome
