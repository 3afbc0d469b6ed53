"""Counters in LMCache's own metrics: OpenTelemetry, to its Prometheus endpoint or its collector."""

from __future__ import annotations

from typing import Any, List, Tuple
from weakref import WeakSet

from hearth_client.figures import FIGURES, Figure, Totals, totals

PREFIX = "hearth_lmcache."

#: The adapters of this process; a process makes each counter once.
_adapters: "WeakSet[Any]" = WeakSet()
_is_registered = False


def register(adapter: Any) -> None:
    """Counts an adapter, which has ``store`` and ``settings``, as long as it exists."""
    global _is_registered
    _adapters.add(adapter)
    if _is_registered:
        return
    _is_registered = True
    try:
        from opentelemetry import metrics
    except ImportError:
        return
    meter = metrics.get_meter("hearth.lmcache")
    for figure in FIGURES:
        if figure.name != "hint_blocks":  # LMCache carries no hints.
            name, observe = PREFIX + figure.name, _observer(figure, metrics.Observation)
            meter.create_observable_counter(name, callbacks=[observe], description=figure.text)


def _observer(figure: Figure, observation: Any) -> Any:
    def observe(_options: Any) -> List[Any]:
        return [
            observation(value, {"adapter": name, **({figure.label: label} if label else {})})
            for name, found in figures()
            for (counter, label), value in found.items()
            if counter == figure.name
        ]

    return observe


def figures() -> List[Tuple[str, Totals]]:
    """Name and counters of each adapter that is open."""
    return [(one.settings.name, totals(one.store.stats, {})) for one in list(_adapters)]


def forget(adapter: Any) -> None:
    _adapters.discard(adapter)
