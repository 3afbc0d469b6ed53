"""Blocks of a namespace with a key, through Client and KvStore and a real agent."""

from __future__ import annotations

import os
import tempfile
import unittest
from pathlib import Path
from typing import Any, Iterator, List
from unittest import mock

from hearth_client import Client, NamespaceKey, Outcome, namespace_key
from hearth_client.layout import Block
from hearth_client.namespace_key import MAC_FIELD, Macs
from hearth_client.native import NATIVE

from .kv_pool import MANIFEST, Pool, keys_of, parents_of, store
from .real_agent import COMMAND, RealAgent

SECRET = b"a secret of the namespace"
COUNT = 20


@unittest.skipUnless(NATIVE, "no native library")
class Keys(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="hearth-test-")
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "key")

    def write(self, data: bytes, mode: int = 0o600) -> str:
        Path(self.path).write_bytes(data)
        os.chmod(self.path, mode)
        return self.path

    def test_a_file_is_read_without_newlines_at_its_end(self) -> None:
        key = NamespaceKey.from_file(self.write(SECRET + b"\n"))
        self.assertEqual(key.id, NamespaceKey(SECRET).id)
        self.assertEqual(key.key, NamespaceKey(SECRET).key)
        self.assertEqual((len(key.id), len(key.key)), (32, 16))
        self.assertNotEqual(key.id, NamespaceKey(SECRET + b"!").id)
        self.assertNotIn(key.key.hex(), key.id)

    def test_a_file_that_others_may_read_is_refused_with_the_fix(self) -> None:
        for mode in (0o640, 0o604, 0o660):
            with self.assertRaisesRegex(ValueError, "chmod 600"):
                NamespaceKey.from_file(self.write(SECRET, mode))

    def test_a_file_that_is_missing_or_has_another_length_is_refused(self) -> None:
        with self.assertRaisesRegex(ValueError, "cannot be read"):
            NamespaceKey.from_file(self.path)
        for size in (0, 15, 4097):
            with self.assertRaisesRegex(ValueError, "16 to"):
                NamespaceKey.from_file(self.write(b"x" * size))
        with self.assertRaisesRegex(ValueError, "not a regular file"):
            NamespaceKey.from_file(os.path.dirname(self.path))

    def test_settings_give_a_file_a_secret_salt_or_no_key(self) -> None:
        path = self.write(SECRET)
        given = NamespaceKey.from_settings
        self.assertIsNone(given(None, "salt", False))
        self.assertEqual(given(path, None, False).id, NamespaceKey(SECRET).id)
        salted = given("", SECRET.decode(), True)
        self.assertEqual(salted.id, NamespaceKey(SECRET).id)
        for wrong in ((path, "salt", True), (None, None, True)):
            with self.assertRaises(ValueError):
                given(*wrong)

    def test_without_the_native_library_a_key_is_refused_in_one_line(self) -> None:
        with mock.patch.object(namespace_key, "NATIVE", None):
            with self.assertRaisesRegex(ValueError, "needs the native library"):
                NamespaceKey(SECRET)

    def test_the_manifest_names_the_key_and_nothing_else_of_it(self) -> None:
        key = NamespaceKey(SECRET)
        applied = key.applied(MANIFEST)
        self.assertEqual(applied.extra[MAC_FIELD], key.id)
        self.assertEqual(key.applied(applied), applied)
        self.assertNotIn(key.key, applied.encode())
        self.assertNotIn(SECRET, applied.encode())

    def test_a_mac_is_that_of_the_draft_for_its_message(self) -> None:
        assert NATIVE is not None
        macs = [Macs(NamespaceKey(SECRET), bytes([i]) * 32) for i in range(2)]
        data = bytearray(b"payload" * 100)
        piece = namespace_key_piece(data)
        for one in macs:
            NATIVE.mac_pieces([[piece]], one)
        self.assertNotEqual(macs[0].packed(), macs[1].packed())
        found = Macs(NamespaceKey(SECRET), bytes(32), macs[0].packed())
        self.assertEqual(NATIVE.verify_pieces([[piece]], [0], found), [True])
        data[50] ^= 1
        self.assertEqual(NATIVE.verify_pieces([[piece]], [0], found), [False])


