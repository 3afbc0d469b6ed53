"""Commands that name more blocks than one frame holds."""

from __future__ import annotations

import json
import unittest
from typing import Any, Dict, List

from hearth_client.split_command import BLOCKS_MAX, merged, parts_of

from .kv_pool import HANG_SECONDS, store
from .real_agent import COMMAND, RealAgent


class Parts(unittest.TestCase):
    def bodies(self, body: Dict[str, Any], bytes_max: int) -> List[Dict[str, Any]]:
        parts = parts_of(body, bytes_max)
        for part in parts:
            self.assertLessEqual(len(part.json_bytes), bytes_max)
        bodies = [json.loads(part.json_bytes) for part in parts]
        counts = [len(one["block_hashes"]) for one in bodies]
        self.assertEqual([part.names for part in parts], counts)
        return bodies

    def test_a_command_that_fits_is_one_part(self) -> None:
        body = {"type": "Cache", "block_hashes": [1, 2], "pin": True}
        self.assertEqual(self.bodies(body, 1000), [body])
        self.assertEqual(len(parts_of({"type": "Flush"}, 1000)), 1)

    def test_parts_have_all_members_and_name_each_block_once_in_order(self) -> None:
        names = list(range(10**18, 10**18 + 999))
        body = {"type": "Pause", "block_hashes": names, "owner": "me", "lease_id": "l"}
        bodies = self.bodies(body, 1000)
        self.assertGreater(len(bodies), 20)
        self.assertEqual([name for one in bodies for name in one["block_hashes"]], names)
        for one in bodies:
            self.assertEqual({**one, "block_hashes": names}, body)

    def test_a_part_names_at_most_as_many_blocks_as_a_command_may(self) -> None:
        parts = parts_of({"block_keys": [1] * (BLOCKS_MAX + 1)}, 1 << 20)
        self.assertEqual(sum(part.names for part in parts), BLOCKS_MAX + 1)
        self.assertEqual(len(parts), 2)

    def test_parts_of_a_command_with_an_id_have_ids_of_their_own(self) -> None:
        bodies = self.bodies({"type": "Cache", "block_hashes": list(range(200)), "id": "one"}, 500)
        self.assertEqual([one["id"] for one in bodies], [f"one.{at}" for at in range(len(bodies))])
        self.assertGreater(len(bodies), 1)

    def test_a_command_that_cannot_be_split_is_refused(self) -> None:
        for body in (
            {"block_hashes": [1] * 100, "seq": 1},
            {"block_hashes": ["x" * 100]},
            {"lease_id": "x" * 100},
        ):
            with self.assertRaisesRegex(ValueError, "42 are allowed"):
                parts_of(body, 50)


class Receipts(unittest.TestCase):
    def test_parts_have_one_receipt(self) -> None:
        one = {"status": "ok", "counts": {"done": 2, "missing": 0}, "blocks": [{"block": 1}]}
        two = {"status": "partial", "counts": {"done": 1, "missing": 1}, "blocks": [{"block": 2}]}
        whole = merged(
            [
                {**one, "ttl_seconds": 60, "bytes": 10, "durable": True},
                {**two, "ttl_seconds": 50, "bytes": 5, "durable": False, "reason": "budget: x"},
            ]
        )
        self.assertEqual(whole["counts"], {"done": 3, "missing": 1})
        self.assertEqual(whole["blocks"], [{"block": 1}, {"block": 2}])
        self.assertEqual((whole["status"], whole["reason"]), ("partial", "budget: x"))
        self.assertEqual((whole["ttl_seconds"], whole["bytes"]), (50, 15))
        self.assertIs(whole["durable"], False)

    def test_the_status_is_that_of_all_parts_if_they_agree(self) -> None:
        refused = {"status": "rejected", "reason": "forbidden: x"}
        self.assertEqual(merged([refused, refused])["status"], "rejected")
        self.assertEqual(merged([refused, {"status": "ok"}])["status"], "partial")


@unittest.skipUnless(COMMAND, "HEARTH_TEST_AGENT does not say how to start an agent")
class Agent(unittest.TestCase):
    def test_a_pin_of_a_very_long_prompt_is_carried_out_for_each_block(self) -> None:
        agent = RealAgent()
        self.addCleanup(agent.__exit__)
        with store(agent.path) as one:
            names = list(range(10**19, 10**19 + 120_000))
            ticket = one.command({"type": "Cache", "pin": True, "block_hashes": names})
            self.assertTrue(ticket.wait(HANG_SECONDS))
            receipt = ticket.result()
            self.assertEqual(receipt["status"], "partial")
            self.assertEqual(receipt["counts"]["missing"], len(names))
            self.assertTrue(one.connected)


if __name__ == "__main__":
    unittest.main()
