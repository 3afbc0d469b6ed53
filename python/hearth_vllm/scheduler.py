"""The scheduler's side: which blocks to load, which to store, when vLLM may reuse them.

No import of vLLM or torch: requests and scheduler outputs are used by their attributes, so recorded
calls of the real scheduler run against this file.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from .guards import Guard
from .handoff import Handoff
from .hints import Hints
from .keys import BlockKeys
from .listener import Listener
from .metrics import Stats
from .outputs import BlockTables, computed_before
from .plan import StepPlan, StepReport, StoreJob
from .rates import PrefillRate
from .restores import Restores
from .search import Search
from .settings import Settings
from .stores import Stores
from .tracked import Tracked

#: A request's failed stores are offered again at most this often.
_STORE_RETRIES = 2
_NEVER = 1 << 60


class EngineScheduler:
    """Decisions for one engine. All methods are called by vLLM's scheduler thread.

    No method raises: what fails is computed, or not stored.
    """

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
        self._may_store = may_store and settings.store != "none"
        self._clock = clock
        #: The façade's store; None until the workers have said how their blocks look.
        self.store: Any = None
        self.stats = Stats()
        self._rate = PrefillRate(settings.recompute_tokens_per_second)
        self._requests: Dict[str, Tracked] = {}
        self._tables = BlockTables()
        self._guard = Guard(self.stats)
        self._delayed: List[str] = []
        self._lost: List[str] = []
        self._keys = BlockKeys()
        self._stores = Stores(
            self._keys, blocks=blocks, ranks=ranks, refresh_seconds=settings.refresh_seconds
        )
        self._restores = Restores(
            settings,
            block_tokens=block_tokens,
            readers=readers,
            may_load=may_load and settings.load,
            verify_one_in=settings.verify_one_in if self._may_store else 0,
            keys=self._keys,
            rate=self._rate,
            stats=self.stats,
            clock=clock,
        )
        self._incarnation = 0
        self._hints: Optional[Hints] = None
        self._handoff: Optional[Handoff] = None
        self._listener: Optional[Listener] = None

    def attach(self, store: Any) -> None:
        """The façade's store; without one every lookup is a miss."""
        self.store = store
        self._listener = Listener(store, self._guard)
        self._handoff = Handoff(
            self._settings, store, self._keys, self._block_tokens, self._guard
        )
        self._restores.attach(store, self._handoff, self._listener)
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
                with self._guard("hand-off"):
                    self._handoff.added(state.request)

    def match(self, request: Any, computed: int) -> Tuple[Optional[int], bool]:
        """Tokens that Hearth has beyond `computed`; None: ask again in the next step."""
        state = self._track(request)
        self._notice_preemption(state)
        with self._guard("lookup"):
            return self._restores.match(state, request, computed)
        self.stats.count("lookups", "error")
        state.search, state.searched = None, True
        return 0, False

    def allocated(self, request: Any, block_ids: List[int], external: int) -> None:
        """vLLM reserved `block_ids` for the request; `external` tokens of them are to be loaded."""
        state = self._track(request)
        if external <= 0:
            return
        with self._guard("load"):
            self._restores.allocated(state, request, block_ids, external)
            return
        self._restores.allocated_in_vain(state, block_ids, external)

    def finished(self, request: Any) -> Tuple[bool, Optional[Dict[str, Any]]]:
        """True: vLLM keeps the blocks until the workers report the request as sent."""
        state = self._requests.get(request.request_id)
        if state is None:
            return False, None
        if state.load is None:
            with self._guard("lookup"):
                self._restores.give_up(state)
        state.ended, params = True, None
        with self._guard("answer"):
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
        if self._hints is not None and self._handoff is not None:
            self._hints.settled(state.request)
            with self._guard("hand-off"):
                self._handoff.settled(state.request.request_id)

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
        plan = StepPlan(delayed=self._delayed, computes=tokens > 0)
        # Whatever fails below: vLLM waits until the workers end these.
        plan.loads, self._delayed = self._restores.step_begins(tokens > 0), []
        plan.searches = tokens == 0 and any(one.is_searching() for one in self._requests.values())
        plan.preempted = self._preempted()
        self._forget_after_restart()
        if self._follow_tables(output) and self._may_store:
            with self._guard("stores"):
                self._plan_stores(output, plan, now)
        if self._hints is not None:
            self._hints.poll()
        return plan

    def _follow_tables(self, output: Any) -> bool:
        with self._guard("stores"):
            self._tables.update(output)
            return True
        # Blocks would be stored from wrong places.
        for state in self._requests.values():
            state.offered = _NEVER
        return False

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
        state.offered, state.searched, state.verify = 0, False, (0, 0)
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
                with self._guard("stores"):
                    self._offer(state, plan, table, limit, now)

    def _offer(
        self, state: Tracked, plan: StepPlan, table: List[int], limit: int, now: float
    ) -> None:
        transient = None
        if self._hints is not None:
            known, transient = self._hints.transient(state.request) or (limit, None)
            limit = min(limit, known)
            if limit <= state.offered:
                return
        jobs = self._stores.plan(
            *(state.request, table, state.offered, limit),
            transient=transient,
            now=now,
            verify=state.verify,
        )
        state.offered = limit
        state.jobs.update(job.job for job in jobs)
        plan.stores.extend(jobs)

    def reported(
        self, report: Optional[StepReport], received: Set[str], invalid: Set[int]
    ) -> None:
        """The workers' results of a step."""
        self._rate.step_ended(self._clock())
        with self._guard("reports"):
            for job, failed in self._stores.report(report, self._clock()) if report else []:
                self._stored(job, failed)
        self._restores.reported(report, invalid)
        for name in received:
            state = self._requests.get(name)
            with self._guard("reports"):
                self._stores.learn(self._restores.received(name, state), self._clock())
            if state is not None and state.load is None and state.ended:
                self._settle(state)

    def _stored(self, job: StoreJob, failed: List[int]) -> None:
        state = self._requests.get(job.request)
        if state is None:
            return
        state.jobs.discard(job.job)
        with self._guard("reports"):
            self._failed(state, job, failed)
        if state.ended and not state.jobs:
            self._settle(state)
        elif self._hints is not None:
            self._hints.stored(job, state.offered, not state.jobs)

    def _failed(self, state: Tracked, job: StoreJob, failed: List[int]) -> None:
        """Offers blocks that are not stored again, or ends their announcement."""
        may_retry = state.offered != _NEVER and state.retries < _STORE_RETRIES
        if failed and may_retry and not state.ended and self.store.connected:
            state.retries += 1
            state.offered = min(state.offered, job.first + failed[0])
        elif failed and self._handoff is not None:
            gone = [job.keys[i] for i in failed if job.first + i < state.offered]
            self._handoff.dropped(job.request, gone)

    def reset(self) -> bool:
        """vLLM's weights may have changed: from now on blocks have keys of this start alone."""
        self._keys.renew()
        self._stores.forget()
        for state in self._requests.values():
            # The blocks of running requests may mix old and new weights.
            state.offered = _NEVER
            if state.load is None:
                with self._guard("lookup"):
                    self._restores.drop(state)
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
