"""The blocks of the soak: how they are called, how long they are, which bytes they hold."""

from __future__ import annotations

from hashlib import sha256
from typing import List, Optional

from hearth_client import Manifest

#: Conversations; neighbours share their first blocks, as those of one system prompt do.
CHAINS = 96
DEPTH = 24
TRUNK = 4
CHAINS_PER_TRUNK = 12
#: Numbers of sessions that clients use and die with; from 1.
SESSIONS = 8
BLOCK_BYTES = 16_384
#: Pure Python hashes some tens of megabytes a second: checksums of small blocks only.
CHECKED_BYTES_MAX = 16_384

MANIFEST = Manifest(
    model="hearth/soak", dtype="bfloat16", layout="soak:flat", block_tokens=16
).encode()


def digest_of(chain: int, depth: int) -> bytes:
    stem = chain // CHAINS_PER_TRUNK if depth < TRUNK else chain
    return sha256(b"soak %d %d %d" % (depth < TRUNK, stem, depth)).digest()


def chain_digests(chain: int, start: int, count: int) -> List[bytes]:
    return [digest_of(chain, depth) for depth in range(start, min(DEPTH, start + count))]


def parent_of(chain: int, depth: int) -> Optional[bytes]:
    return None if depth == 0 else digest_of(chain, depth - 1)


def payload_of(digest: bytes) -> bytes:
    """Nearly all fit slots of one size; a few want another, so that the arena is divided anew."""
    slot = BLOCK_BYTES if digest[0] else 4 * BLOCK_BYTES
    return sha256(digest).digest() * ((slot - 32 * (digest[1] % 64)) // 32)


def wrong_bytes(digest: bytes, copy: bytes) -> int:
    """How many bytes of the copy are not those of the block."""
    right = payload_of(digest)
    if copy == right:
        return 0
    differing = sum(a != b for a, b in zip(copy, right))
    return max(1, differing + abs(len(copy) - len(right)))
