"""hearth_lmcache and a running agent, whose socket HEARTH_SOCKET names."""

from __future__ import annotations

import os
import select
import tempfile
import time
import unittest
from importlib import import_module
from typing import Any, List, Optional

from . import engine_stand_ins as stand_ins
from . import recordings
from .real_agent import COMMAND, RealAgent

stand_ins.install()

from hearth_lmcache import metrics  # noqa: E402
from hearth_lmcache.adapter import HearthL2Adapter  # noqa: E402
from hearth_lmcache.keys import Seen, chain_key  # noqa: E402
from hearth_lmcache.settings import Settings, parse  # noqa: E402

SOCKET = os.environ.get("HEARTH_SOCKET", "")
HANG_SECONDS = 60.0
#: A busy host may not run the agent for a while: no test is about that.
STALL_MS = 60_000

Key, Object = stand_ins.ObjectKey, stand_ins.MemoryObject


def metrics_stand_in() -> Optional[stand_ins.Meter]:
    """None: OpenTelemetry is installed."""
    used = import_module("opentelemetry").metrics
    return stand_ins.METER if used.Observation is stand_ins.Observation else None


def until(condition: Any) -> Any:
    limit = time.monotonic() + HANG_SECONDS
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > limit:
            raise TimeoutError("the condition did not come true")
        time.sleep(0.01)


def signalled(descriptor: int) -> None:
    ready, _, _ = select.select([descriptor], [], [], HANG_SECONDS)
    if not ready:
        raise TimeoutError("the descriptor was not signalled")
    os.read(descriptor, 8)


def bits(bitmap: Any, count: int) -> List[bool]:
    if isinstance(bitmap, stand_ins.Bitmap):
        return bitmap.bits
    return [index in bitmap.get_indices_list() for index in range(count)]


class Names(unittest.TestCase):
    def test_each_field_of_a_key_is_part_of_its_chain_key(self) -> None:
        keys = [
            Key(b"hash", "model", 1),
            Key(b"hash2", "model", 1),
            Key(b"hash", "model1", 1),
            Key(b"hash", "model", 2),
            Key(b"hash", "model", 1, 1),
            Key(b"hash", "model", 1, 0, "salt"),
            Key(b"salthash", "model", 1),
        ]
        self.assertEqual(len({chain_key(key) for key in keys}), len(keys))
        self.assertEqual({len(chain_key(key)) for key in keys}, {32})

    def test_settings_have_defaults_and_mistaken_ones_are_refused_with_the_fix(self) -> None:
        self.assertEqual(parse(None), Settings())
        self.assertEqual(parse({"socket": "/x", "load_threads": 3}).load_threads, 3)
        with self.assertRaisesRegex(ValueError, "unknown key 'socket_path': did you mean 'socket'"):
            parse({"socket_path": "/x"})
        with self.assertRaisesRegex(ValueError, "load_threads'. is 0: set it to a number from 1"):
            parse({"load_threads": 0})
        with self.assertRaisesRegex(ValueError, "prefetch'. is 'yes': set it to true or false"):
            parse({"prefetch": "yes"})

    def test_the_listing_forgets_the_oldest_keys_first(self) -> None:
        seen = Seen(2)
        self.assertEqual(seen.add(["a", "b"], [1, 2]), ([("a", 1), ("b", 2)], []))
        self.assertEqual(seen.add(["a", "c"], [1, 3]), ([("c", 3)], [("b", 2)]))
        self.assertEqual(seen.drop(["a", "b"]), [("a", 1)])


