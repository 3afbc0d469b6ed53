"""A connection that is made again whenever it is lost, and a breaker for an agent that hangs."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from typing import Callable, Optional, Tuple

from . import protocol
from . import protocol_engine as frames
from .connection import Connection
from .errors import HearthError, RefusedError
from .layout import FEATURE_ENGINE, Hello, Op, Role
from .namespace_key import NamespaceKey
from .notifier import Notifier
from .request import Request

_BACKOFF_FIRST_S = 0.1
_BACKOFF_MAX_S = 5.0
#: Time limits of the first attempt, which the constructor makes, and of later ones.
_FIRST_GREETING_S = 1.0
_GREETING_S = 5.0
#: How often replies that nothing waits for any more are taken in.
_TICK_S = 1.0
#: How often a probe looks whether the store was closed.
_PROBE_WAIT_S = 0.5
#: ``close`` leaves a greeting that takes longer to the thread, which ends after it.
_CLOSE_S = 1.0

OnConnect = Callable[[Hello], None]
#: Address and size of the agent's memory in this process, and what keeps it mapped.
Mapped = Tuple[int, int, object]
OnArena = Callable[[Mapped], None]


class Link:
    """Thread-safe. ``usable`` is the only question callers ask; a thread does the rest."""

    def __init__(
        self,
        path: str,
        manifest: bytes,
        name: str,
        *,
        engine_id: bytes = b"",
        role: Role = Role.OTHER,
        stall_s: float = 0.1,
        on_connect: Optional[OnConnect] = None,
        on_arena: Optional[OnArena] = None,
        logger: Optional[logging.Logger] = None,
        key: Optional[NamespaceKey] = None,
    ) -> None:
        #: Key of the namespace: with one, blocks travel with their MACs.
        self.key = key
        self._path, self._manifest, self._name = path, manifest, name
        self._engine_id, self._role = engine_id, role
        self.stall_s = stall_s
        self._on_connect, self._on_arena = on_connect, on_arena
        self._log = logger or logging.getLogger("hearth_client")
        self._lock = threading.Lock()
        self._connection: Optional[Connection] = None
        self._is_stalled = False
        self._is_closed = False
        self.joined = False
        #: Incarnation of the last agent greeted, 0: none yet.
        self.incarnation = 0
        self._last_reason = ""
        self._notifier: Optional[Notifier] = None
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._delay = _BACKOFF_FIRST_S
        self._connect(_FIRST_GREETING_S)
        self._thread = threading.Thread(target=self._run, name="hearth link", daemon=True)
        self._thread.start()

    def usable(self) -> Optional[Connection]:
        """The connection, unless there is none or the agent hangs."""
        connection = self._connection
        if connection is None or self._is_stalled:
            return None
        if connection.closed:
            self._wake()
            return None
        return connection

    def report_stall(self, connection: Connection) -> None:
        """A request was given up. Opens the breaker if the agent said nothing meanwhile."""
        silence = time.monotonic() - connection.received_at
        if silence < self.stall_s or connection.closed:
            return
        with self._lock:
            if connection is not self._connection or self._is_stalled:
                return
            self._is_stalled = True
        self._log.warning(
            "agent hangs, blocks are computed meanwhile: no reply on %s within %.0f ms",
            self._path,
            1000 * self.stall_s,
        )
        self._wake()

    def fileno(self) -> int:
        with self._lock:
            if self._notifier is None:
                self._notifier = Notifier()
                if self._connection is not None and not self._connection.closed:
                    self._connection.watch(self._notifier)
            return self._notifier.fileno()

    def poll(self) -> None:
        if self._notifier is not None:
            self._notifier.clear()
        connection = self._connection
        if connection is not None:
            connection.poll()

    def close(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._wake()
        self._thread.join(_CLOSE_S)
        self._drop()
        if self._notifier is not None:
            self._notifier.close()

    # --- the thread -------------------------------------------------------------------------------

    def _wake(self) -> None:
        try:
            os.write(self._wake_writer, b"\0")
        except (BlockingIOError, OSError):
            return  # It wakes already, or has ended.

    def _run(self) -> None:
        try:
            while not self._is_closed:
                self._step()
        finally:
            os.close(self._wake_reader)
            os.close(self._wake_writer)

    def _step(self) -> None:
        connection = self._connection
        if connection is None or connection.closed:
            if connection is not None:
                self._lost(connection)
            self._sleep(self._delay, None)
            if not self._is_closed and not self._connect(_GREETING_S):
                self._delay = min(2 * self._delay, _BACKOFF_MAX_S)
        elif self._is_stalled:
            self._probe(connection)
        else:
            self._idle(connection)

    def _sleep(self, seconds: float, connection: Optional[Connection]) -> bool:
        """Whether the connection was cut. Woken by ``_wake``, but not by replies."""
        poller = select.poll()
        poller.register(self._wake_reader, select.POLLIN)
        if connection is not None:
            poller.register(connection.fileno(), select.POLLRDHUP)
        events = dict(poller.poll(1000 * seconds))
        if events.pop(self._wake_reader, 0):
            try:
                os.read(self._wake_reader, 4096)
            except BlockingIOError:
                pass  # Another wake-up had come before.
        return bool(events)

    def _idle(self, connection: Connection) -> None:
        try:
            if self._sleep(min(_TICK_S, connection.hello.lease_ms / 3000), connection):
                # Frames that the agent sent before it closed the connection are read first.
                connection.poll()
                if not connection.closed:
                    connection.close()
            elif connection.is_owed:
                connection.poll()
            if time.monotonic() - connection.sent_at > connection.hello.lease_ms / 3000:
                connection.post(lambda n: protocol.ping_request(n, b"", no_reply=True))
        except (HearthError, OSError, ValueError):
            return  # Closed meanwhile: the next step connects.

    def _probe(self, connection: Connection) -> None:
        """Closes the breaker when the agent answers a PING."""
        try:
            request: Request = connection.submit(
                Op.PING, lambda number: protocol.ping_request(number, b"")
            )
            while not self._is_closed and not connection.wait(request, _PROBE_WAIT_S):
                continue
            request.result()
        except HearthError:
            return
        if request.done and not connection.closed:
            with self._lock:
                self._is_stalled = False
            self._log.warning("agent answers again on %s", self._path)

    # --- connecting -------------------------------------------------------------------------------

    def _connect(self, timeout: float) -> bool:
        connection: Optional[Connection] = None
        try:
            connection = Connection(
                self._path, self._manifest, self._name, timeout, has_macs=self.key is not None
            )
            self._join(connection)
        except (HearthError, OSError) as error:
            if connection is not None:
                connection.close()
            self._failed(error)
            return False
        self._delay = _BACKOFF_FIRST_S
        self._call_back(connection)
        with self._lock:
            if self._is_closed:
                connection.close()
                return False
            self._is_stalled = False
            self._connection = connection
            self.incarnation = connection.hello.incarnation
            if self._notifier is not None:
                connection.watch(self._notifier)
        self._last_reason = ""
        self._log.info("agent connected on %s", self._path)
        return True

    def _join(self, connection: Connection) -> None:
        self.joined = False
        if not connection.hello.features & FEATURE_ENGINE:
            self._log_once(
                "agent of another version: lookups reserve nothing, commands are not sent"
            )
            return
        if not self._engine_id:
            return
        try:
            connection.ask(
                Op.JOIN,
                lambda number: frames.join_request(number, self._engine_id, self._role),
                frames.read_join,
            )
            self.joined = True
        except RefusedError as error:
            self._log_once(f"agent refused this process as a part of its engine: {error}")

    def _call_back(self, connection: Connection) -> None:
        arena = connection.arena
        try:
            if self._on_arena is not None:
                self._on_arena((arena.address, arena.size, arena.export(0, 1)))
            if self._on_connect is not None:
                self._on_connect(connection.hello)
        except Exception:  # The caller's code must not end the thread.
            self._log.exception("callback of a new connection failed")

    def _failed(self, error: Exception) -> None:
        self._log_once(f"agent not connected, blocks are computed meanwhile: {error}")

    def _log_once(self, reason: str) -> None:
        if reason != self._last_reason:
            self._last_reason = reason
            self._log.warning("%s", reason)

    def _lost(self, connection: Connection) -> None:
        with self._lock:
            if connection is self._connection:
                self._connection = None
                self._is_stalled = False
        connection.drop_arena()
        if not self._is_closed:
            self._log.warning("agent connection lost on %s: %s", self._path, connection.reason)

    def _drop(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
            connection.drop_arena()
