"""Calls of a connection that belongs to an engine with several connections."""

from __future__ import annotations

import json
from struct import error as StructError
from struct import pack
from typing import Dict, List, Mapping, Optional, Sequence

from . import protocol_engine as frames
from .calls import kind_of_keys
from .gpu import GpuCalls
from .layout import (
    DIGEST_BYTES,
    FEATURE_ENGINE,
    LAYER_ALL,
    TIER_ANY,
    IdentifyKind,
    LookupFlag,
    MediaItem,
    Namespace,
    Op,
    Outcome,
    Role,
)
from .ticket import CommandTicket, LookupResult, LookupTicket


class EngineCalls(GpuCalls):
    """Calls of a Client that is part of an engine. Use Client."""

    @property
    def has_engines(self) -> bool:
        """Whether the agent knows the calls of this class."""
        return bool(self.hello.features & FEATURE_ENGINE)

    def join(self, engine_id: bytes, role: Role = Role.OTHER) -> int:
        """Makes this connection a part of an engine: once. Answers how many parts it has now.

        ``engine_id``: 16 bytes that all processes of the engine, and no others, agreed on.
        """
        return self._ask(
            Op.JOIN,
            lambda number: frames.join_request(number, engine_id, role),
            frames.read_join,
        )

    def namespace(
        self, *, lora_digest: Optional[bytes] = None, salt: Optional[str] = None
    ) -> Namespace:
        """The namespace of requests with an adapter or a salt. Its handle is for other calls."""
        return self._ask(
            Op.NAMESPACE,
            lambda number: frames.namespace_request(number, lora_digest, salt),
            frames.read_namespace,
        )

    # --- lookups ----------------------------------------------------------------------------------

    def lookup(
        self,
        keys: Sequence[bytes] = (),
        *,
        tokens: Optional[Sequence[int]] = None,
        parent: Optional[bytes] = None,
        media: Sequence[MediaItem] = (),
        layer: int = LAYER_ALL,
        tiers: int = TIER_ANY,
        family: bool = True,
        hold: bool = False,
        fetch: bool = False,
        wait: bool = False,
        progress: bool = False,
        digests: bool = False,
        deadline_ms: int = 0,
        hold_ms: int = 0,
        readers: int = 1,
        namespace: int = 0,
        source: str = "",
    ) -> LookupTicket:
        """Asks what is there of a prefix, given as chain keys or as tokens behind ``parent``.

        The ticket is answered at once, or, with ``fetch`` and ``wait``, when the blocks are in RAM.
        ``hold`` keeps them there until connections of the engine (``join``) have acquired them.
        """
        if tokens is None:
            kind, items = kind_of_keys(keys), b"".join(keys)
        else:
            kind, items = IdentifyKind.TOKENS, _pack_tokens(tokens)
        flags = lookup_flags(family, hold, fetch, wait, progress, digests)
        question = frames.LookupQuestion(
            *(kind, items, flags, layer, tiers, deadline_ms, hold_ms),
            *(readers, namespace, parent, source, media),
        )
        self._before_call()
        return LookupTicket(self._connection).start(question)

    def looked_up(self, ticket: LookupTicket) -> LookupResult:
        """Waits for a ticket. HearthError: the agent refused, or the connection is over."""
        self._connection.result(ticket.request, self._time_left())
        result: LookupResult = ticket.result()
        return result

    def unhold(self, holds: Sequence[int]) -> List[Outcome]:
        """Ends reservations by their numbers. STALE: it had ended before."""
        return self._outcomes(
            Op.UNHOLD, len(holds), lambda number: frames.unhold_request(number, holds)
        )

    # --- blocks that are being computed -----------------------------------------------------------

    def announce(
        self,
        keys: Sequence[bytes],
        ttl_ms: int,
        *,
        layer: int = LAYER_ALL,
        family: bool = True,
        withdraw: bool = False,
        namespace: int = 0,
        are_digests: bool = False,
    ) -> List[Outcome]:
        """Says that blocks are being computed and will be stored within ``ttl_ms``, or will not."""
        kind = announce_kind(keys, are_digests)
        return self._outcomes(
            Op.ANNOUNCE,
            len(keys),
            lambda number: frames.announce_request(
                *(number, kind, keys, ttl_ms),
                layer=layer,
                family=family,
                withdraw=withdraw,
                namespace=namespace,
            ),
        )

    # --- commands ---------------------------------------------------------------------------------

    def command(self, body: Mapping[str, object]) -> CommandTicket:
        """Sends a lifecycle command (``docs/reference/commands.md``); the ticket's result is its receipt."""
        self._before_call()
        return CommandTicket(self._connection).start(json.dumps(body).encode("utf-8"))


def lookup_flags(
    family: bool, hold: bool, fetch: bool, wait: bool, progress: bool, digests: bool
) -> int:
    chosen: Dict[LookupFlag, bool] = {
        LookupFlag.FAMILY: family,
        LookupFlag.HOLD: hold,
        LookupFlag.FETCH: fetch,
        LookupFlag.WAIT: wait,
        LookupFlag.PROGRESS: progress,
        LookupFlag.DIGESTS: digests,
    }
    return sum(int(flag) for flag, is_set in chosen.items() if is_set)


def announce_kind(keys: Sequence[bytes], are_digests: bool = False) -> int:
    if are_digests and any(len(key) != DIGEST_BYTES for key in keys):
        raise ValueError(f"digests have {DIGEST_BYTES} bytes")
    return frames.ANNOUNCE_DIGESTS if are_digests else int(kind_of_keys(keys))


def _pack_tokens(tokens: Sequence[int]) -> bytes:
    try:
        return pack(f"<{len(tokens)}I", *tokens)
    except StructError as error:
        raise ValueError("tokens are unsigned 32-bit numbers") from error
