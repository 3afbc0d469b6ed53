"""The client and a running agent, whose socket HEARTH_SOCKET names."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path
from typing import List

from hearth_client import (
    Block,
    Client,
    ConnectionClosed,
    FrameStatus,
    Manifest,
    Outcome,
    RefusedError,
    Tier,
    xxh3_64,
)
from hearth_client import protocol
from hearth_client.layout import Commit, Op

SOCKET = os.environ.get("HEARTH_SOCKET", "")
FOLDER = Path(__file__).resolve().parents[1]
BLOCK_BYTES = 4096
WAIT_SECONDS = 10.0

#: Dies while it holds one slot for writing and one for reading.
DYING_CLIENT = """
import os, sys
from hearth_client import Block, Client, Manifest
manifest = Manifest("agent-test", "bfloat16", "test:flat", 4, tenant_salt=sys.argv[2])
client = Client(sys.argv[1], manifest)
read, write = bytes.fromhex(sys.argv[3]), bytes.fromhex(sys.argv[4])
assert client.acquire([read])[0].outcome == 0
slot = client.reserve([Block(write, 4096)])[0]
slot.view[:100] = b"x" * 100
print("holding", flush=True)
sys.stdin.read()
os._exit(1)
"""


def payload(digest: bytes) -> bytes:
    return digest * (BLOCK_BYTES // len(digest))


def changed(number: int, at: int, value: int) -> bytes:
    """A PING with another byte in its header."""
    frame = bytearray(protocol.ping_request(number, b""))
    frame[at] = value
    return bytes(frame)


@unittest.skipUnless(SOCKET, "HEARTH_SOCKET does not name a running agent's socket")
class Agent(unittest.TestCase):
    def setUp(self) -> None:
        # A namespace of its own: nothing of another test or run is in it.
        self.salt = f"{self.id()}-{os.getpid()}-{time.time_ns()}"
        self.client = self.connect()
        self.addCleanup(self.client.close)

    def connect(self, salt: str = "") -> Client:
        manifest = Manifest("agent-test", "bfloat16", "test:flat", 4, tenant_salt=salt or self.salt)
        return Client(SOCKET, manifest, name="python test")

    def put_prompt(self, tokens: List[int]) -> List[bytes]:
        digests = self.client.identify(tokens)
        for parent, digest in zip([None, *digests], digests):
            self.assertEqual(self.client.put(digest, parent, payload(digest)), Outcome.OK)
        return digests

    def test_names_blocks_by_all_tokens_before_them(self) -> None:
        long = self.client.identify(list(range(13)))
        self.assertEqual(len(long), 3)
        self.assertEqual(self.client.identify(list(range(8))), long[:2])
        self.assertNotEqual(self.client.identify([9, *range(1, 8)])[1], long[1])
        with self.connect("another tenant") as other:
            self.assertNotEqual(other.identify(list(range(8))), long[:2])

    def test_what_is_put_is_got_and_matched(self) -> None:
        digests = self.put_prompt(list(range(16)))
        unknown = bytes(31) + b"\1"
        self.assertEqual(
            self.client.get([*digests, unknown]), [*(payload(digest) for digest in digests), None]
        )
        match = self.client.match([*digests, unknown])
        self.assertEqual(match.leading, 4)
        self.assertTrue(all(best & Tier.RAM for best in match.best[:4]))
        self.assertEqual(match.best[4], Tier(0))
        self.assertEqual(self.client.put(digests[0], None, b"12345678"), Outcome.PRESENT)

    def test_another_engine_of_the_namespace_sees_it_another_namespace_does_not(self) -> None:
        digests = self.put_prompt(list(range(4)))
        with self.connect() as peer:
            self.assertEqual(peer.get(digests), [payload(digests[0])])
        with self.connect("another tenant") as stranger:
            self.assertEqual(stranger.get(digests), [None])

    def test_nothing_is_seen_before_its_commit(self) -> None:
        (digest,) = self.client.identify([1, 2, 3, 4])
        (slot,) = self.client.reserve([Block(digest, BLOCK_BYTES)])
        with self.connect() as peer:
            self.assertEqual(peer.get([digest]), [None])
            self.assertEqual(peer.reserve([Block(digest, 8)])[0].outcome, Outcome.PENDING)
            slot.write(payload(digest))
            self.assertEqual(peer.get([digest]), [None])
            self.assertEqual(self.client.commit([slot]), [Outcome.OK])
            self.assertEqual(peer.get([digest]), [payload(digest)])

    def test_an_aborted_slot_can_be_reserved_again(self) -> None:
        (digest,) = self.client.identify([1, 2, 3, 4])
        self.client.abort(self.client.reserve([Block(digest, BLOCK_BYTES)]))
        self.assertEqual(self.client.put(digest, None, payload(digest)), Outcome.OK)

    def test_checksums_of_the_writer_are_compared(self) -> None:
        (digest,) = self.client.identify([1, 2, 3, 4])
        for checksum, outcome in ((1, Outcome.CORRUPT), (xxh3_64(payload(digest)), Outcome.OK)):
            (slot,) = self.client.reserve([Block(digest, BLOCK_BYTES)])
            slot.write(payload(digest))
            self.assertEqual(self.client.commit([slot], checksums=[checksum]), [outcome])
            expected = payload(digest) if outcome == Outcome.OK else None
            self.assertEqual(self.client.get([digest]), [expected])

    def test_blocks_of_any_length_verify(self) -> None:
        for length in (1, 7, 4095, 4097, 65_536):
            (digest,) = self.client.identify([length, 0, 0, 0])
            data = os.urandom(length)
            self.assertEqual(self.client.put(digest, None, data), Outcome.OK)
            self.assertEqual(self.client.get([digest]), [data])

    def test_sizes_that_cannot_be(self) -> None:
        (digest,) = self.client.identify([1, 2, 3, 4])
        large = self.client.hello.block_bytes_max + 1
        outcomes = [self.client.reserve([Block(digest, n)])[0].outcome for n in (large, 0)]
        self.assertEqual(outcomes, [Outcome.TOO_LARGE, Outcome.REJECTED])

    def test_stopping_at_the_first_miss(self) -> None:
        digests = self.put_prompt(list(range(8)))
        asked = [digests[0], bytes(31) + b"\1", digests[1]]
        with self.client.acquired(asked, stop_at_miss=True) as blocks:
            self.assertEqual(
                [block.outcome for block in blocks],
                [Outcome.OK, Outcome.MISS, Outcome.SKIPPED],
            )

    def test_handles_that_are_not_held(self) -> None:
        (digest,) = self.put_prompt([1, 2, 3, 4])
        (block,) = self.client.acquire([digest])
        handle = block.handle
        self.client.release([block])
        for op, named in ((Op.RELEASE, handle), (Op.ABORT, handle), (Op.RELEASE, (1 << 20, 1))):
            outcome = self.client._outcomes(
                op, 1, lambda number: protocol.handles_request(op, number, [named])
            )
            self.assertEqual(outcome, [Outcome.STALE])
        outcome = self.client._outcomes(
            Op.COMMIT,
            1,
            lambda number: protocol.commit_request(number, [Commit(*handle)]),
        )
        self.assertEqual(outcome, [Outcome.STALE])
        self.assertEqual(self.client.get([digest]), [payload(digest)])

    def test_the_mirror_of_the_gpu(self) -> None:
        first, second = self.client.identify(list(range(8)))
        blocks = [Block(first, BLOCK_BYTES), Block(second, BLOCK_BYTES, parent=first)]
        self.assertEqual(self.client.gpu_stored(blocks), [Outcome.OK, Outcome.OK])
        self.assertEqual(self.client.match([first, second]).best, [Tier.GPU, Tier.GPU])
        self.assertEqual(self.client.match([first], tiers=Tier.RAM).leading, 0)
        self.assertEqual(self.client.gpu_evicted([second]), [Outcome.OK])
        self.assertEqual(self.client.match([first, second]).leading, 1)

    def test_aliases(self) -> None:
        first, second = self.client.identify(list(range(8)))
        self.client.put(first, None, payload(first), alias=0xFEDC_BA98_7654_3210)
        self.client.put(second, first, payload(second))
        self.assertEqual(self.client.alias([(second, 17)]), [Outcome.OK])
        found = self.client.identify_engine_hashes([17, 0xFEDC_BA98_7654_3210, 18])
        self.assertEqual(found, [second, first, None])
        self.assertEqual(self.client.alias([(second, bytes(range(32)))]), [Outcome.OK])

    def test_sessions(self) -> None:
        digests = self.put_prompt(list(range(12)))
        session = time.time_ns()
        self.assertEqual(self.client.session_status(session).outcome, Outcome.MISS)
        self.assertEqual(self.client.session_commit(session, digests[1]), Outcome.OK)
        status = self.client.session_status(session)
        self.assertEqual(status, (Outcome.OK, 2, 8, 2 * BLOCK_BYTES))
        self.assertEqual(self.client.session_commit(session, digests[2]), Outcome.OK)
        self.assertEqual(self.client.session_status(session).blocks, 3)
        self.assertEqual(self.client.session_commit(session, bytes(31) + b"\1"), Outcome.MISS)
        tiers = self.client.session_tiers(session)
        assert tiers is not None
        self.assertEqual(tiers[2:], (3, 3 * BLOCK_BYTES, 0, 0))
        self.assertEqual([item.session for item in self.client.session_list().sessions], [session])
        self.assertIsNone(self.client.session_tiers(session + 1))
        self.assertEqual(self.client.session_release(session), Outcome.OK)
        self.assertEqual(self.client.session_release(session), Outcome.MISS)
        self.assertEqual(self.client.get(digests), [payload(digest) for digest in digests])

    def test_unknown_operations_and_malformed_frames(self) -> None:
        with self.assertRaises(RefusedError) as caught:
            self.client._ask(200, lambda number: changed(number, 4, 200), lambda *_reply: None)
        self.assertEqual(caught.exception.status, FrameStatus.UNKNOWN_OP)
        self.assertEqual(self.client.ping(b"12345678"), b"12345678")
        with self.assertRaises(RefusedError) as caught:
            self.client._ask(Op.PING, lambda number: changed(number, 12, 2), lambda *_reply: None)
        self.assertEqual(caught.exception.status, FrameStatus.MALFORMED)
        with self.assertRaises(ConnectionClosed):
            self.client.ping()

    def test_version_skew_is_refused_in_words(self) -> None:
        frame = bytearray(protocol.hello_request(1, "", b""))
        frame[20:24] = b"\x02\0\x03\0"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
            raw.settimeout(WAIT_SECONDS)
            raw.connect(SOCKET)
            raw.sendall(frame)
            reply = raw.makefile("rb").read()
        header = protocol.read_header(reply, 1 << 20)
        self.assertEqual((header.status, header.length), (FrameStatus.VERSION, len(reply)))
        self.assertIn("version 1", protocol.read_error(reply[16:]))

    def test_one_client_in_many_threads(self) -> None:
        failures: List[BaseException] = []

        def work(thread: int) -> None:
            try:
                for round_ in range(20):
                    (digest,) = self.client.identify([thread, round_, 0, 0])
                    self.client.put(digest, None, payload(digest))
                    assert self.client.get([digest]) == [payload(digest)]
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_what_a_dead_process_held_is_free(self) -> None:
        read, write = self.client.identify(list(range(8)))
        self.client.put(read, None, payload(read))
        command = [sys.executable, "-c", DYING_CLIENT, SOCKET, self.salt, read.hex(), write.hex()]
        environment = {**os.environ, "PYTHONPATH": str(FOLDER)}
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment) as victim:
            assert victim.stdout is not None
            self.assertEqual(victim.stdout.readline().strip(), b"holding")
            block = Block(write, BLOCK_BYTES)
            self.assertEqual(self.client.reserve([block])[0].outcome, Outcome.PENDING)
            victim.kill()
        until = time.monotonic() + WAIT_SECONDS
        while True:
            outcome = self.client.put(write, read, payload(write))
            if outcome == Outcome.OK:
                break
            self.assertEqual(outcome, Outcome.PENDING)
            self.assertLess(time.monotonic(), until, "the dead process still holds its slot")
            time.sleep(0.01)
        self.assertEqual(self.client.get([read, write]), [payload(read), payload(write)])

    def test_the_examples_run_as_printed(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(FOLDER)}
        store = "ready: 4 loaded: 4\nblock 0 is now in place 3: True\n"
        expected = {"example.py": "hit: [True, True]\n", "example_store.py": store}
        for name, output in [*expected.items(), *expected.items()]:
            result = subprocess.run(
                [sys.executable, str(FOLDER / name)],
                env=environment,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            self.assertEqual((result.stdout, result.stderr), (output, ""))


if __name__ == "__main__":
    unittest.main()
