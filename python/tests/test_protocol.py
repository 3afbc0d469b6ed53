from __future__ import annotations

import struct
import unittest
from typing import Callable, Dict, List

from hearth_client import layout, protocol as p, protocol_engine as e, protocol_gpu as g
from hearth_client.layout import (
    LAYER_ALL as ALL,
    Acquired,
    AliasKind,
    Block,
    Commit,
    CopyItem,
    GpuDevice,
    GpuMemoryItem,
    GpuRegistered,
    IdentifyKind,
    Lookup,
    MediaItem,
    Namespace,
    Op,
    Outcome,
    Role,
    Slot,
    Tier,
    WarmOffer,
)
from hearth_client.manifest import Manifest

from .golden import A, B, C, FOLDER, golden, sequence

HASH = 0xFEDC_BA98_7654_3210
MANIFEST = Manifest(
    model="demo/model",
    dtype="bfloat16",
    layout="test:flat",
    block_tokens=16,
    tenant_salt="t",
    extra={"b": "2", "a": "\u00e9"},
)
TOKENS = struct.pack("<5I", 1, 2, 3, 70_000, 0xFFFF_FFFE)

SHORT_KEYS = [sequence(0xC0)[:16], sequence(0x50)[:16]]
UUIDS = [sequence(0xD0)[:16], sequence(0x10)[:16]]

REQUESTS: Dict[str, bytes] = {
    "hello": p.hello_request(1, "golden", MANIFEST.encode()),
    "ping": p.ping_request(2, b"pingpong"),
    "ping.no-reply": p.ping_request(3, b"", no_reply=True),
    "identify.tokens": p.identify_request(4, IdentifyKind.TOKENS, ALL, 5, TOKENS),
    "identify.chain-keys": p.identify_request(5, IdentifyKind.CHAIN_KEYS, ALL, 1, C),
    "identify.engine-hashes": p.identify_request(
        6, IdentifyKind.ENGINE_HASHES, 7, 2, struct.pack("<QQ", HASH, 1)
    ),
    "match": p.match_request(7, ALL, Tier.RAM | Tier.SSD, [A, B]),
    "reserve": p.reserve_request(
        8,
        ALL,
        77,
        [Block(A, 262_144, alias=HASH), Block(B, 262_144, parent=A, transient=True)],
    ),
    "commit": p.commit_request(9, [Commit(12, 3, 0x0123_4567_89AB_CDEF), Commit(13, 1)]),
    "commit.mac": p.commit_request(
        40,
        [
            Commit(12, 3, 0x0123_4567_89AB_CDEF, sequence(0x70)[:16]),
            Commit(13, 1, None, sequence(0x20)[:16]),
        ],
    ),
    "abort": p.handles_request(Op.ABORT, 10, [(13, 1)]),
    "acquire": p.acquire_request(11, ALL, Tier.RAM, 250, True, [A, B]),
    "release": p.handles_request(Op.RELEASE, 12, [(12, 3)], no_reply=True),
    "report": p.handles_request(Op.REPORT, 60, [(12, 3)]),
    "gpu-stored": p.gpu_stored_request(13, 7, [Block(A, 262_144, parent=B, alias=0x1234)]),
    "gpu-evicted": p.gpu_evicted_request(14, ALL, [A]),
    "session-commit": p.session_commit_request(15, 77, ALL, B),
    "session-release": p.session_request(Op.SESSION_RELEASE, 16, 77),
    "session-status": p.session_request(Op.SESSION_STATUS, 17, 77),
    "session-list": p.session_list_request(21, 0, 4100, 2),
    "alias.engine-hash": p.alias_request(
        18, AliasKind.ENGINE_HASH, ALL, [(A, HASH.to_bytes(8, "little"))]
    ),
    "alias.sha256": p.alias_request(19, AliasKind.SHA256, 7, [(A, C)]),
    "identify.short-keys": p.identify_request(
        38, IdentifyKind.SHORT_KEYS, ALL, 2, b"".join(SHORT_KEYS)
    ),
    "acquire.namespace": p.acquire_request(39, ALL, 0, 0, True, [A, B][:1], namespace=2),
    "namespace": e.namespace_request(31, C, "alice"),
    "join": e.join_request(32, sequence(0x70)[:16], Role.SCHEDULER),
    "lookup.tokens": e.lookup_request(
        33,
        e.LookupQuestion(
            kind=IdentifyKind.TOKENS,
            items=TOKENS,
            flags=63,
            tiers=14,
            deadline_ms=250,
            hold_ms=10_000,
            readers=2,
            namespace=1,
            parent=A,
            source="prefill-0",
            media=[MediaItem(16, b"image-01"), MediaItem(40, b"img")],
        ),
    ),
    "lookup.short-keys": e.lookup_request(
        34, e.LookupQuestion(IdentifyKind.SHORT_KEYS, b"".join(SHORT_KEYS))
    ),
    "unhold": e.unhold_request(35, [9, 10], no_reply=True),
    "announce": e.announce_request(36, IdentifyKind.SHORT_KEYS, SHORT_KEYS, 500),
    "command": e.command_request(37, b'{"prune":{"session":"77"}}'),
    "gpu-devices": g.gpu_devices_request(22, True),
    "gpu-register": g.gpu_register_request(
        23,
        [
            GpuMemoryItem(UUIDS[0], 2 << 20, 1 << 30, 2 << 30, sequence(0x80) + sequence(0xA0)),
            GpuMemoryItem(UUIDS[1], 0, 5 << 30, 5 << 30, None),
        ],
    ),
    "gpu-unregister": g.gpu_unregister_request(24, [1, 9]),
    "gpu-store": g.gpu_copy_request(
        Op.GPU_STORE,
        25,
        [
            CopyItem(12, 3, 1, 0, 6 << 30, 65_536),
            CopyItem(12, 3, 1, 65_536, 1 << 20, 65_536),
        ],
    ),
    "gpu-load": g.gpu_copy_request(
        Op.GPU_LOAD, 26, [CopyItem(13, 1, 2, 4_096, 8_192, 131_072)], verify=True
    ),
    "gpu-warm": g.gpu_warm_request(27, 7, 30_000, [Outcome.OK, Outcome.MISS]),
}

