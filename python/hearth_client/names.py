"""Digests of blocks from an engine's chain keys."""

from __future__ import annotations

from typing import Callable, Dict, List, Optional, Sequence, Tuple

from .calls import kind_of_keys
from .layout import DIGEST_BYTES, Hello
from .native import Kernels, Native, kernels

#: Keys of the cache, which is emptied when it is full: about 16 MB.
_CACHE_MAX = 65_536

#: Asks the agent for the digests of keys that the cache does not have.
Ask = Callable[[Sequence[bytes]], List[bytes]]


class Names:
    """Computes digests with the native library, or asks the agent and remembers its answers."""

    def __init__(self, chosen: Optional[Kernels] = None) -> None:
        self._kernels = chosen or kernels()
        self._known: Dict[Tuple[bytes, bytes], bytes] = {}

    def digests(self, hello: Hello, keys: Sequence[bytes], ask: Ask) -> List[bytes]:
        """One digest for each key. ValueError: a key has not 16 or 32 bytes."""
        packed = self.packed(hello, keys, ask)
        return [packed[at : at + DIGEST_BYTES] for at in range(0, len(packed), DIGEST_BYTES)]

    def packed(self, hello: Hello, keys: Sequence[bytes], ask: Ask) -> bytes:
        """The same, one behind the other."""
        if not keys:
            return b""
        if isinstance(self._kernels, Native):
            kind_of_keys(keys)
            return self._kernels.packed_chain_digests(hello.namespace_id, keys)
        space, known = hello.namespace_id, self._known
        missing = [key for key in dict.fromkeys(keys) if (space, key) not in known]
        if missing:
            kind_of_keys(missing)
            if len(known) + len(missing) > _CACHE_MAX:
                known.clear()
                missing = list(dict.fromkeys(keys))
            for key, digest in zip(missing, ask(missing)):
                known[(space, key)] = digest
        return b"".join([known[(space, key)] for key in keys])
