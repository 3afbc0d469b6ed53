"""Requests and replies on one socket, for several threads at once.

A request is sent at once; its reply is matched by its number. No thread is kept for reading: the
first thread that waits reads the socket and hands the other threads their replies. When it has its
own reply, the next waiting thread takes over.
"""

from __future__ import annotations

import array
import os
import select
import socket
import threading
import time
from contextlib import contextmanager
from itertools import count as counting
from typing import Callable, Dict, Iterator, List, Optional, Tuple

from . import protocol
from .errors import ConnectionClosed, HearthError, ProtocolError, TimedOut
from .layout import HEADER_BYTES, Header, Op
from .notifier import Notifier
from .outbox import Outbox
from .request import Failure, Request, Take, TakeSome, failure_of

_RECEIVE_BYTES = 256 * 1024
#: Before the greeting is answered the agent's own limit is not known.
_FIRST_FRAME_BYTES_MAX = 64 * 1024
#: Seconds after which a thread that another one reads for tries to send what could not be sent.
_FLUSH_SECONDS = 0.005

class Channel:
    """Sends requests and takes in replies. All methods may be called from several threads."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._numbers = counting()
        #: Guards the fields below, and wakes the threads that wait for another one's reading.
        self._state = threading.Condition(threading.Lock())
        self._pending: Dict[int, Request] = {}
        self._is_reading = False
        self._waiting = 0
        self._ended: Optional[Failure] = None
        self._is_disposed = False
        self._outbox = Outbox(sock)
        self._input = bytearray()
        self._input_wanted = HEADER_BYTES
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self._both = select.poll()
        self._both.register(sock, select.POLLIN | select.POLLOUT)
        #: None: descriptors are not looked for.
        self._descriptors: Optional[List[int]] = None
        self.frame_bytes_max = _FIRST_FRAME_BYTES_MAX
        #: Time (monotonic) at which the agent last sent something.
        self.received_at = time.monotonic()
        #: Time at which this side last sent something.
        self.sent_at = self.received_at
        self._notifier: Optional[Notifier] = None

    # --- requests ---------------------------------------------------------------------------------

    def expect(self, op: int, give_back: Optional[Take] = None) -> Request:
        """A number for a request that is about to be sent, and where its reply will be."""
        number = next(self._numbers) % 0xFFFF_FFFF + 1
        request = Request(number, op, give_back)
        with self._state:
            if self._ended is not None:
                raise ConnectionClosed("the connection is closed: make a new Client")
            self._pending[number] = request
        return request

    def next_id(self) -> int:
        """A number for a request without a reply."""
        return next(self._numbers) % 0xFFFF_FFFF + 1

    def submit(
        self,
        op: int,
        frame_of: Callable[[int], bytes],
        *,
        give_back: Optional[Take] = None,
        on_reply: Optional[TakeSome] = None,
        queued: bool = False,
    ) -> Request:
        """Sends a request without waiting. ValueError: nothing was sent.

        ``queued``: it is sent with the next frame, or by ``flush``.
        """
        request = self.expect(op, give_back)
        request.on_reply = on_reply
        try:
            send = self.queue if queued else self.send
            send(frame_of(request.number))
        except BaseException:
            with self._state:
                self._pending.pop(request.number, None)
            raise
        return request

    def post(self, frame_of: Callable[[int], bytes]) -> None:
        """Sends a request that has no reply."""
        self.send(frame_of(self.next_id()))

    def send(self, frame: bytes) -> None:
        """Sends without blocking; the rest goes out with later calls."""
        limit = self.frame_bytes_max
        if len(frame) > limit:
            raise ValueError(f"a frame of {len(frame)} bytes, {limit} are allowed: ask for less")
        if self._ended is not None:
            raise ConnectionClosed("the connection is closed: make a new Client")
        self.sent_at = time.monotonic()
        failure = self._outbox.send(frame)
        if failure is not None:
            self._sending_failed(failure)
            raise self._ended() if self._ended else ConnectionClosed(str(failure))

    def queue(self, frame: bytes) -> None:
        """Sends a frame without a reply together with the next one: one system call for both."""
        self._outbox.queue(frame)

    def flush(self) -> None:
        """Sends more of what the socket did not accept before."""
        failure = self._outbox.flush() if self._outbox.is_waiting else None
        if failure is not None and self._ended is None:
            self._sending_failed(failure)

    def _sending_failed(self, failure: OSError) -> None:
        # The agent may have said why before it closed the connection.
        while self.poll():
            continue
        self._end(lambda: ConnectionClosed(f"sending failed: {failure}"))

    # --- replies ----------------------------------------------------------------------------------

    def wait(self, request: Request, timeout: float) -> bool:
        """Whether the reply is there, or the connection over, within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        if not self._follow(request, deadline):
            return request.done
        try:
            while not request.done:
                left = deadline - time.monotonic()
                self._read(max(left, 0.0))
                if left <= 0:
                    break
        finally:
            self._stop_reading()
        return request.done

    def _follow(self, request: Request, deadline: float) -> bool:
        """Waits while another thread reads. True: this thread reads now."""
        with self._state:
            while not request.done:
                if not self._is_reading:
                    self._is_reading = True
                    return True
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._waiting += 1
                self._state.wait(min(left, _FLUSH_SECONDS) if self._outbox.is_waiting else left)
                self._waiting -= 1
                if self._outbox.is_waiting:
                    self._state.release()
                    try:
                        self.flush()
                    finally:
                        self._state.acquire()
        return False

    def _stop_reading(self) -> None:
        with self._state:
            self._is_reading = False
            if self._waiting:
                self._state.notify_all()
        if self._ended is not None:
            self._dispose()

    def poll(self) -> Optional[bool]:
        """Reads without blocking. True if bytes arrived; None: another thread reads."""
        with self._state:
            if self._is_reading or self._ended is not None:
                return None if self._is_reading else False
            self._is_reading = True
        came = False
        try:
            while self._read(0.0):
                came = True
        finally:
            self._stop_reading()
        return came

    def abandon(self, request: Request) -> bool:
        """Stops waiting; what a late reply grants is given back. False: the reply is there."""
        with self._state:
            if request.done:
                return False
            request.abandoned = True
        return True

    @property
    def is_owed(self) -> bool:
        """Whether replies are outstanding."""
        return bool(self._pending)

    def result(self, request: Request, timeout: float) -> Tuple[int, bytes]:
        """The reply. TimedOut: it did not arrive in time; slots that it grants will be returned."""
        if not self.wait(request, timeout) and self.abandon(request):
            name = Op(request.op).name if request.op in list(Op) else f"operation {request.op}"
            raise TimedOut(f"{name} was not answered within {timeout:.3f} s")
        return request.result()

    # --- reading ----------------------------------------------------------------------------------

    def _read(self, timeout: float) -> bool:
        """Reads the next bytes that arrive within ``timeout`` seconds. One thread at a time."""
        if self._ended is not None:
            return False
        try:
            if self._outbox.is_waiting:
                self._both.poll(timeout * 1000)
                self.flush()
            elif timeout > 0:
                self._readable.poll(timeout * 1000)
            chunk = self._receive()
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            reason = f"receiving failed: {error}"
            self._end(lambda: ConnectionClosed(reason))
            return False
        if not chunk:
            self._end(lambda: ConnectionClosed("the agent closed the connection"))
            return False
        self.received_at = time.monotonic()
        self._take(chunk)
        return True

    def _receive(self) -> bytes:
        if self._descriptors is None:
            return self._socket.recv(_RECEIVE_BYTES)
        chunk, descriptors = _receive_descriptors(self._socket)
        self._descriptors.extend(descriptors)
        return chunk

    def _take(self, chunk: bytes) -> None:
        data: "bytes | bytearray" = chunk
        if self._input:
            self._input += chunk
            if len(self._input) < self._input_wanted:
                return
            data = self._input
        at, size = 0, len(data)
        wanted = HEADER_BYTES
        while size - at >= HEADER_BYTES:
            try:
                header = protocol.read_header(data, self.frame_bytes_max, at)
            except ValueError as error:
                self.broken(error)
                return
            if size - at < header.length:
                wanted = header.length
                break
            self._deliver(header, bytes(data[at + HEADER_BYTES : at + header.length]))
            at += header.length
        self._input, self._input_wanted = bytearray(data[at:]), wanted

    def _deliver(self, header: Header, body: bytes) -> None:
        request = self._pending.get(header.request_id)
        if header.op == 0 and header.status != 0:
            self._end(failure_of(header, body))
            return
        if request is None or (header.status == 0 and header.op != request.op):
            self.broken(f"a reply to {header.request_id}, which was not asked")
            return
        error = None if header.status == 0 else failure_of(header, body)
        try:
            follows = error is None and request.on_reply is not None
            if follows and request.on_reply is not None and request.on_reply(header.count, body):
                self._notify()
                return
        except ValueError as lie:
            self.broken(lie)
            return
        with self._state:
            self._pending.pop(header.request_id, None)
            request.count, request.body, request.error = header.count, body, error
            request.done = True
            late = request.abandoned and error is None
            if self._waiting:
                self._state.notify_all()
        self._notify()
        if late and request.give_back is not None:
            self._give_back(request)

    def _give_back(self, request: Request) -> None:
        assert request.give_back is not None
        try:
            request.give_back(request.count, request.body)
        except ProtocolError:
            return
        except ValueError as error:
            self.broken(error)
        except HearthError:
            return  # The handles ended with the connection.

    @contextmanager
    def descriptors(self) -> Iterator[List[int]]:
        """Collects the descriptors that come with replies meanwhile; they are the caller's."""
        found: List[int] = []
        self._descriptors = found
        try:
            yield found
        finally:
            self._descriptors = None

    # --- the descriptor to poll -------------------------------------------------------------------

    def watch(self, notifier: Notifier) -> None:
        """Makes the notifier's descriptor readable if there is something for ``poll``."""
        self._notifier = notifier
        notifier.attach(self._socket)

    def _notify(self) -> None:
        if self._notifier is not None:
            self._notifier.signal()

    # --- the end ----------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._ended is not None

    @property
    def reason(self) -> str:
        """Why the connection is over."""
        return "" if self._ended is None else str(self._ended())

    def fileno(self) -> int:
        """The socket's descriptor, to notice its end. -1: closed."""
        return self._socket.fileno()

    def close(self) -> None:
        self._end(lambda: ConnectionClosed("the connection is closed: make a new Client"))

    def broken(self, why: object) -> ProtocolError:
        """Ends a connection whose other side does not keep to the protocol."""
        text = f"the agent broke the protocol: {why}"
        self._end(lambda: ProtocolError(text))
        return ProtocolError(text)

    def _end(self, error: Failure) -> None:
        with self._state:
            if self._ended is not None:
                return
            self._ended = error
            for request in self._pending.values():
                request.error, request.done = error, True
            self._pending.clear()
            self._state.notify_all()
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # Wakes the thread that reads.
        except OSError:
            pass  # The other side was faster.
        self._dispose()
        self._notify()

    def _dispose(self) -> None:
        """Closes the descriptor once no thread reads from it."""
        with self._state:
            if self._is_reading or self._is_disposed:
                return
            self._is_disposed = True
        if self._notifier is not None:
            self._notifier.detach(self._socket)
        self._outbox.close()


def _receive_descriptors(sock: socket.socket) -> Tuple[bytes, List[int]]:
    """One recvmsg() with room for two descriptors, so that a second one would be noticed."""
    descriptors = array.array("i")
    room = socket.CMSG_SPACE(2 * descriptors.itemsize)
    flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
    chunk, control, _flags, _address = sock.recvmsg(_RECEIVE_BYTES, room, flags)
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            whole = len(data) - len(data) % descriptors.itemsize
            descriptors.frombytes(data[:whole])
    return chunk, list(descriptors)


def close_all(descriptors: List[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
