"""hearth_sglang without an agent: settings, keys, pools, identity, sidecar pools."""

from __future__ import annotations

import logging
import os
import tempfile
import unittest
from dataclasses import replace
from hashlib import sha256
from typing import Any, List, Sequence
from unittest import mock

from . import engine_stand_ins as stand_ins

stand_ins.install()

from hearth_sglang.identity import manifest_of  # noqa: E402
from hearth_sglang.keys import KeySpace, event_hash, page_key  # noqa: E402
from hearth_sglang.pools import HostPool  # noqa: E402
from hearth_sglang.settings import Settings, parse  # noqa: E402
from hearth_sglang.sidecars import hits_of  # noqa: E402
from hearth_sglang.stats import TESTED_VERSIONS, warn_of_untested_version  # noqa: E402
from hearth_sglang.storage import HearthStorage  # noqa: E402
from sglang.srt.mem_cache.hicache_storage import (  # noqa: E402
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)


#: Outside a server nothing says which weights were loaded.
KNOWN = Settings(weights_revision="r1")


def names(count: int) -> List[str]:
    return [sha256(bytes([number])).hexdigest() for number in range(count)]


def download(cache: str, model: str, commit: str) -> None:
    """The files that a model download leaves in a Hub cache, without the weights."""
    folder = os.path.join(cache, "models--" + model.replace("/", "--"))
    os.makedirs(os.path.join(folder, "snapshots", commit))
    os.makedirs(os.path.join(folder, "refs"))
    with open(os.path.join(folder, "refs", "main"), "w", encoding="ascii") as file:
        file.write(commit)


class SettingsOfTheBackend(unittest.TestCase):
    def test_every_setting_has_a_default_and_the_keys_of_sglang_are_passed_over(self) -> None:
        own = {"backend_name": "hearth", "module_path": "m", "class_name": "c", "allocator": "shm"}
        self.assertEqual(parse(own), Settings())
        self.assertEqual(parse(None), Settings())
        self.assertTrue(parse({**own, "interface_v1": 1}).zero_copy)

    def test_a_mistaken_key_is_refused_with_the_key_that_is_meant(self) -> None:
        with self.assertRaisesRegex(ValueError, "unknown key 'sokcet': did you mean 'socket'"):
            parse({"sokcet": "/run/x"})
        with self.assertRaisesRegex(ValueError, "'interface_v2': did you mean 'interface_v1'"):
            parse({"interface_v2": 1})

    def test_a_mistaken_value_is_refused_with_what_is_expected(self) -> None:
        with self.assertRaisesRegex(ValueError, "stall_ms'. is 0: set it to a number from 1"):
            parse({"stall_ms": 0})
        with self.assertRaisesRegex(ValueError, "peers'. is 1: set it to true or false"):
            parse({"peers": 1})
        with self.assertRaisesRegex(ValueError, "model'. is '': set it to a text with"):
            parse({"model": ""})

    def test_the_backend_refuses_a_mistaken_setting_when_sglang_creates_it(self) -> None:
        with self.assertRaisesRegex(ValueError, "unknown key"):
            HearthStorage(stand_ins.storage_config(extra_config={"socket_path": "/x"}), {})


class Keys(unittest.TestCase):
    def test_page_keys_are_the_bytes_of_their_hex_digits(self) -> None:
        (name,) = names(1)
        self.assertEqual(page_key(name).hex(), name)
        self.assertEqual(event_hash(page_key(name)), int(name[:16], 16))

    def test_a_name_that_is_not_a_sha256_gets_a_key_of_32_bytes(self) -> None:
        self.assertEqual(len(page_key("session-1.mamba")), 32)
        self.assertNotEqual(page_key("ab"), page_key("AB"))

    def test_keys_of_two_pools_never_meet(self) -> None:
        (name,) = names(1)
        spaces = [KeySpace(), KeySpace("mamba|0/1"), KeySpace("mamba|1/2"), KeySpace("flat page")]
        self.assertEqual(len({space.key(name) for space in spaces}), 4)

    def test_the_parent_is_the_key_before_and_for_the_first_the_last_of_the_prefix(self) -> None:
        first, second, third = names(3)
        space = KeySpace()
        keys = space.keys([second, third])
        self.assertEqual(space.parents(keys, [first]), [page_key(first), page_key(second)])
        self.assertEqual(space.parents(keys, None), [None, page_key(second)])
        self.assertEqual(space.parents(keys, []), [None, page_key(second)])
        self.assertEqual(space.parents([], [first]), [])


