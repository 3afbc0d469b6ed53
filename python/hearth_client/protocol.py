"""The engine protocol, version 1, as bytes: requests are written, replies are read.

``docs/internals/engine-protocol.md`` describes it. Readers raise ValueError for every frame that lies.
"""

from __future__ import annotations

from struct import Struct
from typing import List, Sequence, Tuple

from .layout import (
    DIGEST_BYTES,
    FLAG_NO_REPLY,
    FLAG_REPLY,
    HEADER_BYTES,
    MAGIC,
    MANIFEST_BYTES_MAX,
    NAME_BYTES,
    PING_BYTES_MAX,
    TIER_MASK,
    VERSION,
    Acquired,
    AliasKind,
    Block,
    Commit,
    Handle,
    Header,
    Hello,
    IdentifyKind,
    Match,
    Op,
    Outcome,
    Readable,
    SessionItem,
    SessionPage,
    SessionStatus,
    Slot,
    Tier,
)

_HEADER = Struct("<IBBHII")
_HELLO_HEAD = Struct("<4sHHII32sII")
_HELLO_REPLY = Struct("<HHI32sQQQQIIIIII")
TWO = Struct("<II")
_FOUR = Struct("<IIII")
_RESERVE_HEAD = Struct("<IIQ")
_BLOCK = Struct("<32s32sQII")
_SLOT = Struct("<IIIIQ")
_COMMIT_REST = Struct("<QII")
_ACQUIRED = Struct("<IIIIQQ")
_ACQUIRED_MAC = Struct("<IIIIQQ16s")
_SESSION = Struct("<Q")
_SESSION_COMMIT = Struct("<QII")
_SESSION_STATUS = Struct("<IIQQQ")
_SESSION_LIST = Struct("<QQII")
_SESSION_ITEM = Struct("<QQQQQQ")
_NO_DIGEST = bytes(DIGEST_BYTES)
_IDENTIFY_ITEM_BYTES = {
    IdentifyKind.TOKENS: 4,
    IdentifyKind.CHAIN_KEYS: 32,
    IdentifyKind.ENGINE_HASHES: 8,
    IdentifyKind.SHORT_KEYS: 16,
}
_NO_REPLY_ALLOWED = frozenset(
    (
        Op.PING,
        Op.COMMIT,
        Op.ABORT,
        Op.RELEASE,
        Op.GPU_STORED,
        Op.GPU_EVICTED,
        Op.SESSION_COMMIT,
        Op.SESSION_RELEASE,
        Op.ALIAS,
        Op.UNHOLD,
        Op.ANNOUNCE,
        Op.REPORT,
    )
)


# --- frames ---------------------------------------------------------------------------------------


def request(op: Op, request_id: int, count: int, body: Readable, no_reply: bool = False) -> bytes:
    """One frame. The body is already a multiple of eight bytes."""
    if len(body) % 8 != 0:
        raise ValueError("a frame is a multiple of eight bytes")
    if no_reply and op not in _NO_REPLY_ALLOWED:
        raise ValueError(f"{op.name} hands something out: its reply has to be read")
    flags = FLAG_NO_REPLY if no_reply else 0
    header = _HEADER.pack(HEADER_BYTES + len(body), op, flags, 0, request_id, count)
    return header + bytes(body)


def read_header(data: Readable, frame_bytes_max: int, at: int = 0) -> Header:
    """The header of a reply, from the sixteen bytes at ``at``."""
    header = Header(*_HEADER.unpack_from(data, at))
    if header.length < HEADER_BYTES or header.length % 8 != 0:
        raise ValueError(f"a frame of {header.length} bytes")
    if header.length > frame_bytes_max:
        raise ValueError(f"a frame of {header.length} bytes, {frame_bytes_max} are allowed")
    if header.flags != FLAG_REPLY:
        raise ValueError(f"flags {header.flags} in a reply")
    return header


