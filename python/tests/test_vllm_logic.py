"""hearth_vllm without vLLM: settings, geometry, identity, refusals."""

from __future__ import annotations

import os
import tempfile
import unittest
from json import dumps
from struct import pack
from types import SimpleNamespace
from typing import Any, List

from hearth_client import Manifest
from hearth_client.weights import sampled_digest
from hearth_vllm import checks, versions
from hearth_vllm.geometry import block_dimension, describe
from hearth_vllm.keys import BlockKeys
from hearth_vllm.manifest import of_family, seed_of, to_plain
from hearth_vllm.settings import Settings, read_settings

BLOCK_TOKENS = 32


class Tensor:
    """Geometry of a torch tensor with 4-byte elements."""

    dtype = "torch.float32"

    def __init__(self, base: int, shape: List[int], strides: List[int]) -> None:
        self.shape, self._base, self._strides = shape, base, strides

    def data_ptr(self) -> int:
        return self._base

    def stride(self) -> List[int]:
        return self._strides

    def element_size(self) -> int:
        return 4


def request(tokens: List[int], prompt: int = 0, **more: Any) -> Any:
    count = len(tokens) // BLOCK_TOKENS
    return SimpleNamespace(
        request_id="r",
        all_token_ids=tokens,
        num_tokens=len(tokens),
        num_prompt_tokens=prompt or len(tokens),
        block_hashes=[bytes([i]) * 32 for i in range(count)],
        **more,
    )


class SettingsOfTheConnector(unittest.TestCase):
    def test_every_setting_has_a_default(self) -> None:
        self.assertEqual(read_settings(None), Settings())
        self.assertEqual(read_settings({"hearth.stall_ms": 50}).stall_ms, 50)

    def test_an_unknown_key_is_refused_with_the_nearest_known_one(self) -> None:
        with self.assertRaisesRegex(ValueError, "'hearth.sokcet': did you mean 'hearth.socket'"):
            read_settings({"hearth.sokcet": "/x"})
        with self.assertRaisesRegex(ValueError, "did you mean 'hearth.stall_ms'"):
            read_settings({"stall_ms": 1})

    def test_a_mistaken_value_is_refused_with_the_expected_one(self) -> None:
        for key, value, fix in (
            ("hearth.stall_ms", 1, "from 10 to 60000"),
            ("hearth.stall_ms", 20.5, "whole number"),
            ("hearth.stall_ms", "100", "to a number"),
            ("hearth.load", 1, "true or false"),
            ("hearth.store", "some", "all, prompt, none"),
            ("hearth.socket", 5, "to a text"),
            ("hearth.socket", "/" + "x" * 200, "at most 107 bytes"),
        ):
            with self.assertRaisesRegex(ValueError, fix):
                read_settings({key: value})


class Versions(unittest.TestCase):
    def test_a_tested_version_has_no_remark_and_an_old_one_is_refused(self) -> None:
        self.assertIsNone(versions.remark("0.32.0+cpu"))
        self.assertIn("unverified", versions.remark("0.99.1") or "")
        self.assertIn("unverified", versions.remark("dev") or "")
        self.assertIn("inspected but never run", versions.remark("0.29.0") or "")
        self.assertIn("neither run nor inspected", versions.remark("0.30.0") or "")
        with self.assertRaisesRegex(ValueError, "too old.*install vLLM 0.32, or at least 0.22"):
            versions.remark("0.9.2")


class Geometry(unittest.TestCase):
    def test_a_contiguous_block_of_a_layer_is_one_span(self) -> None:
        layer = Tensor(1 << 20, [8, 2, 32, 128], [8192, 4096, 128, 1])
        found = describe({"layers.0.attn": layer}, 8)
        self.assertEqual(found.spans, [(1 << 20, 32_768, 32_768)])
        self.assertEqual(found.layout, "float32[d1:2,d2:32,d3:128]")

    def test_layers_are_in_their_order_and_shared_tensors_count_once(self) -> None:
        caches = {
            f"layers.{i}.attn": Tensor((i + 1) << 20, [8, 4], [4, 1]) for i in (10, 2)
        }
        caches["layers.11.attn"] = caches["layers.2.attn"]
        self.assertEqual(
            describe(caches, 8).spans, [(3 << 20, 16, 16), (11 << 20, 16, 16)]
        )

    def test_keys_and_values_outside_the_block_dimension_are_two_spans(self) -> None:
        layer = Tensor(4096, [2, 8, 16], [128, 16, 1])
        self.assertEqual(describe({"a": layer}, 8).spans, [(4096, 64, 64), (4608, 64, 64)])

    def test_layers_packed_side_by_side_in_a_block_are_one_span(self) -> None:
        caches = {f"l.{i}": Tensor(4096 + 64 * i, [8, 16], [32, 1]) for i in range(2)}
        self.assertEqual(describe(caches, 8).spans, [(4096, 128, 128)])

    def test_a_block_of_several_kernel_blocks_is_one_span(self) -> None:
        layer = Tensor(4096, [16, 8], [8, 1])
        self.assertEqual(describe({"a": layer}, 8).spans, [(4096, 64, 64)])

    def test_equal_byte_orders_have_equal_layouts(self) -> None:
        apart = Tensor(4096, [8, 2, 4], [4, 32, 1])
        within = Tensor(4096, [8, 2, 4], [8, 4, 1])
        swapped = Tensor(4096, [8, 2, 4], [8, 1, 2])
        one, two, three = (describe({"a": t}, 8) for t in (apart, within, swapped))
        self.assertEqual(one.layout, two.layout)
        self.assertNotEqual(two.layout, three.layout)

    def test_a_tensor_without_blocks_is_refused(self) -> None:
        with self.assertRaisesRegex(ValueError, "no dimension of 7 blocks"):
            block_dimension([8, 2], 7)