class Pools(unittest.TestCase):
    def test_pages_at_equal_distances_are_named_by_numbers(self) -> None:
        for layout, regions in (("layer_first", 6), ("page_first", 2)):
            with self.subTest(layout):
                pool = HostPool(stand_ins.HostMemoryPool(layout=layout))
                self.assertFalse(pool.flat)
                assert pool.memory is not None
                self.assertEqual(len(pool.memory.regions), regions)
                self.assertEqual(pool.memory.block_bytes, pool.page_bytes)
                self.assertEqual(pool.page_numbers([0, 12]), [0, 3])
                self.assertEqual(list(pool.memory.pieces(3)), pool.pieces([12])[0])

    def test_a_page_between_two_pages_is_named_by_addresses(self) -> None:
        pool = HostPool(stand_ins.HostMemoryPool())
        self.assertIsNone(pool.page_numbers([2]))
        self.assertEqual(len(pool.pieces([2])[0]), 6)

    def test_pages_at_unequal_distances_are_named_by_addresses(self) -> None:
        class Uneven(stand_ins.HostMemoryPool):
            def get_page_buffer_meta(self, indices: Any) -> Any:
                pointers, sizes = super().get_page_buffer_meta(indices)
                last = indices.tolist()[-1] == self.size - 1
                return [*pointers[:-1], pointers[-1] - 4 * last], sizes

        self.assertIsNone(HostPool(Uneven()).memory)

    def test_a_pool_without_addresses_is_copied_page_by_page(self) -> None:
        class Copied(stand_ins.HostMemoryPool):
            def get_page_buffer_meta(self, indices: Any) -> Any:
                raise ValueError("Unsupported layout: layer_first")

        pool = HostPool(Copied())
        self.assertTrue(pool.flat)
        self.assertIn(":flat", pool.layout)

    def test_indices_that_are_not_whole_pages_are_refused(self) -> None:
        pool = HostPool(stand_ins.HostMemoryPool())
        with self.assertRaisesRegex(ValueError, "7 indices for 2 pages of 4 tokens"):
            pool.firsts(stand_ins.Indices(range(7)), 2)


class Identity(unittest.TestCase):
    def manifest(self, layout: str = "layer_first", settings: Any = None, **changes: Any) -> bytes:
        config = stand_ins.storage_config(**changes)
        pool = HostPool(stand_ins.HostMemoryPool(layout=layout))
        return manifest_of(config, pool, settings or KNOWN, None).encode()

    def test_ranks_with_other_bytes_share_no_blocks(self) -> None:
        manifests = [
            self.manifest(),
            self.manifest(layout="page_first"),
            self.manifest(tp_size=2),
            self.manifest(tp_size=2, tp_rank=1),
            self.manifest(pp_size=2, pp_rank=1),
            self.manifest(attn_cp_size=2, attn_cp_rank=1),
            self.manifest(model_name="other"),
            self.manifest(settings=Settings(weights_revision="r2")),
            self.manifest(settings=replace(KNOWN, tenant_salt="tenant")),
        ]
        self.assertEqual(len(set(manifests)), len(manifests))

    def test_a_secret_salt_stays_out_of_the_manifest(self) -> None:
        salt = "a secret of a tenant"
        secret = replace(KNOWN, tenant_salt=salt, tenant_salt_secret=True)
        self.assertEqual(self.manifest(settings=secret), self.manifest())
        self.assertNotIn(salt.encode(), self.manifest(settings=secret))
        with self.assertRaisesRegex(ValueError, "set it to true or false"):
            parse({"tenant_salt_secret": "yes"})
        self.assertEqual(parse({"key_file": "/k"}).key_file, "/k")

    def test_ranks_of_an_mla_model_share_their_blocks(self) -> None:
        ranks = [self.manifest(is_mla_model=True, tp_size=2, tp_rank=rank) for rank in (0, 1)]
        self.assertEqual(ranks[0], ranks[1])

    def test_a_server_without_a_model_name_is_refused_with_the_fix(self) -> None:
        with self.assertRaisesRegex(ValueError, 'set "model" in'):
            self.manifest(model_name=None)
        self.manifest(model_name=None, settings=replace(KNOWN, model="given"))

    def test_weights_of_an_unknown_revision_are_refused_with_the_fix(self) -> None:
        pool, config = HostPool(stand_ins.HostMemoryPool()), stand_ins.storage_config()
        with tempfile.TemporaryDirectory() as empty:
            for path in (None, "org/never-downloaded", empty):
                arguments = stand_ins.SimpleNamespace(model_path=path, revision="main")
                with self.assertRaisesRegex(ValueError, 'set "weights_revision" in'):
                    manifest_of(config, pool, Settings(), arguments)
        given = stand_ins.SimpleNamespace(model_path="org/never-downloaded", revision="a" * 40)
        made = manifest_of(config, pool, Settings(), given)
        self.assertEqual(made.weights_revision, "commit:" + "a" * 40)
        with mock.patch.dict(os.environ, {"SGLANG_USE_MODELSCOPE": "true"}):
            with self.assertRaisesRegex(ValueError, 'set "weights_revision" in'):
                manifest_of(config, pool, Settings(), given)

    def test_the_folder_that_sglang_downloads_to_says_the_commit(self) -> None:
        pool, config = HostPool(stand_ins.HostMemoryPool()), stand_ins.storage_config()
        with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as folder:
            arguments = stand_ins.SimpleNamespace(model_path="org/name", download_dir=folder)
            download(os.path.join(home, "hub"), "org/name", "5" * 40)
            download(folder, "org/name", "6" * 40)
            with mock.patch.dict(os.environ, {"HF_HOME": home}):
                os.environ.pop("HF_HUB_CACHE", None)
                made = manifest_of(config, pool, Settings(), arguments)
        self.assertEqual(made.weights_revision, "commit:" + "6" * 40)

    def test_a_name_of_the_hub_stands_for_the_commit_in_its_cache(self) -> None:
        pool, config = HostPool(stand_ins.HostMemoryPool()), stand_ins.storage_config()
        arguments = stand_ins.SimpleNamespace(model_path="org/name", revision=None)
        with tempfile.TemporaryDirectory() as home, mock.patch.dict(
            os.environ, {"HF_HOME": home}
        ):
            os.environ.pop("HF_HUB_CACHE", None)
            download(os.path.join(home, "hub"), "org/name", "5" * 40)
            made = manifest_of(config, pool, Settings(), arguments)
        self.assertEqual(made.weights_revision, "commit:" + "5" * 40)

    def test_other_weights_at_the_same_path_share_no_blocks(self) -> None:
        pool, config = HostPool(stand_ins.HostMemoryPool()), stand_ins.storage_config()
        revisions = []
        with tempfile.TemporaryDirectory() as folder:
            arguments = stand_ins.SimpleNamespace(model_path=folder, revision=None)
            for weights in (b"one", b"two"):
                with open(os.path.join(folder, "model.bin"), "wb") as file:
                    file.write(weights)
                made = manifest_of(config, pool, Settings(), arguments)
                revisions.append(str(made.weights_revision))
        self.assertEqual(len(set(revisions)), 2)
        self.assertTrue(revisions[0].startswith("sampled:"))

    def test_overrides_of_the_model_are_part_of_the_identity(self) -> None:
        pool, config = HostPool(stand_ins.HostMemoryPool()), stand_ins.storage_config()

        def extra(overrides: str) -> Any:
            arguments = stand_ins.SimpleNamespace(json_model_override_args=overrides)
            return manifest_of(config, pool, KNOWN, arguments).extra

        self.assertEqual(extra("{}"), extra(""))
        self.assertNotEqual(extra("{}"), extra('{"rope_theta": 1}'))

    def test_the_logical_type_is_part_of_the_identity(self) -> None:
        pool = HostPool(stand_ins.HostMemoryPool())
        config = stand_ins.storage_config()

        def dtype(kind: str) -> str:
            arguments = stand_ins.SimpleNamespace(kv_cache_dtype=kind)
            return manifest_of(config, pool, KNOWN, arguments).dtype

        self.assertEqual(dtype("auto"), "float32")
        self.assertEqual(dtype("fp8_e4m3"), "fp8_e4m3:float32")
        self.assertNotEqual(dtype("fp8_e4m3"), dtype("fp8_e5m2"))


