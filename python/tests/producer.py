"""A prefill engine in a process of its own, which announces blocks and never stores them.

Arguments: the agent's socket, and the blocks' keys in hexadecimal.
"""

from __future__ import annotations

import sys
from typing import List

from hearth_vllm.settings import Settings

from .vllm_engine import Engine, Prompt


def main(path: str, keys: List[bytes]) -> None:
    # The announcements outlive the test; heartbeats come four times in two seconds.
    engine = Engine(path, Settings(announce_ms=60_000, stall_ms=2_000))
    prompt = Prompt("p", keys, kv_transfer_params={"do_remote_decode": True})
    engine.scheduler.added(prompt)
    print("announced", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], [bytes.fromhex(key) for key in sys.argv[2:]])
