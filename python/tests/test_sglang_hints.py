"""KV hints of SGLang requests: which commands the agent gets, and when."""

from __future__ import annotations

import unittest
from hashlib import sha256
from types import SimpleNamespace
from typing import Any, Dict, List, Sequence

from . import engine_stand_ins as stand_ins

stand_ins.install()

from hearth_sglang.hints import Hints, command_body  # noqa: E402
from hearth_sglang.keys import event_hash, page_key  # noqa: E402
from hearth_sglang.plugin import _around  # noqa: E402
from hearth_sglang.registry import set_current  # noqa: E402


def names(count: int) -> List[str]:
    return [sha256(bytes([number])).hexdigest() for number in range(count)]


def envelope(kind: str, version: str = "1", **payload: Any) -> Dict[str, Any]:
    action = {"action_id": "a", "action_type": kind, "action_version": "1", "payload": payload}
    return {"protocol_version": version, "message_id": "m", "actions": [action]}


class Recorder:
    """Takes commands and lookups as KvStore does, and grants them."""

    connected = True

    def __init__(self, here: int = 0) -> None:
        self.commands: List[Dict[str, Any]] = []
        self.fetched: List[List[bytes]] = []
        self.here = here

    def exists(self, keys: Sequence[bytes], **_options: Any) -> int:
        return min(self.here, len(keys))

    def lookup(self, keys: Sequence[bytes], **options: Any) -> None:
        assert options["fetch"] and not options["hold"]
        self.fetched.append(list(keys))

    def command(self, body: Dict[str, Any]) -> Any:
        self.commands.append(body)
        receipt = {"status": "ok", "counts": {"done": len(body["block_hashes"]), "missing": 0}}
        return SimpleNamespace(wait=lambda timeout: True, result=lambda: receipt)


class HintsOfRequests(unittest.TestCase):
    def hints(self, store: Recorder) -> Hints:
        hints = Hints(store, 6, "sglang", page_tokens=32)
        self.addCleanup(hints.close)
        return hints

    def test_a_pin_is_sent_once_all_its_pages_are_stored(self) -> None:
        store, pages = Recorder(), names(4)
        keys = [page_key(name) for name in pages]
        hints = self.hints(store)
        hints.requested(envelope("pin", prefix_tokens=96, ttl_seconds=60), lambda: pages)
        sent: List[int] = []
        # The thread takes work in order: the request is known before pages are reported.
        self.finish(
            hints,
            lambda: hints._mark(keys[:2]),
            lambda: sent.append(len(store.commands)),
            lambda: hints._mark(keys[2:3]),
        )
        self.assertEqual(sent, [0])
        (command,) = store.commands
        self.assertEqual(command["block_hashes"], [event_hash(key) for key in keys[:3]])
        self.assertEqual((command["type"], command["pin"]), ("Cache", True))
        self.assertEqual((command["owner"], command["ttl_seconds"]), ("sglang", 60))
        self.assertEqual(hints.outcomes, {"accepted": 3})

    def finish(self, hints: Hints, *works: Any) -> None:
        for work in works:
            hints._do(work)
        hints.close()

    def test_pages_that_the_agent_has_are_not_waited_for(self) -> None:
        store = Recorder(here=2)
        hints = self.hints(store)
        hints.requested(envelope("retain", priority=500), lambda: names(2))
        self.finish(hints)
        self.assertEqual([one["retain"] for one in store.commands], [99])

    def test_a_prefetch_asks_for_its_pages_when_the_request_comes(self) -> None:
        store = Recorder()
        hints = self.hints(store)
        hints.requested(envelope("prefetch", from_token=33), lambda: names(4))
        self.finish(hints)
        self.assertEqual(store.fetched, [[page_key(name) for name in names(4)[2:]]])
        self.assertEqual(store.commands, [])

    def test_an_action_of_another_version_or_kind_is_counted_and_ignored(self) -> None:
        store = Recorder()
        hints = self.hints(store)
        hints.requested(envelope("pin", version="2"), lambda: names(1))
        hints.requested(envelope("kv.fetch"), lambda: names(1))
        hints.requested(envelope("pin", prefix_tokens=1, from_token=2), lambda: names(1))
        hints.requested(envelope("pin", prefix_tokens="all"), lambda: names(1))
        self.finish(hints)
        self.assertEqual(store.commands, [])
        self.assertEqual(hints.outcomes, {"ignored": 2, "rejected": 2})

    def test_pages_that_are_never_stored_are_missing_and_the_others_are_pinned(self) -> None:
        store, pages = Recorder(), names(3)
        hints = self.hints(store)
        hints.requested(envelope("pin"), lambda: pages)

        def time_is_over() -> None:
            hints._mark([page_key(pages[0])])
            for waiting in hints._waiting:
                waiting.until = 0.0
            hints._expire()

        self.finish(hints, time_is_over)
        self.assertEqual(store.commands[0]["block_hashes"], [event_hash(page_key(pages[0]))])
        self.assertEqual(hints.outcomes, {"missing": 2, "accepted": 1})

    def test_each_action_has_its_command(self) -> None:
        def body(kind: str, **payload: Any) -> Dict[str, Any]:
            return command_body(envelope(kind, **payload)["actions"][0], [1], "sglang")

        self.assertEqual(
            body("transient"), {"type": "Think", "block_hashes": [1], "transient": True}
        )
        demote = body("demote", session_id="s1", ttl_seconds=5)
        self.assertEqual((demote["type"], demote["lease_id"]), ("Pause", "session-s1"))
        self.assertEqual((demote["owner"], demote["ttl_seconds"]), ("s1", 5))
        self.assertEqual(body("demote")["lease_id"], "hint-a")
        self.assertEqual(body("retain", priority=7, ttl_seconds=9)["retain_seconds"], 9)

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
