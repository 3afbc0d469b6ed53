"""HiCache's storage backend on Hearth: ``--hicache-storage-backend dynamic``."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, Dict, List, Optional, Sequence
from uuid import uuid4

from hearth_client.kv_store import KvStore, Role
from hearth_client.namespace_key import NamespaceKey
from hearth_client.layout import Outcome, Tier
from hearth_client.memory import Piece
from hearth_client.recompute import deadline_ms
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolName, PoolTransferResult

from .guard import guarded, no_pages, no_transfers
from .hints import Hints
from .identity import manifest_of, server_arguments, why_not_shared
from .keys import KeySpace, event_hash
from .metrics import Metrics
from .pools import HostPool
from .registry import set_current
from .settings import parse
from .sidecars import hits_of
from .stats import PageStats, warn_of_untested_version

logger = logging.getLogger("hearth_sglang")

#: Outcomes after which the agent has the block, or another writer is about to commit it.
_STORED = (Outcome.OK, Outcome.PRESENT, Outcome.PENDING)


class HearthStorage(HiCacheStorage):  # type: ignore[misc]
    """Pages of one rank. SGLang calls it from its prefetch, transfer and backup threads.

    No call raises or waits longer than ``stall_ms`` without progress: without an agent, pages are
    misses. The agent is looked for in the background.
    """

    def __init__(self, storage_config: Any, _options: Any = None) -> None:
        """ValueError, with the fix, for a mistaken setting."""
        self._config = storage_config
        self.settings = parse(storage_config.extra_config)
        self._key = NamespaceKey.from_settings(
            self.settings.key_file, self.settings.tenant_salt, self.settings.tenant_salt_secret
        )
        self.registered_pools: Dict[Any, Any] = {}
        self.store: Optional[KvStore] = None
        self.hints: Optional[Hints] = None
        self.stats = PageStats()
        self._metrics: Optional[Metrics] = None
        self._pools: Dict[str, HostPool] = {}
        self._spaces: Dict[str, KeySpace] = {}
        self._logged: set = set()
        self._lock = threading.Lock()
        self._tiers = Tier.RAM | Tier.SSD | (Tier.PEER if self.settings.peers else Tier(0))
        warn_of_untested_version(logger)

    # --- pools ------------------------------------------------------------------------------------

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Connects: the pool completes what identifies the blocks of this rank."""
        self.mem_pool_host = mem_pool_host
        pool = HostPool(mem_pool_host)
        manifest = manifest_of(self._config, pool, self.settings, server_arguments())
        self._add_pool(str(PoolName.KV), pool)
        self.close()
        rank = f"tp{self._config.tp_rank}-pp{self._config.pp_rank}"
        self._metrics = Metrics(rank)
        self.store = KvStore(
            manifest,
            socket=self.settings.socket,
            engine_id=uuid4().bytes,
            role=Role.WORKER,
            name=f"{self.settings.name}-{rank}"[-32:],
            stall_ms=self.settings.stall_ms,
            logger=logger,
            key=self._key,
        )
        self._execute_hints(pool.page_size)

    def _execute_hints(self, page_tokens: int) -> None:
        """One rank speaks for all: a page's name means the pages of all ranks."""
        first = self._config.tp_rank == 0 and self._config.pp_rank == 0
        if first and self.settings.hints and self.settings.aliases and self.settings.zero_copy:
            self.hints = Hints(
                *(self.store, int(self._tiers), self.settings.name, page_tokens),
                no_share=why_not_shared,
            )
            set_current(self.hints)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        self.registered_pools[host_pool_name] = host_pool
        if str(host_pool_name) != str(PoolName.KV):
            self._add_pool(str(host_pool_name), HostPool(host_pool))

    def _add_pool(self, name: str, pool: HostPool) -> None:
        self._pools[name] = pool
        label = ""
        if name != str(PoolName.KV):
            # Mamba state differs by rank even if the KV of the ranks is equal.
            shard = f"{self._config.tp_rank}/{self._config.tp_size}"
            rank = shard if name == "mamba" and self._config.is_mla_model else ""
            label = f"{name}|{pool.layout}|{pool.geometry}|{rank}"
        self._spaces[name] = KeySpace(label)

    @property
    def _kv_space(self) -> KeySpace:
        """Keys of the pages that the main calls move: without v1, pages have another byte order."""
        if self.settings.zero_copy:
            return self._spaces[str(PoolName.KV)]
        return KeySpace("flat page")

    # --- lookups ----------------------------------------------------------------------------------

    @guarded(lambda *_: 0)
    def batch_exists(self, keys: List[str], extra_info: Any = None) -> int:
        """Leading pages that are here. Those on SSD start moving to RAM."""
        return self._leading(self._kv_space.keys(keys))

    def _leading(self, keys: List[bytes]) -> int:
        store = self._connected()
        if store is None or not keys:
            return 0
        found = min(store.exists(keys, tiers=self._tiers, family=False), len(keys))
        if found and self.settings.prefetch:
            # Not waited for: the read that follows takes the reservation over.
            store.lookup(
                keys[:found],
                tiers=self._tiers,
                family=False,
                hold=True,
                fetch=True,
                progress=True,
                hold_ms=self.settings.hold_ms,
            )
        return found

    @guarded(lambda *_: False)
    def exists(self, key: str) -> bool:
        return self._leading([self._kv_space.key(key)]) == 1

    @guarded(lambda *_: PoolTransferResult.empty())
    def batch_exists_v2(
        self, keys: List[str], pool_transfers: Any = None, extra_info: Any = None
    ) -> Any:
        """Usable prefix over all pools, each by its own hit policy."""
        pages = self._leading(self._kv_space.keys(keys))

        def leading(pool: str, names: Sequence[str]) -> int:
            return self._leading(self._spaces[pool].keys(names))

        return hits_of(keys, pages, pool_transfers or [], leading)

    # --- v1: one copy between host pool and arena -------------------------------------------------

    @guarded(no_pages)
    def batch_get_v1(
        self, keys: List[str], host_indices: Any, extra_info: Any = None
    ) -> List[bool]:
        return self._read_pages(
            str(PoolName.KV), keys, host_indices, self._deadline_ms(len(keys))
        )

    @guarded(no_pages)
    def batch_set_v1(
        self, keys: List[str], host_indices: Any, extra_info: Any = None
    ) -> List[bool]:
        if _prefix(extra_info) is None:
            self._note(
                "prefix unknown: set \"hicache_storage_pass_prefix_keys\": true in "
                "--hicache-storage-backend-extra-config, so that the agent evicts the ends of "
                "prompts first"
            )
        return self._write_pages(str(PoolName.KV), keys, host_indices, _prefix(extra_info))

    # --- v2: several pools ------------------------------------------------------------------------

    @guarded(no_transfers)
    def batch_get_v2(self, transfers: List[Any], extra_info: Any = None) -> Dict[Any, List[bool]]:
        pages = max([len(one.keys or []) for one in transfers], default=0)
        until = time.monotonic() + self._deadline_ms(pages) / 1000
        found = {}
        for one in transfers:
            left_ms = max(int(1000 * (until - time.monotonic())), 1)
            found[one.name] = self._read_pages(
                str(one.name), one.keys or [], one.host_indices, left_ms
            )
        return found

    @guarded(no_transfers)
    def batch_set_v2(self, transfers: List[Any], extra_info: Any = None) -> Dict[Any, List[bool]]:
        return {
            one.name: self._write_pages(
                str(one.name), one.keys or [], one.host_indices, _prefix(extra_info)
            )
            for one in transfers
        }

    def _deadline_ms(self, pages: int) -> int:
        """Total time limit of a read; a longer read costs more than the computation."""
        main = self._pools.get(str(PoolName.KV))
        return deadline_ms(
            pages * (1 if main is None else main.page_size),
            self.settings.recompute_tokens_per_second,
            least_ms=self.settings.stall_ms,
            configured_ms=self.settings.load_deadline_ms,
        )

    def _read_pages(
        self, name: str, keys: Sequence[str], host_indices: Any, deadline: int
    ) -> List[bool]:
        store, pool = self._connected(), self._pools[name]
        if store is None or not keys:
            return [False] * len(keys)
        chain = self._spaces[name].keys(keys)
        firsts = pool.firsts(host_indices, len(keys))
        with self.stats.reading(len(keys)):
            if pool.flat:
                return self._read_flat(store, pool, chain, firsts, deadline)
            numbers = pool.page_numbers(firsts)
            if numbers is not None and pool.memory is not None:
                outcomes = store.get(
                    chain, pool.memory, numbers, tiers=self._tiers, deadline_ms=deadline
                )
            else:
                outcomes = store.get_pieces(
                    chain, pool.pieces(firsts), tiers=self._tiers, deadline_ms=deadline
                )
        return [outcome == Outcome.OK for outcome in outcomes]

    def _read_flat(
        self,
        store: KvStore,
        pool: HostPool,
        chain: List[bytes],
        firsts: List[int],
        deadline: int,
    ) -> List[bool]:
        pages = [pool.pool.get_dummy_flat_data_page() for _ in chain]
        pieces = [[_piece(page)] for page in pages]
        found = store.get_pieces(chain, pieces, tiers=self._tiers, deadline_ms=deadline)
        for outcome, first, page in zip(found, firsts, pages):
            if outcome == Outcome.OK:
                pool.pool.set_from_flat_data_page(first, page)
        return [outcome == Outcome.OK for outcome in found]

    def _write_pages(
        self, name: str, keys: Sequence[str], host_indices: Any, prefix: Optional[Sequence[str]]
    ) -> List[bool]:
        store, pool, space = self._connected(), self._pools[name], self._spaces[name]
        if store is None or not keys:
            return [False] * len(keys)
        chain = space.keys(keys)
        # Blocks of other pools hang on no chain: the pages before them are often not stored.
        parents = space.parents(chain, prefix) if space.plain else [None] * len(chain)
        aliases = [event_hash(key) for key in chain] if self._names(space) else None
        firsts = pool.firsts(host_indices, len(keys))
        with self.stats.writing(len(keys)):
            if pool.flat:
                kept = [pool.pool.get_data_page(first, flat=True).contiguous() for first in firsts]
                outcomes = store.put_pieces(chain, parents, [[_piece(page)] for page in kept])
            else:
                numbers = pool.page_numbers(firsts)
                if numbers is not None and pool.memory is not None:
                    outcomes = store.put(chain, parents, pool.memory, numbers, aliases=aliases)
                else:
                    pieces = pool.pieces(firsts)
                    outcomes = store.put_pieces(chain, parents, pieces, aliases=aliases)
        if self.hints is not None and space.plain:
            self.hints.stored([key for key, one in zip(chain, outcomes) if one in _STORED])
        return [outcome in _STORED for outcome in outcomes]

    def _names(self, space: KeySpace) -> bool:
        return self.settings.aliases and space.plain

    # --- the first interface: tensors of whole pages ----------------------------------------------

    @guarded(lambda *_: None)
    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return self._get_tensors([key], [target_location])[0]

    @guarded(lambda keys, *_: [None] * len(keys))
    def batch_get(
        self, keys: List[str], target_locations: Any = None, target_sizes: Any = None
    ) -> List[Any]:
        return self._get_tensors(keys, target_locations or [None] * len(keys))

    def _get_tensors(self, keys: Sequence[str], targets: Sequence[Any]) -> List[Any]:
        store = self._connected()
        usable = all(target is not None and target.is_contiguous() for target in targets)
        if store is None or not usable:
            return [None] * len(keys)
        chain = KeySpace("flat page").keys(keys)
        with self.stats.reading(len(keys)):
            outcomes = store.get_pieces(
                chain,
                [[_piece(target)] for target in targets],
                tiers=self._tiers,
                deadline_ms=self._deadline_ms(len(keys)),
            )
        return [
            target if outcome == Outcome.OK else None
            for outcome, target in zip(outcomes, targets)
        ]

    @guarded(lambda *_: False)
    def set(
        self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None
    ) -> bool:
        return self._set_tensors([key], [value])

    @guarded(lambda *_: False)
    def batch_set(
        self,
        keys: List[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        return self._set_tensors(keys, values or [])

    def _set_tensors(self, keys: Sequence[str], values: Sequence[Any]) -> bool:
        store = self._connected()
        if store is None or len(keys) != len(values) or any(value is None for value in values):
            return False
        space = KeySpace("flat page")
        chain = space.keys(keys)
        kept = [value.contiguous() for value in values]
        with self.stats.writing(len(keys)):
            outcomes = store.put_pieces(
                chain, space.parents(chain, None), [[_piece(value)] for value in kept]
            )
        return all(outcome in _STORED for outcome in outcomes)

    # --- the rest ---------------------------------------------------------------------------------

    def clear(self) -> bool:
        """Refused: other engines use the same agent. ``hearth ctl`` removes blocks by name."""
        logger.warning(
            "clear ignored: the agent's blocks belong to all engines of this host; "
            "use `hearth ctl` to remove them"
        )
        return False

    @guarded(lambda *_: None)
    def get_stats(self) -> Any:
        """Pages and bandwidth since the last call, for SGLang's own metrics, with ours beside."""
        if self.store is not None and self._metrics is not None:
            self._metrics.export(self.store.stats, self.hints.outcomes if self.hints else {})
        return self.stats.drain(self._pools[str(PoolName.KV)].page_bytes)

    def close(self) -> None:
        hints, self.hints = self.hints, None
        if hints is not None:
            hints.close()
        store, self.store = self.store, None
        if store is not None:
            store.close()

    def _connected(self) -> Optional[KvStore]:
        store = self.store
        return store if store is not None and store.connected else None

    def _log_once(self, name: str) -> None:
        if self._is_first(name):
            logger.exception("storage call %s failed, its pages are misses (logged once)", name)

    def _note(self, text: str) -> None:
        if self._is_first(text):
            logger.warning(text)

    def _is_first(self, text: str) -> bool:
        with self._lock:
            known = text in self._logged
            self._logged.add(text)
        return not known


def _prefix(extra_info: Any) -> Optional[Sequence[str]]:
    return getattr(extra_info, "prefix_keys", None)


def _piece(tensor: Any) -> Piece:
    return Piece(tensor.data_ptr(), tensor.numel() * tensor.element_size())
