"""KV hints of a request: which blocks they name, when they run, and their outcomes.

The vocabulary is docs/reference/kv-hints.md. A hint never fails a request.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from hearth_client.kv_hints import (
    COMMANDS,
    VERSION,
    Action,
    command_body,
    get,
    read_actions,
    source_of,
)

from .handoff import Handoff, transfer_params
from .keys import BlockKeys
from .metrics import Stats
from .plan import StoreJob
from .selection import ThinkingScan
from .settings import Settings

logger = logging.getLogger("vllm.hearth")

_ENGINE_HASH_BYTES = 8
_ALL_BLOCKS = 1 << 40


def _harmless(method: Any) -> Any:
    """A method that logs its exceptions and returns None: a hint never fails a request."""

    @functools.wraps(method)
    def wrapped(*args: Any) -> Any:
        try:
            return method(*args)
        except Exception:
            logger.exception("KV hint not executed")
            return None

    return wrapped


@dataclass
class Envelope:
    """The hints of one request."""

    message: str
    actions: List[Action]
    request: Any


def engine_hash(key: bytes) -> int:
    """vLLM's 64-bit name of a block: the last eight bytes of its hash, big-endian."""
    return int.from_bytes(key[-_ENGINE_HASH_BYTES:], "big")


class Hints:
    """Hints of all requests; used by the scheduler's thread only."""

    def __init__(
        self,
        settings: Settings,
        store: Any,
        keys: BlockKeys,
        block_tokens: int,
        stats: Stats,
        handoff: Optional[Handoff] = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._block_keys = keys
        self._block_tokens = block_tokens
        self._stats = stats
        self._handoff = handoff
        self._envelopes: Dict[str, Envelope] = {}
        self._waiting: List[Action] = []

    @_harmless
    def added(self, request: Any) -> None:
        """Reads the request's envelope; executes share and prefetch."""
        raw = _raw_envelope(request) if self._settings.hints else None
        if raw is None:
            return
        actions, ignored = read_actions(raw)
        self._stats.count("hint_blocks", "ignored", ignored)
        if ignored and not actions:
            return
        envelope = Envelope(str(get(raw, "message_id") or ""), actions, request)
        self._envelopes[request.request_id] = envelope
        for action in actions:
            if action.selection.open_token is not None:
                action.scan = ThinkingScan(action.selection, self._block_tokens)
            if not action.decided and action.kind in ("share", "prefetch"):
                self._start(action, request)

    def _start(self, action: Action, request: Any) -> None:
        keys, clipped = self._keys(action, request)
        if action.selection.names:
            wanted, named = action.selection.hashes, len(action.selection.names)
            keys = [key for key in keys if engine_hash(key) in wanted]
            if len(keys) < named:
                action.blocks["missing"] += named - len(keys)
        action.asked = len(keys)
        if not keys:
            action.decided = True
            if not action.blocks:
                action.blocks["clipped"] += 1
            return
        if action.kind == "share":
            if self._handoff is not None:
                self._handoff.announce(request, keys)
            action.blocks["clipped" if clipped else "accepted"] += len(keys)
            action.decided = True
            return
        action.ticket = self._store.lookup(
            keys,
            tiers=14 if self._settings.peers else 6,
            hold=False,
            wait=action.payload.get("wait") is True,
            source=source_of(action),
            deadline_ms=self._settings.wait_ms,
        )
        self._waiting.append(action)

    def _keys(self, action: Action, request: Any) -> Tuple[List[bytes], bool]:
        """Keys of the selected blocks, and whether the selection exceeds them."""
        ended = action.kind in ("demote", "transient")
        full = len(request.block_hashes) * self._block_tokens
        limit = full if ended or action.selection.from_token is not None else (
            min(full, request.num_prompt_tokens)
        )
        first, end, clipped = action.selection.blocks(limit, self._block_tokens)
        return self._block_keys.of(request, first, end), clipped

    @_harmless
    def transient(self, request: Any) -> Tuple[int, Optional[List[Tuple[int, int]]]]:
        """Ranges of block indexes that are stored as transient, None: none.

        They are known of the blocks below the first number; later ones wait for the next step.
        """
        envelope = self._envelopes.get(request.request_id)
        ranges: List[Tuple[int, int]] = []
        known = _ALL_BLOCKS
        for action in envelope.actions if envelope is not None else []:
            if action.kind != "transient" or action.decided:
                continue
            chosen = action.selection
            if action.scan is not None:
                action.scan.advance(request)
                ranges += action.scan.ranges
                known = min(known, action.scan.known_blocks)
            elif not chosen.names:
                first, end, _ = chosen.blocks(1 << 40, self._block_tokens)
                limit = request.num_prompt_tokens // self._block_tokens
                ranges.append((first, end if chosen.bounded else limit))
        return known, ranges or None

    @_harmless
    def stored(self, job: StoreJob, offered: int, idle: bool) -> None:
        """A job of the request ended; `idle`: no other is in progress."""
        envelope = self._envelopes.get(job.request)
        if envelope is None or not idle:
            return
        for action in envelope.actions:
            if action.kind in ("pin", "retain") and not action.decided and action.ticket is None:
                keys, clipped = self._keys(action, envelope.request)
                if action.selection.from_token is None and len(keys) <= offered:
                    self._command(action, keys, clipped, envelope.request)

    @_harmless
    def finished(self, request: Any) -> Optional[Dict[str, Any]]:
        """Outcomes so far, for the answer; the remaining actions run once the blocks are stored."""
        envelope = self._envelopes.get(request.request_id)
        if envelope is None:
            return None
        self.poll()
        answers = [action.answer() for action in envelope.actions]
        return {"protocol_version": VERSION, "message_id": envelope.message, "outcomes": answers}

    @_harmless
    def settled(self, request: Any) -> None:
        """The request ended and none of its stores is in progress."""
        envelope = self._envelopes.pop(request.request_id, None)
        if envelope is None:
            return
        for action in envelope.actions:
            if action.kind in COMMANDS and not action.decided and action.ticket is None:
                keys, clipped = self._keys(action, request)
                if action.scan is not None:
                    keys = self._thoughts(action.scan, request)
                self._command(action, keys, clipped, request)

    def _thoughts(self, scan: ThinkingScan, request: Any) -> List[bytes]:
        scan.advance(request)
        of = self._block_keys.of
        return [key for first, end in scan.ranges for key in of(request, first, end)]

    def _command(self, action: Action, keys: List[bytes], clipped: bool, request: Any) -> None:
        names: List[Any] = [engine_hash(key) for key in keys]
        if action.selection.names:
            names = list(action.selection.names)
        action.asked = len(names)
        if not names:
            action.decided = True
            action.blocks["clipped"] += 1
            return
        if not self._store.connected:
            action.reject("agent: not connected", len(names))
            self._record(action)
            return
        body = command_body(action, names, transfer_params(request), self._settings.name)
        action.ticket = self._store.command(body)
        if clipped:
            action.reason = "selection exceeds the request"
        self._waiting.append(action)

    @_harmless
    def poll(self) -> None:
        """Takes in answers that have come; never blocks."""
        waiting, self._waiting = self._waiting, []
        for action in waiting:
            if not action.ticket.done():
                self._waiting.append(action)
                continue
            action.take()
            self._record(action)

    def open_commands(self) -> int:
        """Commands and lookups without an answer."""
        return len(self._waiting)

    def _record(self, action: Action) -> None:
        for outcome, count in action.blocks.items():
            self._stats.count("hint_blocks", outcome, count)


def _raw_envelope(request: Any) -> Any:
    own = getattr(request, "kv_hints", None)
    return own if own is not None else transfer_params(request).get("kv_hints")
