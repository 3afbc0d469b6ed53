"""hearth_sglang and a running agent, whose socket HEARTH_SOCKET names."""

from __future__ import annotations

import logging
import os
import tempfile
import time
import unittest
from hashlib import sha256
from types import SimpleNamespace
from typing import Any, Dict, List, Optional

from . import engine_stand_ins as stand_ins
from . import recordings

stand_ins.install()

from hearth_sglang import metrics  # noqa: E402
from hearth_sglang.storage import HearthStorage  # noqa: E402
from sglang.srt.mem_cache.hicache_storage import (  # noqa: E402
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)

SOCKET = os.environ.get("HEARTH_SOCKET", "")
HANG_SECONDS = 60.0
#: A busy host may not run the agent for a while: no test is about that.
STALL_MS = 60_000
#: Extra info of calls whose pages begin a prompt.
START = SimpleNamespace(prefix_keys=[])


def until(condition: Any) -> None:
    limit = time.monotonic() + HANG_SECONDS
    while not condition():
        if time.monotonic() > limit:
            raise TimeoutError("the condition did not come true")
        time.sleep(0.01)


class Tensor:
    """The members of a tensor that the first interface uses: contiguous bytes."""

    def __init__(self, data: bytes) -> None:
        self._memory = stand_ins.MemoryObject(data)

    @property
    def bytes(self) -> bytes:
        return bytes(self._memory.bytes)

    def data_ptr(self) -> int:
        return self._memory.data_ptr

    def numel(self) -> int:
        return self._memory.get_size()

    def element_size(self) -> int:
        return 1

    def is_contiguous(self) -> bool:
        return True

    def contiguous(self) -> "Tensor":
        return self


class FlatPool(stand_ins.HostMemoryPool):
    """A pool that hands out copies of its pages."""

    def get_page_buffer_meta(self, indices: Any) -> Any:
        raise ValueError("Unsupported layout")

    def _first(self, index: int) -> int:
        return index * self.row

    def get_data_page(self, index: int, flat: bool = True) -> Tensor:
        return Tensor(bytes(self.bytes[self._first(index) :][: self.page_size * self.row]))

    def get_dummy_flat_data_page(self) -> Tensor:
        return Tensor(bytes(self.page_size * self.row))

    def set_from_flat_data_page(self, index: int, page: Tensor) -> None:
        self.bytes[self._first(index) : self._first(index) + len(page.bytes)] = page.bytes


class OfABackend(unittest.TestCase):
    socket: Optional[str] = None

    def setUp(self) -> None:
        # A namespace of its own: nothing of another test or run is in it.
        self.salt = f"{self.id()}-{os.getpid()}-{time.time_ns()}"

    def names(self, count: int) -> List[str]:
        texts = [f"{self.salt}-{number}".encode() for number in range(count)]
        return [sha256(text).hexdigest() for text in texts]

    def backend(self, pool: Any = None, extra: Any = None, **changes: Any) -> HearthStorage:
        settings = {"interface_v1": 1, "tenant_salt": self.salt, "socket": self.socket}
        settings.update(stall_ms=STALL_MS, weights_revision="r1")
        config = stand_ins.storage_config(extra_config={**settings, **(extra or {})}, **changes)
        storage = HearthStorage(config, {})
        storage.register_mem_pool_host(pool or stand_ins.HostMemoryPool())
        self.addCleanup(storage.close)
        return storage


