"""Which blocks of a vLLM request a KV hint names."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

from hearth_client.kv_hints import Selection

#: Tokens that one call looks at: less than a millisecond.
_SCAN_TOKENS = 16_384
_UNBOUNDED = 1 << 40


class ThinkingScan:
    """Stretches between the open and the close token of a request; each token is read once."""

    def __init__(self, chosen: Selection, block_tokens: int) -> None:
        self._open, self._close = chosen.open_token, chosen.close_token
        self._block_tokens = block_tokens
        #: Tokens that were read.
        self._position = 0
        #: Position behind the last open token, if it was not closed.
        self._opened: Optional[int] = None
        self._ranges: List[Tuple[int, int]] = []

    @property
    def known_blocks(self) -> int:
        """Blocks below this one are fully covered by `ranges`."""
        return self._position // self._block_tokens

    @property
    def ranges(self) -> List[Tuple[int, int]]:
        """Ranges of full blocks; an open end is unbounded."""
        if self._opened is None:
            return self._ranges
        return [*self._ranges, (-(-self._opened // self._block_tokens), _UNBOUNDED)]

    def advance(self, request: Any) -> None:
        """Reads the next tokens."""
        tokens, at = request.all_token_ids, self._position
        end = min(len(tokens), at + _SCAN_TOKENS)
        opens, closes = _find(tokens, self._open, at, end), _find(tokens, self._close, at, end)
        while min(opens, closes) < end:
            if opens <= closes:
                self._opened = opens + 1
                if closes == opens:
                    closes = _find(tokens, self._close, closes + 1, end)
                opens = _find(tokens, self._open, opens + 1, end)
            else:
                self._ended(closes, request.num_prompt_tokens)
                closes = _find(tokens, self._close, closes + 1, end)
        self._position = end

    def _ended(self, position: int, prompt: int) -> None:
        opened, self._opened = self._opened, None
        if opened is None or position <= prompt:
            return
        first, last = -(-opened // self._block_tokens), position // self._block_tokens
        if first < last:
            self._ranges.append((first, last))


def _find(tokens: Any, token: Optional[int], start: int, end: int) -> int:
    """Position of the token from `start` on; `end`: it is not there."""
    try:
        return int(tokens.index(token, start, end))
    except ValueError:
        return end