def read_error(body: Readable) -> str:
    """The text of a reply whose status is not 0."""
    if len(body) < 8:
        raise ValueError("an error reply cut short")
    length, reserved = TWO.unpack_from(body)
    if reserved != 0 or len(body) != 8 + padded(length):
        raise ValueError("an error reply whose lengths do not agree")
    check_zero(body, 8 + length)
    return bytes(body[8 : 8 + length]).decode("utf-8")


def padded(length: int) -> int:
    return length + -length % 8


def pad(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def check_zero(body: Readable, start: int) -> None:
    if any(body[start:]):
        raise ValueError("padding that is not zero")


def check_length(op: Op, body: Readable, wanted: int) -> None:
    if len(body) != wanted:
        raise ValueError(f"{op.name}: a body of {len(body)} bytes instead of {wanted}")


def read_outcome(value: int) -> Outcome:
    return Outcome(value)  # ValueError for a number that is none


def join_digests(digests: Sequence[bytes]) -> bytes:
    for digest in digests:
        if len(digest) != DIGEST_BYTES:
            raise ValueError(f"a digest is 32 bytes, not {len(digest)}")
    return b"".join(digests)


def check_tiers(tiers: int) -> int:
    if tiers & ~TIER_MASK:
        raise ValueError(f"tiers {tiers:#x}: only the lowest four bits name tiers")
    return int(tiers)


def check_u64(value: int, what: str) -> int:
    if not 0 <= value < 1 << 64:
        raise ValueError(f"{what} {value} is not an unsigned 64-bit number")
    return value


def check_u32(value: int, what: str) -> int:
    if not 0 <= value < 1 << 32:
        raise ValueError(f"{what} {value} is not an unsigned 32-bit number")
    return value


def check_namespace(handle: int) -> int:
    if not 0 <= handle < 1 << 16:
        raise ValueError(f"namespace {handle} is not the handle of a Namespace")
    return handle


# --- hello, ping, names ---------------------------------------------------------------------------


def hello_request(request_id: int, name: str, manifest: bytes, features: int = 0) -> bytes:
    encoded = name.encode("utf-8")
    if len(encoded) > NAME_BYTES:
        raise ValueError(f"a client's name is at most {NAME_BYTES} bytes, not {len(encoded)}")
    if not name.isprintable():
        raise ValueError("a client's name has no control characters")
    if len(manifest) > MANIFEST_BYTES_MAX:
        raise ValueError(f"a manifest is at most {MANIFEST_BYTES_MAX} bytes")
    fields = (MAGIC, VERSION, VERSION, features, 0, encoded, len(manifest), 0)
    head = _HELLO_HEAD.pack(*fields)
    return request(Op.HELLO, request_id, 0, head + pad(manifest))


def read_hello(count: int, body: Readable) -> Hello:
    check_length(Op.HELLO, body, _HELLO_REPLY.size)
    *fields, reserved = _HELLO_REPLY.unpack_from(body)
    if count != 0 or reserved != 0:
        raise ValueError("HELLO: a reserved field in use")
    return Hello(*fields)


def ping_request(request_id: int, payload: bytes, no_reply: bool = False) -> bytes:
    if len(payload) > PING_BYTES_MAX or len(payload) % 8 != 0:
        raise ValueError("a ping carries 0 to 64 bytes, a multiple of 8")
    return request(Op.PING, request_id, 0, payload, no_reply)


def identify_request(
    request_id: int, kind: IdentifyKind, layer: int, count: int, items: bytes
) -> bytes:
    """``items`` are packed little-endian: u32 tokens, keys of 32 or 16 bytes, or u64 hashes."""
    if len(items) != count * _IDENTIFY_ITEM_BYTES[kind]:
        raise ValueError(f"{count} items do not have {len(items)} bytes")
    head = TWO.pack(kind, check_u32(layer, "layer"))
    return request(Op.IDENTIFY, request_id, count, head + pad(items))


def read_identify(count: int, body: Readable) -> List[bytes]:
    check_length(Op.IDENTIFY, body, count * DIGEST_BYTES)
    return [bytes(body[at : at + DIGEST_BYTES]) for at in range(0, len(body), DIGEST_BYTES)]


def alias_request(
    request_id: int,
    kind: AliasKind,
    layer: int,
    items: Sequence[Tuple[bytes, bytes]],
    no_reply: bool = False,
) -> bytes:
    """``items`` are pairs of digest and alias: 8 bytes little-endian, or 32 bytes of SHA-256."""
    wanted = 8 if kind == AliasKind.ENGINE_HASH else 32
    parts = [TWO.pack(check_u32(layer, "layer"), kind)]
    for digest, alias in items:
        if len(alias) != wanted:
            raise ValueError(f"an alias of this kind is {wanted} bytes, not {len(alias)}")
        parts.append(join_digests([digest]))
        parts.append(alias.ljust(32, b"\0"))
    return request(Op.ALIAS, request_id, len(items), b"".join(parts), no_reply)


# --- lookups --------------------------------------------------------------------------------------


def match_request(request_id: int, layer: int, tiers: int, digests: Sequence[bytes]) -> bytes:
    head = TWO.pack(check_u32(layer, "layer"), check_tiers(tiers))
    return request(Op.MATCH, request_id, len(digests), head + join_digests(digests))


def read_match(count: int, body: Readable) -> Match:
    check_length(Op.MATCH, body, 8 + padded(count))
    leading, reserved = TWO.unpack_from(body)
    if leading > count or reserved != 0:
        raise ValueError("MATCH: more leading blocks than asked for, or a reserved field in use")
    check_zero(body, 8 + count)
    best = bytes(body[8 : 8 + count])
    if any(tier & ~TIER_MASK for tier in best):
        raise ValueError("MATCH: a tier that is none")
    return Match(leading, [Tier(tier) for tier in best])


def acquire_request(
    request_id: int,
    layer: int,
    tiers: int,
    deadline_ms: int,
    stop_at_miss: bool,
    digests: Sequence[bytes],
    namespace: int = 0,
) -> bytes:
    deadline = check_u32(deadline_ms, "deadline_ms")
    flags = int(stop_at_miss) | check_namespace(namespace) << 16
    head = _FOUR.pack(check_u32(layer, "layer"), check_tiers(tiers), deadline, flags)
    return request(Op.ACQUIRE, request_id, len(digests), head + join_digests(digests))


def read_acquire(count: int, body: Readable, has_macs: bool = False) -> List[Acquired]:
    layout = _ACQUIRED_MAC if has_macs else _ACQUIRED
    check_length(Op.ACQUIRE, body, count * layout.size)
    answers = []
    for fields in layout.iter_unpack(body):
        one = Acquired(read_outcome(fields[0]), *fields[1:])
        if one.outcome != Outcome.OK and (any(fields[1:6]) or any(one.mac)):
            raise ValueError("ACQUIRE: a block that was not acquired has a slot")
        answers.append(one)
    return answers


# --- writing --------------------------------------------------------------------------------------


def _blocks(blocks: Sequence[Block]) -> bytes:
    parts = []
    for block in blocks:
        parent = _NO_DIGEST if block.parent is None else block.parent
        join_digests([block.digest, parent])
        alias = 0 if block.alias is None else check_u64(block.alias, "alias")
        flags = int(block.transient) | (0 if block.alias is None else 2)
        length = check_u32(block.length, "a block's length")
        parts.append(_BLOCK.pack(block.digest, parent, alias, length, flags))
    return b"".join(parts)


def reserve_request(
    request_id: int, layer: int, session: int, blocks: Sequence[Block], namespace: int = 0
) -> bytes:
    handle = check_namespace(namespace)
    head = _RESERVE_HEAD.pack(check_u32(layer, "layer"), handle, check_u64(session, "session"))
    return request(Op.RESERVE, request_id, len(blocks), head + _blocks(blocks))


def read_reserve(count: int, body: Readable) -> List[Slot]:
    check_length(Op.RESERVE, body, count * _SLOT.size)
    answers = []
    for outcome, *rest in _SLOT.iter_unpack(body):
        if outcome != Outcome.OK and any(rest):
            raise ValueError("RESERVE: a block without a slot has one")
        answers.append(Slot(read_outcome(outcome), *rest))
    return answers


def _handle(slot: int, generation: int) -> bytes:
    return TWO.pack(check_u32(slot, "slot"), check_u32(generation, "generation"))


def commit_request(request_id: int, items: Sequence[Commit], no_reply: bool = False) -> bytes:
    parts = []
    for item in items:
        flags = (item.checksum is not None) | (item.mac is not None) << 1
        checksum = 0 if item.checksum is None else check_u64(item.checksum, "checksum")
        handle = _handle(item.slot, item.generation)
        parts.append(handle + _COMMIT_REST.pack(checksum, flags, 0) + (item.mac or b""))
    return request(Op.COMMIT, request_id, len(items), b"".join(parts), no_reply)


def handles_request(
    op: Op, request_id: int, handles: Sequence[Handle], no_reply: bool = False
) -> bytes:
    """ABORT, RELEASE and REPORT, which have one shape."""
    body = b"".join(_handle(slot, generation) for slot, generation in handles)
    return request(op, request_id, len(handles), body, no_reply)


def report_request(handles: bytes, request_id: int) -> bytes:
    return request(Op.REPORT, request_id, len(handles) // 8, handles)


def read_outcomes(op: Op, count: int, body: Readable) -> List[Outcome]:
    check_length(op, body, count * TWO.size)
    outcomes = []
    for outcome, reserved in TWO.iter_unpack(body):
        if reserved != 0:
            raise ValueError(f"{op.name}: a reserved field in use")
        outcomes.append(read_outcome(outcome))
    return outcomes


# --- the GPU mirror and sessions ------------------------------------------------------------------


def gpu_stored_request(
    request_id: int, layer: int, blocks: Sequence[Block], no_reply: bool = False
) -> bytes:
    body = TWO.pack(check_u32(layer, "layer"), 0) + _blocks(blocks)
    return request(Op.GPU_STORED, request_id, len(blocks), body, no_reply)


def gpu_evicted_request(
    request_id: int, layer: int, digests: Sequence[bytes], no_reply: bool = False
) -> bytes:
    body = TWO.pack(check_u32(layer, "layer"), 0) + join_digests(digests)
    return request(Op.GPU_EVICTED, request_id, len(digests), body, no_reply)


def session_commit_request(
    request_id: int, session: int, layer: int, digest: bytes, no_reply: bool = False
) -> bytes:
    head = _SESSION_COMMIT.pack(check_u64(session, "session"), check_u32(layer, "layer"), 0)
    return request(Op.SESSION_COMMIT, request_id, 1, head + join_digests([digest]), no_reply)


def session_request(op: Op, request_id: int, session: int, no_reply: bool = False) -> bytes:
    """SESSION_RELEASE and SESSION_STATUS, which have one shape."""
    return request(op, request_id, 0, _SESSION.pack(check_u64(session, "session")), no_reply)


def read_session_status(count: int, body: Readable) -> SessionStatus:
    check_length(Op.SESSION_STATUS, body, _SESSION_STATUS.size)
    outcome, reserved, *rest = _SESSION_STATUS.unpack_from(body)
    if count != 1 or reserved != 0:
        raise ValueError("SESSION_STATUS: a reserved field in use")
    return SessionStatus(read_outcome(outcome), *rest)


def session_list_request(request_id: int, session: int, after: int, most: int) -> bytes:
    """``session`` 0: all; ``most`` 0: as many as the agent gives."""
    head = _SESSION_LIST.pack(
        check_u64(session, "session"), check_u64(after, "after"), check_u32(most, "most"), 0
    )
    return request(Op.SESSION_LIST, request_id, 0, head)


def read_session_list(count: int, body: Readable) -> SessionPage:
    check_length(Op.SESSION_LIST, body, _SESSION.size + count * _SESSION_ITEM.size)
    (following,) = _SESSION.unpack_from(body)
    items = _SESSION_ITEM.iter_unpack(bytes(body[_SESSION.size :]))
    return SessionPage(following, [SessionItem(*fields) for fields in items])
