"""Chain keys of LMCache's objects, and the objects this adapter has seen."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256
from threading import Lock
from typing import Any, Iterable, List, Optional, Sequence, Tuple

_PREFIX = b"hearth-lmcache-object\0"


def chain_key(key: Any) -> bytes:
    """32 bytes for an ObjectKey: SHA-256 over all its fields in a form with one reading.

    LMCache's keys form no chain of SHA-256 hashes: an object's parent is unknown.
    """
    fields = (
        key.model_name.encode(),
        f"{key.kv_rank:x}.{key.object_group_id:x}".encode(),
        key.cache_salt.encode(),
        bytes(key.chunk_hash),
    )
    parts = [_PREFIX]
    for field in fields:
        parts.append(len(field).to_bytes(4, "little") + field)
    return sha256(b"".join(parts)).digest()


def chain_keys(keys: Sequence[Any]) -> List[bytes]:
    return [chain_key(key) for key in keys]


def alias(chain: bytes) -> int:
    """The 64-bit name of a block in the agent's commands."""
    return int.from_bytes(chain[:8], "big")


class Seen:
    """Objects that were stored or found, oldest first, with their sizes in bytes.

    The agent evicts without a word to LMCache, so this is an upper estimate until a lookup misses.
    """

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._sizes: "OrderedDict[Any, int]" = OrderedDict()
        self._lock = Lock()

    def add(self, keys: Iterable[Any], sizes: Iterable[int]) -> Tuple[List[Any], List[Any]]:
        """Keys that are new, and keys forgotten to make room: pairs of key and size."""
        new, forgotten = [], []
        with self._lock:
            for key, size in zip(keys, sizes):
                if key not in self._sizes:
                    new.append((key, size))
                self._sizes[key] = size
                self._sizes.move_to_end(key)
            while len(self._sizes) > self._keys_max:
                forgotten.append(self._sizes.popitem(last=False))
        return new, forgotten

    def drop(self, keys: Iterable[Any]) -> List[Any]:
        """Pairs of key and size of those that were known."""
        with self._lock:
            return [(key, self._sizes.pop(key)) for key in keys if key in self._sizes]

    def after(
        self, place: str, model_name: Optional[str], count: int
    ) -> List[Tuple[str, Any, int]]:
        """Up to ``count`` objects whose chain key follows ``place`` (hex) in order."""
        with self._lock:
            items = list(self._sizes.items())
        named = (
            (chain_key(key).hex(), key, size)
            for key, size in items
            if model_name is None or key.model_name == model_name
        )
        return sorted((item for item in named if item[0] > place), key=lambda item: item[0])[:count]
