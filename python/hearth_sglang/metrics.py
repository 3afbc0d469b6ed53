"""Counters in SGLang's own Prometheus endpoint (``--enable-metrics``).

SGLang serves what all its processes wrote to ``PROMETHEUS_MULTIPROC_DIR``, so a counter of
``prometheus_client`` that is made in a scheduler process appears there.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping

from hearth_client.figures import FIGURES, Totals, totals
from hearth_client.stats import Stats

PREFIX = "sglang:hearth_"

#: By name; a process may make each counter once. None: prometheus_client is not installed.
_counters: Dict[str, Any] = {}


class Metrics:
    """Counters of one store."""

    def __init__(self, rank: str) -> None:
        self._rank = rank
        self._exported: Totals = {}

    def export(self, stats: Stats, outcomes: Mapping[str, float]) -> None:
        """Adds the increments since the last call to SGLang's endpoint."""
        now = totals(stats, outcomes)
        for (name, value), total in now.items():
            counter = _counter(name)
            if counter is not None:
                labels = [self._rank, value] if value else [self._rank]
                counter.labels(*labels).inc(total - self._exported.get((name, value), 0))
        self._exported = now


def _counter(name: str) -> Any:
    if name not in _counters:
        (figure,) = [one for one in FIGURES if one.name == name]
        labels = ["rank", figure.label] if figure.label else ["rank"]
        try:
            # Not before: it takes the folder from the environment when it is imported.
            from prometheus_client import Counter
        except ImportError:
            _counters[name] = None
        else:
            _counters[name] = Counter(PREFIX + name, figure.text, labels)
    return _counters[name]
