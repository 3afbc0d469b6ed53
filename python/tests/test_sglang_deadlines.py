"""Time limits of hearth_sglang's reads, with a running agent, whose socket HEARTH_SOCKET names."""

from __future__ import annotations

import time
import unittest
from typing import Any, List

from . import engine_stand_ins as stand_ins

stand_ins.install()

from hearth_sglang.storage import HearthStorage  # noqa: E402
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer  # noqa: E402

from .test_sglang_agent import (  # noqa: E402
    SOCKET,
    STALL_MS,
    FlatPool,
    OfABackend,
    Tensor,
    until,
)


@unittest.skipUnless(SOCKET, "HEARTH_SOCKET does not name a running agent's socket")
class Deadlines(OfABackend):
    """Each read has a limit in total: the time that SGLang takes to compute its pages."""

    socket = SOCKET

    def given(self, read: Any, **extra: Any) -> List[int]:
        """The limits that ``read`` passes, of a server that computes one token a second."""
        pool = stand_ins.HostMemoryPool(pages=100)
        storage = self.backend(pool, extra={"recompute_tokens_per_second": 1, **extra})
        until(lambda: storage.store is not None and storage.store.connected)
        limits: List[int] = []
        for name in ("get", "get_pieces"):
            call = getattr(storage.store, name)

            def note(*words: Any, call: Any = call, **options: Any) -> Any:
                limits.append(options["deadline_ms"])
                found = call(*words, **options)
                # A later read of the same call has less time left, in whole milliseconds.
                time.sleep(0.002)
                return found

            setattr(storage.store, name, note)
        read(storage)
        return limits

    def pages(self, count: int) -> Any:
        return (self.names(count), stand_ins.indices_of(stand_ins.HostMemoryPool(), range(count)))

    def test_it_grows_with_the_tokens_of_the_pages(self) -> None:
        self.assertEqual(self.given(lambda one: one.batch_get_v1(*self.pages(100))), [400_000])

    def test_it_is_at_least_the_time_after_which_a_hung_agent_is_noticed(self) -> None:
        self.assertEqual(self.given(lambda one: one.batch_get_v1(*self.pages(1))), [STALL_MS])

    def test_it_can_be_configured(self) -> None:
        read = lambda one: one.batch_get_v1(*self.pages(100))  # noqa: E731
        self.assertEqual(self.given(read, load_deadline_ms=70), [70])

    def test_reads_of_tensors_have_one(self) -> None:
        def read(storage: HearthStorage) -> None:
            storage.batch_get(self.names(100), [Tensor(bytes(64)) for _ in range(100)])

        self.assertEqual(self.given(read), [400_000])

    def test_the_pools_of_one_call_have_one_together(self) -> None:
        def read(storage: HearthStorage) -> None:
            states = FlatPool(pages=100, page_size=1)
            storage.register_mem_host_pool_v2(states, PoolName.MAMBA)
            names, indices = self.pages(100)
            state = stand_ins.Indices(range(100))
            storage.batch_get_v2(
                [
                    PoolTransfer(PoolName.KV, host_indices=indices, keys=names),
                    PoolTransfer(PoolName.MAMBA, host_indices=state, keys=names),
                ]
            )

        first, second = self.given(read)
        self.assertLessEqual(first, 400_000)
        self.assertLess(second, first)


if __name__ == "__main__":
    unittest.main()
