"""Records the calls that vLLM's scheduler makes, for tests that replay them without vLLM."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, TextIO

VARIABLE = "HEARTH_VLLM_RECORD"
_CALLS = ("added", "match", "allocated", "step", "reported", "finished", "reset")


def recorder(scheduler: Any) -> Any:
    """The scheduler; with $HEARTH_VLLM_RECORD set, each call is also appended to that file."""
    path = os.environ.get(VARIABLE)
    return _Recorder(scheduler, open(path, "a", encoding="utf-8")) if path else scheduler


class _Recorder:
    def __init__(self, scheduler: Any, file: TextIO) -> None:
        self._scheduler = scheduler
        self._file = file
        #: Hashes that were written already, by request.
        self._written: Dict[str, int] = {}
        self._requests: Dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._scheduler, name)
        return self._recorded(name, value) if name in _CALLS else value

    def _recorded(self, name: str, call: Any) -> Any:
        def wrapped(*args: Any) -> Any:
            line: Dict[str, Any] = {"call": name, "args": [self._argument(one) for one in args]}
            result = call(*args)
            line["result"] = plain(result)
            self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
            self._file.flush()
            return result

        return wrapped

    def _argument(self, value: Any) -> Any:
        """As `plain`; each hash of a request is written once, when it is first seen."""
        written = plain(value)
        if hasattr(value, "block_hashes"):
            self._requests[value.request_id] = value
            written["block_hashes"] = self._new_hashes(value)
        elif hasattr(value, "scheduled_cached_reqs"):
            scheduled = [self._requests[name] for name in value.num_scheduled_tokens]
            written["hashes"] = {one.request_id: self._new_hashes(one) for one in scheduled}
        return written

    def _new_hashes(self, request: Any) -> List[Any]:
        before = self._written.get(request.request_id, 0)
        self._written[request.request_id] = len(request.block_hashes)
        return [before, [bytes(key).hex() for key in request.block_hashes[before:]]]


def plain(value: Any) -> Any:
    """A JSON form of requests, scheduler outputs, plans and reports."""
    if hasattr(value, "block_hashes"):
        return _request(value)
    if hasattr(value, "scheduled_cached_reqs"):
        return _output(value)
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(plain(one) for one in value)
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _request(request: Any) -> Dict[str, Any]:
    return {
        "request_id": request.request_id,
        "block_hashes": [bytes(key).hex() for key in request.block_hashes],
        "num_tokens": request.num_tokens,
        "num_prompt_tokens": request.num_prompt_tokens,
        "num_preemptions": getattr(request, "num_preemptions", 0),
        "skip_reading_prefix_cache": bool(getattr(request, "skip_reading_prefix_cache", False)),
        "kv_transfer_params": plain(getattr(request, "kv_transfer_params", None)),
        "cache_salt": getattr(request, "cache_salt", None),
        "status": getattr(getattr(request, "status", None), "name", ""),
    }


def _output(output: Any) -> Dict[str, Any]:
    cached = output.scheduled_cached_reqs
    tables: Dict[str, List[int]] = {}
    state = getattr(output, "kv_connector_block_state", None)
    for name in output.num_scheduled_tokens if state is not None else ():
        table = state.get_block_ids(name)
        if table is not None:
            tables[name] = list(table[0])
    return {
        "new": [[one.req_id, one.num_computed_tokens] for one in output.scheduled_new_reqs],
        "cached": [list(pair) for pair in zip(cached.req_ids, cached.num_computed_tokens)],
        "scheduled": dict(output.num_scheduled_tokens),
        "total": output.total_num_scheduled_tokens,
        "tables": tables,
    }
