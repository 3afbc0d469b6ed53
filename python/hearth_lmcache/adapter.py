"""LMCache's L2 adapter on Hearth."""

from __future__ import annotations

import logging
from typing import Any, Dict, List, Optional, Sequence, Tuple
from uuid import uuid4

from hearth_client.kv_store import KvStore, Role, Ticket
from hearth_client.layout import Outcome, Tier
from hearth_client.manifest import Manifest
from hearth_client.namespace_key import NamespaceKey
from hearth_client.memory import Piece
from hearth_client.recompute import deadline_ms
from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.api import KeyEntry, KeyListPage
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.platform import create_event_notifier

from . import metrics
from .keys import Seen, alias, chain_keys
from .locks import Locks
from .settings import parse
from .tasks import TaskQueue
from .versions import warn_of_untested_version

logger = logging.getLogger("hearth_lmcache")

#: Outcomes after which the agent has the object, or another writer is about to commit it.
_STORED = (Outcome.OK, Outcome.PRESENT, Outcome.PENDING)
_CHAIN_KEY_BYTES = 32
_PAGE_KEYS_MAX = 1000
_DELETE_SECONDS_MAX = 5.0


class HearthL2Adapter(L2AdapterInterface):  # type: ignore[misc]
    """Objects of one LMCache server as blocks of the agent on this host.

    Submitting never blocks: threads of this adapter talk to the agent. Without an agent lookups and
    loads are misses and stores fail, at once; the agent is looked for in the background. The agent
    evicts as it sees fit, so the adapter declares no capacity to LMCache.
    """

    def __init__(self, params: Optional[Dict[str, Any]] = None, l1_memory_desc: Any = None) -> None:
        """ValueError, with the fix, for a mistaken setting."""
        del l1_memory_desc  # Objects come with their addresses.
        super().__init__()
        self.settings = parse(params)
        warn_of_untested_version(logger)
        self._tiers = Tier.RAM | Tier.SSD | (Tier.PEER if self.settings.peers else Tier(0))
        salt, is_secret = self.settings.tenant_salt, self.settings.tenant_salt_secret
        key = NamespaceKey.from_settings(self.settings.key_file, salt, is_secret)
        self.store = KvStore(
            manifest_of(self.settings.namespace, None if is_secret else salt),
            socket=self.settings.socket,
            engine_id=uuid4().bytes,
            role=Role.WORKER,
            name=self.settings.name,
            stall_ms=self.settings.stall_ms,
            logger=logger,
            key=key,
        )
        self._seen = Seen(self.settings.listed_keys_max)
        self._locks = Locks()
        self._stores = self._tasks("store", self.settings.store_threads)
        self._lookups = self._tasks("lookup", 1)
        self._loads = self._tasks("load", self.settings.load_threads)
        metrics.register(self)

    def _tasks(self, name: str, threads: int) -> TaskQueue:
        return TaskQueue(name, threads, create_event_notifier(), logger)

    # --- descriptors ------------------------------------------------------------------------------

    def get_store_event_fd(self) -> int:
        return int(self._stores.notifier.fileno())

    def get_lookup_and_lock_event_fd(self) -> int:
        return int(self._lookups.notifier.fileno())

    def get_load_event_fd(self) -> int:
        return int(self._loads.notifier.fileno())

    # --- storing ----------------------------------------------------------------------------------

    def submit_store_task(self, keys: List[Any], objects: List[Any]) -> int:
        return self._stores.submit(
            lambda: self._store(keys, objects), lambda: L2StoreResult(False, 0)
        )

    def pop_completed_store_tasks(self) -> Dict[int, Any]:
        return self._stores.pop_all()

    def _store(self, keys: Sequence[Any], objects: Sequence[Any]) -> Any:
        sizes = [one.get_size() for one in objects]
        chain = chain_keys(keys)
        outcomes = self.store.put_pieces(
            chain, [None] * len(chain), _pieces(objects), aliases=[alias(key) for key in chain]
        )
        stored = [index for index, outcome in enumerate(outcomes) if outcome == Outcome.OK]
        if stored:
            self._remember([keys[index] for index in stored], [sizes[index] for index in stored])
        complete = len(outcomes) == len(keys) and all(one in _STORED for one in outcomes)
        return L2StoreResult(complete, sum(sizes[index] for index in stored))

    # --- lookups ----------------------------------------------------------------------------------

    def submit_lookup_and_lock_task(self, keys: List[Any], group_layout_descs: Any = None) -> int:
        return self._lookups.submit(lambda: self._look_up(keys), lambda: Bitmap(len(keys)))

    def query_lookup_and_lock_result(self, task_id: int) -> Any:
        return self._lookups.pop(task_id)

    def _look_up(self, keys: Sequence[Any]) -> Any:
        found = Bitmap(len(keys))
        chain = chain_keys(keys)
        missing = []
        for index, here in enumerate(self._locked(chain)):
            if here:
                found.set(index)
            else:
                missing.append(keys[index])
        self._forget(missing)
        return found

    def _locked(self, chain: List[bytes]) -> List[bool]:
        """Whether each object is here; those that are stay in RAM until they are unlocked.

        A lookup ends at the first gap. Objects behind one are asked for one by one: LMCache's keys
        are several prefixes in a row, and the agent evicts single objects.
        """
        if not self.store.connected or not chain:
            return [False] * len(chain)
        first = self._ask(chain)
        leading = self._take(first, chain)
        rest = [(key, self._ask([key])) for key in chain[leading + 1 :]] if first.done() else []
        here = [True] * leading + [False] * min(1, len(chain) - leading)
        here.extend(self._take(ticket, [key]) == 1 for key, ticket in rest)
        return here + [False] * (len(chain) - len(here))

    def _ask(self, chain: List[bytes]) -> Ticket:
        return self.store.lookup(
            chain,
            tiers=self._tiers,
            family=False,
            hold=True,
            fetch=False,
            progress=False,
            hold_ms=self.settings.hold_ms,
        )

    def _take(self, ticket: Ticket, chain: List[bytes]) -> int:
        """Leading objects of a lookup, which are locked from now on."""
        if not ticket.wait(self.settings.stall_ms / 1000):
            ticket.cancel()
            return 0
        result = ticket.result()
        leading = min(result.leading, len(chain))
        if leading:
            self._locks.add(ticket, chain[:leading])
        if self.settings.prefetch and result.ready < leading:
            self._bring_up(chain[result.ready : leading])
        return leading

    def _bring_up(self, chain: List[bytes]) -> None:
        """From SSD to RAM, not waited for: the load that follows takes the reservation over."""
        self.store.lookup(
            chain,
            tiers=self._tiers,
            family=False,
            hold=True,
            fetch=True,
            progress=True,
            hold_ms=self.settings.hold_ms,
        )

    def submit_unlock(self, keys: List[Any]) -> None:
        self._locks.remove(chain_keys(keys), self.store)

    # --- loading ----------------------------------------------------------------------------------

    def submit_load_task(self, keys: List[Any], objects: List[Any]) -> int:
        return self._loads.submit(lambda: self._load(keys, objects), lambda: Bitmap(len(keys)))

    def query_load_result(self, task_id: int) -> Any:
        return self._loads.pop(task_id)

    def _load(self, keys: Sequence[Any], objects: Sequence[Any]) -> Any:
        outcomes = self.store.get_pieces(
            chain_keys(keys),
            _pieces(objects),
            tiers=self._tiers,
            deadline_ms=self._deadline_ms(keys),
        )
        loaded = Bitmap(len(keys))
        accessed = []
        for index, outcome in enumerate(outcomes):
            if outcome == Outcome.OK:
                loaded.set(index)
                accessed.append(keys[index])
        if accessed:
            self._notify_keys_accessed(accessed)
        return loaded

    def _deadline_ms(self, keys: Sequence[Any]) -> int:
        """Total time limit of a load: one that takes longer than the computation is no use.

        Ranks and object groups of one chunk are computed together.
        """
        chunks = len({(bytes(key.chunk_hash), key.cache_salt) for key in keys})
        return deadline_ms(
            chunks * self.settings.chunk_tokens,
            self.settings.recompute_tokens_per_second,
            least_ms=self.settings.stall_ms,
            configured_ms=self.settings.load_deadline_ms,
        )

    # --- contents ---------------------------------------------------------------------------------

    def delete(self, keys: List[Any]) -> None:
        """Removes objects on all tiers of this host. Waits for the agent's receipt."""
        if not keys or not self.store.connected:
            return
        try:
            names = [str(alias(key)) for key in chain_keys(keys)]
            # Marked as transient first: only marked blocks can be purged.
            for transient in (True, False):
                body = {"type": "Think", "block_hashes": names, "transient": transient}
                ticket = self.store.command(body)
                if not ticket.wait(_DELETE_SECONDS_MAX):
                    logger.warning("delete without a receipt: the agent did not answer in time")
                    return
                receipt = ticket.result()
                if receipt["status"] == "rejected":
                    logger.warning("delete refused by the agent: %s", receipt.get("reason"))
                    return
        except Exception:
            logger.exception("delete failed, the objects stay until the agent evicts them")
            return
        self._forget(keys)

    def list_l2_keys(
        self, model_name: Optional[str] = None, page_size: int = 500, cursor: Optional[str] = None
    ) -> Any:
        """Objects that this server stored and the agent still has, by chain key."""
        if page_size <= 0:
            raise ValueError(f"page_size must be positive (got {page_size})")
        if cursor is not None and not _is_chain_key(cursor):
            raise ValueError(f"malformed cursor {cursor!r}: pass the token of the page before")
        count = min(page_size, _PAGE_KEYS_MAX)
        found = self._seen.after(cursor or "", model_name, count)
        here = self._present([bytes.fromhex(name) for name, _key, _size in found])
        self._forget([key for (_name, key, _size), one in zip(found, here) if not one])
        return KeyListPage(
            entries=tuple(
                KeyEntry(key=key.to_encoded_object_key(), size_bytes=size)
                for (_name, key, size), one in zip(found, here)
                if one
            ),
            next_page_token=found[-1][0] if len(found) == count else None,
        )

    def _present(self, chain: List[bytes]) -> List[bool]:
        if not self.store.connected:
            return [True] * len(chain)  # Unknown: no reason to forget them.
        asked = [
            self.store.lookup([key], tiers=self._tiers, family=False, hold=False, fetch=False)
            for key in chain
        ]
        seconds = self.settings.stall_ms / 1000
        return [ticket.wait(seconds) and ticket.result().leading == 1 for ticket in asked]

    def report_status(self) -> Dict[str, Any]:
        threads = all(one.alive() for one in (self._stores, self._lookups, self._loads))
        return {
            "is_healthy": threads and self.store.connected,
            "type": type(self).__name__,
            "connected": self.store.connected,
            "locked_keys": len(self._locks),
            "current_size_bytes": self.get_usage().total_bytes_used,
            "figures": self.store.stats.snapshot(),
        }

    def close(self) -> None:
        metrics.forget(self)
        for one in (self._stores, self._lookups, self._loads):
            one.close()
        self.store.close()

    # --- accounting -------------------------------------------------------------------------------

    def _remember(self, keys: Sequence[Any], sizes: Sequence[int]) -> None:
        new, forgotten = self._seen.add(keys, sizes)
        if new:
            self._notify_keys_stored(*_columns(new))
        if forgotten:
            self._notify_keys_deleted(*_columns(forgotten))

    def _forget(self, keys: Sequence[Any]) -> None:
        if not self.store.connected:
            return  # A miss without an agent says nothing about its blocks.
        dropped = self._seen.drop(keys)
        if dropped:
            self._notify_keys_deleted(*_columns(dropped))


def manifest_of(namespace: str, tenant_salt: Optional[str]) -> Manifest:
    """Model, rank and salt are in LMCache's keys, which the chain keys cover."""
    return Manifest(
        model="lmcache",
        dtype="raw",
        layout="lmcache:object",
        block_tokens=1,
        tenant_salt=tenant_salt,
        extra={"namespace": namespace},
    )


def _pieces(objects: Sequence[Any]) -> List[List[Piece]]:
    return [[Piece(one.data_ptr, one.get_size())] for one in objects]


def _columns(pairs: Sequence[Tuple[Any, int]]) -> Tuple[List[Any], List[int]]:
    return [key for key, _ in pairs], [size for _, size in pairs]


def _is_chain_key(text: str) -> bool:
    try:
        return len(bytes.fromhex(text)) == _CHAIN_KEY_BYTES
    except ValueError:
        return False
