"""Which blocks the workers store, and which blocks the agent is known to have."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Dict, Iterable, List, Optional, Tuple

from .keys import BlockKeys
from .plan import StepReport, StoreJob

_KNOWN_MIN = 4096


class Stores:
    """Store jobs in progress. `blocks` is the size of vLLM's KV cache, `ranks` the workers."""

    def __init__(self, keys: BlockKeys, *, blocks: int, ranks: int, refresh_seconds: float) -> None:
        self._keys = keys
        self._ranks = ranks
        self._refresh_s = refresh_seconds
        self._jobs: Dict[int, Tuple[StoreJob, StepReport]] = {}
        self._next = 0
        #: Blocks that the agent has, with the time it said so; the oldest entry first.
        self._known: "OrderedDict[bytes, float]" = OrderedDict()
        self._known_max = max(2 * blocks, _KNOWN_MIN)

    def __len__(self) -> int:
        return len(self._jobs)

    def plan(
        self,
        request: Any,
        table: List[int],
        first: int,
        end: int,
        *,
        transient: Optional[List[Tuple[int, int]]],
        now: float,
        verify: Tuple[int, int] = (0, 0),
    ) -> List[StoreJob]:
        """Jobs for the blocks `first` to `end` that the agent may lack.

        Blocks within the ranges `transient` are stored as transient; those within `verify` are
        compared with their stored copies, also if the agent has them.
        """
        before = 1 if first > 0 else 0
        keys = self._keys.of(request, first - before, end)
        key_of = dict(zip(range(first - before, end), keys))
        stale = now - self._refresh_s
        low, high = verify
        wanted = [
            i
            for i in range(first, end)
            if low <= i < high or self._known.get(key_of[i], -1e9) < stale
        ]
        jobs = []
        marked = [
            (any(begin <= i < stop for begin, stop in transient or ()), low <= i < high)
            for i in wanted
        ]
        for begin, stop, (passing, sampled) in _runs(wanted, marked):
            job = StoreJob(
                self._next,
                request.request_id,
                [key_of[i] for i in range(begin, stop)],
                key_of.get(begin - 1),
                table[begin:stop],
                passing,
                begin,
                sampled,
            )
            self._next += 1
            self._jobs[job.job] = (job, StepReport())
            jobs.append(job)
        return jobs

    def report(self, report: StepReport, now: float) -> List[Tuple[StoreJob, List[int]]]:
        """Jobs that every rank ended, with the indexes of their blocks that are not stored."""
        ended = []
        for number, (ranks, failed) in report.stored.items():
            entry = self._jobs.get(number)
            if entry is None:
                continue
            job, sofar = entry
            sofar.merge(StepReport({number: (ranks, failed)}))
            total, missing = sofar.stored[number]
            if total < self._ranks:
                continue
            del self._jobs[number]
            lost = set(missing)
            self.learn((key for i, key in enumerate(job.keys) if i not in lost), now)
            ended.append((job, missing))
        return ended

    def learn(self, keys: Iterable[bytes], now: float) -> None:
        """The agent has these blocks."""
        for key in keys:
            self._known[key] = now
            self._known.move_to_end(key)
        while len(self._known) > self._known_max:
            self._known.popitem(last=False)

    def forget(self) -> None:
        """The agent restarted, or vLLM's cache was reset: every block is offered again."""
        self._known.clear()


Marks = Tuple[bool, bool]


def _runs(wanted: List[int], marked: List[Marks]) -> List[Tuple[int, int, Marks]]:
    """Consecutive indexes with equal marks as (first, end, marks)."""
    runs: List[Tuple[int, int, Marks]] = []
    for index, mark in zip(wanted, marked):
        if runs and runs[-1][1] == index and runs[-1][2] == mark:
            runs[-1] = (runs[-1][0], index + 1, mark)
        else:
            runs.append((index, index + 1, mark))
    return runs
