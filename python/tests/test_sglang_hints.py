"""KV hints of SGLang requests: what the agent does for them, and their final outcomes."""

from __future__ import annotations

import os
import unittest
from types import SimpleNamespace
from typing import Any, Dict, List, Optional
from unittest import mock

from . import engine_stand_ins as stand_ins
from .kv_pool import HANG_SECONDS, Pool, keys_of, parents_of, store
from .real_agent import COMMAND, RealAgent, until

stand_ins.install()

from hearth_client import Outcome  # noqa: E402
from hearth_client.kv_store import KvStore  # noqa: E402
from hearth_sglang import hints as hints_module  # noqa: E402
from hearth_sglang.hints import Hints  # noqa: E402
from hearth_sglang.keys import event_hash  # noqa: E402
from hearth_sglang.plugin import _around  # noqa: E402
from hearth_sglang.registry import set_current  # noqa: E402

PAGE_TOKENS = 32


def envelope(kind: str, version: str = "1", **payload: Any) -> Dict[str, Any]:
    action = {"action_id": "a", "action_type": kind, "action_version": "1", "payload": payload}
    return {"protocol_version": version, "message_id": "m", "actions": [action]}


class OfHints(unittest.TestCase):
    path = "/nonexistent/engine.sock"

    def connect(self) -> KvStore:
        one = store(self.path, engine_id=os.urandom(16))
        self.addCleanup(one.close)
        return one

    def hints(self, one: KvStore, no_share: Optional[str] = None) -> Hints:
        made = Hints(one, 6, "sglang", PAGE_TOKENS, lambda: no_share)
        self.addCleanup(made.close)
        return made

    def ask(self, hints: Hints, hint: Any, keys: List[bytes]) -> None:
        hints.requested(hint, lambda: [key.hex() for key in keys])

    def outcomes(self, hints: Hints, **expected: int) -> None:
        until(lambda: sum(hints.outcomes.values()) >= sum(expected.values()), str(expected))
        self.assertEqual(hints.outcomes, expected)


@unittest.skipUnless(COMMAND, "HEARTH_TEST_AGENT does not say how to start an agent")
class WithAnAgent(OfHints):
    agent: RealAgent

    @classmethod
    def setUpClass(cls) -> None:
        cls.agent = RealAgent()
        cls.addClassCleanup(cls.agent.__exit__)
        cls.path = cls.agent.path

    def keys(self, count: int) -> List[bytes]:
        """Keys of this test alone."""
        return keys_of(count, first=1_000 * (1 + sum(self.id().encode())))

    def put(self, one: KvStore, keys: List[bytes], first: int = 0) -> None:
        part, pool = keys[first:], Pool(len(keys) - first).fill()
        found = one.put(
            *(part, parents_of(keys)[first:], pool.memory, range(len(part))),
            aliases=[event_hash(key) for key in part],
        )
        self.assertEqual(found, [Outcome.OK] * len(part))

    def pins(self, one: KvStore, keys: List[bytes]) -> Dict[str, int]:
        """Takes one pin from each page, and counts those that had one."""
        names = [event_hash(key) for key in keys]
        ticket = one.command(
            {"type": "Cache", "pin": False, "block_hashes": names, "owner": "sglang"}
        )
        assert ticket.wait(HANG_SECONDS)
        counts = ticket.result()["counts"]
        return {word: count for word, count in counts.items() if count}

    def test_a_pin_takes_effect_once_all_its_pages_are_stored(self) -> None:
        one, keys = self.connect(), self.keys(4)
        hints = self.hints(one)
        self.ask(hints, envelope("pin", prefix_tokens=96, ttl_seconds=600), keys)
        until(lambda: hints._waiting)
        self.put(one, keys[:2])
        hints.stored(keys[:2])
        until(lambda: len(hints._waiting[0].left) == 1)
        self.assertEqual(hints.outcomes, {})
        self.put(one, keys[:3], 2)
        hints.stored(keys[2:3])
        self.outcomes(hints, accepted=3)
        self.put(one, keys, 3)
        self.assertEqual(self.pins(one, keys), {"done": 3, "already": 1})

    def test_a_page_that_another_writer_has_not_committed_is_waited_for(self) -> None:
        one, other, keys = self.connect(), self.connect(), self.keys(2)
        hints = self.hints(one)
        self.ask(hints, envelope("pin"), keys)
        until(lambda: hints._waiting)
        hints.stored(keys)  # This rank's writes ended as PENDING.
        until(lambda: not hints._waiting[0].left)
        self.assertEqual(hints.outcomes, {})
        self.put(other, keys)
        self.outcomes(hints, accepted=2)
        self.assertEqual(self.pins(one, keys), {"done": 2})

    def test_pages_that_the_agent_has_are_not_waited_for(self) -> None:
        one, keys = self.connect(), self.keys(2)
        self.put(one, keys)
        hints = self.hints(one)
        self.ask(hints, envelope("retain", priority=500), keys)
        self.outcomes(hints, accepted=2)

    def test_pages_that_are_never_stored_are_missing_and_the_others_are_pinned(self) -> None:
        one, keys = self.connect(), self.keys(3)
        self.put(one, keys[:1])
        hints = self.hints(one)
        with mock.patch.object(hints_module, "_STORE_SECONDS_MAX", 0.0):
            self.ask(hints, envelope("pin"), keys)
            self.outcomes(hints, accepted=1, missing=2)
        self.assertEqual(self.pins(one, keys[:1]), {"done": 1})

    def test_the_outcome_of_a_prefetch_is_what_came_to_ram(self) -> None:
        one, keys = self.connect(), self.keys(4)
        self.put(one, keys[:2])
        hints = self.hints(one)
        self.ask(hints, envelope("prefetch"), keys)
        self.outcomes(hints, accepted=2, missing=2)

    def test_a_prefetch_by_name_warms_those_blocks(self) -> None:
        one, keys = self.connect(), self.keys(2)
        self.put(one, keys)
        hints = self.hints(one)
        names = [event_hash(key) for key in keys]
        self.ask(hints, envelope("prefetch", block_hashes=[*names, 7]), [])
        self.outcomes(hints, accepted=2, missing=1)

    def test_a_payload_that_cannot_be_sent_is_rejected_and_later_actions_are_executed(self) -> None:
        one, keys = self.connect(), self.keys(2)
        self.put(one, keys)
        hints = self.hints(one)
        both = envelope("prefetch", sources=["a name that is too long" * 10])
        both["actions"] += envelope("retain")["actions"]
        self.ask(hints, both, keys)
        self.outcomes(hints, rejected=2, accepted=2)

    def test_shared_pages_are_announced_and_another_engine_waits_for_them(self) -> None:
        producer, consumer, keys = self.connect(), self.connect(), self.keys(3)
        first, second = self.hints(producer), self.hints(consumer)
        self.ask(first, envelope("share", prefix_tokens=96), keys)
        self.outcomes(first, accepted=3)

        def announced() -> bool:
            ticket = consumer.lookup(keys, hold=False, fetch=False)
            return bool(ticket.wait(HANG_SECONDS) and ticket.result().announced == 3)

        until(announced)
        self.ask(second, envelope("prefetch", wait=True), keys)
        until(lambda: second._open)
        self.assertEqual(second.outcomes, {})
        self.put(producer, keys)
        first.stored(keys)
        self.outcomes(second, accepted=3)
        until(lambda: not first._announced)

    def test_pages_that_are_not_stored_any_more_are_withdrawn(self) -> None:
        one, keys = self.connect(), self.keys(1)
        hints = self.hints(one)
        with mock.patch.object(hints_module, "_STORE_SECONDS_MAX", 0.0):
            self.ask(hints, envelope("share"), keys)
            self.outcomes(hints, accepted=1)
            until(lambda: not hints._announced)

        def is_withdrawn() -> bool:
            ticket = one.lookup(keys, hold=False, fetch=False)
            return bool(ticket.wait(HANG_SECONDS) and ticket.result().announced == 0)

        until(is_withdrawn)

    def test_a_server_that_stores_pages_late_refuses_to_share_them(self) -> None:
        one, keys = self.connect(), self.keys(2)
        hints = self.hints(one, "share: needs write_through")
        with self.assertLogs("hearth_sglang", "DEBUG") as logged:
            self.ask(hints, envelope("share"), keys)
            self.outcomes(hints, rejected=2)
        self.assertIn("share: needs write_through", logged.output[0])
        self.assertEqual(hints._announced, [])


