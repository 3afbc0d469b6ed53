"""Keys of a request's blocks: vLLM's own block hashes, until the external cache is reset."""

from __future__ import annotations

import hashlib
import os
from typing import Any, List

_EPOCH_BYTES = 16


class BlockKeys:
    """vLLM's hashes contain tokens, adapter, salt and multimodal items of the whole prefix."""

    def __init__(self) -> None:
        self._epoch = b""

    def renew(self) -> None:
        """Later keys differ from all earlier ones and from those of every other engine."""
        self._epoch = os.urandom(_EPOCH_BYTES)

    def of(self, request: Any, first: int, end: int) -> List[bytes]:
        """Keys of the full blocks `first` to `end`."""
        hashes = [bytes(key) for key in request.block_hashes[first:end]]
        if not self._epoch:
            return hashes
        return [
            hashlib.blake2b(key, digest_size=len(key), key=self._epoch).digest() for key in hashes
        ]
