"""A small paged KV cache, and stores for tests that use it."""

from __future__ import annotations

import ctypes
import hashlib
import logging
from typing import Any, List, Optional

from hearth_client import Manifest
from hearth_client.kv_store import KvStore, LookupTicket, PagedMemory, Region

from .real_agent import HANG_SECONDS

BLOCK_BYTES = 16_384
MANIFEST = Manifest("kv-test", "bfloat16", "test:flat", 16)
ENGINE = bytes(range(1, 17))
STALL_MS = 20_000


def keys_of(count: int, size: int = 32, first: int = 0) -> List[bytes]:
    return [hashlib.sha256(b"%d" % at).digest()[:size] for at in range(first, first + count)]


def parents_of(keys: List[bytes]) -> List[Optional[bytes]]:
    return [None, *keys[:-1]]


def content(block: int, length: int = BLOCK_BYTES) -> bytes:
    return (hashlib.sha256(b"block %d" % block).digest() * (length // 32 + 1))[:length]


class Pool:
    """A paged KV cache of two layers: the halves of a block lie apart."""

    def __init__(self, blocks: int) -> None:
        half = BLOCK_BYTES // 2
        self.bytes = bytearray(blocks * BLOCK_BYTES)
        self._array = (ctypes.c_char * len(self.bytes)).from_buffer(self.bytes)
        base = ctypes.addressof(self._array)
        regions = [Region(base, half, half), Region(base + blocks * half, half, half)]
        self.memory = PagedMemory(regions, self)
        self.blocks = blocks

    def _spans(self, block: int) -> List[slice]:
        half = BLOCK_BYTES // 2
        starts = [block * half, (self.blocks + block) * half]
        return [slice(start, start + half) for start in starts]

    def fill(self) -> "Pool":
        for block in range(self.blocks):
            for at, span in enumerate(self._spans(block)):
                self.bytes[span] = content(block)[at * BLOCK_BYTES // 2 :][: BLOCK_BYTES // 2]
        return self

    def is_right(self, block: int, wanted: int) -> bool:
        return b"".join(self.bytes[span] for span in self._spans(block)) == content(wanted)


def store(path: str, **options: Any) -> KvStore:
    quiet = logging.getLogger("hearth.test.kv")
    quiet.addHandler(logging.NullHandler())
    quiet.propagate = False
    # A busy host must not look like an agent that hangs.
    usual = {"socket": path, "engine_id": ENGINE, "logger": quiet, "stall_ms": STALL_MS}
    return KvStore(MANIFEST, **{**usual, **options})


def ready(ticket: LookupTicket) -> "tuple[int, int, str]":
    assert ticket.wait(HANG_SECONDS)
    result = ticket.result()
    return result.leading, result.ready, result.outcome


class Messages(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: List[str] = []
        self.logger = logging.getLogger(f"hearth.test.{id(self)}")
        self.logger.propagate = False
        self.logger.setLevel(logging.WARNING)
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
