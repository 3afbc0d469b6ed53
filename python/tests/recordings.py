"""Recorded calls of real engines, and what a recording contains.

``./dev test:engines --engine NAME --record FILE`` writes a recording and runs this program on it:
``python -m tests.recordings NAME FILE`` prints how often each feature occurs.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Dict, List

FIXTURES = Path(__file__).parent / "fixtures"
FILES = {
    "vllm": FIXTURES / "vllm-0.32-calls.jsonl.gz",
    "sglang": FIXTURES / "sglang-0.5.23-calls.jsonl.gz",
    "lmcache": FIXTURES / "lmcache-0.5.6-calls.jsonl.gz",
}
Lines = List[Dict[str, Any]]


def read(path: Path) -> Lines:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    return [json.loads(line) for line in text.decode("utf-8").splitlines()]


def _requests(lines: Lines) -> Lines:
    """The last form of each request of vLLM."""
    found = {}
    for line in lines:
        for one in line["args"]:
            if isinstance(one, dict) and "request_id" in one:
                found[one["request_id"]] = one
    return list(found.values())


def _chunked(lines: Lines) -> int:
    """Steps that compute a part of a prompt and not its end."""
    prompts: Dict[str, int] = {}
    count = 0
    for line in lines:
        if line["call"] == "added":
            prompts[line["args"][0]["request_id"]] = line["args"][0]["num_prompt_tokens"]
        elif line["call"] == "step":
            output = line["args"][0]
            for name, before in output["new"] + output["cached"]:
                count += before + output["scheduled"][name] < prompts[name]
    return count


def _vllm(lines: Lines) -> Dict[str, int]:
    requests = _requests(lines)
    parts = Counter(one["request_id"].split("_", 1)[-1] for one in requests)
    calls = Counter(line["call"] for line in lines)
    loaded = [line for line in lines if line["call"] == "allocated" and line["args"][2] > 0]
    return {
        "n > 1": sum(count > 1 for count in parts.values()),
        "cache salt": sum(one["cache_salt"] is not None for one in requests),
        "preemption": sum(one["num_preemptions"] > 0 for one in requests),
        "abort": sum(one["status"] == "FINISHED_ABORTED" for one in requests),
        "chunked prefill": _chunked(lines),
        "reset": calls["reset"],
        "load": len(loaded),
    }


def _sglang(lines: Lines) -> Dict[str, int]:
    calls = Counter(line["call"] for line in lines)
    found = [line["result"] for line in lines if line["call"] == "batch_exists"]
    return {
        "lookups that find pages": sum(pages > 0 for pages in found),
        "lookups that find none": sum(pages == 0 for pages in found),
        "load": calls["batch_get_v1"],
        "store": calls["batch_set_v1"],
    }


def _lmcache(lines: Lines) -> Dict[str, int]:
    calls = Counter(line["call"] for line in lines)
    found = [line["result"] for line in lines if line["call"] == "looked_up"]
    return {
        "lookups that find objects": sum(bool(one) for one in found),
        "lookups that find none": sum(not one for one in found),
        **{name: calls[name] for name in ("store", "load", "unlock")},
    }


FEATURES: Dict[str, Callable[[Lines], Dict[str, int]]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "lmcache": _lmcache,
}

if __name__ == "__main__":
    print(json.dumps(FEATURES[sys.argv[1]](read(Path(sys.argv[2])))))
