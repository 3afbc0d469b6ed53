"""How much of a prefix several pools can restore together (the v2 calls)."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence, Set

from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransferResult

#: Leading blocks of a pool that are stored under these page keys.
Leading = Callable[[str, Sequence[str]], int]


def hits_of(
    keys: Sequence[str], pages: int, transfers: Sequence[Any], leading: Leading
) -> Any:
    """The longest prefix that all pools have, and all lengths that can be restored.

    ``pages`` leading KV pages are here. A pool with `all_pages` needs a block for each of them, one
    with `trailing_pages` only for the last ones of the prefix that is restored. A pool with another
    policy does not limit the prefix and is not reported.
    """
    hits: Dict[Any, int] = {PoolName.KV: pages} if pages else {}
    restorable = list(range(1, pages + 1))
    for transfer in transfers:
        if not restorable:
            break
        name = str(transfer.name)
        if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
            boundary = leading(name, keys[:pages])
            lengths = set(range(1, boundary + 1))
        elif transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
            window = max(1, len(transfer.keys or []))
            lengths = _windows(keys[:pages], window, lambda part, pool=name: leading(pool, part))
            boundary = max(lengths, default=0)
        else:
            continue
        if boundary:
            hits[transfer.name] = boundary
        restorable = [length for length in restorable if length in lengths]
    return PoolTransferResult(restorable[-1] if restorable else 0, hits, restorable)


def _windows(
    keys: Sequence[str], window: int, leading: Callable[[Sequence[str]], int]
) -> Set[int]:
    """Prefix lengths whose last ``window`` pages are all here."""
    here: List[bool] = []
    while len(here) < len(keys):
        run = leading(keys[len(here) :])
        here.extend([True] * run)
        if len(here) < len(keys):
            here.append(False)
    return {
        length
        for length in range(1, len(keys) + 1)
        if all(here[max(0, length - window) : length])
    }