@unittest.skipUnless(SOCKET, "HEARTH_SOCKET does not name a running agent's socket")
class Pages(OfABackend):
    socket = SOCKET

    def backend(self, *words: Any, **changes: Any) -> HearthStorage:
        storage = super().backend(*words, **changes)
        until(lambda: storage.store is not None and storage.store.connected)
        return storage

    def test_pages_of_one_server_are_restored_by_the_next(self) -> None:
        names, pages = self.names(5), [3, 0, 7, 2, 5]
        for layout in ("layer_first", "page_first"):
            with self.subTest(layout):
                source = stand_ins.HostMemoryPool(layout=layout)
                source.bytes[:] = os.urandom(len(source.bytes))
                first = self.backend(source)
                indices = stand_ins.indices_of(source, pages)
                self.assertEqual(first.batch_exists(names), 0)
                self.assertEqual(first.batch_set_v1(names, indices, START), [True] * 5)
                self.assertEqual(first.batch_exists(names), 5)
                first.close()
                target = stand_ins.HostMemoryPool(layout=layout)
                second = self.backend(target)
                self.assertEqual(second.batch_exists([*names, *self.names(7)[5:]]), 5)
                there = stand_ins.indices_of(target, [1, 2, 3, 4, 6])
                self.assertEqual(second.batch_get_v1(names, there), [True] * 5)
                for page, other in zip(pages, [1, 2, 3, 4, 6]):
                    self.assertEqual(target.page(other), source.page(page))

    def test_a_page_that_is_not_there_is_a_miss_and_the_others_are_read(self) -> None:
        names, pool = self.names(3), stand_ins.HostMemoryPool()
        storage = self.backend(pool)
        pool.fill(0, b"a" * len(pool.page(0)))
        pool.fill(2, b"c" * len(pool.page(2)))
        stored = stand_ins.indices_of(pool, [0, 2])
        self.assertEqual(storage.batch_set_v1([names[0], names[2]], stored, START), [True, True])
        self.assertEqual(storage.batch_exists(names), 1)
        self.assertTrue(storage.exists(names[2]))
        self.assertFalse(storage.exists(names[1]))
        there = stand_ins.indices_of(pool, [5, 6, 7])
        self.assertEqual(storage.batch_get_v1(names, there), [True, False, True])
        self.assertEqual((pool.page(5), pool.page(7)), (pool.page(0), pool.page(2)))

    def test_pages_stored_twice_count_as_stored(self) -> None:
        names, pool = self.names(2), stand_ins.HostMemoryPool()
        storage = self.backend(pool)
        indices = stand_ins.indices_of(pool, [0, 1])
        self.assertEqual(storage.batch_set_v1(names, indices, START), [True, True])
        self.assertEqual(storage.batch_set_v1(names, indices, START), [True, True])

    def test_ranks_of_other_layouts_see_nothing_of_each_other(self) -> None:
        names, pool = self.names(1), stand_ins.HostMemoryPool()
        self.backend(pool).batch_set_v1(names, stand_ins.indices_of(pool, [0]), START)
        self.assertEqual(self.backend(tp_size=2, tp_rank=1).batch_exists(names), 0)
        other = stand_ins.HostMemoryPool(layout="page_first")
        self.assertEqual(self.backend(other).batch_exists(names), 0)
        self.assertEqual(self.backend().batch_exists(names), 1)

    def test_ranks_of_an_mla_model_read_what_one_of_them_wrote(self) -> None:
        names, pool = self.names(1), stand_ins.HostMemoryPool()
        pool.fill(0, os.urandom(len(pool.page(0))))
        shape = {"is_mla_model": True, "tp_size": 2}
        writer = self.backend(pool, tp_rank=0, **shape)
        writer.batch_set_v1(names, stand_ins.indices_of(pool, [0]), START)
        target = stand_ins.HostMemoryPool()
        reader = self.backend(target, tp_rank=1, **shape)
        self.assertEqual(reader.batch_get_v1(names, stand_ins.indices_of(target, [4])), [True])
        self.assertEqual(target.page(4), pool.page(0))

    def test_pages_of_several_pools_are_kept_apart_and_restored_together(self) -> None:
        names, pool, states = self.names(3), stand_ins.HostMemoryPool(), FlatPool(page_size=1)
        pool.bytes[:] = os.urandom(len(pool.bytes))
        states.bytes[:] = os.urandom(len(states.bytes))
        storage = self.backend(pool)
        storage.register_mem_host_pool_v2(pool, PoolName.KV)
        storage.register_mem_host_pool_v2(states, PoolName.MAMBA)
        storage.batch_set_v1(names, stand_ins.indices_of(pool, [0, 1, 2]), START)
        state = PoolTransfer(
            PoolName.MAMBA,
            host_indices=stand_ins.Indices([3]),
            keys=[names[1]],
            hit_policy=PoolHitPolicy.TRAILING_PAGES,
        )
        self.assertEqual(storage.batch_set_v2([state]), {PoolName.MAMBA: [True]})
        found = storage.batch_exists_v2(names, [state])
        self.assertEqual((found.kv_hit_pages, found.restorable_prefix_pages), (2, [2]))
        kept = states.get_data_page(3).bytes
        state.host_indices = stand_ins.Indices([5])
        self.assertEqual(storage.batch_get_v2([state]), {PoolName.MAMBA: [True]})
        self.assertEqual(states.get_data_page(5).bytes, kept)

    def test_without_v1_whole_pages_are_tensors(self) -> None:
        names = self.names(2)
        storage = self.backend(extra={"interface_v1": 0})
        pages = [Tensor(os.urandom(4096)) for _ in names]
        self.assertTrue(storage.batch_set(names, pages))
        self.assertEqual(storage.batch_exists(names), 2)
        targets = [Tensor(bytes(4096)) for _ in names]
        self.assertEqual(storage.batch_get(names, targets), targets)
        self.assertEqual([one.bytes for one in targets], [one.bytes for one in pages])
        self.assertIsNone(storage.get(self.names(3)[2], Tensor(bytes(4096))))
        self.assertIsNone(storage.get(names[0], None))

    def test_calls_with_indices_that_do_not_fit_are_misses_and_logged_once(self) -> None:
        names, storage = self.names(2), self.backend()
        with self.assertLogs("hearth_sglang", logging.ERROR) as logged:
            for _ in range(3):
                indices = stand_ins.Indices(range(3))
                self.assertEqual(storage.batch_get_v1(names, indices), [False, False])
        self.assertEqual(len(logged.records), 1)

    def test_sglang_reads_pages_and_bandwidth_since_the_last_call(self) -> None:
        names, pool = self.names(2), stand_ins.HostMemoryPool()
        storage = self.backend(pool)
        indices = stand_ins.indices_of(pool, [0, 1])
        storage.batch_set_v1(names, indices, START)
        storage.batch_get_v1(names, indices)
        stats = storage.get_stats()
        self.assertEqual((stats.prefetch_pgs, stats.backup_pgs), ([2], [2]))
        self.assertGreater(stats.prefetch_bandwidth[0], 0)
        self.assertEqual(storage.get_stats().backup_pgs, [])

    def test_without_the_keys_before_a_batch_the_log_names_the_setting_once(self) -> None:
        names, pool = self.names(2), stand_ins.HostMemoryPool()
        storage = self.backend(pool)
        with self.assertLogs("hearth_sglang", logging.WARNING) as logged:
            for page, name in enumerate(names):
                storage.batch_set_v1([name], stand_ins.indices_of(pool, [page]))
        self.assertEqual(len(logged.records), 1)
        self.assertIn("hicache_storage_pass_prefix_keys", logged.output[0])

    def test_the_counters_of_hearth_are_in_the_metrics_of_sglang(self) -> None:
        names, pool = self.names(2), stand_ins.HostMemoryPool()
        storage = self.backend(pool)
        storage.hints = SimpleNamespace(outcomes={"accepted": 3}, stored=list, close=list)
        indices = stand_ins.indices_of(pool, [0, 1])
        size = 2 * len(pool.page(0))
        for times in (1, 2):
            storage.batch_set_v1(names, indices, START)
            storage.batch_get_v1(names, indices)
            before = self.exported()
            storage.get_stats()
            after = self.exported()
            grown = {key: after[key] - before.get(key, 0) for key in after}
            self.assertEqual(grown["loaded_bytes", "tp0-pp0"], size)
            self.assertEqual(grown["stored_bytes", "tp0-pp0"], size if times == 1 else 0)
            hints = grown["hint_blocks", "tp0-pp0", "accepted"]
            self.assertEqual(hints, 3 if times == 1 else 0)

    def exported(self) -> Dict[Any, float]:
        counters = [one for one in metrics._counters.values() if one is not None]
        if counters and not isinstance(counters[0], stand_ins.Counter):
            self.skipTest("prometheus_client is installed: the lane with SGLang reads its endpoint")
        return {
            (one.name.replace(metrics.PREFIX, ""), *labels): value
            for one in counters
            for labels, value in one.values.items()
        }

    def test_clear_leaves_the_blocks_of_other_engines_alone(self) -> None:
        names, pool = self.names(1), stand_ins.HostMemoryPool()
        storage = self.backend(pool)
        storage.batch_set_v1(names, stand_ins.indices_of(pool, [0]), START)
        with self.assertLogs("hearth_sglang", logging.WARNING):
            self.assertFalse(storage.clear())
        self.assertEqual(storage.batch_exists(names), 1)


