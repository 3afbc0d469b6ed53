"""Computes keys, values and logits from tokens."""

from __future__ import annotations

from typing import Any, Callable, List, Protocol, Sequence

from .memory import Memory

#: Called with a layer, returns when its restored keys and values lie in the memory.
Arrived = Callable[[int], None]


class Computing(Protocol):
    #: Where keys and values of whole blocks lie.
    memory: Memory

    def prefill(self, tokens: Sequence[int], table: List[int]) -> Any:
        """Computes all tokens, keys and values of block i into page ``table[i]``.

        The logits of the last token, when they are there.
        """

    def finish(
        self, tokens: Sequence[int], blocks: int, table: List[int], arrived: Arrived
    ) -> Any:
        """The same logits with the keys and values of the first blocks taken from their pages."""

    def same(self, one: Any, other: Any) -> bool:
        """Whether logits are equal in every bit."""