OFFSET = 5 * 2**30 - 262_144
HELLO = layout.Hello(
    version=1,
    checksum_algorithm=1,
    features=0,
    namespace_id=A,
    incarnation=0x1122_3344_5566_7788,
    arena_bytes=5 * 2**30,
    arena_ready_bytes=2**30,
    block_bytes_max=16 * 2**20,
    frame_bytes_max=2**20,
    items_max=4096,
    handles_max=65_536,
    lease_ms=30_000,
    block_tokens=16,
)
ACQUIRED = [
    Acquired(Outcome.OK, 12, 3, 262_144, OFFSET, 0x0123_4567_89AB_CDEF),
    Acquired(Outcome.MISS, 0, 0, 0, 0, 0),
]
RESERVED = [Slot(Outcome.OK, 12, 3, 262_144, OFFSET), Slot(Outcome.PRESENT, 0, 0, 0, 0)]

Reader = Callable[[int, bytes], object]


def outcomes(op: Op) -> Reader:
    return lambda count, body: p.read_outcomes(op, count, body)


REPLIES: Dict[str, "tuple[Reader, object]"] = {
    "hello": (p.read_hello, HELLO),
    "ping": (lambda _count, body: bytes(body), b"pingpong"),
    "identify": (p.read_identify, [A, bytes(32)]),
    "match": (p.read_match, layout.Match(1, [Tier.RAM, Tier(0)])),
    "reserve": (p.read_reserve, RESERVED),
    "commit": (outcomes(Op.COMMIT), [Outcome.OK, Outcome.CORRUPT]),
    "abort": (outcomes(Op.ABORT), [Outcome.STALE]),
    "acquire": (p.read_acquire, ACQUIRED),
    "acquire.mac": (
        lambda count, body: p.read_acquire(count, body, True),
        [ACQUIRED[0]._replace(mac=sequence(0x70)[:16]), ACQUIRED[1]],
    ),
    "release": (outcomes(Op.RELEASE), [Outcome.OK]),
    "report": (outcomes(Op.REPORT), [Outcome.CORRUPT]),
    "gpu-stored": (outcomes(Op.GPU_STORED), [Outcome.OK]),
    "gpu-evicted": (outcomes(Op.GPU_EVICTED), [Outcome.MISS]),
    "session-commit": (outcomes(Op.SESSION_COMMIT), [Outcome.OK]),
    "session-release": (outcomes(Op.SESSION_RELEASE), [Outcome.OK]),
    "session-status": (p.read_session_status, layout.SessionStatus(Outcome.OK, 3, 48, 786_432)),
    "session-list": (
        p.read_session_list,
        layout.SessionPage(
            4103,
            [
                layout.SessionItem(77, 90_000, 3, 786_432, 5, 1_310_720),
                layout.SessionItem(2**64 - 1, 0, 0, 0, 2**33, 2**52),
            ],
        ),
    ),
    "alias": (outcomes(Op.ALIAS), [Outcome.OK]),
    "namespace": (e.read_namespace, Namespace(1, A)),
    "join": (e.read_join, 3),
    "lookup": (
        e.read_lookup,
        Lookup(2, 1, 9, False, False, True, 1, b"\2\4\0", []),
    ),
    "lookup.partial": (e.read_lookup, Lookup(2, 1, 10, True, False, False, 1, b"", [])),
    "lookup.digests": (
        lambda count, body: e.read_lookup(count, body, digests=True),
        Lookup(1, 1, 10, False, False, False, 0, b"\2\0", [A, B]),
    ),
    "unhold": (outcomes(Op.UNHOLD), [Outcome.OK, Outcome.STALE]),
    "announce": (outcomes(Op.ANNOUNCE), [Outcome.OK, Outcome.PRESENT]),
    "command": (e.read_command, b'{"state":"done"}'),
    "gpu-devices": (
        g.read_gpu_devices,
        (
            True,
            [
                GpuDevice(UUIDS[0], 80 << 30, 1, True, True, False),
                GpuDevice(UUIDS[1], 40 << 30, None, False, False, True),
            ],
        ),
    ),
    "gpu-register": (
        g.read_gpu_register,
        [GpuRegistered(Outcome.OK, 1, 0), GpuRegistered(Outcome.DEVICE, 0, 201)],
    ),
    "gpu-unregister": (outcomes(Op.GPU_UNREGISTER), [Outcome.OK, Outcome.STALE]),
    "gpu-store": (outcomes(Op.GPU_STORE), [Outcome.OK, Outcome.DEVICE]),
    "gpu-load": (outcomes(Op.GPU_LOAD), [Outcome.CORRUPT]),
    "gpu-warm": (g.read_gpu_warm, WarmOffer(8, ALL, [A, B])),
    "gpu-warm.none": (g.read_gpu_warm, WarmOffer(0, 0, [])),
    "error": (
        lambda _count, body: p.read_error(body),
        "MATCH comes after HELLO: greet first",
    ),
}


