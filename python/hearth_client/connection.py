"""The socket: greeting, frames in and out, and the arena that comes with the greeting."""

from __future__ import annotations

import array
import mmap
import os
import socket
from contextlib import contextmanager
from typing import Dict, Iterator, List, Optional, Set, Tuple

from . import protocol
from .errors import ConnectionClosed, ProtocolError, RefusedError
from .layout import CHECKSUM_XXH3_64, FEATURE_GPU, HEADER_BYTES, VERSION, Header, Hello, Op

_RECEIVE_BYTES = 64 * 1024
#: Before the greeting is answered the agent's own limit is not known.
_FIRST_FRAME_BYTES_MAX = 64 * 1024


class Connection:
    """One greeted connection. Not for use by two threads at once; Client takes care of that."""

    hello: Hello
    arena: mmap.mmap

    def __init__(self, path: str, manifest: bytes, name: str, timeout: float) -> None:
        #: In seconds, of each wait.
        self.timeout = timeout
        self._buffer = bytearray()
        self._frame_bytes_max = _FIRST_FRAME_BYTES_MAX
        self._next_id = 1
        #: Requests sent ahead whose replies have not been asked for, and those that came.
        self._ahead: Set[int] = set()
        self._replies: Dict[int, Tuple[Header, bytes]] = {}
        #: None: descriptors are not looked for.
        self._descriptors: Optional[List[int]] = None
        self._socket: Optional[socket.socket] = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(timeout)
            try:
                self._socket.connect(path)
            except (FileNotFoundError, ConnectionRefusedError) as error:
                hint = "is the agent running, and is this its engine.socket (HEARTH_SOCKET)?"
                raise type(error)(error.errno, f"no agent answers there: {hint}", path) from None
            except PermissionError as error:
                hint = "join the group of the agent's socket"
                raise PermissionError(error.errno, f"no permission: {hint}", path) from None
            self._greet(manifest, name)
        except BaseException:
            self.close()
            raise

    @property
    def closed(self) -> bool:
        return self._socket is None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def next_id(self) -> int:
        request_id = self._next_id
        self._next_id = request_id % 0xFFFF_FFFF + 1
        return request_id

    def send(self, frame: bytes) -> None:
        limit = self._frame_bytes_max
        if len(frame) > limit:
            raise ValueError(f"a frame of {len(frame)} bytes, {limit} are allowed: ask for less")
        sock = self._open()
        try:
            sock.sendall(frame)
        except OSError as error:
            # The agent may have said why before it hung up.
            self._explain_then_close()
            raise ConnectionClosed(f"sending failed: {error}") from error

    def send_ahead(self, request_id: int, frame: bytes) -> None:
        """Sends a request whose reply is received later, whatever is asked in between."""
        self.send(frame)
        self._ahead.add(request_id)

    def receive(self, request_id: int, op: Op) -> Tuple[int, bytes]:
        """Count and body of the reply to this request; refusals are raised."""
        self._ahead.discard(request_id)
        while True:
            early = request_id in self._replies
            header, body = self._replies.pop(request_id) if early else self._next_frame()
            if header.request_id in self._ahead and header.request_id != request_id:
                self._replies[header.request_id] = (header, body)
                continue
            if header.status != 0:
                self._refuse(header, body)
            if (header.op, header.request_id) != (op, request_id):
                raise self.broken(f"a reply to {header.request_id}, which was not asked")
            return header.count, body

    @contextmanager
    def descriptors(self) -> Iterator[List[int]]:
        """Collects the descriptors that come with replies read meanwhile; they are the caller's."""
        found: List[int] = []
        self._descriptors = found
        try:
            yield found
        finally:
            self._descriptors = None

    def broken(self, why: object) -> ProtocolError:
        """Ends a connection whose other side does not keep to the protocol."""
        self.close()
        return ProtocolError(f"the agent broke the protocol: {why}")

    def _open(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionClosed("the connection is closed: make a new Client")
        return self._socket

    def _refuse(self, header: Header, body: bytes) -> None:
        try:
            text = protocol.read_error(body)
        except ValueError as error:
            raise self.broken(error) from error
        if header.op == 0:
            self.close()
        raise RefusedError(header.status, text)

    def _explain_then_close(self) -> None:
        """Raises the refusal that lies in the socket, if there is one."""
        try:
            while True:
                header, body = self._next_frame()
                if header.status != 0:
                    self._refuse(header, body)
        except ConnectionClosed:
            return
        finally:
            self.close()

    def _next_frame(self) -> Tuple[Header, bytes]:
        self._fill(HEADER_BYTES)
        try:
            header = protocol.read_header(self._buffer, self._frame_bytes_max)
        except ValueError as error:
            raise self.broken(error) from error
        self._fill(header.length)
        body = bytes(memoryview(self._buffer)[HEADER_BYTES : header.length])
        del self._buffer[: header.length]
        return header, body

    def _fill(self, wanted: int) -> None:
        while len(self._buffer) < wanted:
            try:
                chunk = self._receive_chunk(self._open())
            except OSError as error:
                # Also after a timeout: the reply may still come, and nobody would wait for it.
                self.close()
                raise ConnectionClosed(f"receiving failed: {error}") from error
            self._take(chunk)

    def _receive_chunk(self, sock: socket.socket) -> bytes:
        if self._descriptors is None:
            return sock.recv(_RECEIVE_BYTES)
        chunk, descriptors = _receive_descriptors(sock)
        self._descriptors.extend(descriptors)
        return chunk

    def _take(self, chunk: bytes) -> None:
        if not chunk:
            self.close()
            raise ConnectionClosed("the agent closed the connection")
        self._buffer += chunk

    def _greet(self, manifest: bytes, name: str) -> None:
        request_id = self.next_id()
        self.send(protocol.hello_request(request_id, name, manifest, FEATURE_GPU))
        descriptors: List[int] = []
        try:
            # A plain recv() would drop the arena, which comes with the reply's first byte.
            chunk, descriptors = _receive_descriptors(self._open())
            self._take(chunk)
            count, body = self.receive(request_id, Op.HELLO)
            self.hello = self._judge(count, body)
            if len(descriptors) != 1:
                raise self.broken(f"{len(descriptors)} descriptors came with the greeting")
            self.arena = self._map(descriptors[0])
        except OSError as error:
            if isinstance(error, ConnectionClosed):
                raise
            raise ConnectionClosed(f"greeting failed: {error}") from error
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._frame_bytes_max = self.hello.frame_bytes_max

    def _judge(self, count: int, body: bytes) -> Hello:
        try:
            hello = protocol.read_hello(count, body)
        except ValueError as error:
            raise self.broken(error) from error
        if hello.version != VERSION:
            raise self.broken(f"version {hello.version} was not offered")
        if hello.checksum_algorithm != CHECKSUM_XXH3_64:
            raise self.broken(f"checksum algorithm {hello.checksum_algorithm} is not known")
        if hello.block_tokens == 0 or hello.items_max == 0:
            raise self.broken("a limit of 0")
        return hello

    def _map(self, descriptor: int) -> mmap.mmap:
        size = os.fstat(descriptor).st_size
        if self.hello.arena_bytes == 0 or size < self.hello.arena_bytes:
            raise self.broken(f"an arena of {size} bytes was announced as {self.hello.arena_bytes}")
        arena = mmap.mmap(descriptor, self.hello.arena_bytes, flags=mmap.MAP_SHARED)
        # The arena belongs to this process alone: a forked child must not touch it.
        if hasattr(mmap, "MADV_DONTFORK"):
            arena.madvise(mmap.MADV_DONTFORK)
        return arena


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
