"""A transformer of the shapes of Qwen3 with random weights: what a prefill costs.

RMSNorm, grouped queries with normed heads, rotary positions, SwiGLU, bfloat16, attention by
PyTorch's fused kernels. Nothing is sharded and nothing quantised.
"""

from __future__ import annotations

from typing import Any, List, Sequence

import torch

from .computing import Arrived
from .memory import CudaMemory, MirroredMemory
from .plan import Plan, Shape

_SEED = 7
_SCALE = 0.02
_ROTARY_BASE = 1_000_000.0


class Transformer:
    """All layers, and their paged keys and values."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._device = torch.device(plan.device)
        if self._device.type == "cuda":
            cuda = CudaMemory(torch, plan.device, plan.memory_bytes)
            self.memory: Any = cuda
            raw = cuda.tensor
        else:
            mirrored = MirroredMemory(plan.library, plan.memory_bytes)
            self.memory = mirrored
            raw = torch.frombuffer(mirrored.mirror, dtype=torch.uint8)
        shape = plan.shape
        sizes = (shape.layers, plan.pages, 2, plan.block_tokens, shape.kv_heads, shape.head_dim)
        self._cache = raw.view(torch.bfloat16).view(sizes)
        random = torch.Generator(device=self._device).manual_seed(_SEED)
        self._embedding = self._weights(random, shape.vocabulary, shape.hidden)
        self._head = self._weights(random, shape.vocabulary, shape.hidden)
        self._layers = [self._layer(random, shape) for _ in range(shape.layers)]

    def _weights(self, random: Any, rows: int, columns: int) -> Any:
        empty = torch.empty(rows, columns, dtype=torch.bfloat16, device=self._device)
        return empty.normal_(0.0, _SCALE, generator=random)

    def _layer(self, random: Any, shape: Shape) -> Any:
        heads = shape.heads * shape.head_dim
        together = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        return (
            self._weights(random, together, shape.hidden),
            self._weights(random, shape.hidden, heads),
            self._weights(random, 2 * shape.intermediate, shape.hidden),
            self._weights(random, shape.hidden, shape.intermediate),
        )

    def prefill(self, tokens: Sequence[int], table: List[int]) -> Any:
        return self._run(tokens, 0, table, lambda layer: None)

    def finish(
        self, tokens: Sequence[int], blocks: int, table: List[int], arrived: Arrived
    ) -> Any:
        return self._run(tokens, blocks, table[:blocks], arrived)

    def _run(self, tokens: Sequence[int], blocks: int, table: List[int], arrived: Arrived) -> Any:
        start = blocks * self._plan.block_tokens
        with torch.inference_mode():
            ids = torch.tensor(tokens[start:], device=self._device)
            pages = torch.tensor(table, device=self._device)
            x = self._embedding[ids]
            rotary = self._rotary(start, len(tokens))
            mask = None if start == 0 else self._mask(start, len(tokens))
            for index, weights in enumerate(self._layers):
                x = self._one(index, weights, x, rotary, mask, pages, arrived)
            logits = _normed(x[-1:]) @ self._head.T
            # To the host: this waits for everything before it.
            return logits.cpu()

    def same(self, one: Any, other: Any) -> bool:
        return bool(torch.equal(one, other))

    def _one(
        self, index: int, weights: Any, x: Any, rotary: Any, mask: Any, pages: Any, arrived: Arrived
    ) -> Any:
        shape = self._plan.shape
        w_qkv, w_out, w_up, w_down = weights
        count = x.shape[0]
        qkv = (_normed(x) @ w_qkv.T).view(count, -1, shape.head_dim)
        sizes = (shape.heads, shape.kv_heads, shape.kv_heads)
        q, k, v = torch.split(qkv, sizes, dim=1)
        q = _rotated(_normed(q), rotary)
        k = _rotated(_normed(k), rotary)
        if mask is None:
            self._keep(index, k, v, pages)
        else:
            arrived(index)
            past = self._cache[index].index_select(0, pages)
            k = torch.cat((past[:, 0].flatten(0, 1), k))
            v = torch.cat((past[:, 1].flatten(0, 1), v))
        out = self._attended(q, k, v, mask)
        x = x + out.reshape(count, -1) @ w_out.T
        gate, up = (_normed(x) @ w_up.T).chunk(2, dim=-1)
        return x + (torch.nn.functional.silu(gate) * up) @ w_down.T

    def _keep(self, index: int, k: Any, v: Any, pages: Any) -> None:
        """Keys and values of whole blocks into their pages."""
        blocks = k.shape[0] // self._plan.block_tokens
        whole = blocks * self._plan.block_tokens
        for which, values in enumerate((k, v)):
            paged = values[:whole].unflatten(0, (blocks, self._plan.block_tokens))
            self._cache[index, :, which].index_copy_(0, pages[:blocks], paged)

    def _attended(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        """Everything from the first token on, or the last tokens to all of them by a mask."""
        attention = torch.nn.functional.scaled_dot_product_attention
        shape = self._plan.shape
        each = shape.heads // shape.kv_heads
        if mask is None:
            k = k.repeat_interleave(each, dim=1)
            v = v.repeat_interleave(each, dim=1)
            batched = [one.transpose(0, 1).unsqueeze(0) for one in (q, k, v)]
            return attention(*batched, is_causal=True).squeeze(0).transpose(0, 1)
        # Queries of a group stand behind each other: the many keys need not be repeated for each.
        count = q.shape[0]
        q = q.unflatten(1, (shape.kv_heads, each)).permute(1, 2, 0, 3).flatten(1, 2)
        keys, values = k.transpose(0, 1), v.transpose(0, 1)
        out = attention(q[None], keys[None], values[None], attn_mask=mask.repeat(each, 1))[0]
        return out.unflatten(1, (each, count)).permute(2, 0, 1, 3).flatten(1, 2)

    def _rotary(self, start: int, end: int) -> Any:
        half = self._plan.shape.head_dim // 2
        steps = torch.arange(half, device=self._device, dtype=torch.float32)
        positions = torch.arange(start, end, device=self._device, dtype=torch.float32)
        angles = positions[:, None] * _ROTARY_BASE ** (-steps / half)
        return angles.cos()[:, None].bfloat16(), angles.sin()[:, None].bfloat16()

    def _mask(self, start: int, end: int) -> Any:
        rows = torch.arange(start, end, device=self._device)
        return torch.arange(end, device=self._device)[None, :] <= rows[:, None]


def _normed(x: Any) -> Any:
    """RMSNorm with weights of one."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def _rotated(x: Any, rotary: Any) -> Any:
    cos, sin = rotary
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
