"""Where the bytes of a KV block lie in vLLM's tensors.

A tensor is used by its data_ptr, shape, stride and element_size only, so tests pass plain objects.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Iterable, List, NamedTuple, Sequence, Tuple

#: Base address, distance between blocks and bytes per block.
Span = Tuple[int, int, int]


class Geometry(NamedTuple):
    """`spans` in the order of a block's bytes; `layout` describes one layer's part of a block."""

    spans: List[Span]
    layout: str
    block_bytes: int


def describe(caches: Dict[str, Any], blocks: int) -> Geometry:
    """The geometry of all layers. ValueError: a tensor has no dimension of `blocks` blocks."""
    spans: List[Span] = []
    layouts = set()
    seen = set()
    for name in sorted(caches, key=_natural):
        for tensor in _tensors(caches[name]):
            if tensor.data_ptr() in seen:
                continue
            seen.add(tensor.data_ptr())
            layer, layout = _layer(name, tensor, blocks)
            layouts.add(layout)
            for span in layer:
                _append(spans, span)
    return Geometry(spans, "+".join(sorted(layouts)), sum(span[2] for span in spans))


def _tensors(cache: Any) -> Iterable[Any]:
    return cache if isinstance(cache, (list, tuple)) else (cache,)


def _natural(name: str) -> List[Any]:
    """Sorts "layers.2" before "layers.10"."""
    parts = re.split(r"(\d+)", name)
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]


def _append(spans: List[Span], span: Span) -> None:
    """Adds a span; one that begins where the last one ends, at equal distances, extends it."""
    if spans:
        base, stride, size = spans[-1]
        if span[0] == base + size and span[1] == stride and size + span[2] <= stride:
            spans[-1] = (base, stride, size + span[2])
            return
    spans.append(span)


def block_dimension(shape: Sequence[int], blocks: int) -> int:
    """The dimension that counts blocks, or kernel blocks of which several make one block."""
    for index, size in enumerate(shape[:2]):
        if size and size % blocks == 0:
            return index
    for index, size in enumerate(shape):
        if size == blocks:
            return index
    text = f"a KV cache tensor of shape {tuple(shape)} has no dimension of {blocks} blocks"
    raise ValueError(f"{text}: Hearth cannot tell its blocks apart")


def _layer(name: str, tensor: Any, blocks: int) -> Tuple[List[Span], str]:
    shape, strides = list(tensor.shape), list(tensor.stride())
    element = tensor.element_size()
    at = block_dimension(shape, blocks)
    split = shape[at] // blocks
    block_stride = strides[at] * split * element
    parts = [
        (strides[i] * element, shape[i], f"d{i}")
        for i in range(len(shape))
        if i != at and shape[i] != 1
    ]
    if split > 1:
        parts.append((strides[at] * element, split, "split"))
    parts.sort(key=lambda part: (-part[0], part[2]))
    run, inner = element, len(parts)
    while inner > 0 and parts[inner - 1][0] == run:
        inner -= 1
        run *= parts[inner][1]
    offsets = [0]
    for stride, count, _ in parts[:inner]:
        offsets = [offset + i * stride for offset in offsets for i in range(count)]
    base = tensor.data_ptr()
    spans = [(base + offset, block_stride, run) for offset in offsets]
    if any(size > distance for _, distance, size in spans):
        raise ValueError(f"the KV cache of {name} has overlapping blocks")
    kind = str(getattr(tensor, "dtype", "bytes")).replace("torch.", "")
    order = ",".join(f"{label}:{count}" for _, count, label in parts)
    return spans, f"{kind}[{order}]"