class OfAnAdapter(unittest.TestCase):
    socket: Optional[str] = None

    def setUp(self) -> None:
        self.salt = f"{self.id()}-{os.getpid()}-{time.time_ns()}"

    def adapter(self, **params: Any) -> HearthL2Adapter:
        common = {"tenant_salt": self.salt, "socket": self.socket, "stall_ms": STALL_MS}
        adapter = HearthL2Adapter({**common, **params})
        self.addCleanup(adapter.close)
        return adapter

    def keys(self, count: int, group: int = 0) -> List[Key]:
        return [Key(bytes([number]) * 16, "model", 1, group) for number in range(count)]

    def store(self, adapter: HearthL2Adapter, keys: List[Any], objects: List[Any]) -> Any:
        number = adapter.submit_store_task(keys, objects)
        signalled(adapter.get_store_event_fd())
        return until(adapter.pop_completed_store_tasks)[number]

    def look_up(self, adapter: HearthL2Adapter, keys: List[Any]) -> List[bool]:
        number = adapter.submit_lookup_and_lock_task(keys, {})
        signalled(adapter.get_lookup_and_lock_event_fd())
        return bits(until(lambda: adapter.query_lookup_and_lock_result(number)), len(keys))

    def load(self, adapter: HearthL2Adapter, keys: List[Any], objects: List[Any]) -> List[bool]:
        number = adapter.submit_load_task(keys, objects)
        signalled(adapter.get_load_event_fd())
        found = until(lambda: adapter.query_load_result(number))
        self.assertIsNone(adapter.query_load_result(number))
        return bits(found, len(keys))


