"""Blocks from the arena to an engine's memory, each verified."""

from __future__ import annotations

import time
from array import array
from functools import partial
from struct import Struct
from typing import Any, List, NamedTuple, Optional, Sequence

from . import protocol
from .copiers import FinishScatter
from .layout import DIGEST_BYTES, LAYER_ALL, Op, Outcome
from .replies import chosen_of, handles_of, without, words_of
from .transfer import ACQUIRE_S, COMMIT_S, OK, OUTCOMES, GaveUp, Part, Transfer
from .transfer_macs import acquired_macs, acquired_words

_ACQUIRE_HEAD = Struct("<IIII")
#: The agent answers this much before the deadline, so that its answer is not late.
_ANSWER_MS = 5


class _Copy(NamedTuple):
    start: int
    count: int
    handles: bytes
    #: Places in the chunk of the blocks that were acquired, and of those that are copied.
    taken: Sequence[int]
    fitting: Sequence[int]
    bytes: int
    finish: FinishScatter


class Get(Transfer):
    """One call of get."""

    def __init__(
        self,
        *words: Any,
        digests: bytes,
        outcomes: List[Outcome],
        tiers: int,
        deadline: Optional[float],
    ) -> None:
        """``digests``: packed. ``deadline``: of the whole call, as time.monotonic()."""
        super().__init__(*words)
        self._digests, self._outcomes = digests, outcomes
        self._tiers, self._deadline = tiers, deadline

    def run(self) -> None:
        self._move(len(self._outcomes))

    def _limit_s(self) -> float:
        if self._deadline is None:
            return ACQUIRE_S + self._link.stall_s
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise GaveUp("late")
        return left

    def _ask(self, start: int, end: int) -> None:
        left_ms = 0
        if self._deadline is not None:
            left_ms = max(int(1000 * (self._deadline - time.monotonic())) - _ANSWER_MS, 1)
        head = _ACQUIRE_HEAD.pack(LAYER_ALL, self._tiers, left_ms, 0)
        body = head + self._digests[DIGEST_BYTES * start : DIGEST_BYTES * end]
        self._submit(Op.ACQUIRE, start, end, body, self._release_late)

    def _begin(self, part: Part, body: bytes) -> Optional[_Copy]:
        start, count = part.start, part.end - part.start
        width = acquired_words(self._key)
        words, longs = self._words(body, width, count), array("Q", body)
        handles, results = handles_of(words, width), words[0::width]
        lengths, offsets, sums = words[3::width], longs[2 :: width // 2], longs[3 :: width // 2]
        taken: Sequence[int] = range(count)
        if any(results):
            taken = [at for at in taken if results[at] == OK]
            handles = chosen_of(handles, taken)
            for at, result in enumerate(results, start):
                self._outcomes[at] = OUTCOMES.get(result, Outcome.MISS)
        fitting = self._fitting(start, lengths, offsets, taken)
        finish: Optional[FinishScatter] = None
        try:
            if len(fitting) != count:
                offsets = array("Q", [offsets[at] for at in fitting])
                sums = array("Q", [sums[at] for at in fitting])
            base, indices = self._base, [start + at for at in fitting]
            if fitting:
                slots = array("Q", [base + offset for offset in offsets])
                macs = acquired_macs(self._key, self._digests, indices, fitting, body)
                finish = self._copier.scatter(indices, slots, sums, macs)
            else:
                finish = list
        finally:
            if finish is None:
                self._send_handles(Op.RELEASE, handles)
        size = sum(lengths) if len(fitting) == count else sum([lengths[at] for at in fitting])
        return _Copy(start, count, handles, taken, fitting, size, finish)

    def _finish(self, copy: _Copy) -> None:
        start, taken, fitting, outcomes = copy.start, copy.taken, copy.fitting, self._outcomes
        verified: Sequence[bool] = []
        try:
            verified = copy.finish()
        finally:
            wrong = [at for at, is_right in zip(fitting, verified) if not is_right]
            self._return_read(copy.handles, [list(taken).index(at) for at in wrong])
        if len(verified) == copy.count and all(verified):
            outcomes[start : start + copy.count] = [Outcome.OK] * copy.count
        else:
            for at in taken:
                outcomes[start + at] = Outcome.TOO_LARGE
            for at, is_right in zip(fitting, verified):
                outcomes[start + at] = Outcome.OK if is_right else Outcome.CORRUPT
        self._stats.add(got_blocks=sum(verified), got_bytes=copy.bytes)

    def _return_read(self, handles: bytes, wrong: Sequence[int]) -> None:
        """Reports the blocks at ``wrong``, and waits: a put stores damaged ones anew after that."""
        wrong = wrong if self._connection.takes_reports else []
        self._send_handles(Op.RELEASE, without(handles, wrong))
        damaged = chosen_of(handles, wrong)
        if damaged:
            report = self._connection.submit(Op.REPORT, partial(protocol.report_request, damaged))
            self.wait(report, COMMIT_S)

    def _fitting(
        self, start: int, lengths: "array[int]", offsets: "array[int]", taken: Sequence[int]
    ) -> Sequence[int]:
        """The blocks that have the length of their target and lie in the arena."""
        uniform, most, count = self._copier.uniform, self._arena_bytes, len(lengths)
        if uniform is not None and len(taken) == count == lengths.count(uniform):
            if max(offsets) + uniform <= most:
                return taken
        length_of = self._copier.length_of
        return [
            at
            for at in taken
            if lengths[at] == length_of(start + at) and offsets[at] + lengths[at] <= most
        ]

    def _release_late(self, count: int, body: bytes) -> None:
        width = acquired_words(self._key)
        words = words_of(body, width, count)
        taken = [at for at in range(count) if words[width * at] == OK]
        self._send_handles(Op.RELEASE, chosen_of(handles_of(words, width), taken))
