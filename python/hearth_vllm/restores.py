"""Lookups of waiting requests, and the loads that follow them.

One budget bounds the time that a request waits for both.
"""

from __future__ import annotations

import random
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from .handoff import Handoff
from .keys import BlockKeys
from .listener import Listener
from .metrics import Stats
from .plan import LoadJob, StepReport
from .rates import PrefillRate
from .search import HIT, Search
from .settings import Settings
from .tracked import Tracked

#: A request may wait this long for Hearth, however fast the engine recomputes.
_WAIT_S_MIN = 0.05
#: Share of the budget that a lookup may use: the load needs the rest.
_LOOKUP_SHARE = 0.75
#: A lookup answered longer ago than this share of its reservation is repeated before a load.
_HOLD_SHARE = 0.8


class Restores:
    """Restores of requests from Hearth. vLLM's scheduler thread calls all methods."""

    def __init__(
        self,
        settings: Settings,
        *,
        block_tokens: int,
        readers: int,
        may_load: bool,
        verify_one_in: int = 0,
        keys: BlockKeys,
        rate: PrefillRate,
        stats: Stats,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._block_tokens = block_tokens
        self._readers = readers
        self._may_load = may_load
        self._verify_one_in = verify_one_in
        self._keys = keys
        self._rate = rate
        self._stats = stats
        self._clock = clock
        self._store: Any = None
        self._handoff: Optional[Handoff] = None
        self._listener: Optional[Listener] = None
        self._loads: List[LoadJob] = []
        #: Blocks that did not load, and seconds by request, of loads that a rank has not ended.
        self._invalid: Set[int] = set()
        self._loaded: Dict[str, float] = {}
        self._polled_s = 0.0
        self._busy = False

    def attach(self, store: Any, handoff: Handoff, listener: Optional[Listener]) -> None:
        self._store, self._handoff, self._listener = store, handoff, listener

    def step_begins(self, busy: bool) -> List[LoadJob]:
        """The loads of a step; `busy`: it computes tokens."""
        self._polled_s, self._busy = 0.0, busy
        loads, self._loads = self._loads, []
        return loads

    def match(self, state: Tracked, request: Any, computed: int) -> Tuple[Optional[int], bool]:
        """Tokens that Hearth has beyond `computed`; None: ask again in the next step."""
        first = computed // self._block_tokens
        count = min(len(request.block_hashes), request.num_tokens // self._block_tokens)
        if not self._should_search(state, count - first):
            self.give_up(state)
            return 0, False
        search = state.search
        if search is None or not search.covers(first, count, self._clock()):
            self.drop(state)
            search = state.search = self._begin(state, request, first, count)
        if search is not None and not self._poll(search):
            return None, False
        blocks = search.first + search.ready - first if search is not None else 0
        if blocks >= self._settings.min_blocks and self._is_sampled(state):
            # The worker compares what this engine computes with what Hearth has.
            state.verify, blocks = (first, first + blocks), 0
        if blocks < self._settings.min_blocks:
            state.searched = True
            self.give_up(state)
            return 0, False
        state.match_first = first
        return blocks * self._block_tokens, True

    def _is_sampled(self, state: Tracked) -> bool:
        """Decides once for each request, however often vLLM asks before it has room."""
        if state.sampled is None:
            most = self._verify_one_in
            state.sampled = most > 0 and random.randrange(most) == 0
        return state.sampled

    def _should_search(self, state: Tracked, blocks: int) -> bool:
        if self._store is None or not self._may_load or state.searched:
            return False
        return blocks >= self._settings.min_blocks and not getattr(
            state.request, "skip_reading_prefix_cache", False
        )

    def _begin(self, state: Tracked, request: Any, first: int, count: int) -> Optional[Search]:
        """A lookup within the rest of the request's budget; None: the budget is spent."""
        settings, now = self._settings, self._clock()
        keys = self._keys.of(request, first, count)
        assert self._handoff is not None
        source, wait = self._handoff.expects(request)
        if state.budget_s is None:
            state.budget_s = self._budget_s(len(keys), wait)
        state.asked = max(state.asked, len(keys))
        limit_s = _LOOKUP_SHARE * (state.budget_s - state.waited_s)
        if limit_s < 0.001:
            return None
        ticket = self._store.lookup(
            keys,
            tiers=14 if settings.peers else 6,
            wait=wait,
            source=source,
            deadline_ms=int(limit_s * 1000),
            hold_ms=settings.hold_ms,
            readers=self._readers,
        )
        search = Search(
            ticket,
            keys,
            first,
            now=now,
            stall_s=settings.stall_s,
            limit_s=limit_s,
            hold_s=_HOLD_SHARE * settings.hold_ms / 1000,
        )
        if self._listener is not None:
            self._listener.follow(search)
        return search

    def _budget_s(self, blocks: int, wait: bool) -> float:
        """Time that a request may wait for a lookup of these blocks and their load.

        The blocks of another engine are worth one stall limit more than computing them here: if the
        producer began at the same time, it is ready about when this engine would be.
        """
        budget_s = self._rate.seconds(blocks * self._block_tokens)
        if wait:
            budget_s = min(budget_s + self._settings.stall_s, self._settings.wait_ms / 1000)
        return max(_WAIT_S_MIN, budget_s)

    def _poll(self, search: Search) -> bool:
        """True once the lookup is decided; one step waits at most `scheduler_ms` in sum."""
        begun, budget = self._clock(), self._settings.scheduler_ms / 1000
        # While other requests compute, only the first question of a lookup may wait.
        may_wait = not self._busy or begun - search.started < budget
        decided = search.poll(max(0.0, budget - self._polled_s) if may_wait else 0.0, self._clock)
        self._polled_s += self._clock() - begun
        if decided and not search.counted:
            self._looked_up(search)
        return decided

    def _looked_up(self, search: Search) -> None:
        assert search.outcome is not None
        search.counted = True
        self._stats.count("lookups", search.outcome)
        self._stats.count("lookup_blocks", "asked", len(search.keys))
        self._stats.count("lookup_blocks", "ready", search.ready)
        self._stats.observe("lookup_seconds", search.waited_s)

    def drop(self, state: Tracked) -> None:
        """Ends the lookup; the time it took counts in the request's budget."""
        search, state.search = state.search, None
        if search is not None:
            search.abandon(self._clock())
            state.waited_s += search.waited_s
            self._store.unhold(search.ticket)

    def give_up(self, state: Tracked) -> None:
        """The request waits no more, and loads nothing."""
        self.drop(state)
        if state.asked > 0:
            self._end_wait(state, state.asked)

    def _end_wait(self, state: Tracked, blocks: int) -> None:
        """Records how long the request waited beyond the time to recompute its blocks."""
        excess = max(0.0, state.waited_s - self._rate.seconds(blocks * self._block_tokens))
        self._stats.observe("excess_wait_seconds", excess)
        self._stats.high_water("excess_wait_seconds_max", excess)
        state.asked, state.waited_s, state.budget_s = 0, 0.0, None

    def allocated(
        self, state: Tracked, request: Any, block_ids: List[int], external: int
    ) -> None:
        """vLLM reserved `block_ids` for the request; `external` tokens of them are to be loaded."""
        first, count = state.match_first, external // self._block_tokens
        keys = self._keys.of(request, first, first + count)
        budget_s = self._budget_s(count, False)
        waited_s = state.waited_s + (state.search.waited_s if state.search is not None else 0.0)
        if state.budget_s is not None:
            budget_s = min(budget_s, state.budget_s - waited_s)
        self._load(state, keys, block_ids[first : first + count], max(1, int(budget_s * 1000)))

    def allocated_in_vain(self, state: Tracked, block_ids: List[int], external: int) -> None:
        """As `allocated`, with a load that fails: vLLM waits until workers report the blocks."""
        first, count = state.match_first, external // self._block_tokens
        self._load(state, [], block_ids[first : first + count], 1)

    def _load(self, state: Tracked, keys: List[bytes], block_ids: Any, deadline_ms: int) -> None:
        state.load = LoadJob(state.request.request_id, keys, list(block_ids), deadline_ms)
        state.searched = True
        self._loads.append(state.load)

    def reported(self, report: Optional[StepReport], invalid: Set[int]) -> None:
        """Ranks end a load in different steps; vLLM names the request when the last one did."""
        self._invalid |= invalid
        for name, seconds in report.loaded.items() if report else ():
            self._loaded[name] = max(seconds, self._loaded.get(name, 0.0))

    def received(self, name: str, state: Optional[Tracked]) -> List[bytes]:
        """Every rank ended the request's load: the keys that are loaded."""
        load_s = self._loaded.pop(name, 0.0)
        if state is None or state.load is None:
            return []
        load, state.load = state.load, None
        good = next(
            (i for i, block in enumerate(load.block_ids) if block in self._invalid),
            len(load.block_ids),
        )
        self._invalid.difference_update(load.block_ids)
        self._stats.count("load_blocks", "restored", good)
        self._stats.count("load_blocks", "failed", len(load.block_ids) - good)
        self._stats.observe("load_seconds", load_s)
        search, state.search = state.search, None
        state.waited_s += load_s + (search.waited_s if search is not None else 0.0)
        self._end_wait(state, len(load.block_ids))
        if search is not None and search.outcome != HIT:
            # A lookup that was given up may still be answered with a reservation.
            self._store.unhold(search.ticket)
        return load.keys[:good]