class Versions(unittest.TestCase):
    def logged(self, version: str) -> int:
        with mock.patch("importlib.metadata.version", return_value=version):
            with self.assertLogs("versions") as logs:
                logging.getLogger("versions").info("at least one line")
                warn_of_untested_version(logging.getLogger("versions"))
        return len(logs.records) - 1

    def test_an_untested_version_logs_one_warning(self) -> None:
        self.assertEqual((self.logged(TESTED_VERSIONS[0]), self.logged("99.0")), (0, 1))


class SidecarPools(unittest.TestCase):
    def hits(self, pages: int, policy: Any, window: int, here: Sequence[int]) -> Any:
        keys = names(6)
        asked = PoolTransfer(PoolName.MAMBA, keys=keys[:window], hit_policy=policy)

        def leading(pool: str, part: Sequence[str]) -> int:
            self.assertEqual(pool, "mamba")
            present = [keys.index(key) in here for key in part]
            return present.index(False) if False in present else len(present)

        return hits_of(keys, pages, [asked], leading)

    def test_a_pool_of_all_pages_limits_the_prefix_to_its_leading_blocks(self) -> None:
        found = self.hits(5, PoolHitPolicy.ALL_PAGES, 6, [0, 1, 2, 4])
        self.assertEqual(found.kv_hit_pages, 3)
        self.assertEqual(found.extra_pool_hit_pages, {PoolName.KV: 5, PoolName.MAMBA: 3})
        self.assertEqual(found.restorable_prefix_pages, [1, 2, 3])

    def test_a_pool_of_trailing_pages_allows_the_lengths_that_end_in_its_blocks(self) -> None:
        found = self.hits(5, PoolHitPolicy.TRAILING_PAGES, 1, [1, 3, 5])
        self.assertEqual(found.kv_hit_pages, 4)
        self.assertEqual(found.restorable_prefix_pages, [2, 4])
        wide = self.hits(6, PoolHitPolicy.TRAILING_PAGES, 2, [1, 2, 4])
        self.assertEqual(wide.restorable_prefix_pages, [3])

    def test_without_pages_of_the_main_pool_nothing_is_restored(self) -> None:
        found = self.hits(0, PoolHitPolicy.ALL_PAGES, 6, range(6))
        self.assertEqual((found.kv_hit_pages, found.extra_pool_hit_pages), (0, {}))


if __name__ == "__main__":
    unittest.main()
