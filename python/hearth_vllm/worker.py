"""The worker's side: threads that load and store blocks while vLLM computes.

No import of vLLM or torch. `memory` is whatever the store copies from and to.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from hearth_client import Outcome

from .hints import engine_hash
from .metrics import Stats
from .plan import LoadJob, StepPlan, StepReport, StoreJob
from .settings import Settings
from .verify import Difference, Verifier

_STORED = (Outcome.OK, Outcome.PRESENT, Outcome.PENDING)
#: A step without computation waits this long for news, so that vLLM does not spin and take the
#: processor time that the agent needs to answer.
_IDLE_WAIT_S = 0.002


class _Store:
    """A store job in the queue or in progress."""

    __slots__ = ("event", "job", "stopped")

    def __init__(self, job: StoreJob, event: Any) -> None:
        self.job = job
        self.event = event
        self.stopped = False


class EngineWorker:
    """Transfers of one rank. vLLM's worker thread calls all public methods."""

    def __init__(
        self,
        settings: Settings,
        store: Any,
        memory: Any,
        *,
        blocks: int,
        stores: bool = True,
        marker: Optional[Callable[[], Any]] = None,
        difference: Optional[Difference] = None,
        logger: Optional[logging.Logger] = None,
    ) -> None:
        self._store = store
        self._memory = memory
        self._stores_blocks = stores
        #: Makes an event that orders a transfer behind the work vLLM has submitted so far.
        self._marker = marker or (lambda: None)
        self._logger = logger or logging.getLogger("hearth_vllm")
        self._backlog_max = settings.store_backlog_blocks or max(64, blocks)
        self.stats = Stats()
        self._verifier = None
        if difference is not None:
            self._verifier = Verifier(store, memory, difference, self.stats, self._logger)
        self._changed = threading.Condition()
        self._loading: Dict[str, LoadJob] = {}
        self._received: Set[str] = set()
        self._errors: Set[int] = set()
        self._saving: Dict[str, List[_Store]] = {}
        self._backlog = 0
        self._delayed: Set[str] = set()
        self._report = StepReport()
        self._loads: "queue.Queue[Optional[Tuple[LoadJob, Any, float]]]" = queue.Queue()
        self._saves: "queue.Queue[Optional[_Store]]" = queue.Queue()
        self._threads = [
            self._start("hearth-load", self._load_loop) for _ in range(settings.load_threads)
        ] + [self._start("hearth-store", self._store_loop) for _ in range(settings.store_threads)]

    def _start(self, name: str, target: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread

    # vLLM's thread

    def start_loads(self, plan: StepPlan) -> None:
        """Begins the loads of a step."""
        if not plan.loads:
            return
        event = self._marker()
        with self._changed:
            for job in plan.loads:
                self._loading[job.request] = job
        for job in plan.loads:
            self._loads.put((job, event, time.monotonic()))

    def start_stores(self, plan: StepPlan) -> None:
        """Begins the stores of a step; called after its forward pass was submitted."""
        if not plan.stores:
            return
        event = self._marker() if self._stores_blocks else None
        with self._changed:
            for job in plan.stores:
                if not self._stores_blocks:
                    self._report.add(job.job, [])
                elif self._backlog + len(job.keys) > self._backlog_max:
                    self.stats.count("store_blocks", "backlog", len(job.keys))
                    self._report.add(job.job, list(range(len(job.keys))))
                else:
                    self._backlog += len(job.keys)
                    save = _Store(job, event)
                    self._saving.setdefault(job.request, []).append(save)
                    self._saves.put(save)
            self.stats.gauge("store_backlog_blocks", self._backlog)

    def preempt(self, plan: StepPlan) -> None:
        """Stops the stores of preempted requests before vLLM overwrites their blocks.

        Does not wait: the store drops a copy that had not ended before.
        """
        with self._changed:
            for name in plan.preempted:
                for save in self._saving.get(name, ()):
                    save.stopped = True

    def finished(self, plan: StepPlan) -> Tuple[Set[str], Set[str]]:
        """Requests whose stores, and whose loads, ended since the last call."""
        with self._changed:
            self._delayed.update(plan.delayed)
            if not plan.computes and (self._loading or self._delayed or plan.searches):
                self._changed.wait_for(self._has_news, timeout=_IDLE_WAIT_S)
            sent = {name for name in self._delayed if not self._saving.get(name)}
            self._delayed -= sent
            received, self._received = self._received, set()
            return sent, received

    def _has_news(self) -> bool:
        done = any(not self._saving.get(name) for name in self._delayed)
        return done or bool(self._received)

    def errors(self) -> Set[int]:
        """Blocks that did not load since the last call."""
        with self._changed:
            errors, self._errors = self._errors, set()
            return errors

    def report(self) -> Optional[StepReport]:
        """Store jobs that ended since the last call."""
        with self._changed:
            if not (self._report.stored or self._report.loaded):
                return None
            report, self._report = self._report, StepReport()
            return report

    def close(self, timeout: float = 2.0) -> None:
        """Ends the threads; stores that have not begun are dropped."""
        with self._changed:
            for saves in self._saving.values():
                for save in saves:
                    save.stopped = True
        for thread in self._threads:
            (self._loads if thread.name == "hearth-load" else self._saves).put(None)
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._store.close()

    # Transfer threads

    def _load_loop(self) -> None:
        while True:
            entry = self._loads.get()
            if entry is None:
                return
            job, event, started = entry
            good = 0
            try:
                good = self._load(job, event, started)
            except Exception:
                self._logger.exception("load failed, vLLM recomputes the blocks")
                self.stats.count("load_failures", "error", len(job.keys))
            with self._changed:
                self._errors.update(job.block_ids[good:])
                self._received.add(job.request)
                self._report.loaded[job.request] = time.monotonic() - started
                self._loading.pop(job.request, None)
                self._changed.notify_all()

    def _load(self, job: LoadJob, event: Any, started: float) -> int:
        """Number of leading blocks that are loaded and verified; `started`: when it was queued."""
        if event is not None:
            event.synchronize()
        begun = time.monotonic()
        deadline_ms = job.deadline_ms
        if deadline_ms > 0:
            deadline_ms -= int(1000 * (begun - started))
            if deadline_ms <= 0:
                self.stats.count("load_failures", "late", len(job.keys))
                return 0
        outcomes = self._store.get(
            job.keys, self._memory, job.block_ids, deadline_ms=deadline_ms
        )
        good = 0
        while good < len(outcomes) and outcomes[good] == Outcome.OK:
            good += 1
        for outcome in outcomes[good:]:
            reason = "behind" if outcome == Outcome.OK else Outcome(outcome).name.lower()
            self.stats.count("load_failures", reason)
        self.stats.count("loaded_bytes", "", good * self._memory.block_bytes)
        self.stats.count("copy_seconds", "load", time.monotonic() - begun)
        return good

    def _store_loop(self) -> None:
        while True:
            save = self._saves.get()
            if save is None:
                return
            failed = list(range(len(save.job.keys)))
            try:
                failed = self._save(save)
            except Exception:
                self._logger.exception("store failed, the blocks stay in vLLM only")
                self.stats.count("store_blocks", "error", len(save.job.keys))
            with self._changed:
                self._report.add(save.job.job, failed)
                self._backlog -= len(save.job.keys)
                left = self._saving.get(save.job.request, [])
                left.remove(save)
                if not left:
                    self._saving.pop(save.job.request, None)
                self._changed.notify_all()

    def _save(self, save: _Store) -> List[int]:
        """Indexes of the job's blocks that are not stored."""
        if save.event is not None and not save.stopped:
            save.event.synchronize()
        job, failed = save.job, []
        if job.verify and self._verifier is not None:
            self._verifier.check(job.keys, job.block_ids, lambda: save.stopped)
        begun, stored = time.monotonic(), 0
        outcomes = self._store.put(
            job.keys,
            job.parents(),
            self._memory,
            job.block_ids,
            aliases=[engine_hash(key) for key in job.keys],
            transient=job.transient,
            should_stop=lambda: save.stopped,
        )
        for index, outcome in enumerate(outcomes):
            is_dropped = save.stopped and outcome == Outcome.SKIPPED
            self.stats.count(
                "store_blocks", "preempted" if is_dropped else Outcome(outcome).name.lower()
            )
            stored += outcome == Outcome.OK
            if outcome not in _STORED:
                failed.append(index)
        self.stats.count("stored_bytes", "", stored * self._memory.block_bytes)
        self.stats.count("copy_seconds", "store", time.monotonic() - begun)
        return failed
