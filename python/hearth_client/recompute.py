"""How long an engine takes to compute blocks anew: the most that a read of them is worth."""

from __future__ import annotations

import math

#: A mistaken speed must not predict more than fits a deadline, which is 32 bits of ms.
_SECONDS_MAX = 600.0


def deadline_ms(
    tokens: int, tokens_per_second: float, *, least_ms: int, configured_ms: int = 0
) -> int:
    """Time limit of a read of that many tokens, at least ``least_ms``. ``configured_ms``: use it.

    A read of a few tokens gets ``least_ms``, the time after which a hung agent is noticed.
    """
    if configured_ms > 0:
        return configured_ms
    predicted = min(tokens / tokens_per_second, _SECONDS_MAX)
    return max(math.ceil(1000 * predicted), least_ms)
