"""hearth_vllm without vLLM: selections and commands of KV hints, and figures."""

from __future__ import annotations

import unittest
from types import SimpleNamespace
from typing import Any, List

from hearth_client.kv_hints import Action, Rejected, Selection, command_body, read_selection
from hearth_vllm.guards import Guard
from hearth_vllm.handoff import Handoff
from hearth_vllm.hints import Hints, engine_hash
from hearth_vllm.keys import BlockKeys
from hearth_vllm.metrics import Stats, merge, summary
from hearth_vllm.selection import ThinkingScan
from hearth_vllm.settings import Settings

from .scripted_store import Store
from .vllm_engine import BLOCK_TOKENS, Prompt

KEYS = [bytes([200 + i]) * 32 for i in range(8)]


def request(tokens: List[int], prompt: int) -> Any:
    return SimpleNamespace(all_token_ids=tokens, num_prompt_tokens=prompt)


class Selections(unittest.TestCase):
    def test_members_select_full_blocks_only(self) -> None:
        for payload, expected in (
            ({}, (0, 10, False)),
            ({"prefix_tokens": 70}, (0, 2, False)),
            ({"prefix_tokens": 9_999}, (0, 10, True)),
            ({"from_token": 33}, (2, 10, False)),
        ):
            chosen = read_selection(payload, "pin")
            self.assertEqual(chosen.blocks(325, BLOCK_TOKENS), expected)

    def test_mistaken_selections_are_rejected_with_a_reason(self) -> None:
        for payload, kind in (
            ({"prefix_tokens": 1, "from_token": 1}, "pin"),
            ({"open_token": 1, "close_token": 2}, "pin"),
            ({"open_token": 1}, "transient"),
            ({"prefix_tokens": "1"}, "pin"),
            ({"block_hashes": 5}, "pin"),
        ):
            with self.assertRaises(Rejected):
                read_selection(payload, kind)

    def test_thinking_is_found_between_its_tokens_also_if_the_prompt_opened_it(self) -> None:
        chosen = Selection(open_token=7, close_token=8)
        tokens = [1] * 31 + [7] + [2] * 100 + [8] + [3] * 60
        growing, scan = request(tokens[:100], prompt=32), ThinkingScan(chosen, BLOCK_TOKENS)
        scan.advance(growing)
        self.assertEqual(scan.ranges[0][0], 1)
        self.assertGreater(scan.ranges[0][1], 1_000)
        growing.all_token_ids = tokens
        scan.advance(growing)
        self.assertEqual(scan.ranges, [(1, 4)])

    def test_each_token_is_searched_once_for_each_end_however_often_blocks_fill(self) -> None:
        class Counted(List[int]):
            searched = 0

            def index(self, value: int, start: int = 0, end: int = 0) -> int:  # type: ignore
                try:
                    found = super().index(value, start, end)
                except ValueError:
                    Counted.searched += end - start
                    raise
                Counted.searched += found + 1 - start
                return found

        tokens = Counted(([7] + [2] * 98 + [8]) * 1_000)
        chosen = Selection(open_token=7, close_token=8)
        scan, growing = ThinkingScan(chosen, BLOCK_TOKENS), request(tokens, prompt=0)
        calls = []
        while scan.known_blocks < len(tokens) // BLOCK_TOKENS:
            before = Counted.searched
            scan.advance(growing)
            calls.append(Counted.searched - before)
        # A prompt of 100,000 tokens is read over several steps of vLLM, not in one.
        self.assertGreater(len(calls), 3)
        self.assertLess(max(calls), 50_000)
        self.assertEqual(Counted.searched, 2 * len(tokens))
        self.assertEqual(len(scan.ranges), 1_000)