@unittest.skipUnless(SOCKET, "HEARTH_SOCKET does not name a running agent's socket")
class Objects(OfAnAdapter):
    socket = SOCKET

    def adapter(self, **params: Any) -> HearthL2Adapter:
        adapter = super().adapter(**params)
        until(lambda: adapter.store.connected)
        return adapter

    def test_objects_of_different_sizes_are_loaded_as_they_were_stored(self) -> None:
        keys, sizes = self.keys(4), [4096, 512, 1000, 3]
        objects = [Object(os.urandom(size)) for size in sizes]
        first = self.adapter()
        self.assertEqual(int(self.store(first, keys, objects)), sum(sizes))
        self.assertEqual(first.get_usage().total_bytes_used, sum(sizes))
        second = self.adapter()
        self.assertEqual(self.look_up(second, keys), [True] * 4)
        targets = [Object(bytes(size)) for size in sizes]
        self.assertEqual(self.load(second, keys, targets), [True] * 4)
        self.assertEqual([one.bytes for one in targets], [one.bytes for one in objects])
        second.submit_unlock(keys)
        self.assertEqual(second.report_status()["locked_keys"], 0)

    def test_objects_behind_a_gap_are_found_and_locked(self) -> None:
        keys = self.keys(5)
        adapter = self.adapter()
        self.store(adapter, [keys[0], keys[2], keys[4]], [Object(b"x" * 64) for _ in range(3)])
        self.assertEqual(self.look_up(adapter, keys), [True, False, True, False, True])
        self.assertEqual(adapter.report_status()["locked_keys"], 3)
        adapter.submit_unlock([keys[0], keys[2], keys[4]])
        self.assertEqual(adapter.report_status()["locked_keys"], 0)

    def test_an_object_locked_twice_is_unlocked_twice(self) -> None:
        keys = self.keys(2)
        adapter = self.adapter()
        self.store(adapter, keys, [Object(b"y" * 64) for _ in keys])
        self.look_up(adapter, keys)
        self.look_up(adapter, keys[:1])
        adapter.submit_unlock(keys)
        self.assertEqual(adapter.report_status()["locked_keys"], 1)
        adapter.submit_unlock(keys[:1])
        self.assertEqual(adapter.report_status()["locked_keys"], 0)
        adapter.submit_unlock(keys)

    def test_a_missing_object_is_a_miss_and_its_buffer_is_not_reported_as_loaded(self) -> None:
        keys = self.keys(3)
        adapter = self.adapter()
        self.store(adapter, [keys[0], keys[2]], [Object(b"a" * 64), Object(b"c" * 64)])
        targets = [Object(bytes(64)) for _ in keys]
        self.assertEqual(self.load(adapter, keys, targets), [True, False, True])
        self.assertEqual(targets[2].bytes, b"c" * 64)

    def test_a_buffer_of_another_size_than_the_object_is_a_miss(self) -> None:
        keys = self.keys(1)
        adapter = self.adapter()
        self.store(adapter, keys, [Object(b"a" * 64)])
        self.assertEqual(self.load(adapter, keys, [Object(bytes(63))]), [False])
        self.assertEqual(self.load(adapter, keys, [Object(bytes(65))]), [False])
        self.assertEqual(self.load(adapter, keys, [Object(bytes(64))]), [True])

    def test_groups_and_namespaces_see_nothing_of_each_other(self) -> None:
        adapter = self.adapter()
        self.store(adapter, self.keys(1), [Object(b"a" * 64)])
        self.assertEqual(self.look_up(adapter, self.keys(1, group=1)), [False])
        other = self.adapter(namespace="bfloat16")
        self.assertEqual(self.look_up(other, self.keys(1)), [False])

    @unittest.skipUnless(COMMAND, "HEARTH_TEST_AGENT does not say how to start an agent")
    def test_deleted_objects_are_gone_and_leave_the_listing(self) -> None:
        agent = RealAgent()  # The agent of the other tests takes no commands.
        self.addCleanup(agent.__exit__)
        keys = self.keys(3)
        adapter = self.adapter(socket=agent.path)
        self.store(adapter, keys, [Object(b"z" * 64) for _ in keys])
        adapter.delete(keys[:2])
        self.assertEqual(self.look_up(adapter, keys), [False, False, True])
        self.assertEqual(adapter.get_usage().total_bytes_used, 64)
        listed = adapter.list_l2_keys()
        self.assertEqual([entry.key.chunk_hash for entry in listed.entries], [keys[2].chunk_hash])

    def test_a_load_has_a_limit_in_total_the_time_to_compute_its_chunks(self) -> None:
        keys = [*self.keys(8), *self.keys(8, group=1)]  # Two objects of each chunk.
        objects = [Object(bytes(64)) for _ in keys]
        for params, expected in (
            ({"chunk_tokens": 50, "recompute_tokens_per_second": 1}, 400_000),
            ({"chunk_tokens": 1}, STALL_MS),
            ({"load_deadline_ms": 70}, 70),
        ):
            adapter = self.adapter(**params)
            get, limits = adapter.store.get_pieces, []

            def note(*words: Any, **options: Any) -> Any:
                limits.append(options["deadline_ms"])
                return get(*words, **options)

            adapter.store.get_pieces = note  # type: ignore[method-assign]
            self.load(adapter, keys, objects)
            self.assertEqual(limits, [expected])

    def test_the_counters_of_hearth_are_in_the_metrics_and_the_status_of_lmcache(self) -> None:
        keys = self.keys(2)
        common = {"tenant_salt": self.salt, "socket": self.socket, "stall_ms": STALL_MS}
        adapter = HearthL2Adapter({**common, "name": "counted"})
        until(lambda: adapter.store.connected)
        self.store(adapter, keys, [Object(b"q" * 64) for _ in keys])
        self.load(adapter, keys, [Object(bytes(64)) for _ in keys])
        figures = adapter.report_status()["figures"]
        self.assertEqual((figures["put_bytes"], figures["got_blocks"]), (128, 2))
        self.assertEqual(dict(metrics.figures())["counted"]["loaded_bytes", ""], 128)
        meter = metrics_stand_in()
        if meter is not None:
            (observed,) = meter.observed("hearth_lmcache.loaded_bytes")
            self.assertEqual((observed.value, observed.attributes), (128, {"adapter": "counted"}))
        adapter.close()
        self.assertNotIn("counted", dict(metrics.figures()))

    def test_the_listing_has_pages_and_models(self) -> None:
        keys = [*self.keys(5), Key(b"other", "model-b", 1)]
        adapter = self.adapter()
        self.store(adapter, keys, [Object(b"z" * 64) for _ in keys])
        found, cursor = [], None
        while True:
            page = adapter.list_l2_keys(model_name="model", page_size=2, cursor=cursor)
            found += [entry.key.chunk_hash for entry in page.entries]
            cursor = page.next_page_token
            if cursor is None:
                break
        self.assertEqual(sorted(found), [key.chunk_hash for key in self.keys(5)])
        with self.assertRaises(ValueError):
            adapter.list_l2_keys(page_size=0)
        with self.assertRaises(ValueError):
            adapter.list_l2_keys(cursor="page-2")

    def test_the_three_descriptors_differ_and_one_is_signalled_for_each_task(self) -> None:
        adapter = self.adapter()
        descriptors = {
            adapter.get_store_event_fd(),
            adapter.get_lookup_and_lock_event_fd(),
            adapter.get_load_event_fd(),
        }
        self.assertEqual(len(descriptors), 3)
        self.look_up(adapter, self.keys(1))
        others = [adapter.get_store_event_fd(), adapter.get_load_event_fd()]
        self.assertEqual(select.select(others, [], [], 0)[0], [])


