"""Disaggregated prefill: one engine computes a prompt's blocks, another decodes from them.

A producer's request carries ``kv_transfer_params: {"do_remote_decode": true}``; its answer has
``{"do_remote_prefill": true, "hearth": {"source": WORKER, "blocks": N}}``. A proxy passes these on
to the consumer, which waits for announced blocks instead of computing them.
"""

from __future__ import annotations

import threading
from typing import Any, Dict, List, Mapping, Optional, Tuple

from .keys import BlockKeys
from .settings import Settings

#: An announcement is renewed this often within its lifetime.
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
    """Announces a producer's blocks and renews the announcements while it computes."""

    def __init__(
        self, settings: Settings, store: Any, keys: BlockKeys, block_tokens: int
    ) -> None:
        self._store = store
        self._keys = keys
        self._block_tokens = block_tokens
        self._ttl_ms = settings.announce_ms
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
            self.announce(request, request.num_prompt_tokens // self._block_tokens)
            self._ask_worker()

    def announce(self, request: Any, blocks: int) -> None:
        """Announces the first `blocks` blocks until the request ends."""
        keys = self._keys.of(request, 0, blocks)
        if not keys:
            return
        with self._lock:
            self._announced[request.request_id] = keys
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._renew, name="hearth-announce", daemon=True
                )
                self._thread.start()
        self._store.announce(keys, self._ttl_ms)
        self._wake.set()

    def finished(self, request: Any, stored: int) -> Optional[Dict[str, Any]]:
        """Ends the announcement; the parameters for the consumer, if the request asked for them."""
        with self._lock:
            keys = self._announced.pop(request.request_id, None)
        if keys is not None and stored < len(keys):
            self._store.withdraw(keys[stored:])
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

    def _renew(self) -> None:
        while not self._closed:
            self._wake.clear()  # First: an announcement that follows wakes the thread again.
            with self._lock:
                pending = list(self._announced.values())
            for keys in pending:
                self._store.announce(keys, self._ttl_ms)
            self._wake.wait(self._ttl_ms / 1000 / _RENEWALS if pending else None)
