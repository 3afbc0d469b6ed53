"""Exceptions of the connector: logged, counted, and never passed on to vLLM.

An exception in a call of vLLM's scheduler would end its engine process, with all requests.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import Iterator, Set

from .metrics import Stats

logger = logging.getLogger("vllm.hearth")


class Guard:
    """`with guard(PLACE)`: vLLM continues without what the block would have done."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._logged: Set[str] = set()

    @contextmanager
    def __call__(self, place: str) -> Iterator[None]:
        try:
            yield
        except Exception:
            self.failed(place)

    def failed(self, place: str) -> None:
        """Counts the exception being handled; logs the first one of each place."""
        self._stats.count("errors", place)
        if place in self._logged:
            return
        self._logged.add(place)
        logger.exception("exception in %s, vLLM continues without Hearth there", place)