class HintActions(unittest.TestCase):
    def setUp(self) -> None:
        self.store, keys = Store(), BlockKeys()
        guard = Guard(Stats())
        handoff = Handoff(Settings(), self.store, keys, BLOCK_TOKENS, guard)
        self.addCleanup(handoff.close)
        self.hints = Hints(Settings(), self.store, keys, BLOCK_TOKENS, Stats(), handoff)

    def outcome(self, kind: str, **payload: Any) -> Any:
        action = {"action_id": "1", "action_type": kind, "action_version": "1"}
        hints = {"protocol_version": "1", "actions": [{**action, "payload": payload}]}
        prompt = Prompt("r", KEYS, kv_transfer_params={"kv_hints": hints})
        self.hints.added(prompt)
        return self.hints.finished(prompt)["outcomes"][0]["blocks"]

    def test_share_announces_the_selected_blocks_only(self) -> None:
        self.assertEqual(self.outcome("share", from_token=3 * BLOCK_TOKENS), {"accepted": 5})
        self.assertEqual(self.store.announced[0], KEYS[3:])

    def test_blocks_named_by_their_hashes_are_those_that_are_shared_or_prefetched(self) -> None:
        signed = engine_hash(KEYS[6]) - (1 << 64)
        names = [str(engine_hash(KEYS[4])), signed, 12345]
        self.assertEqual(
            self.outcome("share", block_hashes=names), {"missing": 1, "accepted": 2}
        )
        self.assertEqual(self.store.announced[0], [KEYS[4], KEYS[6]])
        found = self.outcome("prefetch", block_hashes=names)
        self.assertEqual(found, {"missing": 1, "deferred": 2})
        self.assertEqual(self.store.asked[0], [KEYS[4], KEYS[6]])
        self.assertEqual(self.outcome("prefetch", block_hashes=[12345]), {"missing": 1})
        self.assertEqual(len(self.store.asked), 1)

    def test_blocks_whose_tokens_are_not_read_yet_are_stored_in_a_later_step(self) -> None:
        hints = {"protocol_version": "1", "actions": [
            {"action_id": "1", "action_type": "transient", "action_version": "1",
             "payload": {"open_token": 7, "close_token": 8}}]}
        prompt = Prompt("r", [], kv_transfer_params={"kv_hints": hints})
        prompt.all_token_ids = [1] * 16_384 + [7] + [1] * 100
        self.hints.added(prompt)
        self.assertEqual(self.hints.transient(prompt), (512, None))
        known, ranges = self.hints.transient(prompt)
        self.assertEqual((known, ranges[0][0]), (515, 513))


class HintCommands(unittest.TestCase):
    def body(self, kind: str, payload: Any, params: Any = None) -> Any:
        action = Action("7", kind, payload, Selection())
        return command_body(action, [1, 2], params or {}, "vllm")

    def test_each_action_becomes_the_command_of_its_page(self) -> None:
        self.assertEqual(
            self.body("pin", {"ttl_seconds": 5, "owner": "me"}),
            {"type": "Cache", "pin": True, "block_hashes": [1, 2], "owner": "me", "ttl_seconds": 5},
        )
        retain = self.body("retain", {"priority": 100, "ttl_seconds": 9}, {"session_id": "s"})
        self.assertEqual((retain["retain"], retain["retain_seconds"]), (99, 9))
        self.assertEqual(retain["owner"], "s")
        demote = self.body("demote", {}, {"session_id": "s"})
        self.assertEqual((demote["type"], demote["lease_id"]), ("Pause", "session-s"))
        self.assertEqual(
            self.body("transient", {}),
            {"type": "Think", "transient": True, "block_hashes": [1, 2]},
        )

    def test_a_block_is_named_by_the_last_eight_bytes_of_its_hash(self) -> None:
        self.assertEqual(engine_hash(bytes(24) + (77).to_bytes(8, "big")), 77)


class Figures(unittest.TestCase):
    def test_figures_of_several_ranks_are_added(self) -> None:
        one, two = Stats(), Stats()
        for side, amount in ((one, 2), (two, 3)):
            side.count("loaded_bytes", "", amount)
            side.observe("load_seconds", amount / 10)
            side.high_water("excess_wait_seconds_max", amount)
        first, second = one.take(), two.take()
        assert first is not None and second is not None
        merged = merge(first, second)
        self.assertEqual(merged["counters"], {"loaded_bytes": {"": 5}})
        self.assertEqual(merged["histograms"]["load_seconds"], [0.2, 0.3])
        self.assertEqual(merged["gauges"], {"excess_wait_seconds_max": 3})
        self.assertEqual(summary(merged)["load_seconds.count"], 2)
        self.assertIsNone(one.take())


if __name__ == "__main__":
    unittest.main()