class Identity(unittest.TestCase):
    def test_hashes_with_a_random_seed_are_refused_with_the_fix(self) -> None:
        self.assertEqual(seed_of("sha256", {}, "vllm-none-hash"), "vllm-none-hash")
        self.assertEqual(seed_of("xxhash", {"PYTHONHASHSEED": "0"}, None), "0")
        for algorithm, fixed in (("xxhash_cbor", "vllm-none-hash"), ("sha256", None)):
            with self.assertRaisesRegex(ValueError, "PYTHONHASHSEED=0"):
                seed_of(algorithm, {}, fixed)

    def test_weights_that_differ_in_one_tensor_have_another_revision(self) -> None:
        revisions = set()
        for value in (b"\0", b"\1"):
            with tempfile.TemporaryDirectory() as folder:
                header = dumps(
                    {
                        "a": {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]},
                        "b": {"dtype": "U8", "shape": [64], "data_offsets": [64, 128]},
                    }
                ).encode()
                with open(os.path.join(folder, "model.safetensors"), "wb") as file:
                    file.write(pack("<Q", len(header)) + header + b"\7" * 64 + value * 64)
                revisions.add(sampled_digest(folder))
                self.assertEqual(sampled_digest(folder), sampled_digest(folder))
        self.assertEqual(len(revisions), 2)

    def test_workers_of_one_engine_form_one_family(self) -> None:
        ranks = [
            Manifest("m", "float32", "l", 32, tp_size=2, tp_rank=rank, extra={"a": "b"})
            for rank in range(2)
        ]
        self.assertEqual(of_family([to_plain(one) for one in ranks]), ranks[0])
        other = Manifest("m", "float32", "another", 32, tp_size=2, tp_rank=1, extra={"a": "b"})
        with self.assertRaisesRegex(ValueError, "differ in layout"):
            of_family([to_plain(ranks[0]), to_plain(other)])

    def test_a_reset_gives_blocks_keys_that_no_earlier_block_had(self) -> None:
        keys, one = BlockKeys(), request([1] * 64)
        before = keys.of(one, 0, 2)
        self.assertEqual(before, one.block_hashes)
        keys.renew()
        after = keys.of(one, 0, 2)
        self.assertFalse(set(before) & set(after))
        self.assertEqual(after, keys.of(one, 0, 2))
        self.assertEqual([len(key) for key in after], [32, 32])


class FullAttentionSpec:
    pass


class SlidingWindowSpec:
    pass


class RefusedConfigurations(unittest.TestCase):
    def config(self, **more: Any) -> Any:
        values = {
            "parallel_config": SimpleNamespace(),
            "speculative_config": None,
            "cache_config": SimpleNamespace(calculate_kv_scales=False),
        }
        return SimpleNamespace(**{**values, **more})

    def groups(self, *specs: Any) -> Any:
        return SimpleNamespace(
            kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec) for spec in specs]
        )

    def test_one_group_of_full_attention_is_supported(self) -> None:
        checks.check(self.config(), self.groups(FullAttentionSpec()))

    def test_each_refusal_is_one_line_with_the_fix(self) -> None:
        full = self.groups(FullAttentionSpec())
        scales = SimpleNamespace(calculate_kv_scales=True)
        sleeping = SimpleNamespace(enable_sleep_mode=True)
        zeroed = self.groups(FullAttentionSpec())
        zeroed.needs_kv_cache_zeroing = True
        cases = (
            (self.config(), self.groups(FullAttentionSpec(), SlidingWindowSpec()), "hybrid"),
            (self.config(), self.groups(SlidingWindowSpec()), "has SlidingWindowSpec"),
            (
                self.config(parallel_config=SimpleNamespace(decode_context_parallel_size=2)),
                full,
                "set it to 1",
            ),
            (self.config(speculative_config=SimpleNamespace(method="eagle")), full, "eagle"),
            (self.config(cache_config=scales), full, "calculate-kv-scales"),
            (self.config(model_config=sleeping), full, "enable-sleep-mode"),
            (self.config(), zeroed, "one precision"),
        )
        for config, groups, text in cases:
            with self.assertRaisesRegex(ValueError, text) as caught:
                checks.check(config, groups)
            self.assertNotIn("\n", str(caught.exception))

    def test_the_failure_policy_is_set_or_demanded(self) -> None:
        policy = SimpleNamespace(kv_load_failure_policy="fail")
        self.assertTrue(checks.set_failure_policy(policy))
        self.assertEqual(policy.kv_load_failure_policy, "recompute")
        self.assertFalse(checks.set_failure_policy(policy))

        class Frozen:
            __slots__ = ()
            kv_load_failure_policy = "fail"

        with self.assertRaisesRegex(ValueError, "kv_load_failure_policy"):
            checks.set_failure_policy(Frozen())


if __name__ == "__main__":
    unittest.main()
