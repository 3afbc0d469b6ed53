"""Frames of connections that form one engine: requests are written, replies are read."""

from __future__ import annotations

from struct import Struct
from typing import List, NamedTuple, Optional, Sequence

from .layout import (
    DIGEST_BYTES,
    LAYER_ALL,
    TIER_MASK,
    IdentifyKind,
    Lookup,
    LookupFlag,
    MediaItem,
    Namespace,
    Op,
    Readable,
    Role,
)
from .protocol import (
    TWO,
    check_length,
    check_namespace,
    check_tiers,
    check_u32,
    check_zero,
    pad,
    padded,
    request,
)

_NAMESPACE = Struct("<II32s")
_JOIN = Struct("<16sII")
_LOOKUP = Struct("<IIIIIIII32s64sII")
_LOOKUP_REPLY = Struct("<IIIIII")
_ANNOUNCE = Struct("<IIIIII")
_NAMESPACE_REPLY = Struct("<II32s")

ENGINE_ID_BYTES = 16
_SOURCE_BYTES = 64
_SALT_BYTES_MAX = 4096
_MEDIA_NAME_BYTES_MAX = 256
_ITEM_BYTES = {IdentifyKind.TOKENS: 4, IdentifyKind.CHAIN_KEYS: 32, IdentifyKind.SHORT_KEYS: 16}
#: Digests as the items of an ANNOUNCE have the number that tokens have in a LOOKUP.
ANNOUNCE_DIGESTS = 0
_ANNOUNCE_ITEM_BYTES = {ANNOUNCE_DIGESTS: 32, 1: 32, 3: 16}
_LORA, _SALT = 1, 2
_MORE, _UNKNOWN_PARENT, _BUDGET = 1, 2, 4
_FAMILY, _WITHDRAW = 1, 2


def namespace_request(
    request_id: int, lora_digest: Optional[bytes], salt: Optional[str]
) -> bytes:
    encoded = b"" if salt is None else salt.encode("utf-8")
    if salt is not None and not 1 <= len(encoded) <= _SALT_BYTES_MAX:
        raise ValueError(f"a salt of {len(encoded)} bytes: 1 to {_SALT_BYTES_MAX} are allowed")
    if lora_digest is not None and len(lora_digest) != DIGEST_BYTES:
        raise ValueError(f"lora_digest is {DIGEST_BYTES} bytes, not {len(lora_digest)}")
    flags = (0 if lora_digest is None else _LORA) | (0 if salt is None else _SALT)
    head = _NAMESPACE.pack(flags, len(encoded), lora_digest or b"")
    return request(Op.NAMESPACE, request_id, 0, head + pad(encoded))


def read_namespace(count: int, body: Readable) -> Namespace:
    check_length(Op.NAMESPACE, body, _NAMESPACE_REPLY.size)
    handle, reserved, namespace_id = _NAMESPACE_REPLY.unpack_from(body)
    if count != 0 or reserved != 0 or handle >= 1 << 16:
        raise ValueError("NAMESPACE: a field out of range")
    return Namespace(handle, namespace_id)


def join_request(request_id: int, engine_id: bytes, role: int) -> bytes:
    if len(engine_id) != ENGINE_ID_BYTES or not any(engine_id):
        raise ValueError(f"engine_id is {ENGINE_ID_BYTES} bytes that are not all zero")
    return request(Op.JOIN, request_id, 0, _JOIN.pack(engine_id, Role(role), 0))


def read_join(count: int, body: Readable) -> int:
    """Connections of the engine now."""
    check_length(Op.JOIN, body, TWO.size)
    members: int
    members, reserved = TWO.unpack_from(body)
    if count != 0 or reserved != 0:
        raise ValueError("JOIN: a reserved field in use")
    return members


class LookupQuestion(NamedTuple):
    """The fields of a LOOKUP. ``items`` are packed: u32 tokens, or keys of 32 or 16 bytes."""

    kind: IdentifyKind
    items: bytes
    flags: int = LookupFlag.FAMILY | LookupFlag.HOLD
    layer: int = LAYER_ALL
    tiers: int = 0
    #: 0: the agent's own.
    deadline_ms: int = 0
    hold_ms: int = 0
    readers: int = 0
    namespace: int = 0
    parent: Optional[bytes] = None
    source: str = ""
    media: Sequence[MediaItem] = ()


