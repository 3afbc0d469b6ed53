"""Blocks between an engine's memory and the arena, in pipelined chunks.

The frames of this file are built from arrays, since a call moves thousands of blocks a second:
``protocol.py`` has the same frames in a form that can be read.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from functools import partial
from itertools import chain, repeat
from struct import Struct
from typing import Any, Callable, Deque, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from . import protocol
from .connection import Connection
from .copiers import Copier, Slots
from .errors import HearthError, RefusedError
from .layout import DIGEST_BYTES, LAYER_ALL, Op, Outcome
from .link import Link
from .replies import chosen_of, handles_of, without, words_of
from .request import Request
from .stats import Stats
from .transfer_macs import acquired_macs, acquired_words, commit_items, macs_of

#: Blocks and bytes of one chunk, and chunks on their way at once. The agent verifies a chunk of a
#: put while the next one is copied; smaller chunks cost more in frames than they gain in overlap.
CHUNK_BLOCKS = 64
CHUNK_BYTES = 32 * 1024 * 1024
_AHEAD = 2
#: Seconds that the agent may take for an ACQUIRE without a deadline; for a COMMIT or a REPORT.
_ACQUIRE_S, _COMMIT_S = 2.0, 10.0

_OK = int(Outcome.OK)
_ACQUIRE_HEAD = Struct("<IIII")
_RESERVE_HEAD = Struct("<IIQ")
_RESERVE_TAIL = Struct("<QII")
_NO_DIGEST = bytes(32)
_OUTCOMES = {int(outcome): outcome for outcome in Outcome}
_TRANSIENT, _ALIAS = 1, 2


class _Part(NamedTuple):
    start: int
    end: int
    request: Request


class GaveUp(Exception):
    """The agent did not answer in time, or the connection is over."""


class Transfer:
    """One call of get or put on one connection. Raises GaveUp, and nothing else of this package."""

    def __init__(self, link: Link, connection: Connection, copier: Copier, stats: Stats) -> None:
        self._link = link
        self._connection = connection
        self._copier = copier
        self._stats = stats
        arena = connection.__dict__.get("arena")
        if arena is None:
            raise GaveUp("gone")
        self._base = arena.address
        self._arena_bytes = arena.size
        try:
            #: Keeps the arena mapped during the copies, whatever happens to the connection.
            self._guard = arena.export(0, 1)
        except ValueError:
            raise GaveUp("gone") from None  # Unmapped meanwhile: the connection was lost.
        self._key = link.key
        self._digests = b""
        self._should_stop: Callable[[], bool] = lambda: False
        self._parts: Deque[_Part] = deque()

    # --- waiting ----------------------------------------------------------------------------------

    def wait(self, request: Request, limit_s: float) -> bytes:
        """The reply's body.

        GaveUp: no sign of life for ``stall_ms``, no reply within the limit, or the caller stops.
        """
        connection, stall = self._connection, self._link.stall_s
        began = time.monotonic()
        if not connection.wait(request, stall / 2):
            self._outlast(request, began, limit_s)
        self._stats.waited(time.monotonic() - began)
        if request.error is not None:
            error = request.error()
            raise GaveUp("refused" if isinstance(error, RefusedError) else "gone")
        return request.body

    def _outlast(self, request: Request, began: float, limit_s: float) -> None:
        """Waits while the agent answers PINGs."""
        connection, stall = self._connection, self._link.stall_s
        alive_at = max(request.sent_at, connection.received_at)
        probe: Optional[Request] = None
        while not request.done:
            if probe is None or probe.done:
                probe = connection.submit(Op.PING, lambda n: protocol.ping_request(n, b""))
            connection.wait(request, stall / 4)
            now = time.monotonic()
            alive_at = max(alive_at, connection.received_at)
            is_hung, is_stopped = now - alive_at > stall, self._should_stop()
            if not is_hung and not is_stopped and now - began < limit_s:
                continue
            if connection.abandon(request):
                connection.abandon(probe)
                self._stats.waited(now - began)
                if is_hung:
                    self._link.report_stall(connection)
                raise GaveUp("stalled" if is_hung else "stopped" if is_stopped else "late")

    def abandon(self) -> None:
        """Stops waiting for all chunks; what their replies grant is given back."""
        while self._parts:
            request = self._parts.popleft().request
            give_back = request.give_back
            if not self._connection.abandon(request) and request.error is None and give_back:
                self._quietly(partial(give_back, request.count, request.body))

    @staticmethod
    def _quietly(send: Callable[[], Any]) -> None:
        try:
            send()
        except (HearthError, ValueError):
            return  # The handles ended with the connection.

    def _words(self, body: bytes, words: int, count: int) -> "array[int]":
        try:
            return words_of(body, words, count)
        except ValueError as error:
            raise self._connection.broken(error) from error

    def _bounds(self, count: int) -> List[Tuple[int, int]]:
        """Start and end of each chunk."""
        most = min(CHUNK_BLOCKS, self._connection.hello.items_max)
        uniform = self._copier.uniform
        if uniform is not None:
            most = max(min(most, CHUNK_BYTES // max(uniform, 1)), 1)
            return [(at, min(at + most, count)) for at in range(0, count, most)]
        bounds, start, size = [], 0, 0
        for index in range(count):
            size += self._copier.length_of(index)
            if index > start and (size > CHUNK_BYTES or index - start == most):
                bounds.append((start, index))
                start, size = index, self._copier.length_of(index)
        if count > start:
            bounds.append((start, count))
        return bounds

    def _send_handles(self, op: Op, handles: bytes) -> None:
        count = len(handles) // 8
        if count == 0:
            return
        number = self._connection.next_id()
        self._connection.queue(protocol.request(op, number, count, handles, no_reply=True))

    # --- from slots to memory ---------------------------------------------------------------------

    def get(
        self, digests: bytes, outcomes: List[Outcome], tiers: int, deadline_ms: int
    ) -> None:
        """``digests``: packed."""
        bounds, self._digests = deque(self._bounds(len(outcomes))), digests
        limit_s = (deadline_ms / 1000 if deadline_ms else _ACQUIRE_S) + self._link.stall_s
        head = _ACQUIRE_HEAD.pack(LAYER_ALL, tiers, deadline_ms, 0)
        try:
            while bounds or self._parts:
                while bounds and len(self._parts) < _AHEAD:
                    start, end = bounds.popleft()
                    body = head + digests[DIGEST_BYTES * start : DIGEST_BYTES * end]
                    self._submit(Op.ACQUIRE, start, end, body, self._release_late)
                self._connection.flush()
                part = self._parts[0]
                body = self.wait(part.request, limit_s)
                self._parts.popleft()
                self._take_blocks(part, body, outcomes)
        except HearthError:
            raise GaveUp("gone") from None
        finally:
            self.abandon()
            self._connection.flush()

    def _submit(
        self, op: Op, start: int, end: int, body: bytes, give_back: Callable[[int, bytes], None]
    ) -> None:
        request = self._connection.submit(
            op,
            lambda number: protocol.request(op, number, end - start, body),
            give_back=give_back,
            queued=True,
        )
        self._parts.append(_Part(start, end, request))

    def _take_blocks(self, part: _Part, body: bytes, outcomes: List[Outcome]) -> None:
        start, count = part.start, part.end - part.start
        width = acquired_words(self._key)
        words, longs = self._words(body, width, count), array("Q", body)
        handles, results = handles_of(words, width), words[0::width]
        lengths, offsets, sums = words[3::width], longs[2 :: width // 2], longs[3 :: width // 2]
        taken: Sequence[int] = range(count)
        if any(results):
            taken = [at for at in taken if results[at] == _OK]
            handles = chosen_of(handles, taken)
            for at, result in enumerate(results, start):
                outcomes[at] = _OUTCOMES.get(result, Outcome.MISS)
        fitting = self._fitting(start, lengths, offsets, taken)
        verified: Sequence[bool] = []
        try:
            if len(fitting) != count:
                offsets = array("Q", [offsets[at] for at in fitting])
                sums = array("Q", [sums[at] for at in fitting])
            base, indices = self._base, [start + at for at in fitting]
            if fitting:
                slots = array("Q", [base + offset for offset in offsets])
                macs = acquired_macs(self._key, self._digests, indices, fitting, body)
                verified = self._copier.scatter(indices, slots, sums, macs)
        finally:
            wrong = [at for at, is_right in zip(fitting, verified) if not is_right]
            self._return_read(handles, [list(taken).index(at) for at in wrong])
        if len(verified) == count and all(verified):
            outcomes[start : part.end] = [Outcome.OK] * count
        else:
            for at in taken:
                outcomes[start + at] = Outcome.TOO_LARGE
            for index, is_right in zip(indices, verified):
                outcomes[index] = Outcome.OK if is_right else Outcome.CORRUPT
        size = sum(lengths) if len(fitting) == count else sum([lengths[at] for at in fitting])
        self._stats.add(got_blocks=sum(verified), got_bytes=size)

    def _return_read(self, handles: bytes, wrong: Sequence[int]) -> None:
        """Reports the blocks at ``wrong``, and waits: a put stores damaged ones anew after that."""
        wrong = wrong if self._connection.takes_reports else []
        self._send_handles(Op.RELEASE, without(handles, wrong))
        damaged = chosen_of(handles, wrong)
        if damaged:
            report = self._connection.submit(Op.REPORT, partial(protocol.report_request, damaged))
            self.wait(report, _COMMIT_S)

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
        taken = [at for at in range(count) if words[width * at] == _OK]
        self._send_handles(Op.RELEASE, chosen_of(handles_of(words, width), taken))

    # --- from memory to slots ---------------------------------------------------------------------

    def put(
        self,
        digests: Sequence[bytes],
        parents: Sequence[Optional[bytes]],
        outcomes: List[Outcome],
        *,
        aliases: Optional[Sequence[int]] = None,
        transient: bool = False,
        session: int = 0,
        should_stop: Optional[Callable[[], bool]] = None,
    ) -> None:
        bounds, self._digests = deque(self._bounds(len(digests))), b"".join(digests)
        head = _RESERVE_HEAD.pack(LAYER_ALL, 0, session)
        commits: List[Tuple[Request, List[int]]] = []
        if should_stop is not None:
            self._should_stop = should_stop
        try:
            while bounds or self._parts:
                while bounds and len(self._parts) < _AHEAD:
                    start, end = bounds.popleft()
                    items = self._items(digests, parents, aliases, transient, start, end)
                    self._submit(Op.RESERVE, start, end, head + items, self._abort_late)
                self._connection.flush()
                part = self._parts[0]
                body = self.wait(part.request, _ACQUIRE_S)
                if self._should_stop():
                    return
                self._parts.popleft()
                commit = self._fill_slots(part, body, outcomes)
                if commit is not None:
                    commits.append(commit)
        except HearthError:
            raise GaveUp("gone") from None
        finally:
            self.abandon()
            self._connection.flush()
            self._take_commits(commits, outcomes)

    def _items(
        self,
        digests: Sequence[bytes],
        parents: Sequence[Optional[bytes]],
        aliases: Optional[Sequence[int]],
        transient: bool,
        start: int,
        end: int,
    ) -> bytes:
        length_of, uniform = self._copier.length_of, self._copier.uniform
        flags = _TRANSIENT if transient else 0
        before = [parent or _NO_DIGEST for parent in parents[start:end]]
        if aliases is not None:
            tails: Iterable[bytes] = [
                _RESERVE_TAIL.pack(aliases[at], length_of(at), flags | _ALIAS)
                for at in range(start, end)
            ]
        elif uniform is not None:
            tails = repeat(_RESERVE_TAIL.pack(0, uniform, flags))
        else:
            tails = [_RESERVE_TAIL.pack(0, length_of(at), flags) for at in range(start, end)]
        return b"".join(chain.from_iterable(zip(digests[start:end], before, tails)))

    def _fill_slots(
        self, part: _Part, body: bytes, outcomes: List[Outcome]
    ) -> Optional[Tuple[Request, List[int]]]:
        """Copies a chunk and sends its COMMIT; answers that request and the blocks in it."""
        start, count = part.start, part.end - part.start
        words, longs = self._words(body, 6, count), array("Q", body)
        handles, results, offsets = handles_of(words, 6), words[0::6], longs[2::3]
        taken: Sequence[int] = range(count)
        if any(results):
            taken = [at for at in taken if results[at] == _OK]
            handles = chosen_of(handles, taken)
            offsets = array("Q", [offsets[at] for at in taken])
            for at, result in enumerate(results, start):
                outcomes[at] = _OUTCOMES.get(result, Outcome.REJECTED)
            if not taken:
                return None
        base, indices = self._base, [start + at for at in taken]
        self._check_slots(offsets, indices)
        for index in indices:  # Until the COMMIT is answered.
            outcomes[index] = Outcome.MISS
        is_filled = False
        try:
            addresses = array("Q", [base + offset for offset in offsets])
            macs = macs_of(self._key, self._digests, indices)
            slots = Slots(addresses, handles, self._connection, self.wait, macs)
            checksums = self._copier.gather(indices, slots)
            is_filled = True
        finally:
            if not is_filled:
                self._send_handles(Op.ABORT, handles)
        frame_body = commit_items(handles, checksums, macs)
        request = self._connection.submit(
            Op.COMMIT,
            lambda number: protocol.request(Op.COMMIT, number, len(taken), frame_body),
            queued=True,
        )
        return request, indices

    def _check_slots(self, offsets: "array[int]", indices: Sequence[int]) -> None:
        uniform, length_of = self._copier.uniform, self._copier.length_of
        if uniform is not None:
            last = max(offsets) + uniform
        else:
            last = max(offset + length_of(at) for offset, at in zip(offsets, indices))
        if last > self._arena_bytes:
            raise self._connection.broken("a slot outside the arena")

    def _take_commits(
        self, commits: List[Tuple[Request, List[int]]], outcomes: List[Outcome]
    ) -> None:
        try:
            while commits and self._link.usable() is self._connection:
                request, indices = commits.pop(0)
                body = self.wait(request, _COMMIT_S)
                answers = self._words(body, 2, len(indices))[0::2]
                first, last = indices[0], indices[-1] + 1
                if last - first == len(indices) and not any(answers):
                    outcomes[first:last] = [Outcome.OK] * len(indices)
                else:
                    for index, answer in zip(indices, answers):
                        outcomes[index] = _OUTCOMES.get(answer, Outcome.REJECTED)
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
        taken = [at for at in range(count) if words[6 * at] == _OK]
        self._send_handles(Op.ABORT, chosen_of(handles_of(words, 6), taken))
