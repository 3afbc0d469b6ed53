"""The store that engine connectors use: find, get and put blocks, whatever the agent does.

    store = KvStore(manifest, engine_id=engine_id, role=Role.WORKER)
    store.put(keys, parents, memory, block_ids)
    store.get(keys, memory, block_ids)
"""

from __future__ import annotations

import time
from typing import Any, Callable, List, Optional, Sequence

from . import protocol
from . import protocol_engine as frames
from .calls import kind_of_keys
from .connection import Connection
from .copiers import Copier, PieceCopier, copier_of
from .engine import lookup_flags
from .errors import HearthError
from .kv_calls import KvCalls
from .layout import DIGEST_BYTES, FEATURE_ENGINE, TIER_ANY, Hello, Outcome, Role
from .memory import PagedMemory, Piece, Region
from .stats import Stats
from .ticket import CommandTicket, LookupResult, LookupTicket, Ticket
from .transfer import GaveUp
from .transfer_get import Get
from .transfer_put import Put

#: More than the header and head of a LOOKUP and its reply, and padding.
_LOOKUP_HEAD_BYTES = 256

__all__ = [
    "CommandTicket",
    "KvStore",
    "LookupResult",
    "LookupTicket",
    "Outcome",
    "PagedMemory",
    "Piece",
    "Region",
    "Role",
    "Stats",
    "Ticket",
]


