"""Figures of the connector, as plain data that vLLM carries to its Prometheus endpoint."""

from __future__ import annotations

import threading
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

#: Values of one histogram that are kept between two reports.
_VALUES_MAX = 4096


class Metric(NamedTuple):
    """`label` names the one label of a counter; "" if it has none."""

    kind: str
    label: str
    text: str


_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BUCKETS = _SECONDS

METRICS: Mapping[str, Metric] = {
    "lookups": Metric(
        "counter", "outcome", "Lookups by outcome: hit, miss, gone, stalled, slow or error."
    ),
    "lookup_blocks": Metric("counter", "state", "Blocks asked for, and blocks ready to load."),
    "load_blocks": Metric("counter", "state", "Blocks restored, and blocks that failed to load."),
    "loaded_bytes": Metric("counter", "", "Bytes loaded into the KV cache and verified."),
    "stored_bytes": Metric("counter", "", "Bytes stored in Hearth."),
    "store_blocks": Metric("counter", "outcome", "Blocks offered to Hearth, by outcome."),
    "load_failures": Metric("counter", "reason", "Blocks that did not load, by reason."),
    "errors": Metric("counter", "reason", "Exceptions in the connector, by the part that failed."),
    "verified_blocks": Metric(
        "counter", "outcome", "Sampled blocks: equal, mismatch, missing (in Hearth) or error."
    ),
    "hint_blocks": Metric("counter", "outcome", "Blocks of KV hints, by outcome."),
    "copy_seconds": Metric("counter", "direction", "Time the workers spent in loads and stores."),
    "lookup_seconds": Metric("histogram", "", "Time from the first question to the answer."),
    "load_seconds": Metric("histogram", "", "Time from allocation to the last loaded block."),
    "excess_wait_seconds": Metric(
        "histogram", "", "Time requests waited beyond the predicted time to recompute."
    ),
    "excess_wait_seconds_max": Metric("gauge", "", "Largest excess wait since the start."),
    "store_backlog_blocks": Metric("gauge", "", "Blocks that wait to be stored."),
}

Payload = Dict[str, Dict[str, Any]]


class Stats:
    """Counts since the last `take`; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: Dict[str, Dict[str, float]] = {}
        self._values: Dict[str, List[float]] = {}
        self._gauges: Dict[str, float] = {}
        self._highest: Dict[str, float] = {}

    def count(self, name: str, label: str = "", amount: float = 1) -> None:
        if amount == 0:
            return
        with self._lock:
            labels = self._counters.setdefault(name, {})
            labels[label] = labels.get(label, 0) + amount

    def observe(self, name: str, value: float) -> None:
        with self._lock:
            values = self._values.setdefault(name, [])
            if len(values) < _VALUES_MAX:
                values.append(value)

    def gauge(self, name: str, value: float) -> None:
        with self._lock:
            if self._highest.get(name) != value:
                self._highest[name] = self._gauges[name] = value

    def high_water(self, name: str, value: float) -> None:
        with self._lock:
            if value > self._highest.get(name, 0.0):
                self._highest[name] = self._gauges[name] = value

    def take(self) -> Optional[Payload]:
        """Increments since the last call; None if there are none."""
        with self._lock:
            if not (self._counters or self._values or self._gauges):
                return None
            taken: Payload = {
                "counters": self._counters,
                "histograms": self._values,
                "gauges": self._gauges,
            }
            self._counters, self._values, self._gauges = {}, {}, {}
            return taken


def merge(into: Payload, other: Payload) -> Payload:
    """Adds the figures of another process."""
    for name, labels in other.get("counters", {}).items():
        mine = into.setdefault("counters", {}).setdefault(name, {})
        for label, amount in labels.items():
            mine[label] = mine.get(label, 0) + amount
    for name, values in other.get("histograms", {}).items():
        into.setdefault("histograms", {}).setdefault(name, []).extend(values)
    for name, value in other.get("gauges", {}).items():
        gauges = into.setdefault("gauges", {})
        gauges[name] = max(value, gauges.get(name, 0.0))
    return into


def summary(payload: Payload) -> Dict[str, float]:
    """One flat line for vLLM's log."""
    line: Dict[str, float] = {}
    for name, labels in payload.get("counters", {}).items():
        for label, amount in labels.items():
            line[f"{name}.{label}" if label else name] = round(amount, 4)
    for name, values in payload.get("histograms", {}).items():
        line[f"{name}.count"] = len(values)
        line[f"{name}.max"] = round(max(values), 4) if values else 0.0
    return line


def labels_of(name: str) -> Tuple[str, ...]:
    """Label names of a metric."""
    label = METRICS[name].label
    return (label,) if label else ()
