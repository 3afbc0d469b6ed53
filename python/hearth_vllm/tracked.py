"""State of one request on the scheduler's side."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional, Set, Tuple

from .plan import LoadJob
from .search import Search


@dataclass
class Tracked:
    """State of one request that vLLM has not finished."""

    request: Any
    #: Blocks from the prompt's start that were offered or need no offer.
    offered: int = 0
    preemptions: int = 0
    search: Optional[Search] = None
    #: Seconds that the request has waited for earlier lookups, and may wait in all.
    waited_s: float = 0.0
    budget_s: Optional[float] = None
    #: Most blocks that one of these lookups asked for; 0: the request does not wait.
    asked: int = 0
    load: Optional[LoadJob] = None
    #: Blocks of the last match, from block `match_first` on.
    match_first: int = 0
    #: A load failed or was used up: the rest is computed.
    searched: bool = False
    #: Whether the request is a sample; None: not decided.
    sampled: Optional[bool] = None
    #: Blocks that are computed although Hearth has them, to be compared: first and end.
    verify: Tuple[int, int] = (0, 0)
    jobs: Set[int] = field(default_factory=set)
    #: vLLM finished the request; a load or stores of it are still in progress.
    ended: bool = False
    #: Times that blocks were offered again because a store failed.
    retries: int = 0

    def is_searching(self) -> bool:
        return self.search is not None and self.search.outcome is None
