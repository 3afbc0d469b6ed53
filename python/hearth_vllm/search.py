"""One lookup of a request's blocks, from the first question until it is answered or given up."""

from __future__ import annotations

from typing import Any, Callable, List, Optional

#: Why a lookup ended; the label of ``vllm:hearth_lookups_total``.
HIT, MISS, GONE, STALLED, SLOW = "hit", "miss", "gone", "stalled", "slow"

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

    @property
    def end(self) -> int:
        return self.first + len(self.keys)

    def poll(self, wait_s: float, clock: Callable[[], float]) -> bool:
        """True once `ready` is known. Waits at most `wait_s` seconds."""
        if self.outcome is not None:
            return True
        ticket = self.ticket
        if ticket.done() or (wait_s > 0 and ticket.wait(wait_s)):
            # The reply may have come long before vLLM's scheduler asks for it.
            self._take(ticket.result(), min(clock(), max(self.started, ticket.last_progress)))
            return True
        now = clock()
        if now - max(self.started, ticket.last_progress) > self._stall_s:
            self._give_up(STALLED, now)
        elif now - self.started > self._limit_s:
            self._give_up(SLOW, now)
        return self.outcome is not None

    def _take(self, result: Any, now: float) -> None:
        self.ready, self.leading = result.ready, result.leading
        self.outcome = _OUTCOMES.get(result.outcome) or (HIT if result.ready else MISS)
        self.waited_s = now - self.started

    def _give_up(self, outcome: str, now: float) -> None:
        self.ready = self.leading = self.ticket.ready_now
        self.outcome = outcome
        self.waited_s = now - self.started
