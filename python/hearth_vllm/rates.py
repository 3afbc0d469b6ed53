"""How long the engine takes to compute tokens, learned while it runs."""

from __future__ import annotations

from typing import Optional

#: Steps with fewer tokens say little about prefill.
_TOKENS_MIN = 64
_WEIGHT = 0.3
#: Used until the first prefill was measured.
_TOKENS_PER_SECOND_FIRST = 2_000.0


class PrefillRate:
    """Exponential mean of seconds per computed token over steps that mostly prefill."""

    def __init__(self, tokens_per_second: float = 0.0) -> None:
        self._fixed = tokens_per_second > 0
        self._seconds_per_token = 1 / (tokens_per_second or _TOKENS_PER_SECOND_FIRST)
        self._measured = False
        self._started: Optional[float] = None
        self._tokens = 0

    def step_begins(self, now: float, tokens: int) -> None:
        self._started = now
        self._tokens = tokens

    def step_ended(self, now: float) -> None:
        """The results of the step that began last are there; later calls change nothing."""
        started, self._started = self._started, None
        if started is None or self._tokens < _TOKENS_MIN or self._fixed:
            return
        sample = max(now - started, 1e-6) / self._tokens
        if self._measured:
            self._seconds_per_token += _WEIGHT * (sample - self._seconds_per_token)
        else:
            self._seconds_per_token, self._measured = sample, True

    def seconds(self, tokens: int) -> float:
        """Predicted time to compute that many tokens."""
        return tokens * self._seconds_per_token
