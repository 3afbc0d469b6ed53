"""Blocks from an engine's memory to the arena."""

from __future__ import annotations

from array import array
from itertools import chain, repeat
from struct import Struct
from typing import Any, Callable, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from . import protocol
from .copiers import FinishGather, Slots
from .errors import HearthError
from .layout import LAYER_ALL, Op, Outcome
from .namespace_key import Macs
from .replies import chosen_of, handles_of, words_of
from .request import Request
from .transfer import ACQUIRE_S, COMMIT_S, OK, OUTCOMES, GaveUp, Part, Transfer
from .transfer_macs import commit_items, macs_of

_RESERVE_HEAD = Struct("<IIQ")
_RESERVE_TAIL = Struct("<QII")
_NO_DIGEST = bytes(32)
_TRANSIENT, _ALIAS = 1, 2


class _Copy(NamedTuple):
    handles: bytes
    #: Indices of the blocks in the call.
    indices: List[int]
    macs: Optional[Macs]
    finish: FinishGather


class Put(Transfer):
    """One call of put."""

    def __init__(
        self,
        *words: Any,
        digests: Sequence[bytes],
        parents: Sequence[Optional[bytes]],
        outcomes: List[Outcome],
        aliases: Optional[Sequence[int]],
        transient: bool,
        session: int,
        should_stop: Optional[Callable[[], bool]],
    ) -> None:
        super().__init__(*words)
        self._names, self._parents, self._aliases = digests, parents, aliases
        self._digests, self._outcomes, self._transient = b"".join(digests), outcomes, transient
        self._head = _RESERVE_HEAD.pack(LAYER_ALL, 0, session)
        self._commits: List[Tuple[Request, List[int]]] = []
        if should_stop is not None:
            self._should_stop = should_stop

    def run(self) -> None:
        try:
            self._move(len(self._names))
        finally:
            self._take_commits()

    def _limit_s(self) -> float:
        return ACQUIRE_S

    def _ask(self, start: int, end: int) -> None:
        self._submit(Op.RESERVE, start, end, self._head + self._items(start, end), self._abort_late)

    def _items(self, start: int, end: int) -> bytes:
        length_of, uniform = self._copier.length_of, self._copier.uniform
        flags, aliases = _TRANSIENT if self._transient else 0, self._aliases
        before = [parent or _NO_DIGEST for parent in self._parents[start:end]]
        if aliases is not None:
            tails: Iterable[bytes] = [
                _RESERVE_TAIL.pack(aliases[at], length_of(at), flags | _ALIAS)
                for at in range(start, end)
            ]
        elif uniform is not None:
            tails = repeat(_RESERVE_TAIL.pack(0, uniform, flags))
        else:
            tails = [_RESERVE_TAIL.pack(0, length_of(at), flags) for at in range(start, end)]
        return b"".join(chain.from_iterable(zip(self._names[start:end], before, tails)))

    def _begin(self, part: Part, body: bytes) -> Optional[_Copy]:
        start, count, outcomes = part.start, part.end - part.start, self._outcomes
        words, longs = self._words(body, 6, count), array("Q", body)
        handles, results, offsets = handles_of(words, 6), words[0::6], longs[2::3]
        taken: Sequence[int] = range(count)
        if any(results):
            taken = [at for at in taken if results[at] == OK]
            handles = chosen_of(handles, taken)
            offsets = array("Q", [offsets[at] for at in taken])
            for at, result in enumerate(results, start):
                outcomes[at] = OUTCOMES.get(result, Outcome.REJECTED)
            if not taken:
                return None
        base, indices = self._base, [start + at for at in taken]
        self._check_slots(offsets, indices)
        self._set(indices, Outcome.MISS)  # Until the COMMIT is answered.
        finish: Optional[FinishGather] = None
        try:
            addresses = array("Q", [base + offset for offset in offsets])
            macs = macs_of(self._key, self._digests, indices)
            slots = Slots(addresses, handles, self._connection, self.wait, macs)
            finish = self._copier.gather(indices, slots)
        finally:
            if finish is None:
                self._send_handles(Op.ABORT, handles)
        return _Copy(handles, indices, macs, finish)

    def _finish(self, copy: _Copy) -> None:
        """Sends the COMMIT of a chunk, unless the caller has stopped the call meanwhile.

        The caller may write to its blocks as soon as it has stopped the call. A copy that had ended
        before has the right bytes; every other one is dropped here.
        """
        is_right, checksums = False, None
        try:
            checksums = copy.finish()
            is_right = not self._should_stop()
        finally:
            if not is_right:
                self._send_handles(Op.ABORT, copy.handles)
        if not is_right:
            self._set(copy.indices, Outcome.SKIPPED)
            return
        frame_body = commit_items(copy.handles, checksums, copy.macs)
        request = self._connection.submit(
            Op.COMMIT,
            lambda number: protocol.request(Op.COMMIT, number, len(copy.indices), frame_body),
            queued=True,
        )
        self._commits.append((request, copy.indices))

    def _set(self, indices: Sequence[int], outcome: Outcome) -> None:
        for index in indices:
            self._outcomes[index] = outcome

    def _check_slots(self, offsets: "array[int]", indices: Sequence[int]) -> None:
        uniform, length_of = self._copier.uniform, self._copier.length_of
        if uniform is not None:
            last = max(offsets) + uniform
        else:
            last = max(offset + length_of(at) for offset, at in zip(offsets, indices))
        if last > self._arena_bytes:
            raise self._connection.broken("a slot outside the arena")

    def _take_commits(self) -> None:
        commits, outcomes = self._commits, self._outcomes
        try:
            while commits and self._link.usable() is self._connection:
                request, indices = commits.pop(0)
                body = self.wait(request, COMMIT_S)
                answers = self._words(body, 2, len(indices))[0::2]
                first, last = indices[0], indices[-1] + 1
                if last - first == len(indices) and not any(answers):
                    outcomes[first:last] = [Outcome.OK] * len(indices)
                else:
                    for index, answer in zip(indices, answers):
                        outcomes[index] = OUTCOMES.get(answer, Outcome.REJECTED)
                uniform, count = self._copier.uniform, len(indices)
                size = uniform * count if uniform else sum(map(self._copier.length_of, indices))
                self._stats.add(put_blocks=count, put_bytes=size)
        except HearthError:
            raise GaveUp("gone") from None
        finally:
            for request, _indices in commits:
                self._connection.abandon(request)

    def _abort_late(self, count: int, body: bytes) -> None:
        words = words_of(body, 6, count)
        taken = [at for at in range(count) if words[6 * at] == OK]
        self._send_handles(Op.ABORT, chosen_of(handles_of(words, 6), taken))