@unittest.skipUnless(SOCKET, "HEARTH_SOCKET does not name a running agent's socket")
class RecordedCalls(OfABackend):
    """The calls of SGLang 0.5.23 for four prompts with common prefixes, sent twice.

    Between the two rounds SGLang flushed its own caches. Heads are narrower here than in the
    recorded model.
    """

    socket = SOCKET

    def test_the_calls_of_a_real_server_get_the_answers_that_it_got(self) -> None:
        entries = recordings.read(recordings.FILES["sglang"])
        found = recordings.FEATURES["sglang"](entries)
        self.assertEqual([name for name, count in found.items() if count == 0], [])
        shape = entries.pop(0)
        self.assertEqual(shape["call"], "register_mem_pool_host")
        names = ("pages", "page_size", "layers", "layout")
        pool = stand_ins.HostMemoryPool(**{name: shape[name] for name in names}, heads=1)
        storage = self.backend(pool)
        until(lambda: storage.store is not None and storage.store.connected)
        restored = 0
        for entry in entries:
            keys, extra = entry["keys"], SimpleNamespace(prefix_keys=entry["prefix"])
            words = [keys, stand_ins.indices_of(pool, entry.get("pages", [])), extra]
            if entry["call"] == "batch_exists":
                del words[1]
            if entry["call"] == "batch_set_v1":
                for key, page in zip(keys, entry["pages"]):
                    pool.fill(page, self.content(pool, key))
            elif entry["call"] == "batch_get_v1":
                pool.bytes[:] = bytes(len(pool.bytes))
            result = getattr(storage, entry["call"])(*words)
            self.assertEqual(result, entry["result"], entry["call"])
            if entry["call"] == "batch_get_v1":
                for key, page in zip(keys, entry["pages"]):
                    self.assertEqual(pool.page(page), self.content(pool, key))
                    restored += 1
        self.assertGreater(restored, 20)

    def content(self, pool: Any, key: str) -> bytes:
        data = bytes.fromhex(key)
        return data * (len(pool.page(0)) // len(data))


class WithoutAnAgent(OfABackend):
    def test_every_call_is_a_miss_and_none_raises(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.socket = os.path.join(folder, "no-agent.sock")
            storage, pool, names = self.backend(), stand_ins.HostMemoryPool(), self.names(2)
            storage.register_mem_host_pool_v2(pool, PoolName.INDEXER)
            indices = stand_ins.indices_of(pool, [0, 1])
            transfer = PoolTransfer(PoolName.INDEXER, host_indices=indices, keys=names)
            self.assertEqual(storage.batch_exists(names), 0)
            self.assertFalse(storage.exists(names[0]))
            self.assertEqual(storage.batch_get_v1(names, indices), [False, False])
            self.assertEqual(storage.batch_set_v1(names, indices, START), [False, False])
            self.assertEqual(storage.batch_exists_v2(names, [transfer]).kv_hit_pages, 0)
            self.assertEqual(storage.batch_get_v2([transfer]), {PoolName.INDEXER: [False, False]})
            self.assertEqual(storage.batch_set_v2([transfer]), {PoolName.INDEXER: [False, False]})
            self.assertIsNone(storage.get(names[0], Tensor(bytes(8))))
            self.assertFalse(storage.set(names[0], Tensor(bytes(8))))
            self.assertEqual(storage.batch_get(names, None), [None, None])


if __name__ == "__main__":
    unittest.main()