def namespace_key_piece(data: bytearray) -> Any:
    from hearth_client.memory import piece_of

    return piece_of(data)


@unittest.skipUnless(NATIVE, "no native library")
@unittest.skipUnless(COMMAND, "HEARTH_TEST_AGENT does not say how to start an agent")
class WithAnAgent(unittest.TestCase):
    agent: RealAgent

    @classmethod
    def setUpClass(cls) -> None:
        cls.agent = RealAgent()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.agent.__exit__()

    def test_a_store_with_the_key_gets_back_what_it_put(self) -> None:
        key, keys = NamespaceKey(b"first" * 5), keys_of(COUNT)
        source, target = Pool(COUNT), Pool(COUNT)
        source.fill()
        with store(self.agent.path, key=key) as one:
            put = one.put(keys, parents_of(keys), source.memory, range(COUNT))
            self.assertEqual(put, [Outcome.OK] * COUNT)
            got = one.get(keys, target.memory, range(COUNT))
            self.assertEqual(got, [Outcome.OK] * COUNT)
            self.assertTrue(all(target.is_right(i, i) for i in range(COUNT)))
        with store(self.agent.path) as other:
            self.assertEqual(other.exists(keys), 0)

    def test_blocks_of_an_engine_without_the_key_are_corrupt(self) -> None:
        key, keys = NamespaceKey(b"second" * 5), keys_of(COUNT)
        # It knows the manifest, and so the identifier, and has made up a key.
        rogue = NamespaceKey(b"made up" * 5)
        rogue.id = key.id
        source, target = Pool(COUNT), Pool(COUNT)
        source.fill()
        with store(self.agent.path, key=rogue) as one:
            put = one.put(keys, parents_of(keys), source.memory, range(COUNT))
            self.assertEqual(put, [Outcome.OK] * COUNT)
        with store(self.agent.path, key=key) as victim:
            got = victim.get(keys, target.memory, range(COUNT))
            self.assertEqual(got, [Outcome.CORRUPT] * COUNT)

    def test_a_client_with_the_key_verifies_by_mac(self) -> None:
        key, rogue = NamespaceKey(b"third" * 5), NamespaceKey(b"made up" * 5)
        rogue.id = key.id
        names = [bytes([i]) * 32 for i in (1, 2, 3)]
        with Client(self.agent.path, MANIFEST, key=key) as client:
            self.assertEqual(client.put(names[0], None, b"written"), Outcome.OK)
            (slot,) = client.reserve([Block(names[1], 4)])
            slot.view[:] = b"view"
            self.assertEqual(client.commit([slot]), [Outcome.OK])
            self.assertEqual(client.get(names[:2]), [b"written", b"view"])
            targets: List[bytearray] = [bytearray(7), bytearray(4)]
            self.assertEqual(client.get_into(names[:2], targets), [Outcome.OK] * 2)
            with client.acquired(names[:1]) as (block,):
                self.assertTrue(block.verify(b"written"))
                self.assertFalse(block.verify(b"writtem"))
        with Client(self.agent.path, MANIFEST, key=rogue) as client:
            self.assertEqual(client.put(names[2], None, b"planted"), Outcome.OK)
        with Client(self.agent.path, MANIFEST, key=key) as client:
            self.assertEqual(client.get(names[2:]), [None])
            # The agent has no key, cannot judge the report, and keeps the block.
            self.assertEqual(client.get_into(names[2:], [bytearray(7)]), [Outcome.CORRUPT])
        with self.assertRaisesRegex(ValueError, "given as a Manifest"):
            Client(self.agent.path, MANIFEST.encode(), key=key)