class WithoutAnAgent(OfHints):
    def test_an_action_of_another_version_or_kind_is_counted_and_ignored(self) -> None:
        hints = self.hints(self.connect())
        for hint in (
            envelope("pin", version="2"),
            envelope("kv.fetch"),
            envelope("pin", prefix_tokens=1, from_token=2),
            envelope("pin", prefix_tokens="all"),
            envelope("transient", open_token=1, close_token=2),
            envelope("share", block_hashes=[1]),
        ):
            self.ask(hints, hint, keys_of(1))
        self.outcomes(hints, ignored=2, rejected=4)

    def test_each_action_is_rejected(self) -> None:
        hints = self.hints(self.connect())
        for kind in ("pin", "retain", "demote", "transient", "prefetch", "share"):
            self.ask(hints, envelope(kind), keys_of(2))
        self.outcomes(hints, rejected=12)


class Plugin(unittest.TestCase):
    def test_the_plug_in_hands_over_hinted_requests_and_never_fails_one(self) -> None:
        taken: List[Any] = []

        class Taking:
            page_tokens = 32

            def requested(self, *words: Any) -> None:
                taken.append(words)

        class Failing(Taking):
            def requested(self, *words: Any) -> None:
                raise RuntimeError("no hints today")

        hints, failing = Taking(), Failing()
        set_current(hints)  # type: ignore[arg-type]
        plain = SimpleNamespace(kv_hints=None, sampling_params=None)
        hinted = SimpleNamespace(kv_hints={"x": 1})
        carried = SimpleNamespace(custom_params={"kv_hints": '{"y": 2}'})
        custom = SimpleNamespace(kv_hints=None, sampling_params=carried)
        self.assertIs(_around(lambda *_: plain, "scheduler"), plain)
        self.assertIs(_around(lambda *_: hinted, "scheduler"), hinted)
        self.assertIs(_around(lambda *_: custom, "scheduler"), custom)
        self.assertEqual([words[0] for words in taken], [{"x": 1}, {"y": 2}])
        set_current(failing)  # type: ignore[arg-type]
        with self.assertLogs("hearth_sglang"):
            self.assertIs(_around(lambda *_: hinted, "scheduler"), hinted)


if __name__ == "__main__":
    unittest.main()
