"""The base of KvStore: its connection to the agent, names, announcements, commands."""

from __future__ import annotations

import logging
import os
import threading
from typing import Callable, List, Mapping, Optional, Sequence

from . import protocol
from . import protocol_engine as frames
from .calls import kind_of_keys
from .connection import Connection
from .engine import announce_kind
from .errors import HearthError
from .layout import FEATURE_ENGINE, LAYER_ALL, IdentifyKind, Op, Role
from .link import Link, OnArena, OnConnect
from .manifest import Manifest
from .names import Names
from .namespace_key import NamespaceKey
from .native import kernels
from .split_command import COMMAND_BYTES_MAX, SplitCommandTicket, parts_of
from .stats import Stats
from .ticket import CommandTicket

DEFAULT_SOCKET = "/run/hearth/engine.sock"
#: How long ``close`` waits for calls of other threads.
_CLOSE_S = 5.0
_NAME_BYTES_MAX = 32
#: More than the header and head of a COMMAND, and padding.
_COMMAND_HEAD_BYTES = 64


class KvCalls:
    """Use KvStore."""

    def __init__(
        self,
        manifest: Manifest,
        *,
        socket: Optional[str] = None,
        engine_id: bytes = b"",
        role: Role = Role.OTHER,
        name: str = "",
        stall_ms: int = 100,
        on_connect: Optional[OnConnect] = None,
        on_arena: Optional[OnArena] = None,
        logger: Optional[logging.Logger] = None,
        key: Optional[NamespaceKey] = None,
    ) -> None:
        """Tries to connect once, then in the background: an absent agent is no error.

        ``engine_id``: 16 bytes that all processes of the engine, and no others, have in common.
        ``stall_ms``: a call is given up when the agent shows no progress for this long.
        ``on_connect`` is called by a background thread after each greeting and before calls reach
        the new agent: what was reserved at one of another incarnation is void. ``on_arena`` is
        called before it with address and size of the agent's memory in this process, and an object
        that keeps it mapped. Both return soon and do not call the store. ``key``: blocks are stored
        with MACs under it, and one that was not stored with it is CORRUPT.
        """
        if engine_id and (len(engine_id) != frames.ENGINE_ID_BYTES or not any(engine_id)):
            raise ValueError(f"engine_id is {frames.ENGINE_ID_BYTES} bytes that are not all zero")
        if stall_ms < 1:
            raise ValueError(f"stall_ms is at least 1, not {stall_ms}")
        if len(name.encode("utf-8")) > _NAME_BYTES_MAX or not name.isprintable():
            raise ValueError(f"name has at most {_NAME_BYTES_MAX} bytes and no control characters")
        path = socket or os.environ.get("HEARTH_SOCKET") or DEFAULT_SOCKET
        self.stats = Stats()
        self._kernels = kernels()
        self._names = Names(self._kernels)
        self._calls = threading.Condition(threading.Lock())
        self._active = 0
        self._is_closed = False
        self._link = Link(
            path,
            (manifest if key is None else key.applied(manifest)).encode(),
            name,
            engine_id=bytes(engine_id),
            role=Role(role),
            stall_s=stall_ms / 1000,
            on_connect=on_connect,
            on_arena=on_arena,
            logger=logger,
            key=key,
        )

    def __exit__(self, *_unused: object) -> None:
        self.close()

    @property
    def connected(self) -> bool:
        """Whether calls reach an agent. False also while it hangs."""
        return self._link.usable() is not None

    @property
    def incarnation(self) -> int:
        """Incarnation of the last agent greeted; changes with each start. 0: none yet."""
        return self._link.incarnation

    def fileno(self) -> int:
        """A descriptor that is readable if there is something for ``poll`` to take in."""
        return self._link.fileno()

    def poll(self) -> None:
        """Takes in replies that have come, for tickets. Never blocks."""
        self._link.poll()

    def close(self) -> None:
        """Ends the connection, when calls of other threads have ended."""
        with self._calls:
            self._is_closed = True
            self._calls.wait_for(lambda: self._active == 0, _CLOSE_S)
        self._link.close()

    # --- announcements and commands ---------------------------------------------------------------

    def announce(self, keys: Sequence[bytes], ttl_ms: int, *, family: bool = True) -> None:
        """Says that these blocks are being computed and will be put. Repeat it before it ends."""
        if keys:
            self._announce(keys, ttl_ms, family, False)

    def withdraw(self, keys: Sequence[bytes], *, family: bool = True) -> None:
        """Says that announced blocks will not be put."""
        if keys:
            self._announce(keys, 0, family, True)

    def beat(self, ttl_ms: int) -> None:
        """A heartbeat of the engine: what it announced counts for ``ttl_ms`` or until the next one.

        Announcements of an engine that never sends one count until they end.
        """
        self._announce([], ttl_ms, True, False)

    def _announce(
        self, keys: Sequence[bytes], ttl_ms: int, family: bool, withdraw: bool
    ) -> None:
        kind, connection = announce_kind(keys), self._usable()
        if connection is None or not connection.hello.features & FEATURE_ENGINE:
            return
        most = connection.hello.items_max
        for start in range(0, len(keys) or 1, most):
            part = keys[start : start + most]
            try:
                connection.post(
                    lambda number: frames.announce_request(
                        *(number, kind, part, ttl_ms),
                        family=family,
                        withdraw=withdraw,
                        no_reply=True,
                    )
                )
            except HearthError:
                return

    def command(self, body: Mapping[str, object]) -> CommandTicket:
        """Sends a lifecycle command (``docs/reference/commands.md``); the ticket's result is its receipt.

        Without an agent, the receipt's ``status`` is "gone". A command that names more blocks than
        one may is sent in parts, and has one receipt. ValueError: it is too large, and has an
        ``epoch`` or ``seq``, which parts cannot share.
        """
        connection = self._usable()
        if connection is None or not connection.hello.features & FEATURE_ENGINE:
            return CommandTicket(None)
        most = min(connection.hello.frame_bytes_max - _COMMAND_HEAD_BYTES, COMMAND_BYTES_MAX)
        parts = parts_of(body, most)
        tickets = [self._send_command(connection, part.json_bytes) for part in parts]
        return tickets[0] if len(tickets) == 1 else SplitCommandTicket(tickets, parts)

    @staticmethod
    def _send_command(connection: Connection, part: bytes) -> CommandTicket:
        try:
            return CommandTicket(connection).start(part)
        except HearthError:
            return CommandTicket(None)

    # --- how --------------------------------------------------------------------------------------

    def _usable(self) -> Optional[Connection]:
        return None if self._is_closed else self._link.usable()

    def _digests(self, connection: Connection, keys: Sequence[bytes]) -> List[bytes]:
        return self._names.digests(connection.hello, keys, self._asker(connection))

    def _packed_digests(self, connection: Connection, keys: Sequence[bytes]) -> bytes:
        return self._names.packed(connection.hello, keys, self._asker(connection))

    def _asker(self, connection: Connection) -> Callable[[Sequence[bytes]], List[bytes]]:
        """Asks the agent for digests, which only the pure Python kernels need."""

        def ask(missing: Sequence[bytes]) -> List[bytes]:
            kind = kind_of_keys(missing)
            most = connection.hello.items_max
            found: List[bytes] = []
            for start in range(0, len(missing), most):
                part = missing[start : start + most]
                found += self._identify(connection, kind, part)
            return found

        return ask

    def _identify(
        self, connection: Connection, kind: IdentifyKind, keys: Sequence[bytes]
    ) -> List[bytes]:
        try:
            return connection.ask(
                Op.IDENTIFY,
                lambda number: protocol.identify_request(
                    number, kind, LAYER_ALL, len(keys), b"".join(keys)
                ),
                protocol.read_identify,
                timeout=self._link.stall_s,
            )
        except TimeoutError:
            self._link.report_stall(connection)
            raise
