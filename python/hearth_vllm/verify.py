"""Samples of stored blocks, compared with what this engine computed for the same tokens.

The prefix of a sampled request is computed although Hearth has it. Its blocks are then compared
with the stored copies before they are offered as usual.
"""

from __future__ import annotations

import ctypes
import logging
from typing import Any, Callable, List, Optional, Sequence, Tuple

from hearth_client import Outcome
from hearth_client.memory import piece_of

from .metrics import Stats

#: The root mean square of the difference may be this share of the block's own, in each layer. The
#: order of additions depends on the shape of a batch: with 16-bit and 8-bit elements it changes
#: single elements by a rounding step, up to 1/16 of an 8-bit one. Other tokens change them all.
TOLERANCE = 1 / 16

#: Euclidean norms of the difference and of the second operand.
Norms = Callable[[memoryview, memoryview], Tuple[float, float]]
#: The largest relative difference of the layers of a stored and a computed block.
Difference = Callable[[bytearray, bytearray], float]

_FP8 = {"fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}
_FLOATS = ("float32", "float16", "bfloat16", *sorted(set(_FP8.values())))


def difference_of(norms: Norms, spans: Sequence[int]) -> Difference:
    """`spans`: bytes of each layer's part of a block, in order."""

    def difference(stored: bytearray, computed: bytearray) -> float:
        if stored == computed:
            return 0.0
        worst, at = 0.0, 0
        for size in spans:
            one, two = (memoryview(data)[at : at + size] for data in (stored, computed))
            change, own = norms(one, two)
            ratio = change / own if own > 0 else float(change > 0)
            # A difference that is not a number is one.
            worst = max(worst, ratio) if ratio == ratio else float("inf")
            at += size
        return worst

    return difference


def tensor_norms(tensor_dtype: str, cache_dtype: str) -> Optional[Norms]:
    """Norms of vLLM's elements, by PyTorch; None: elements of another kind."""
    name = _FP8.get(cache_dtype, "") if tensor_dtype == "uint8" else tensor_dtype
    if name not in _FLOATS:
        return None
    import torch

    dtype = getattr(torch, name)

    def norms(stored: memoryview, computed: memoryview) -> Tuple[float, float]:
        one, two = (
            torch.frombuffer(data, dtype=torch.uint8).view(dtype).float()
            for data in (stored, computed)
        )
        norm = torch.linalg.vector_norm
        return float(norm(one - two)), float(norm(two))

    return norms


class Verifier:
    """Compares blocks of one rank. `memory` is what the worker copies from and to."""

    def __init__(
        self, store: Any, memory: Any, difference: Difference, stats: Stats, logger: logging.Logger
    ) -> None:
        self._store = store
        self._memory = memory
        self._difference = difference
        self._stats = stats
        self._logger = logger

    def check(
        self, keys: List[bytes], block_ids: List[int], is_stopped: Callable[[], bool]
    ) -> None:
        """Counts the outcome of each block; a mismatch is an error in the log."""
        size = self._memory.block_bytes
        stored, computed = bytearray(size), bytearray(size)
        for key, block in zip(keys, block_ids):
            if is_stopped():
                return
            try:
                outcome = self._compare(key, block, stored, computed)
            except Exception:
                self._logger.exception("stored block not verified")
                outcome = "error"
            self._stats.count("verified_blocks", outcome)

    def _compare(self, key: bytes, block: int, stored: bytearray, computed: bytearray) -> str:
        if self._store.get_pieces([key], [[piece_of(stored)]])[0] != Outcome.OK:
            return "missing"
        self._read(block, computed)
        difference = self._difference(stored, computed)
        if difference <= TOLERANCE:
            return "equal"
        self._logger.error(
            "stored block %s differs from the computed one by %.3g of its magnitude, limit %.3g",
            *(key.hex(), difference, TOLERANCE),
        )
        return "mismatch"

    def _read(self, block: int, target: bytearray) -> None:
        if hasattr(self._memory, "read_block"):
            self._memory.read_block(block, target)
            return
        address = piece_of(target).address
        for piece in self._memory.pieces(block):
            ctypes.memmove(address, piece.address, piece.bytes)
            address += piece.bytes
