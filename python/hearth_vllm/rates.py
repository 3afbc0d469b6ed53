"""How long the engine takes to compute tokens, learned while it runs."""

from __future__ import annotations

from collections import deque
from typing import Deque, Tuple

#: Steps with fewer tokens say little about prefill.
_TOKENS_MIN = 64
_WEIGHT = 0.3
#: A step that was suspended must not predict more than fits a deadline, which is 32 bits of ms.
_SECONDS_MAX = 600.0
#: Used until the first prefill was measured.
_TOKENS_PER_SECOND_FIRST = 2_000.0
#: vLLM schedules this many steps at most before it takes the results of the first one.
_STEPS_MAX = 16


class PrefillRate:
    """Exponential mean of seconds per computed token over steps that mostly prefill."""

    def __init__(self, tokens_per_second: float = 0.0) -> None:
        self._fixed = tokens_per_second > 0
        self._seconds_per_token = 1 / (tokens_per_second or _TOKENS_PER_SECOND_FIRST)
        self._measured = False
        #: Start and tokens of the steps without results, in their order.
        self._steps: Deque[Tuple[float, int]] = deque(maxlen=_STEPS_MAX)
        self._last_end = 0.0

    def step_begins(self, now: float, tokens: int) -> None:
        if tokens > 0:
            self._steps.append((now, tokens))

    def step_ended(self, now: float) -> None:
        """The results of the oldest step are there; the next ones may have been scheduled."""
        if not self._steps:
            return
        scheduled, tokens = self._steps.popleft()
        started, self._last_end = max(scheduled, self._last_end), now
        if tokens < _TOKENS_MIN or self._fixed:
            return
        sample = max(now - started, 1e-6) / tokens
        if self._measured:
            self._seconds_per_token += _WEIGHT * (sample - self._seconds_per_token)
        else:
            self._seconds_per_token, self._measured = sample, True

    def seconds(self, tokens: int) -> float:
        """Predicted time to compute that many tokens, at most 600 seconds."""
        return min(tokens * self._seconds_per_token, _SECONDS_MAX)
