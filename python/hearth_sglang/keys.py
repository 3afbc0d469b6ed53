"""From SGLang's names of pages to chain keys of blocks."""

from __future__ import annotations

from hashlib import sha256
from typing import List, Optional, Sequence

_KEY_BYTES = 32


def page_key(key: str) -> bytes:
    """The 32 bytes of a hex SHA-256 page key; of another text, its SHA-256."""
    try:
        raw = bytes.fromhex(key)
    except ValueError:
        raw = b""
    return raw if len(raw) == _KEY_BYTES else sha256(b"hearth-sglang-key\0" + key.encode()).digest()


def event_hash(key: bytes) -> int:
    """The 64-bit name under which SGLang's KV events speak of the page, as an unsigned number."""
    return int.from_bytes(key[:8], "big")


class KeySpace:
    """Chain keys of one kind of block.

    The KV pages of the v1 calls are stored under their page keys. Blocks of other pools, and pages
    in another byte order, are stored under keys derived from them, so that two kinds never mix.
    """

    def __init__(self, label: str = "") -> None:
        self._prefix = f"hearth-sglang\0{label}\0".encode() if label else b""

    @property
    def plain(self) -> bool:
        """Whether chain keys are page keys."""
        return not self._prefix

    def key(self, name: str) -> bytes:
        raw = page_key(name)
        return sha256(self._prefix + raw).digest() if self._prefix else raw

    def keys(self, names: Sequence[str]) -> List[bytes]:
        return [self.key(name) for name in names]

    def parents(
        self, keys: Sequence[bytes], prefix: Optional[Sequence[str]]
    ) -> List[Optional[bytes]]:
        """The key before each of ``keys``; for the first, the last of the prefix before them."""
        if not keys:
            return []
        first = self.key(prefix[-1]) if prefix else None
        return [first, *keys[:-1]]
