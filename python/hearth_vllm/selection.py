"""Which blocks of a request a KV hint names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Mapping, Optional, Tuple

_NAMES_MAX = 4096


class Rejected(ValueError):
    """The payload of an action cannot be executed; the text says why."""


@dataclass(frozen=True)
class Selection:
    """At most one member is set; none: all full blocks of the prompt."""

    prefix_tokens: Optional[int] = None
    from_token: Optional[int] = None
    open_token: Optional[int] = None
    close_token: Optional[int] = None
    names: Tuple[Any, ...] = ()

    @property
    def bounded(self) -> bool:
        """The selection says where it ends, or that it ends with the request."""
        return self.prefix_tokens is not None or self.from_token is not None

    def blocks(self, tokens: int, block_tokens: int) -> Tuple[int, int, bool]:
        """First and end index of the selected full blocks of `tokens` tokens; True if clipped."""
        end = tokens // block_tokens
        if self.from_token is not None:
            first = -(-self.from_token // block_tokens)
            return min(first, end), end, first > end
        if self.prefix_tokens is not None:
            wanted = self.prefix_tokens // block_tokens
            return 0, min(wanted, end), wanted > end
        return 0, end, False


def read_selection(payload: Mapping[str, Any], kind: str) -> Selection:
    """The selection of an action's payload; raises Rejected."""
    members = ("prefix_tokens", "from_token", "open_token", "close_token", "block_hashes")
    given = [name for name in members if payload.get(name) is not None]
    thinking = "open_token" in given or "close_token" in given
    if len(given) > 1 and set(given) != {"open_token", "close_token"}:
        raise Rejected(f"selection: {' and '.join(given)} exclude each other")
    if thinking and (kind != "transient" or len(given) != 2):
        raise Rejected("selection: open_token and close_token belong together, for transient")
    for name in given:
        value = payload[name]
        if name == "block_hashes":
            if not isinstance(value, list) or len(value) > _NAMES_MAX:
                raise Rejected(f"selection: block_hashes is a list of at most {_NAMES_MAX}")
        elif isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise Rejected(f"selection: {name} is a whole number from 0")
    if given == ["block_hashes"]:
        return Selection(names=tuple(payload["block_hashes"]))
    return Selection(**{name: payload[name] for name in given})


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
