"""Hearth's figures at vLLM's own Prometheus endpoint. Imports vLLM."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from prometheus_client import Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

from .metrics import BUCKETS, METRICS, labels_of, merge, summary

PREFIX = "vllm:hearth_"


class HearthStats(KVConnectorStats):
    """Figures of one interval; `data` is the payload of metrics.Stats."""

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        merge(self.data, other.data)
        return self

    def reduce(self) -> Dict[str, Any]:
        return summary(self.data)

    def is_empty(self) -> bool:
        return not any(self.data.values())


class HearthPromMetrics(KVConnectorPromMetrics):
    """Creates each metric once per engine and label, and adds the intervals."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Dict[Any, Any],
        labelnames: List[str],
        per_engine_labelvalues: Dict[int, List[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        kinds = {
            "counter": metric_types[Counter],
            "gauge": metric_types[Gauge],
            "histogram": metric_types[Histogram],
        }
        self._metrics: Dict[str, Any] = {}
        for name, metric in METRICS.items():
            arguments: Dict[str, Any] = {
                "name": PREFIX + name,
                "documentation": metric.text,
                "labelnames": [*labelnames, *labels_of(name)],
            }
            if metric.kind == "histogram":
                arguments["buckets"] = BUCKETS
            self._metrics[name] = kinds[metric.kind](**arguments)

    def _child(self, name: str, engine: int, label: Optional[str] = None) -> Any:
        values = list(self.per_engine_labelvalues[engine])
        if labels_of(name):
            values.append(label or "")
        return self._metrics[name].labels(*values)

    def observe(self, transfer_stats_data: Dict[str, Any], engine_idx: int = 0) -> None:
        for name, labels in transfer_stats_data.get("counters", {}).items():
            for label, amount in labels.items():
                if name in self._metrics:
                    self._child(name, engine_idx, label).inc(amount)
        for name, values in transfer_stats_data.get("histograms", {}).items():
            for value in values if name in self._metrics else ():
                self._child(name, engine_idx).observe(value)
        for name, value in transfer_stats_data.get("gauges", {}).items():
            if name in self._metrics:
                self._child(name, engine_idx).set(value)
