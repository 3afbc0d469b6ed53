"""Disaggregated prefill: one engine computes a prompt's blocks, another decodes from them.

A producer's request carries ``kv_transfer_params: {"do_remote_decode": true}``; its answer has
``{"do_remote_prefill": true, "hearth": {"source": WORKER, "blocks": N}}``. A proxy passes these on
to the consumer, which waits for announced blocks instead of computing them.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

from .guards import Guard
from .keys import BlockKeys
from .settings import Settings

#: An announcement is renewed this often within its lifetime, and heartbeats within theirs.
_RENEWALS = 4
_SOURCE_BYTES_MAX = 64


def transfer_params(request: Any) -> Mapping[str, Any]:
    """The request's kv_transfer_params; empty if there are none."""
    params = getattr(request, "kv_transfer_params", None)
    return params if isinstance(params, Mapping) else {}


def _own(params: Mapping[str, Any]) -> Mapping[str, Any]:
    own = params.get("hearth")
    return own if isinstance(own, Mapping) else {}


class Handoff:
    """Announces a producer's blocks until they are stored.

    A thread renews the announcements, and sends heartbeats: without one for `stall_ms`, because
    this process is stopped or dead, no consumer waits for the blocks any more.
    """

    def __init__(
        self, settings: Settings, store: Any, keys: BlockKeys, block_tokens: int, guard: Guard
    ) -> None:
        self._store = store
        self._guard = guard
        self._keys = keys
        self._block_tokens = block_tokens
        self._ttl_ms = settings.announce_ms
        self._alive_ms = settings.stall_ms
        self._lock = threading.Lock()
        self._announced: Dict[str, List[bytes]] = {}
        self._wake = threading.Event()
        self._closed = False
        self._thread: Optional[threading.Thread] = None
        self._worker: Optional[str] = None
        #: Start of the agent that `_worker` names.
        self._incarnation = 0
        self._asked: Any = None

    def expects(self, request: Any) -> Tuple[str, bool]:
        """The worker that computes the request's blocks, and whether to wait for them."""
        params = transfer_params(request)
        own = _own(params)
        source = own.get("source")
        if not isinstance(source, str) or not source.isprintable():
            source = ""
        if len(source.encode("utf-8", "replace")) > _SOURCE_BYTES_MAX:
            source = ""
        wait = own.get("wait", bool(params.get("do_remote_prefill")))
        return source, wait is True

    def added(self, request: Any) -> None:
        """Announces a producer's full prompt blocks."""
        if transfer_params(request).get("do_remote_decode"):
            blocks = request.num_prompt_tokens // self._block_tokens
            self.announce(request, self._keys.of(request, 0, blocks))
            self._ask_worker()

    def announce(self, request: Any, keys: List[bytes]) -> None:
        """Announces blocks of the request until they are stored or dropped."""
        if not keys:
            return
        with self._lock:
            known = self._announced.get(request.request_id, [])
            self._announced[request.request_id] = list(dict.fromkeys([*known, *keys]))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="hearth-announce", daemon=True
                )
                self._thread.start()
        self._store.beat(self._alive_ms)
        self._store.announce(keys, self._ttl_ms)
        self._wake.set()

    def dropped(self, request_id: str, keys: Iterable[bytes]) -> None:
        """These blocks will not be stored."""
        with self._lock:
            gone = set(keys).intersection(self._announced.get(request_id, ()))
            if not gone:
                return
            left = [key for key in self._announced[request_id] if key not in gone]
            self._announced[request_id] = left
            self._withdraw(gone)

    def settled(self, request_id: str) -> None:
        """The request ended, and no store of it is in progress."""
        with self._lock:
            self._withdraw(set(self._announced.pop(request_id, ())))

    def _withdraw(self, gone: Iterable[bytes]) -> None:
        """Withdraws what no other request announces. Under the lock: no renewal comes behind it."""
        others = {key for keys in self._announced.values() for key in keys}
        keys = [key for key in gone if key not in others]
        if keys:
            self._store.withdraw(keys)

    def finished(self, request: Any, stored: int) -> Optional[Dict[str, Any]]:
        """Drops all but the first `stored` blocks; parameters for the consumer, if it has one."""
        name = request.request_id
        if name in self._announced:
            self.dropped(name, set(self._announced[name]) - set(self._keys.of(request, 0, stored)))
        if not transfer_params(request).get("do_remote_decode"):
            return None
        own = {"source": self._worker_name(), "blocks": stored, "wait": True}
        return {"do_remote_prefill": True, "do_remote_decode": False, "hearth": own}

    def close(self) -> None:
        self._closed = True
        self._wake.set()

    def _ask_worker(self) -> None:
        """Asks each start of the agent for its name; a receipt carries it, whatever its outcome."""
        incarnation = getattr(self._store, "incarnation", 0)
        if incarnation != self._incarnation:
            self._incarnation, self._worker, self._asked = incarnation, None, None
        if self._worker is None and self._asked is None:
            self._asked = self._store.command(
                {"type": "Cache", "block_hashes": [0], "pin": False}
            )

    def _worker_name(self) -> str:
        if self._worker is None and self._asked is not None and self._asked.done():
            receipt = self._asked.result()
            name = receipt.get("worker_id") if isinstance(receipt, Mapping) else None
            self._worker = name if isinstance(name, str) else None
            self._asked = None
        return self._worker or ""

    def _run(self) -> None:
        due = 0.0
        while not self._closed:
            self._wake.clear()  # First: an announcement that follows wakes the thread again.
            with self._lock:
                pending = [keys for keys in self._announced.values() if keys]
                with self._guard("announcements"):
                    due = self._renew(pending, due)
            self._wake.wait(self._alive_ms / 1000 / _RENEWALS if pending else None)

    def _renew(self, pending: List[List[bytes]], due: float) -> float:
        """A heartbeat, and from time `due` on the announcements. The next `due`."""
        now = time.monotonic()
        if pending:
            self._store.beat(self._alive_ms)
        if now < due:
            return due
        for keys in pending:
            self._store.announce(keys, self._ttl_ms)
        return now + self._ttl_ms / 1000 / _RENEWALS
