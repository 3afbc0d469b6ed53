"""The Python client of `hearth bench engine --client python`, and Redis beside it.

Standard input: one line of JSON with the sockets, then one line for each run: what to measure.
Standard output: one line of JSON for each, with the bytes moved and the seconds it took.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from hearth_client import Manifest, Outcome
from hearth_client.kv_store import KvStore
from hearth_client.memory import PagedMemory, Region
from hearth_client.native import NATIVE

#: Blocks of one large run, as in the TypeScript client's, and distinct blocks they are put from.
_LARGE_BLOCKS = 128
_LARGE_SOURCES = 16
_LARGE_AT_ONCE = 64
#: Small blocks in one call, and calls in one run.
_BATCH = 64
_BATCHES = 64
#: The last batches of blocks put, which gets read in turn.
_READ_BATCHES = 2
#: Keys that Redis has: as many blocks as the agent's arena.
_REDIS_KEYS = 256
_NOISE_BYTES = 65_536

Run = Callable[[], int]


class Space:
    """Page-aligned memory of its own, filled with noise: equal pages would copy at cache speed."""

    def __init__(self, blocks: int, block_bytes: int) -> None:
        size = blocks * block_bytes
        self._own = ctypes.create_string_buffer(size + 4096)
        self.base = (ctypes.addressof(self._own) + 4095) // 4096 * 4096
        noise = os.urandom(_NOISE_BYTES)
        for at in range(0, size, _NOISE_BYTES):
            ctypes.memmove(self.base + at, noise, min(_NOISE_BYTES, size - at))
            # No two pages are equal.
            ctypes.memmove(self.base + at, at.to_bytes(8, "little"), 8)
        self.memory = PagedMemory([Region(self.base, block_bytes, block_bytes)], self._own)
        self.block_bytes = block_bytes

    def view(self, block: int) -> memoryview:
        address = self.base + block * self.block_bytes
        return memoryview((ctypes.c_char * self.block_bytes).from_address(address)).cast("B")


class Blocks:
    """Puts and gets of one store; each put has new keys."""

    def __init__(self, socket: str, block_bytes: int, sources: int, targets: int) -> None:
        manifest = Manifest("bench-python", "pattern", "hearth:bench", 64)
        self._store = KvStore(manifest, socket=socket, stall_ms=10_000, name="bench-python")
        self._source = Space(sources, block_bytes)
        self._target = Space(targets, block_bytes)
        self._last: List[List[bytes]] = []
        self._next = 0
        self.sources = sources
        self.targets = targets
        self.block_bytes = block_bytes

    def _new_keys(self, count: int) -> List[bytes]:
        first, self._next = self._next, self._next + count
        return [(first + i).to_bytes(16, "little") for i in range(count)]

    def put(self, blocks: int, calls: int) -> int:
        ids = [i % self.sources for i in range(blocks)]
        no_parents: List[Optional[bytes]] = [None] * blocks
        for _ in range(calls):
            keys = self._new_keys(blocks)
            outcomes = self._store.put(keys, no_parents, self._source.memory, ids)
            _all_ok("put", outcomes)
            self._last = [*self._last[1 - _READ_BATCHES :], keys]
        return calls * blocks * self.block_bytes

    def get(self, keys: Sequence[Sequence[bytes]], calls: int) -> int:
        moved = 0
        for call in range(calls):
            some = keys[call % len(keys)]
            ids = [i % self.targets for i in range(len(some))]
            _all_ok("get", self._store.get(some, self._target.memory, ids))
            moved += len(some) * self.block_bytes
        return moved

    def keep_resident(self, blocks: int) -> List[bytes]:
        keys = self._new_keys(blocks)
        ids = [i % self.sources for i in range(blocks)]
        _all_ok("put", self._store.put(keys, [None] * blocks, self._source.memory, ids))
        return keys

    def last(self) -> List[List[bytes]]:
        return self._last

    def close(self) -> None:
        self._store.close()


def _all_ok(what: str, outcomes: Sequence[Outcome]) -> None:
    if any(outcome != Outcome.OK for outcome in outcomes):
        names = sorted({Outcome(outcome).name for outcome in outcomes})
        raise RuntimeError(f"{what}: {', '.join(names)}; expected OK for {len(outcomes)} blocks")


class Redis:
    """As many keys as the agent has blocks, through redis-py and hiredis over a Unix socket.

    Blocks come from the caller's memory and end in it, as the agent's do.
    """

    def __init__(self, socket: str, block_bytes: int) -> None:
        import hiredis  # noqa: F401 - redis-py uses it if it is there
        import redis

        self._redis = redis.Redis(unix_socket_path=socket)
        self._redis.ping()
        self._source = Space(_BATCH, block_bytes)
        self._views = [self._source.view(block) for block in range(_BATCH)]
        self._target = Space(_BATCH, block_bytes)
        self._block_bytes = block_bytes
        self._next = 0

    def _batch(self, first: int) -> List[str]:
        return [f"block-{(first + i) % _REDIS_KEYS}" for i in range(_BATCH)]

    def put(self) -> int:
        """One pipeline of SETs a batch: four times as fast as MSET."""
        for _ in range(_BATCHES):
            pipeline = self._redis.pipeline(transaction=False)
            for key, view in zip(self._batch(self._next), self._views):
                pipeline.set(key, view)
            pipeline.execute()
            self._next += _BATCH
        return _BATCHES * _BATCH * self._block_bytes

    def get(self) -> int:
        moved = 0
        for batch in range(_BATCHES):
            keys = self._batch(self._next - _BATCH * (1 + batch % _READ_BATCHES))
            for block, value in enumerate(self._redis.mget(keys)):
                ctypes.memmove(self._target.base + block * self._block_bytes, value, len(value))
                moved += len(value)
        return moved


def _redis(socket: Optional[str], block_bytes: int) -> Tuple[Optional[Redis], Optional[str]]:
    """The client, or why there is none."""
    if socket is None:
        return None, None
    try:
        return Redis(socket, block_bytes), None
    except ImportError as error:
        return None, f"{sys.executable} has no module {error.name}"


def _runs(plan: Dict[str, Any]) -> Tuple[Dict[str, Run], Dict[str, Any]]:
    large_bytes, small_bytes = plan["large_bytes"], plan["small_bytes"]
    # As in the TypeScript client's runs, all blocks go to one buffer, as to a staging buffer.
    large = Blocks(plan["large_socket"], large_bytes, _LARGE_SOURCES, 1)
    resident = large.keep_resident(_LARGE_AT_ONCE)
    small = Blocks(plan["small_socket"], small_bytes, _BATCH, _BATCH)
    gets = _LARGE_BLOCKS // _LARGE_AT_ONCE
    runs: Dict[str, Run] = {
        "large put": lambda: large.put(_LARGE_BLOCKS, 1),
        "large get": lambda: large.get([resident], gets),
        "small put": lambda: small.put(_BATCH, _BATCHES),
        "small get": lambda: small.get(small.last(), _BATCHES),
    }
    redis, why = _redis(plan["redis_socket"], small_bytes)
    if redis is not None:
        runs["redis put"], runs["redis get"] = redis.put, redis.get
    about = {
        "python": platform.python_version(),
        "native": NATIVE is not None,
        "redis": redis is not None,
        "why": why,
    }
    return runs, about


def main() -> None:
    runs, about = _runs(json.loads(sys.stdin.readline()))
    print(json.dumps(about), flush=True)
    for line in sys.stdin:
        run = runs[line.strip()]
        began = time.perf_counter()
        moved = run()
        print(json.dumps({"bytes": moved, "seconds": time.perf_counter() - began}), flush=True)


if __name__ == "__main__":
    main()
