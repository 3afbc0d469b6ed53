"""The kernels of the client: the native library against the Python form and the golden files."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import unittest
from array import array
from pathlib import Path
from typing import List, Tuple, Union

from hearth_client.copiers import copier_of
from hearth_client.memory import (
    PagedMemory,
    Piece,
    Region,
    _exported_portably,
    pack_pieces,
    piece_of,
)
from hearth_client.native import FILE_NAME, NATIVE, VARIABLE, Native, PurePython
from hearth_client.xxh3 import xxh3_64_python

IDENTITY = Path(__file__).resolve().parents[2] / "test" / "identity" / "golden"
Kernels = Union[Native, PurePython]


def golden_identity(name: str) -> dict:
    return json.loads((IDENTITY / f"{name}.json").read_text(encoding="utf-8"))


def sanity_input(length: int) -> bytes:
    """The test input of xxHash; the golden file describes it."""
    value, out = 2654435761, bytearray()
    for _ in range(length):
        out.append(value >> 56)
        value = value * 11400714785074694797 & (1 << 64) - 1
    return bytes(out)


def address(data: bytearray) -> int:
    return piece_of(data).address


def random_pieces(source: bytearray, length: int, rng: random.Random) -> List[Piece]:
    """Spans of the source, in any order and overlapping, with `length` bytes together."""
    pieces, base = [], address(source)
    while length:
        count = min(length, rng.choice((1, 7, 64, 1000, 1024, 1025, 2048, 5000)))
        pieces.append(Piece(base + rng.randrange(len(source) - count), count))
        length -= count
    return pieces


def disjoint_pieces(target: bytearray, length: int, rng: random.Random) -> List[Piece]:
    """Spans of the target that do not overlap, with gaps of three bytes."""
    pieces, at = [], 0
    while length:
        count = min(length, rng.choice((1, 7, 64, 1000, 1024, 1025, 2048, 5000)))
        pieces.append(Piece(address(target) + at, count))
        at += count + 3
        length -= count
    return pieces


def paged(sizes: Tuple[int, ...], blocks: int, gap: int) -> Tuple[bytearray, PagedMemory]:
    memory = bytearray(sum(size + gap for size in sizes) * blocks)
    regions, base = [], address(memory)
    for size in sizes:
        regions.append(Region(base, size + gap, size))
        base += (size + gap) * blocks
    return memory, PagedMemory(regions, memory)


class Memory(unittest.TestCase):
    def test_refuses_regions_that_cannot_be_right(self) -> None:
        for region in (Region(0, 8, 8), Region(8, 7, 8), Region(8, 8, 0), Region(2**64 - 8, 8, 8)):
            with self.subTest(region), self.assertRaises(ValueError):
                PagedMemory([region])
        with self.assertRaises(ValueError):
            PagedMemory([])

    def test_a_block_is_its_span_in_each_region(self) -> None:
        memory = PagedMemory([Region(1000, 50, 20), Region(5000, 30, 30)])
        self.assertEqual(memory.block_bytes, 50)
        self.assertEqual(memory.pieces(3), [Piece(1150, 20), Piece(5090, 30)])

    def test_a_block_that_the_memory_lacks_is_refused_before_any_copy(self) -> None:
        memory = PagedMemory([Region(4096, 8, 8)], blocks=4)
        for kernels in (NATIVE, PurePython()):
            if kernels is None:
                continue
            copier_of(memory, kernels, [0, 3])
            with self.assertRaises(ValueError):
                copier_of(memory, kernels, [0, 4])
        with self.assertRaises(ValueError):
            PagedMemory([Region(4096, 2**62, 8)], blocks=5)

    def test_pieces_are_packed_with_the_start_of_each_block(self) -> None:
        packed, starts = pack_pieces([[Piece(1, 2), Piece(3, 4)], [], [Piece(5, 6)]])
        self.assertEqual(packed.tolist(), [1, 2, 3, 4, 5, 6])
        self.assertEqual(starts.tolist(), [0, 2, 2, 3])

    def test_the_piece_of_an_object_is_its_bytes(self) -> None:
        data = bytearray(b"0123456789")
        self.assertEqual(piece_of(data).bytes, 10)
        self.assertEqual(piece_of(memoryview(data)[3:]).address, piece_of(data).address + 3)
        self.assertEqual(piece_of(memoryview(data)[3:].toreadonly()).bytes, 7)
        with self.assertRaises(BufferError):
            piece_of(memoryview(data)[::2])
        with self.assertRaises(TypeError):
            piece_of(7)

    def test_the_portable_form_finds_the_same_bytes(self) -> None:
        for data in (b"0123", bytearray(b"0123"), memoryview(bytearray(b"0123"))[1:]):
            self.assertEqual(_exported_portably(data), piece_of(data))
        self.assertEqual(_exported_portably(bytearray()).bytes, 0)
        for wrong, error in ((memoryview(b"0123")[::2], BufferError), (7, TypeError)):
            with self.assertRaises(error):
                _exported_portably(wrong)

    def test_asking_for_the_piece_leaves_no_export_behind(self) -> None:
        data = bytearray(8)
        piece_of(data)
        data.extend(b"more")  # BufferError while a buffer is exported


class PurePythonForm(unittest.TestCase):
    """The contract of both forms, run with the Python form; Library runs it with the library."""

    kernels: Kernels = PurePython()

    def test_checksums_have_the_values_of_the_golden_file(self) -> None:
        for case in golden_identity("xxh3")["xxh3_64"]:
            with self.subTest(case["length"]):
                data = sanity_input(case["length"])
                self.assertEqual(self.kernels.xxh3(data), int(case["hash"], 16))

    def test_pieces_are_gathered_in_order_with_the_checksum_of_their_bytes(self) -> None:
        rng = random.Random(14)
        source = bytearray(rng.randbytes(20_000))
        for _ in range(self.rounds()):
            lengths = [rng.choice((1, 240, 241, 1024, 4097, rng.randrange(1, 9000)))] * 3
            blocks = [random_pieces(source, length, rng) for length in lengths]
            slots = bytearray(3 * 12_288)
            slot_addresses = [address(slots) + i * 12_288 for i in range(3)]
            sums = self.kernels.gather_pieces(blocks, slot_addresses)
            for i, (pieces, length) in enumerate(zip(blocks, lengths)):
                expected = b"".join(
                    source[at - address(source) : at - address(source) + count]
                    for at, count in pieces
                )
                self.assertEqual(slots[i * 12_288 :][:length], expected)
                self.assertEqual(sums[i], xxh3_64_python(expected))
            self.assertEqual(self.kernels.verify_pieces(blocks, sums), [True] * 3)
            sums[1] ^= 1 << 63
            self.assertEqual(self.kernels.verify_pieces(blocks, sums), [True, False, True])

    def test_slots_are_scattered_to_pieces_and_verified(self) -> None:
        rng = random.Random(15)
        for _ in range(self.rounds()):
            length = rng.choice((1, 240, 241, 1024, 4097, rng.randrange(1, 9000)))
            slot = bytearray(rng.randbytes(length))
            target = bytearray(b"\xee" * (4 * length + 64))
            pieces = disjoint_pieces(target, length, rng)
            checksum = xxh3_64_python(slot)
            slots = [address(slot)]
            self.assertEqual(self.kernels.scatter_pieces([pieces], slots, [checksum]), [True])
            base = address(target)
            got = b"".join(target[at - base : at - base + count] for at, count in pieces)
            self.assertEqual(got, slot)
            self.assertEqual(target.count(0xEE), len(target) - length + slot.count(0xEE))
            slot[rng.randrange(length)] ^= 1 << rng.randrange(8)
            self.assertEqual(self.kernels.scatter_pieces([pieces], slots, [checksum]), [False])

    def test_paged_blocks_come_back_as_they_were_and_a_flipped_bit_is_found(self) -> None:
        rng = random.Random(16)
        for sizes, gap in (((64, 32), 0), ((1024, 4096, 8), 16), ((1500, 2), 3)):
            memory, blocks = paged(sizes, 6, gap)
            memory[:] = rng.randbytes(len(memory))
            before = bytes(memory)
            ids = [5, 0, 3]
            size = blocks.block_bytes
            slots = bytearray(3 * size)
            slot_addresses = [address(slots) + i * size for i in range(3)]
            sums = self.kernels.gather(blocks, ids, slot_addresses)
            for block in ids:
                for piece in blocks.pieces(block):
                    at = piece.address - address(memory)
                    memory[at : at + piece.bytes] = bytes(piece.bytes)
            done = self.kernels.scatter(blocks, ids, slot_addresses, sums)
            self.assertEqual((done, bytes(memory)), ([True] * 3, before))
            slots[size + rng.randrange(size)] ^= 4
            done = self.kernels.scatter(blocks, ids, slot_addresses, sums)
            self.assertEqual(done, [True, False, True])

    def test_no_blocks_are_no_work(self) -> None:
        memory = PagedMemory([Region(4096, 8, 8)])
        self.assertEqual(self.kernels.gather(memory, [], []), [])
        self.assertEqual(self.kernels.scatter(memory, [], [], []), [])
        self.assertEqual(self.kernels.verify_pieces([], []), [])

    def test_unequal_counts_are_refused(self) -> None:
        memory = PagedMemory([Region(4096, 8, 8)])
        with self.assertRaises(ValueError):
            self.kernels.gather(memory, [1, 2], [4096])
        with self.assertRaises(ValueError):
            self.kernels.scatter(memory, [1], [4096], [])

    def rounds(self) -> int:
        return 8


@unittest.skipIf(NATIVE is None, f"no {FILE_NAME}: run ./dev native")
class Library(PurePythonForm):
    def setUp(self) -> None:
        assert NATIVE is not None
        self.kernels = NATIVE

    def rounds(self) -> int:
        return 60

    def test_the_wide_checksum_has_the_values_of_the_golden_file(self) -> None:
        for case in golden_identity("xxh3")["xxh3_128"]:
            with self.subTest(case["length"]):
                data = sanity_input(case["length"])
                self.assertEqual(self.kernels.xxh3_128(data).hex(), case["hash"])

    def test_namespace_keys_have_the_values_of_the_golden_file(self) -> None:
        for case in golden_identity("manifest")["cases"]:
            with self.subTest(case["name"]):
                key = self.kernels.namespace_key(bytes.fromhex(case["encoding"]))
                self.assertEqual(key.hex(), case["namespaceKey"])

    def test_digests_of_tokens_have_the_values_of_the_golden_file(self) -> None:
        file = golden_identity("digests")
        key = bytes.fromhex(file["namespaceKey"])
        for prompt in file["prompts"]:
            form = prompt["tokens"]
            tokens = [
                (i * form["times"] + form["plus"]) % form["modulo"] for i in range(form["count"])
            ]
            for given in (tokens, array("I", tokens)):
                digests = self.kernels.prefix_digests(key, given, prompt["blockTokens"])
                self.assertEqual(len(digests), prompt["digests"])
                for case in prompt["at"]:
                    self.assertEqual(digests[case["index"]].hex(), case["digest"])

    def test_digests_of_chain_keys_have_the_values_of_the_golden_file(self) -> None:
        file = golden_identity("digests")
        key = bytes.fromhex(file["namespaceKey"])
        cases = file["chainKeys"]
        for size in (8, 16, 32):
            same = [case for case in cases if len(case["key"]) == 2 * size]
            digests = self.kernels.chain_digests(key, [bytes.fromhex(c["key"]) for c in same])
            self.assertEqual([d.hex() for d in digests], [case["digest"] for case in same])

    def test_digests_of_bad_arguments_are_refused(self) -> None:
        key = bytes(32)
        with self.assertRaises(ValueError):
            self.kernels.chain_digests(key[:31], [bytes(16)])
        with self.assertRaises(ValueError):
            self.kernels.chain_digests(key, [bytes(16), bytes(32)])
        with self.assertRaises(ValueError):
            self.kernels.chain_digests(key, [bytes(10)])
        with self.assertRaises(ValueError):
            self.kernels.prefix_digests(key, [1, 2], 0)

    def test_other_threads_run_while_it_copies(self) -> None:
        # Threads switch only if one waits or releases the GIL: while a call holds it, none counts.
        data, counted, seen = bytearray(64 << 20), [0], [0]

        def hash_once() -> None:
            before = counted[0]
            self.kernels.xxh3(data)
            seen[0] = counted[0] - before

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e6)
        try:
            for _ in range(500):
                thread = threading.Thread(target=hash_once)
                thread.start()
                for _ in range(1000):
                    counted[0] += 1
                thread.join()
                if seen[0] > 0:
                    break
        finally:
            sys.setswitchinterval(interval)
        self.assertGreater(seen[0], 0)


class Loading(unittest.TestCase):
    def run_with(self, variable: str, code: str) -> Tuple[str, str]:
        env = {**os.environ, VARIABLE: variable}
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout, done.stderr

    def test_without_the_library_one_line_says_how_slow_it_is(self) -> None:
        code = (
            "import hearth_client.native as n\n"
            "print(type(n.kernels()).__name__, n.kernels() is n.kernels(), n.load())\n"
        )
        out, err = self.run_with("none", code)
        self.assertEqual(out, "PurePython True None\n")
        self.assertRegex(err, r"^no native library .* at \d+ MB/s[^\n]*\n$")

    def test_a_file_that_is_not_the_library_is_named_in_the_log(self) -> None:
        out, err = self.run_with(__file__, "import hearth_client.native as n; print(n.NATIVE)")
        self.assertEqual(out, "None\n")
        self.assertIn(__file__, err)

    @unittest.skipIf(NATIVE is None, f"no {FILE_NAME}: run ./dev native")
    def test_the_variable_names_the_library(self) -> None:
        assert NATIVE is not None
        code = "import hearth_client.native as n; print(n.load().path)"
        out, _ = self.run_with(NATIVE.path, code)
        self.assertEqual(out, f"{NATIVE.path}\n")


if __name__ == "__main__":
    unittest.main()
