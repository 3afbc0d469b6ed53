"""Where SGLang's host pools keep the bytes of a page."""

from __future__ import annotations

from array import array
from typing import Any, List, Optional, Sequence, Tuple

from hearth_client.memory import PagedMemory, Piece, Region


class HostPool:
    """One SGLang host pool: the pieces of each page, in the order in which they are stored.

    If the pieces of page ``n`` lie at ``base + n * stride`` for each page, as in all layouts of
    SGLang 0.5, ``memory`` names them once and calls pass page numbers. Otherwise calls pass
    addresses. A pool without ``get_page_buffer_meta`` hands out copies of its pages (``flat``).
    """

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.page_size: int = int(getattr(pool, "page_size", 1) or 1)
        self.flat = False
        self.page_bytes = 0
        self.memory: Optional[PagedMemory] = None
        try:
            self._probe()
        except (AttributeError, NotImplementedError, ValueError):
            self.flat = True  # The pool has no addresses of pages in this layout.

    @property
    def layout(self) -> str:
        """Order of a page's bytes: pools that differ in it must not share blocks."""
        form = "flat" if self.flat else "pieces"
        return f"{type(self.pool).__name__}:{getattr(self.pool, 'layout', 'unknown')}:{form}"

    @property
    def geometry(self) -> str:
        """Shape of a page, as far as the pool says it."""
        names = ("layer_num", "head_num", "head_dim", "v_head_dim", "start_layer", "end_layer")
        known = [(name, getattr(self.pool, name, None)) for name in names]
        shape = ",".join(f"{name}={value}" for name, value in known if isinstance(value, int))
        return f"page_size={self.page_size},{shape}"

    def _probe(self) -> None:
        """Fills ``memory`` if pages lie at equal distances."""
        pages = int(self.pool.size) // self.page_size
        numbers = sorted({0, min(1, pages - 1), pages - 1})
        found = self.pieces([number * self.page_size for number in numbers])
        self.page_bytes = sum(piece.bytes for piece in found[0])
        self.memory = _paged(pages, numbers, found, self.pool)

    def pieces(self, firsts: Sequence[int]) -> List[List[Piece]]:
        """The pieces of the pages that begin at these indices."""
        wanted = [index for first in firsts for index in range(first, first + self.page_size)]
        addresses, sizes = self.pool.get_page_buffer_meta(_as_tensor(wanted))
        each = len(addresses) // len(firsts)
        flat = [Piece(int(address), int(size)) for address, size in zip(addresses, sizes)]
        return [flat[start : start + each] for start in range(0, len(flat), each)]

    def firsts(self, host_indices: Any, count: int) -> List[int]:
        """First index of each page. ValueError if the indices are not ``count`` pages."""
        given = 0 if host_indices is None else len(host_indices)
        if given != count * self.page_size:
            raise ValueError(f"{given} indices for {count} pages of {self.page_size} tokens")
        return [int(first) for first in host_indices[:: self.page_size].tolist()]

    def page_numbers(self, firsts: Sequence[int]) -> Optional[List[int]]:
        """Numbers for ``memory``; None if there is none, or a page begins between two."""
        if self.memory is None or any(first % self.page_size for first in firsts):
            return None
        return [first // self.page_size for first in firsts]


def _paged(
    pages: int, numbers: Sequence[int], found: Sequence[Sequence[Piece]], pool: Any
) -> Optional[PagedMemory]:
    if len(numbers) < 2:
        return None
    regions: List[Tuple[int, int, int]] = []
    for piece, second, last in zip(found[0], found[1], found[-1]):
        stride = second.address - piece.address
        evenly = last.address == piece.address + numbers[-1] * stride
        if stride < piece.bytes or not evenly or second.bytes != piece.bytes:
            return None
        if regions:
            base, before, size = regions[-1]
            if before == stride and base + size == piece.address and size + piece.bytes <= stride:
                regions[-1] = (base, stride, size + piece.bytes)
                continue
        regions.append((piece.address, stride, piece.bytes))
    return PagedMemory([Region(*region) for region in regions], pool, blocks=pages)


def _as_tensor(indices: List[int]) -> Any:
    try:
        import torch
    except ImportError:  # Only in tests: SGLang needs it.
        return array("q", indices)
    return torch.tensor(indices, dtype=torch.int64)
