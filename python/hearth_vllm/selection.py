"""Which blocks of a vLLM request a KV hint names."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

from hearth_client.kv_hints import Selection


def thinking_blocks(
    request: Any, chosen: Selection, block_tokens: int
) -> List[Tuple[int, int]]:
    """Ranges of full blocks between the open and the close token; an open end is unbounded."""
    tokens = request.all_token_ids
    ranges: List[Tuple[int, int]] = []
    opened: Optional[int] = None
    for position in range(len(tokens)):
        token = tokens[position]
        if token == chosen.open_token:
            opened = position + 1
        elif token == chosen.close_token and opened is not None:
            if position > request.num_prompt_tokens:
                _append(ranges, opened, position, block_tokens)
            opened = None
    if opened is not None:
        ranges.append((-(-max(opened, 0) // block_tokens), 1 << 40))
    return ranges


def _append(ranges: List[Tuple[int, int]], begin: int, end: int, block_tokens: int) -> None:
    first, last = -(-begin // block_tokens), end // block_tokens
    if first < last:
        ranges.append((first, last))