@unittest.skipUnless(COMMAND, "HEARTH_TEST_AGENT does not say how to start an agent")
class RecordedCalls(OfAnAdapter):
    """The calls of LMCache's storage manager, whose results the adapter must give again.

    Objects of two groups are asked for, stored, and loaded by a second server.
    """

    def setUp(self) -> None:
        super().setUp()
        agent = RealAgent(128)  # Room for a slab of each of two sizes.
        self.addCleanup(agent.__exit__)
        self.socket = agent.path

    def test_the_calls_of_a_real_server_get_the_answers_that_it_got(self) -> None:
        lines = recordings.read(recordings.FILES["lmcache"])
        found = recordings.FEATURES["lmcache"](lines)
        self.assertEqual([name for name, count in found.items() if count == 0], [])
        results = {
            (line["call"], line["task"], life): line["result"]
            for life, line in _with_lives(lines)
            if "result" in line
        }
        adapter: Any = None
        loaded = 0
        for life, line in _with_lives(lines):
            keys = [Key(bytes.fromhex(one[0]), *one[1:]) for one in line.get("keys", [])]
            call, task = line["call"], line.get("task")
            if call == "start":
                adapter = self.adapter()
                until(lambda: adapter.store.connected)
            elif call == "store":
                objects = [Object(data_of(key, size)) for key, size in zip(keys, line["sizes"])]
                stored = int(self.store(adapter, keys, objects))
                self.assertEqual(stored, results["stored", task, life])
            elif call == "look_up":
                here = self.look_up(adapter, keys)
                self.assertEqual(places_of(here), results["looked_up", task, life])
            elif call == "load":
                targets = [Object(bytes(size)) for size in line["sizes"]]
                here = self.load(adapter, keys, targets)
                self.assertEqual(places_of(here), results["loaded", task, life])
                for key, target in zip(keys, targets):
                    self.assertEqual(bytes(target.bytes), data_of(key, len(target.bytes)))
                loaded += len(keys)
            elif call == "unlock":
                adapter.submit_unlock(keys)
                self.assertEqual(adapter.report_status()["locked_keys"], 0)
        self.assertGreater(loaded, 20)


def _with_lives(lines: Any) -> Any:
    """Each call with the number of the server that made it."""
    life = 0
    for line in lines:
        life += line["call"] == "start"
        yield life, line


def data_of(key: Any, size: int) -> bytes:
    return (key.chunk_hash + bytes([key.object_group_id + 1])) * (size // 33) + bytes(size % 33)


def places_of(bits: List[bool]) -> List[int]:
    return [index for index, bit in enumerate(bits) if bit]


class WithoutAnAgent(OfAnAdapter):
    def test_tasks_end_with_misses_and_none_raises(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.socket = os.path.join(folder, "no-agent.sock")
            adapter, keys = self.adapter(), self.keys(3)
            objects = [Object(bytes(64)) for _ in keys]
            number = adapter.submit_store_task(keys, objects)
            signalled(adapter.get_store_event_fd())
            self.assertFalse(adapter.pop_completed_store_tasks()[number].is_successful())
            self.assertEqual(self.look_up(adapter, keys), [False] * 3)
            self.assertEqual(self.load(adapter, keys, objects), [False] * 3)
            adapter.submit_unlock(keys)
            adapter.delete(keys)
            self.assertFalse(adapter.report_status()["is_healthy"])
            self.assertEqual(adapter.list_l2_keys().entries, ())


if __name__ == "__main__":
    unittest.main()