class Golden(unittest.TestCase):
    def test_every_file_has_a_case(self) -> None:
        files = sorted(path.name for path in FOLDER.glob("*.hex"))
        cases = [f"{name}.request.hex" for name in REQUESTS]
        cases += [f"{name}.reply.hex" for name in REPLIES]
        self.assertEqual(sorted(cases), files)

    def test_requests_are_written_byte_for_byte(self) -> None:
        for name, frame in REQUESTS.items():
            with self.subTest(name):
                self.assertEqual(frame.hex(" "), golden(f"{name}.request").hex(" "))

    def test_replies_are_read(self) -> None:
        for name, (read, value) in REPLIES.items():
            with self.subTest(name):
                frame = golden(f"{name}.reply")
                header = p.read_header(frame, 1 << 20)
                self.assertEqual(header.length, len(frame))
                self.assertEqual(read(header.count, frame[16:]), value)


class Lies(unittest.TestCase):
    def test_a_reply_cut_short_or_too_long_is_a_value_error(self) -> None:
        for name, (read, _value) in REPLIES.items():
            if name == "ping":
                continue
            frame = golden(f"{name}.reply")
            count = p.read_header(frame, 1 << 20).count
            for length in range(16, len(frame)):
                with self.subTest(name, length=length), self.assertRaises(ValueError):
                    read(count, frame[16:length])
            with self.subTest(name, length="longer"), self.assertRaises(ValueError):
                read(count, frame[16:] + bytes(8))

    def test_any_changed_bit_is_a_value_error_or_is_read(self) -> None:
        for name, (read, _value) in REPLIES.items():
            frame = golden(f"{name}.reply")
            for bit in range(8 * len(frame)):
                lie = bytearray(frame)
                lie[bit >> 3] ^= 1 << (bit & 7)
                try:
                    header = p.read_header(lie, 1 << 20)
                    read(header.count, bytes(lie[16:]))
                except ValueError:
                    continue

    def test_headers(self) -> None:
        good = golden("ping.reply")
        for at, value in ((0, 17), (0, 8), (3, 1), (5, 0), (5, 3)):
            lie = bytearray(good)
            lie[at] = value
            with self.subTest(at=at, value=value), self.assertRaises(ValueError):
                p.read_header(lie, 1 << 20)

    def test_arguments(self) -> None:
        calls: List[Callable[[], object]] = [
            lambda: p.match_request(1, ALL, 16, [A]),
            lambda: p.match_request(1, -1, 0, [A]),
            lambda: p.match_request(1, ALL, 0, [A[:31]]),
            lambda: p.reserve_request(1, ALL, 1 << 64, []),
            lambda: p.reserve_request(1, ALL, 0, [Block(A, 1 << 32)]),
            lambda: p.reserve_request(1, ALL, 0, [Block(A, 1, parent=b"")]),
            lambda: p.reserve_request(1, ALL, 0, [Block(A, 1, alias=-1)]),
            lambda: p.commit_request(1, [Commit(1, 1, 1 << 64)]),
            lambda: p.hello_request(1, "x" * 33, b""),
            lambda: p.hello_request(1, "a\nb", b""),
            lambda: p.hello_request(1, "", bytes(65_537)),
            lambda: p.ping_request(1, b"1234"),
            lambda: p.ping_request(1, bytes(72)),
            lambda: p.alias_request(1, AliasKind.SHA256, ALL, [(A, b"12345678")]),
            lambda: p.identify_request(1, IdentifyKind.TOKENS, ALL, 2, bytes(4)),
            lambda: g.gpu_register_request(1, [GpuMemoryItem(A[:15], 0, 1, 1, None)]),
            lambda: g.gpu_register_request(1, [GpuMemoryItem(UUIDS[0], 0, 1, 1, b"short")]),
            lambda: g.gpu_register_request(1, [GpuMemoryItem(UUIDS[0], -1, 1, 1, None)]),
            lambda: g.gpu_copy_request(Op.GPU_LOAD, 1, [CopyItem(1, 1, 1, 0, 1 << 64, 1)]),
            lambda: g.gpu_warm_request(1, 1, 1 << 32, []),
            lambda: p.request(Op.RESERVE, 1, 0, bytes(16), no_reply=True),
        ]
        for index, call in enumerate(calls):
            with self.subTest(index), self.assertRaises(ValueError):
                call()


if __name__ == "__main__":
    unittest.main()
