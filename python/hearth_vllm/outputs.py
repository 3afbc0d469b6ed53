"""Reads vLLM's scheduler output, for the releases that the connector supports."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple


def computed_before(output: Any) -> List[Tuple[str, int]]:
    """Scheduled requests with the tokens computed before the step."""
    new = [(request.req_id, request.num_computed_tokens) for request in output.scheduled_new_reqs]
    cached = output.scheduled_cached_reqs
    return new + list(zip(cached.req_ids, cached.num_computed_tokens))


class BlockTables:
    """Block ids of running requests: vLLM's own table, or one kept from its increments."""

    def __init__(self) -> None:
        self._tables: Dict[str, List[int]] = {}

    def update(self, output: Any) -> None:
        """Follows the increments of releases that do not hand over the table (before 0.32)."""
        if getattr(output, "kv_connector_block_state", None) is not None:
            return
        for request in output.scheduled_new_reqs:
            self._tables[request.req_id] = list(request.block_ids[0])
        cached = output.scheduled_cached_reqs
        resumed = getattr(cached, "resumed_req_ids", None)
        if resumed is None:
            flags = getattr(cached, "resumed_from_preemption", [False] * len(cached.req_ids))
            resumed = {name for name, flag in zip(cached.req_ids, flags) if flag}
        for name, blocks in zip(cached.req_ids, cached.new_block_ids):
            if blocks is None:
                continue
            if name in resumed:
                self._tables[name] = list(blocks[0])
            else:
                self._tables.setdefault(name, []).extend(blocks[0])

    def get(self, output: Any, name: str) -> Optional[List[int]]:
        """All block ids of a scheduled request; None if vLLM does not say."""
        state = getattr(output, "kv_connector_block_state", None)
        if state is None:
            return self._tables.get(name)
        table = state.get_block_ids(name)
        return None if table is None else list(table[0])

    def drop(self, name: str) -> None:
        self._tables.pop(name, None)
