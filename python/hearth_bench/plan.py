"""The measurement plan, which the benchmark passes as one line of JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import List, Optional

#: Tokens of a prompt that are computed at least, even if all of them could be restored.
COMPUTED_MIN = 64
_BYTES_PER_VALUE = 2


@dataclass(frozen=True)
class Shape:
    """A dense transformer with grouped queries; 16 bits a value."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int


@dataclass(frozen=True)
class Plan:
    socket: str
    #: The driver's library; None as the dynamic linker finds it.
    library: Optional[str]
    #: The torch device: "cuda:0", or "cpu" if the driver is the stand-in.
    device: str
    #: "torch", or "hash": no transformer, for hosts without PyTorch.
    compute: str
    shape: Shape
    block_tokens: int
    prompts: List[int]
    rounds: int
    #: Connections that load layers in turn.
    connections: int

    @staticmethod
    def read(line: str) -> "Plan":
        fields = json.loads(line)
        return Plan(**{**fields, "shape": Shape(**fields["shape"])})

    @property
    def page_bytes(self) -> int:
        """Keys, then values, of one block in one layer."""
        shape = self.shape
        return 2 * self.block_tokens * shape.kv_heads * shape.head_dim * _BYTES_PER_VALUE

    @property
    def pages(self) -> int:
        """Blocks of the longest prompt."""
        return max(self.prompts) // self.block_tokens

    @property
    def layer_bytes(self) -> int:
        """All pages of one layer, which lie together in the memory."""
        return self.pages * self.page_bytes

    @property
    def memory_bytes(self) -> int:
        return self.shape.layers * self.layer_bytes

    def restored_blocks(self, tokens: int) -> int:
        """Whole blocks in front of the tokens that are computed."""
        return max(0, tokens - COMPUTED_MIN) // self.block_tokens
