"""Figures of a KvStore as counters for an engine's own metrics."""

from __future__ import annotations

from typing import Dict, Mapping, NamedTuple, Tuple

from .stats import Stats


class Figure(NamedTuple):
    """A counter. ``label`` names its one label; "" if it has none."""

    name: str
    label: str
    text: str


FIGURES = (
    Figure("lookups", "", "Lookups sent to the agent."),
    Figure("hits", "", "Lookups that found at least one block."),
    Figure("hit_blocks", "", "Leading blocks that lookups found."),
    Figure("loaded_blocks", "", "Blocks loaded and verified."),
    Figure("loaded_bytes", "", "Bytes loaded and verified."),
    Figure("load_seconds", "", "Time spent in loads."),
    Figure("stored_blocks", "", "Blocks stored."),
    Figure("stored_bytes", "", "Bytes stored."),
    Figure("store_seconds", "", "Time spent in stores."),
    Figure("wait_seconds", "", "Time that calls waited for the agent."),
    Figure("failures", "reason", "Blocks and requests that did not succeed, by reason."),
    Figure("hint_blocks", "outcome", "Blocks of KV hints, by final outcome."),
)

#: Name and value of the label; the value is "" for counters without one.
Totals = Dict[Tuple[str, str], float]


def totals(stats: Stats, outcomes: Mapping[str, float]) -> Totals:
    """All counters that are not zero since the store was made. ``outcomes``: of KV hints."""
    found: Totals = {
        ("lookups", ""): stats.lookups,
        ("hits", ""): stats.hits,
        ("hit_blocks", ""): stats.hit_blocks,
        ("loaded_blocks", ""): stats.got_blocks,
        ("loaded_bytes", ""): stats.got_bytes,
        ("load_seconds", ""): stats.got_seconds,
        ("stored_blocks", ""): stats.put_blocks,
        ("stored_bytes", ""): stats.put_bytes,
        ("store_seconds", ""): stats.put_seconds,
        ("wait_seconds", ""): stats.wait_seconds,
    }
    found.update({("failures", reason): count for reason, count in dict(stats.failures).items()})
    found.update({("hint_blocks", outcome): count for outcome, count in dict(outcomes).items()})
    return {key: value for key, value in found.items() if value}
