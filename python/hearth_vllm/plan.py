"""What the scheduler and the workers of one engine send each other with each step.

The objects are pickled; they hold only built-in types.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple


@dataclass
class LoadJob:
    """Blocks that the workers bring from Hearth into vLLM's KV cache."""

    request: str
    keys: List[bytes]
    block_ids: List[int]
    #: Time the load may take, in milliseconds; 0: until it makes no progress.
    deadline_ms: int = 0


@dataclass
class StoreJob:
    """Blocks that the workers store after this step's forward pass."""

    job: int
    request: str
    keys: List[bytes]
    parent: Optional[bytes]
    block_ids: List[int]
    transient: bool = False
    #: Index of the first block within its request.
    first: int = 0
    #: Compare the blocks with the stored copies first.
    verify: bool = False

    def parents(self) -> List[Optional[bytes]]:
        """For each block the key of the block before it; None at the start of a prompt."""
        return [self.parent, *self.keys[:-1]]


@dataclass
class StepPlan:
    """From the scheduler to every worker."""

    loads: List[LoadJob] = field(default_factory=list)
    stores: List[StoreJob] = field(default_factory=list)
    #: Requests whose blocks vLLM took away: their stores end before this step's forward pass.
    preempted: List[str] = field(default_factory=list)
    #: Finished requests whose blocks vLLM keeps until each worker reports them as sent.
    delayed: List[str] = field(default_factory=list)
    #: The step computes tokens; False: it only serves the connector.
    computes: bool = False
    #: Lookups are in progress: vLLM runs empty steps until they are answered.
    searches: bool = False


@dataclass
class StepReport:
    """From the workers to the scheduler; the reports of several ranks are merged."""

    #: Job: number of ranks that ended it, and the indexes of blocks that are not stored.
    stored: Dict[int, Tuple[int, List[int]]] = field(default_factory=dict)
    #: Request: seconds from the start of its load to the end on the slowest rank.
    loaded: Dict[str, float] = field(default_factory=dict)

    def add(self, job: int, failed: List[int]) -> None:
        ranks, before = self.stored.get(job, (0, []))
        self.stored[job] = (ranks + 1, sorted({*before, *failed}))

    def merge(self, other: "StepReport") -> "StepReport":
        for job, (count, failed) in other.stored.items():
            ranks, before = self.stored.get(job, (0, []))
            self.stored[job] = (ranks + count, sorted({*before, *failed}))
        for request, seconds in other.loaded.items():
            self.loaded[request] = max(seconds, self.loaded.get(request, 0.0))
        return self