class KvStore(KvCalls):
    """Blocks of one namespace, by the chain keys of an engine. All methods are thread-safe.

    No call raises because of the agent: blocks that an absent, stopped, full or restarted agent
    does not give are misses. ValueError is raised for arguments that cannot be right. A process
    that forks uses the store in the parent only.
    """

    def __enter__(self) -> "KvStore":
        return self

    # --- lookups ----------------------------------------------------------------------------------

    def lookup(
        self,
        keys: Sequence[bytes],
        *,
        tiers: int = TIER_ANY,
        family: bool = True,
        hold: bool = True,
        fetch: bool = True,
        wait: bool = False,
        progress: bool = True,
        deadline_ms: int = 0,
        hold_ms: int = 0,
        readers: int = 1,
        source: str = "",
    ) -> LookupTicket:
        """Asks how much of a prefix is there. Never blocks; the ticket is answered later.

        ``family``: what all TP and PP ranks have. ``fetch``: bring it to RAM first. ``hold``:
        reserve it there until ``readers`` connections of the engine have got each block, or
        ``hold_ms`` passed. ``wait``: wait for blocks that are announced. ``source``: the worker
        name of an agent that has or computes the blocks.
        """
        kind = kind_of_keys(keys)
        self.stats.add(lookups=1)
        connection = self._usable()
        if connection is None:
            self.stats.fail("gone")
            return LookupTicket(None)
        ticket = LookupTicket(
            connection,
            stall_s=self._link.stall_s,
            on_stall=self._stalled,
            on_result=self._count_lookup,
        )
        try:
            most = _lookup_most(connection.hello)
            if not connection.hello.features & FEATURE_ENGINE:
                digests = self._digests(connection, keys[:most])
                return ticket.start_match(digests, tiers) if digests else LookupTicket(None)
            flags = lookup_flags(family, hold and self._link.joined, fetch, wait, progress, False)
            questions = [
                frames.LookupQuestion(
                    kind,
                    b"".join(keys[start : start + most]),
                    flags,
                    tiers=tiers,
                    deadline_ms=deadline_ms,
                    hold_ms=hold_ms,
                    readers=readers,
                    source=source,
                )
                for start in range(0, len(keys) or 1, most)
            ]
            return ticket.start(*questions)
        except HearthError:
            self.stats.fail("gone")
            return LookupTicket(None)

    def unhold(self, ticket: LookupTicket) -> None:
        """Ends the reservation of a lookup, also of one that is not answered yet."""
        ticket.unhold()

    def exists(self, keys: Sequence[bytes], *, tiers: int = TIER_ANY, family: bool = True) -> int:
        """How many leading blocks are there. Nothing is reserved or moved."""
        ticket = self.lookup(
            keys, tiers=tiers, family=family, hold=False, fetch=False, progress=False
        )
        ticket.wait(10 * self._link.stall_s)
        leading = ticket.result().leading if ticket.done() else 0
        assert isinstance(leading, int)
        return leading

    def _stalled(self, connection: Connection) -> None:
        self.stats.fail("stalled")
        self._link.report_stall(connection)

    def _count_lookup(self, result: LookupResult, seconds: float) -> None:
        self.stats.waited(seconds)
        if result.leading > 0:
            self.stats.add(hits=1, hit_blocks=result.leading)

    # --- blocks -----------------------------------------------------------------------------------

    def get(
        self,
        keys: Sequence[bytes],
        memory: PagedMemory,
        block_ids: Sequence[int],
        *,
        tiers: int = TIER_ANY,
        deadline_ms: int = 0,
    ) -> List[Outcome]:
        """Copies blocks to the engine's memory; one outcome for each.

        OK: the bytes are there and verified. Every other outcome leaves undefined bytes in the
        target: MISS, LATE, FULL, CORRUPT, TOO_LARGE (the block has another length).
        ``deadline_ms``: of the whole call. No copy begins later, and blocks that were not copied
        are MISS or LATE. 0: the agent may take 2 s for each 64 blocks or 32 MiB.
        """
        _same_lengths(keys=keys, block_ids=block_ids)
        return self._get(keys, copier_of(memory, self._kernels, block_ids), tiers, deadline_ms)

    def get_pieces(
        self,
        keys: Sequence[bytes],
        pieces: Sequence[Sequence[Piece]],
        *,
        tiers: int = TIER_ANY,
        deadline_ms: int = 0,
    ) -> List[Outcome]:
        """As ``get``, to pieces of memory that have a block's bytes in order."""
        _same_lengths(keys=keys, pieces=pieces)
        return self._get(keys, PieceCopier(self._kernels, pieces), tiers, deadline_ms)

    def put(
        self,
        keys: Sequence[bytes],
        parents: Sequence[Optional[bytes]],
        memory: PagedMemory,
        block_ids: Sequence[int],
        *,
        aliases: Optional[Sequence[int]] = None,
        transient: bool = False,
        session: int = 0,
        should_stop: Optional[Callable[[], bool]] = None,
    ) -> List[Outcome]:
        """Stores blocks of the engine's memory; one outcome for each.

        ``parents``: the key of the block before each, or None. ``aliases``: 64-bit engine hashes.
        PRESENT and PENDING: the agent has or gets the block already. ``should_stop`` is asked
        before and after the copy of each chunk, and while the agent is slow to reply. Once it
        returns True, the caller may write to its blocks: what is being copied is not stored.
        Blocks that were not copied are SKIPPED, and copied blocks whose COMMIT was not answered
        are MISS.
        """
        _same_lengths(keys=keys, parents=parents, block_ids=block_ids, aliases=aliases)
        copier = copier_of(memory, self._kernels, block_ids)
        return self._put(keys, parents, copier, aliases, transient, session, should_stop)

    def put_pieces(
        self,
        keys: Sequence[bytes],
        parents: Sequence[Optional[bytes]],
        pieces: Sequence[Sequence[Piece]],
        *,
        aliases: Optional[Sequence[int]] = None,
        transient: bool = False,
        session: int = 0,
        should_stop: Optional[Callable[[], bool]] = None,
    ) -> List[Outcome]:
        """As ``put``, from pieces of memory that have a block's bytes in order."""
        _same_lengths(keys=keys, parents=parents, pieces=pieces, aliases=aliases)
        copier = PieceCopier(self._kernels, pieces)
        return self._put(keys, parents, copier, aliases, transient, session, should_stop)

    def _get(
        self, keys: Sequence[bytes], copier: Copier, tiers: int, deadline_ms: int
    ) -> List[Outcome]:
        kind_of_keys(keys)
        outcomes = [Outcome.MISS] * len(keys)
        deadline = time.monotonic() + deadline_ms / 1000 if deadline_ms else None

        def move(connection: Connection) -> None:
            Get(
                *(self._link, connection, copier, self.stats),
                digests=self._packed_digests(connection, keys),
                outcomes=outcomes,
                tiers=protocol.check_tiers(tiers),
                deadline=deadline,
            ).run()

        self.stats.add(got_seconds=self._run(move))
        self._count_failures(outcomes)
        return outcomes

    def _put(
        self,
        keys: Sequence[bytes],
        parents: Sequence[Optional[bytes]],
        copier: Copier,
        aliases: Optional[Sequence[int]],
        transient: bool,
        session: int,
        should_stop: Optional[Callable[[], bool]],
    ) -> List[Outcome]:
        kind_of_keys(keys)
        outcomes = [Outcome.SKIPPED] * len(keys)

        def move(connection: Connection) -> None:
            known = dict.fromkeys([*keys, *(key for key in parents if key is not None)])
            names: Any = dict(zip(known, self._digests(connection, list(known))))
            names[None] = None
            Put(
                *(self._link, connection, copier, self.stats),
                digests=[names[key] for key in keys],
                parents=[names[key] for key in parents],
                outcomes=outcomes,
                aliases=aliases,
                transient=transient,
                session=session,
                should_stop=should_stop,
            ).run()

        self.stats.add(put_seconds=self._run(move))
        self._count_failures(outcomes)
        return outcomes

    def _run(self, move: Callable[[Connection], None]) -> float:
        """Runs a transfer if there is an agent. The seconds it took."""
        began = time.monotonic()
        connection = self._usable()
        if connection is None:
            self.stats.fail("gone")
            return 0.0
        with self._calls:
            self._active += 1
        try:
            move(connection)
        except GaveUp as reason:
            self.stats.fail(str(reason))
        except HearthError:
            self.stats.fail("gone")
        finally:
            with self._calls:
                self._active -= 1
                self._calls.notify_all()
        return time.monotonic() - began

    def _count_failures(self, outcomes: Sequence[Outcome]) -> None:
        if outcomes.count(Outcome.OK) == len(outcomes):
            return
        for outcome in set(outcomes) - {Outcome.OK, Outcome.PRESENT, Outcome.PENDING}:
            self.stats.fail(outcome.name.lower(), outcomes.count(outcome))

def _lookup_most(hello: Hello) -> int:
    """Blocks that one LOOKUP may ask for: the answer has a tier and a digest of each."""
    fitting = (hello.frame_bytes_max - _LOOKUP_HEAD_BYTES) // (DIGEST_BYTES + 1)
    return max(min(hello.items_max, fitting), 1)


def _same_lengths(**lists: Optional[Sequence[object]]) -> None:
    counts = {name: len(one) for name, one in lists.items() if one is not None}
    if len(set(counts.values())) > 1:
        raise ValueError(f"one item for each block is required, given {counts}")
