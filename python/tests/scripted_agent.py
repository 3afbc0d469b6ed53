"""The other side of a client for what a real agent never does: lies, silence, hanging up.

A thread on a real socket with a real memfd. It greets, then answers each request with the next
reply of its script.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
import time
from struct import pack, unpack_from
from typing import Callable, List, Optional, Tuple

from hearth_client.layout import Op

ARENA_BYTES = 1 << 16

#: A hang detector.
HANG_SECONDS = 60.0

#: Makes a reply from operation, request id, count and body of a request; None hangs up.
Step = Callable[[int, int, int, bytes], Optional[bytes]]


def frame(op: int, request_id: int, count: int, body: bytes, status: int = 0) -> bytes:
    return pack("<IBBHII", 16 + len(body), op, 1, status, request_id, count) + body


def refusal(op: int, request_id: int, status: int, text: str) -> bytes:
    data = text.encode("utf-8")
    body = pack("<II", len(data), 0) + data + bytes(-len(data) % 8)
    return frame(op, request_id, 0, body, status)


def hello_body(
    arena_bytes: int = ARENA_BYTES,
    version: int = 1,
    items_max: int = 4096,
    lease_ms: int = 30_000,
    features: int = 0,
) -> bytes:
    return pack(
        "<HHI32sQQQQIIIIII",
        *(version, 1, features, bytes(range(32)), 7),
        *(arena_bytes, arena_bytes, 4096),
        *(1 << 20, items_max, 64, lease_ms, 16, 0),
    )


class Held:
    """A step that answers nothing yet: ``reply`` makes the late reply."""

    def __init__(self) -> None:
        self._asked: Optional[Tuple[int, int]] = None

    def __call__(self, op: int, request_id: int, _count: int, _body: bytes) -> bytes:
        self._asked = (op, request_id)
        return b""

    def reply(self, body: bytes, count: int) -> bytes:
        assert self._asked is not None
        return frame(*self._asked, count, body)


def reply(body: bytes, count: int) -> Step:
    """A truthful header around this body."""
    return lambda op, request_id, _count, _body: frame(op, request_id, count, body)


class ScriptedAgent:
    def __init__(
        self,
        script: List[Step],
        *,
        hello: Optional[bytes] = None,
        arena_bytes: int = ARENA_BYTES,
        descriptors: int = 1,
        refuse: Optional[Tuple[int, str]] = None,
        piecewise: bool = False,
    ) -> None:
        self.folder = tempfile.mkdtemp(prefix="hearth-test-")
        self.path = os.path.join(self.folder, "agent.sock")
        #: Operation, flags, count and body of every request after the greeting.
        self.requests: List[Tuple[int, int, int, bytes]] = []
        self.arena = os.memfd_create("arena")
        os.ftruncate(self.arena, arena_bytes)
        self._script = script
        self._hello = hello_body() if hello is None else hello
        self._descriptors = descriptors
        self._refuse = refuse
        self._piecewise = piecewise
        self._peer: Optional[socket.socket] = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen(1)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> "ScriptedAgent":
        return self

    def __exit__(self, *_unused: object) -> None:
        self._listener.close()
        self._thread.join(0.2)
        if self._thread.is_alive() and self._peer is not None:
            self._peer.shutdown(socket.SHUT_RDWR)  # The client is still connected.
        self._thread.join(HANG_SECONDS)
        os.close(self.arena)
        shutil.rmtree(self.folder)

    def until(self, op: int, times: int = 1) -> None:
        """Waits until requests of this operation have come."""
        deadline = time.monotonic() + HANG_SECONDS
        while [request[0] for request in list(self.requests)].count(op) < times:
            if time.monotonic() > deadline:
                raise AssertionError(f"operation {op} did not come {times} times")
            time.sleep(0.001)

    def _run(self) -> None:
        try:
            peer, _address = self._listener.accept()
        except OSError:
            return  # The test ended before a client came.
        self._peer = peer
        with peer:
            first = _read_frame(peer)
            if first is None:
                return
            if self._refuse is not None:
                peer.sendall(refusal(Op.HELLO, first[2], *self._refuse))
                return
            greeting = frame(Op.HELLO, first[2], 0, self._hello)
            socket.send_fds(peer, [greeting[:40]], [self.arena] * self._descriptors)
            peer.sendall(greeting[40:])
            self._answer(peer)

    def _answer(self, peer: socket.socket) -> None:
        script = iter(self._script)
        while True:
            request = _read_frame(peer)
            if request is None:
                return
            op, flags, request_id, count, body = request
            self.requests.append((op, flags, count, body))
            if flags & 2:
                continue
            step = next(script, None)
            answer = None if step is None else step(op, request_id, count, body)
            if answer is None:
                return
            size = 1 if self._piecewise else len(answer)
            for at in range(0, len(answer), max(size, 1)):
                peer.sendall(answer[at : at + size])


def _read_frame(peer: socket.socket) -> Optional[Tuple[int, int, int, int, bytes]]:
    head = _read(peer, 16)
    if head is None:
        return None
    length, op, flags, _status, request_id, count = unpack_from("<IBBHII", head)
    body = _read(peer, length - 16)
    return None if body is None else (op, flags, request_id, count, body)


def _read(peer: socket.socket, wanted: int) -> Optional[bytes]:
    data = b""
    while len(data) < wanted:
        chunk = peer.recv(wanted - len(data))
        if not chunk:
            return None
        data += chunk
    return data
