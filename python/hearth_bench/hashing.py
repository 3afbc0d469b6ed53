"""Hashes in place of a transformer: every byte that is restored decides about the logits."""

from __future__ import annotations

import hashlib
from array import array
from typing import List, Optional, Sequence

from .computing import Arrived
from .memory import MirroredMemory
from .plan import Plan


class Hashing:
    """Keys and values are hashes of the tokens up to their block; logits a hash of all of them."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.memory = MirroredMemory(plan.library, plan.memory_bytes)

    def prefill(self, tokens: Sequence[int], table: List[int]) -> bytes:
        plan = self._plan
        for block in range(len(tokens) // plan.block_tokens):
            known = array("I", tokens[: (block + 1) * plan.block_tokens]).tobytes()
            for layer in range(plan.shape.layers):
                values = hashlib.shake_128(b"%d " % layer + known).digest(plan.page_bytes)
                self._page(layer, table[block])[:] = values
        return self._logits(tokens, plan.restored_blocks(len(tokens)), table, None)

    def finish(
        self, tokens: Sequence[int], blocks: int, table: List[int], arrived: Arrived
    ) -> bytes:
        return self._logits(tokens, blocks, table, arrived)

    def same(self, one: bytes, other: bytes) -> bool:
        return one == other

    def _logits(
        self, tokens: Sequence[int], blocks: int, table: List[int], arrived: Optional[Arrived]
    ) -> bytes:
        plan = self._plan
        state = hashlib.blake2b(array("I", tokens[blocks * plan.block_tokens :]).tobytes())
        for layer in range(plan.shape.layers):
            if arrived is not None:
                arrived(layer)
            for page in table[:blocks]:
                state.update(self._page(layer, page))
        return state.digest()

    def _page(self, layer: int, page: int) -> memoryview:
        length = self._plan.page_bytes
        start = layer * self._plan.layer_bytes + page * length
        return memoryview(self.memory.mirror)[start : start + length]
