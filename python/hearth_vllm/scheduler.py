"""The scheduler's side: which blocks to load, which to store, when vLLM may reuse them.

No import of vLLM or torch: requests and scheduler outputs are used by their attributes, so recorded
calls of the real scheduler run against this file.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from .handoff import Handoff
from .hints import Hints
from .keys import BlockKeys
from .listener import Listener
from .metrics import Stats
from .outputs import BlockTables, computed_before
from .plan import LoadJob, StepPlan, StepReport, StoreJob
from .rates import PrefillRate
from .search import HIT, Search
from .settings import Settings
from .stores import Stores
from .tracked import Tracked

logger = logging.getLogger("vllm.hearth")

#: A lookup, and a load, gets at least this long, however fast the engine recomputes.
_WAIT_MS_MIN = 50
#: A lookup older than this share of its reservation is repeated before a load.
_HOLD_SHARE = 0.8
#: A request's failed stores are offered again at most this often.
_STORE_RETRIES = 2
_NEVER = 1 << 60


class EngineScheduler:
    """Decisions for one engine. All methods are called by vLLM's scheduler thread."""

    def __init__(
        self,
        settings: Settings,
        *,
        block_tokens: int,
        ranks: int = 1,
        readers: int = 1,
        blocks: int = 0,
        may_load: bool = True,
        may_store: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._block_tokens = block_tokens
        self._readers = readers
        self._may_load = may_load and settings.load
        self._may_store = may_store and settings.store != "none"
        self._clock = clock
        #: The façade's store; None until the workers have said how their blocks look.
        self.store: Any = None
        self.stats = Stats()
        self._rate = PrefillRate(settings.recompute_tokens_per_second)
        self._requests: Dict[str, Tracked] = {}
        self._tables = BlockTables()
        self._loads: List[LoadJob] = []
        #: Blocks that did not load, and seconds by request, of loads that a rank has not ended.
        self._invalid: Set[int] = set()
        self._loaded: Dict[str, float] = {}
        self._delayed: List[str] = []
        self._lost: List[str] = []
        self._keys = BlockKeys()
        self._stores = Stores(
            self._keys, blocks=blocks, ranks=ranks, refresh_seconds=settings.refresh_seconds
        )
        self._incarnation = 0
        self._waited_s = 0.0
        self._busy = False
        self._hints: Optional[Hints] = None
        self._handoff: Optional[Handoff] = None
        self._listener: Optional[Listener] = None

    def attach(self, store: Any) -> None:
        """The façade's store; without one every lookup is a miss."""
        self.store = store
        self._listener = Listener(store)
        self._handoff = Handoff(self._settings, store, self._keys, self._block_tokens)
        self._hints = Hints(
            self._settings, store, self._keys, self._block_tokens, self.stats, self._handoff
        )

    # Requests

    def added(self, request: Any) -> None:
        """vLLM queued a request."""
        state = self._track(request)
        if self._hints is not None and self._handoff is not None:
            self._hints.added(request)
            if self._may_store:
                self._handoff.added(state.request)

    def match(self, request: Any, computed: int) -> Tuple[Optional[int], bool]:
        """Tokens that Hearth has beyond `computed`; None: ask again in the next step."""
        state = self._track(request)
        try:
            return self._match(state, request, computed)
        except Exception:  # It would end vLLM's engine process, with all requests.
            logger.exception("lookup failed, vLLM computes the prompt")
            self.stats.count("lookups", "error")
            state.search, state.searched = None, True
            return 0, False

    def _match(self, state: Tracked, request: Any, computed: int) -> Tuple[Optional[int], bool]:
        self._notice_preemption(state)
        first = computed // self._block_tokens
        count = min(len(request.block_hashes), request.num_tokens // self._block_tokens)
        if not self._should_search(state, count - first):
            self._drop_search(state)
            return 0, False
        search = state.search
        if search is None or not search.covers(first, count, self._clock()):
            self._drop_search(state)
            search = state.search = self._begin(request, first, count)
        if not self._poll(search):
            return None, False
        blocks = search.first + search.ready - first
        if blocks < self._settings.min_blocks:
            self._drop_search(state)
            state.searched = True
            return 0, False
        state.match_first = first
        return blocks * self._block_tokens, True

    def _should_search(self, state: Tracked, blocks: int) -> bool:
        if self.store is None or not self._may_load or state.searched:
            return False
        return blocks >= self._settings.min_blocks and not getattr(
            state.request, "skip_reading_prefix_cache", False
        )

    def _begin(self, request: Any, first: int, count: int) -> Search:
        settings, now = self._settings, self._clock()
        keys = self._keys.of(request, first, count)
        assert self._handoff is not None
        source, wait = self._handoff.expects(request)
        limit_s = max(_WAIT_MS_MIN / 1000, self._rate.seconds(len(keys) * self._block_tokens))
        if wait:
            limit_s = max(limit_s, settings.wait_ms / 1000)
        ticket = self.store.lookup(
            keys,
            tiers=14 if settings.peers else 6,
            wait=wait,
            source=source,
            deadline_ms=int(limit_s * 1000),
            hold_ms=settings.hold_ms,
            readers=self._readers,
        )
        search = Search(ticket, keys, first, now=now, stall_s=settings.stall_s, limit_s=limit_s)
        search.expires = now + _HOLD_SHARE * settings.hold_ms / 1000
        if self._listener is not None:
            self._listener.follow(search)
        return search

    def _poll(self, search: Search) -> bool:
        """True once the lookup is decided; one step waits at most `scheduler_ms` in sum."""
        begun, budget = self._clock(), self._settings.scheduler_ms / 1000
        # While other requests compute, only the first question of a lookup may wait.
        may_wait = not self._busy or begun - search.started < budget
        decided = search.poll(max(0.0, budget - self._waited_s) if may_wait else 0.0, self._clock)
        self._waited_s += self._clock() - begun
        if decided and not search.counted:
            self._looked_up(search)
        return decided

    def _looked_up(self, search: Search) -> None:
        assert search.outcome is not None
        search.counted = True
        self.stats.count("lookups", search.outcome)
        self.stats.count("lookup_blocks", "asked", len(search.keys))
        self.stats.count("lookup_blocks", "ready", search.ready)
        self.stats.observe("lookup_seconds", search.waited_s)
        if search.ready == 0:
            self._record_excess(search.waited_s, len(search.keys))

    def _drop_search(self, state: Tracked) -> None:
        search, state.search = state.search, None
        if search is not None:
            search.abandon()
            self.store.unhold(search.ticket)

    def allocated(self, request: Any, block_ids: List[int], external: int) -> None:
        """vLLM reserved `block_ids` for the request; `external` tokens of them are to be loaded."""
        state = self._track(request)
        if external <= 0:
            return
        first, count = state.match_first, external // self._block_tokens
        keys = self._keys.of(request, first, first + count)
        waited_s = state.search.waited_s if state.search is not None else 0.0
        left_s = self._rate.seconds(external) - waited_s
        deadline_ms = max(_WAIT_MS_MIN, int(left_s * 1000))
        state.load = LoadJob(
            request.request_id, keys, list(block_ids[first : first + count]), deadline_ms
        )
        state.searched = True
        self._loads.append(state.load)

    def finished(self, request: Any) -> Tuple[bool, Optional[Dict[str, Any]]]:
        """True: vLLM keeps the blocks until the workers report the request as sent."""
        state = self._requests.get(request.request_id)
        if state is None:
            return False, None
        if state.load is None:
            self._drop_search(state)
        state.ended = True
        params = self._answer(state)
        if state.load is not None:
            # vLLM keeps the blocks of a load in progress until the workers report it.
            return False, params
        if not state.jobs:
            self._settle(state)
            return False, params
        self._delayed.append(request.request_id)
        return True, params

    def _settle(self, state: Tracked) -> None:
        """The request ended, and no load or store of it is in progress."""
        self._requests.pop(state.request.request_id, None)
        self._tables.drop(state.request.request_id)
        if self._hints is not None:
            self._hints.settled(state.request)

    def _answer(self, state: Tracked) -> Optional[Dict[str, Any]]:
        hints, handoff = self._hints, self._handoff
        outcomes = hints.finished(state.request) if hints is not None else None
        stored = 0 if state.offered == _NEVER else state.offered
        answer = handoff.finished(state.request, stored) if handoff is not None else None
        if outcomes:
            answer = answer or {"hearth": {}}
            answer["hearth"]["kv_hints"] = outcomes
        return answer

    # Steps

    def step(self, output: Any) -> StepPlan:
        """The plan of the step that vLLM scheduled."""
        now = self._clock()
        tokens = output.total_num_scheduled_tokens
        self._rate.step_begins(now, tokens)
        self._waited_s, self._busy = 0.0, tokens > 0
        plan = StepPlan(loads=self._loads, delayed=self._delayed, computes=tokens > 0)
        self._loads, self._delayed = [], []
        plan.searches = tokens == 0 and any(one.is_searching() for one in self._requests.values())
        self._forget_after_restart()
        self._tables.update(output)
        plan.preempted = self._preempted()
        if self._may_store:
            self._plan_stores(output, plan, now)
        if self._hints is not None:
            self._hints.poll()
        return plan

    def _forget_after_restart(self) -> None:
        incarnation = getattr(self.store, "incarnation", 0)
        if incarnation != self._incarnation:
            self._incarnation = incarnation
            self._stores.forget()

    def _preempted(self) -> List[str]:
        """Requests that lost their blocks since the last step while stores were in progress."""
        for state in self._requests.values():
            self._notice_preemption(state)
        names, self._lost = self._lost, []
        return names

    def _notice_preemption(self, state: Tracked) -> None:
        count = getattr(state.request, "num_preemptions", 0)
        if count == state.preemptions:
            return
        state.preemptions = count
        state.offered, state.searched = 0, False
        if state.jobs:
            self._lost.append(state.request.request_id)

    def _plan_stores(self, output: Any, plan: StepPlan, now: float) -> None:
        for name, before in computed_before(output):
            state = self._requests.get(name)
            if state is None:
                continue
            computed = before + output.num_scheduled_tokens[name]
            hashes = state.request.block_hashes
            limit = min(len(hashes), computed // self._block_tokens)
            if self._settings.store == "prompt":
                limit = min(limit, state.request.num_prompt_tokens // self._block_tokens)
            if limit <= state.offered:
                continue
            table = self._tables.get(output, name)
            if table is not None and len(table) >= limit:
                self._offer(state, plan, table, limit, now)

    def _offer(
        self, state: Tracked, plan: StepPlan, table: List[int], limit: int, now: float
    ) -> None:
        transient = self._hints.transient(state.request) if self._hints else None
        jobs = self._stores.plan(
            state.request, table, state.offered, limit, transient=transient, now=now
        )
        state.offered = limit
        state.jobs.update(job.job for job in jobs)
        plan.stores.extend(jobs)

    def reported(
        self, report: Optional[StepReport], received: Set[str], invalid: Set[int]
    ) -> None:
        """The workers' results of a step."""
        self._rate.step_ended(self._clock())
        for job, failed in self._stores.report(report, self._clock()) if report else []:
            self._stored(job, failed)
        # Ranks end a load in different steps; vLLM names the request when the last one ended it.
        self._invalid |= invalid
        for name, seconds in report.loaded.items() if report else ():
            self._loaded[name] = max(seconds, self._loaded.get(name, 0.0))
        for name in received:
            waited_s, state = self._loaded.pop(name, 0.0), self._requests.get(name)
            if state is not None and state.load is not None:
                self._received(state, waited_s)

    def _stored(self, job: StoreJob, failed: List[int]) -> None:
        state = self._requests.get(job.request)
        if state is None:
            return
        state.jobs.discard(job.job)
        may_retry = state.offered != _NEVER and state.retries < _STORE_RETRIES
        if failed and may_retry and self.store.connected:
            state.retries += 1
            state.offered = min(state.offered, job.first + failed[0])
        if state.ended and not state.jobs:
            self._settle(state)
        elif self._hints is not None:
            self._hints.stored(job, state.offered, not state.jobs)

    def _received(self, state: Tracked, waited_s: float) -> None:
        load, state.load = state.load, None
        assert load is not None
        good = next(
            (i for i, block in enumerate(load.block_ids) if block in self._invalid),
            len(load.block_ids),
        )
        self._invalid.difference_update(load.block_ids)
        self._stores.learn(load.keys[:good], self._clock())
        self.stats.count("load_blocks", "restored", good)
        self.stats.count("load_blocks", "failed", len(load.keys) - good)
        self.stats.observe("load_seconds", waited_s)
        search, state.search = state.search, None
        looked_s = search.waited_s if search is not None else 0.0
        self._record_excess(waited_s + looked_s, len(load.keys))
        if search is not None and search.outcome != HIT:
            # A lookup that was given up may still be answered with a reservation.
            self.store.unhold(search.ticket)
        if state.ended:
            self._settle(state)

    def _record_excess(self, waited_s: float, blocks: int) -> None:
        """Time that a request waited for Hearth beyond the time to recompute its blocks."""
        excess = max(0.0, waited_s - self._rate.seconds(blocks * self._block_tokens))
        self.stats.observe("excess_wait_seconds", excess)
        self.stats.high_water("excess_wait_seconds_max", excess)

    def reset(self) -> bool:
        """vLLM's weights may have changed: from now on blocks have keys of this start alone."""
        self._keys.renew()
        self._stores.forget()
        for state in self._requests.values():
            # The blocks of running requests may mix old and new weights.
            state.offered = _NEVER
            if state.load is None:
                self._drop_search(state)
        return True

    def open_work(self) -> Tuple[int, int, int]:
        """Store jobs, hint commands and requests that have not ended."""
        hints = self._hints.open_commands() if self._hints is not None else 0
        return len(self._stores), hints, len(self._requests)

    def search_of(self, name: str) -> Optional[Search]:
        """The lookup of a request that waits for one."""
        return self._requests[name].search

    def close(self) -> None:
        for part in (self._handoff, self._listener, self.store):
            if part is not None:
                part.close()

    def _track(self, request: Any) -> Tracked:
        state = self._requests.get(request.request_id)
        if state is None:
            count = getattr(request, "num_preemptions", 0)
            state = self._requests[request.request_id] = Tracked(request, preemptions=count)
        state.request = request
        return state