def lookup_request(request_id: int, question: LookupQuestion) -> bytes:
    q = question
    item_bytes = _ITEM_BYTES.get(q.kind, 0)
    if item_bytes == 0 or len(q.items) % item_bytes != 0:
        raise ValueError(f"items of kind {int(q.kind)} do not have {len(q.items)} bytes")
    if q.parent is not None and len(q.parent) != DIGEST_BYTES:
        raise ValueError(f"a parent is {DIGEST_BYTES} bytes, not {len(q.parent)}")
    source = q.source.encode("utf-8")
    if len(source) > _SOURCE_BYTES:
        raise ValueError(f"a source of {len(source)} bytes: {_SOURCE_BYTES} are allowed")
    media = b"".join(map(_media, q.media))
    head = _LOOKUP.pack(
        *(check_u32(q.layer, "layer"), check_tiers(q.tiers), q.kind, q.flags),
        *(check_u32(q.deadline_ms, "deadline_ms"), check_u32(q.hold_ms, "hold_ms")),
        *(check_u32(q.readers, "readers"), check_namespace(q.namespace), q.parent or b""),
        *(source, len(q.media), len(media)),
    )
    return request(Op.LOOKUP, request_id, len(q.items) // item_bytes, head + media + pad(q.items))


def _media(item: MediaItem) -> bytes:
    position, name = item
    if not 1 <= len(name) <= _MEDIA_NAME_BYTES_MAX:
        raise ValueError(f"a media name of {len(name)} bytes: 1 to {_MEDIA_NAME_BYTES_MAX}")
    return TWO.pack(check_u32(position, "position"), len(name)) + pad(name)


def read_lookup(count: int, body: Readable, digests: bool = False) -> Lookup:
    """An answer, or a partial one (``more``), which has neither tiers nor digests.

    ``digests``: they were asked for.
    """
    if len(body) < _LOOKUP_REPLY.size:
        raise ValueError("LOOKUP: a body cut short")
    leading, ready, hold, flags, announced, reserved = _LOOKUP_REPLY.unpack_from(body)
    more = bool(flags & _MORE)
    if flags & ~(_MORE | _UNKNOWN_PARENT | _BUDGET) or reserved != 0 or ready > leading:
        raise ValueError("LOOKUP: a field out of range")
    if more and count != 0 or not more and leading > count:
        raise ValueError("LOOKUP: more leading blocks than asked for")
    tiers_end = _LOOKUP_REPLY.size + count
    digests_at = _LOOKUP_REPLY.size + padded(count)
    check_length(Op.LOOKUP, body, digests_at + DIGEST_BYTES * count * digests)
    check_zero(body[:digests_at], tiers_end)
    tiers = bytes(body[_LOOKUP_REPLY.size : tiers_end])
    if count and max(tiers) > TIER_MASK:
        raise ValueError("LOOKUP: a tier that is none")
    names = _split(bytes(body[digests_at:]))
    unknown, budget = bool(flags & _UNKNOWN_PARENT), bool(flags & _BUDGET)
    return Lookup(leading, ready, hold, more, unknown, budget, announced, tiers, names)


def _split(packed: bytes) -> List[bytes]:
    return [packed[at : at + DIGEST_BYTES] for at in range(0, len(packed), DIGEST_BYTES)]


def unhold_request(request_id: int, holds: Sequence[int], no_reply: bool = False) -> bytes:
    items = b"".join(TWO.pack(check_u32(hold, "hold"), 0) for hold in holds)
    return request(Op.UNHOLD, request_id, len(holds), items, no_reply)


def announce_request(
    request_id: int,
    kind: int,
    items: Sequence[bytes],
    ttl_ms: int,
    *,
    layer: int = LAYER_ALL,
    family: bool = True,
    withdraw: bool = False,
    namespace: int = 0,
    no_reply: bool = False,
) -> bytes:
    """``kind``: ANNOUNCE_DIGESTS, or IdentifyKind.CHAIN_KEYS or SHORT_KEYS."""
    size = _ANNOUNCE_ITEM_BYTES.get(kind)
    if size is None or any(len(item) != size for item in items):
        raise ValueError(f"items of kind {int(kind)} have {size} bytes each")
    flags = (_FAMILY if family else 0) | (_WITHDRAW if withdraw else 0)
    ttl, handle = check_u32(ttl_ms, "ttl_ms"), check_namespace(namespace)
    head = _ANNOUNCE.pack(check_u32(layer, "layer"), ttl, kind, flags, handle, 0)
    return request(Op.ANNOUNCE, request_id, len(items), head + pad(b"".join(items)), no_reply)


def command_request(request_id: int, json: bytes) -> bytes:
    return request(Op.COMMAND, request_id, 0, TWO.pack(len(json), 0) + pad(json))


def read_command(count: int, body: Readable) -> bytes:
    """The receipt's JSON."""
    if len(body) < TWO.size:
        raise ValueError("COMMAND: a body cut short")
    length, reserved = TWO.unpack_from(body)
    check_length(Op.COMMAND, body, TWO.size + padded(length))
    if count != 0 or reserved != 0:
        raise ValueError("COMMAND: a reserved field in use")
    check_zero(body, TWO.size + length)
    return bytes(body[TWO.size : TWO.size + length])
