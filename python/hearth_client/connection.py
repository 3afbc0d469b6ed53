"""A greeted connection to the agent, and the arena that comes with the greeting."""

from __future__ import annotations

import os
import socket
import time
from typing import Callable, List, Optional, TypeVar

from . import protocol
from .arena import Arena
from .channel import Channel, close_all
from .errors import ConnectionClosed, TimedOut
from .layout import (
    CHECKSUM_XXH3_64,
    FEATURE_ENGINE,
    FEATURE_GPU,
    FEATURE_MAC,
    FEATURE_REPORT,
    VERSION,
    Hello,
    Op,
)
from .request import Take

_Answer = TypeVar("_Answer")

_FEATURES = FEATURE_GPU | FEATURE_ENGINE | FEATURE_REPORT


class Connection(Channel):
    """Connects, greets and maps the arena. The process that made it is the one that may use it."""

    hello: Hello
    arena: Arena

    def __init__(
        self, path: str, manifest: bytes, name: str, timeout: float, *, has_macs: bool = False
    ) -> None:
        """``timeout`` in seconds: of the greeting, and of each wait that names no other.

        ``has_macs``: the manifest names a key, and blocks travel with their MACs.
        """
        self.timeout = timeout
        self.has_macs = has_macs
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _connect(sock, path, timeout)
            super().__init__(sock)
        except BaseException:
            sock.close()
            raise
        try:
            self._greet(manifest, name)
        except BaseException:
            self.close()
            raise

    @property
    def takes_reports(self) -> bool:
        """Whether the agent looks at blocks whose copies did not verify."""
        return bool(self.hello.features & FEATURE_REPORT)

    def drop_arena(self) -> None:
        """Unmaps the arena when nothing uses it any more. Only of a closed connection."""
        arena = self.__dict__.pop("arena", None)
        if arena is not None:
            arena.close()

    def ask(
        self,
        op: int,
        frame_of: Callable[[int], bytes],
        read: Callable[[int, bytes], _Answer],
        *,
        timeout: Optional[float] = None,
        give_back: Optional[Take] = None,
    ) -> _Answer:
        """Sends a request and reads its reply. TimedOut: the connection stays open."""
        request = self.submit(op, frame_of, give_back=give_back)
        count, body = self.result(request, self.timeout if timeout is None else timeout)
        try:
            return read(count, body)
        except ValueError as error:
            raise self.broken(error) from error

    def _greet(self, manifest: bytes, name: str) -> None:
        features = _FEATURES | (FEATURE_MAC if self.has_macs else 0)
        with self.descriptors() as found:
            try:
                # A plain recv() would drop the arena, which comes with the reply's first byte.
                hello = self.ask(
                    Op.HELLO,
                    lambda number: protocol.hello_request(number, name, manifest, features),
                    protocol.read_hello,
                )
                self.hello = self._judge(hello)
                if len(found) != 1:
                    raise self.broken(f"{len(found)} descriptors came with the greeting")
                self.arena = self._map(found)
            except TimedOut as error:
                raise ConnectionClosed(f"greeting failed: {error}") from error
            finally:
                close_all(found)
        self.frame_bytes_max = self.hello.frame_bytes_max

    def _judge(self, hello: Hello) -> Hello:
        if hello.version != VERSION:
            raise self.broken(f"version {hello.version} was not offered")
        if hello.checksum_algorithm != CHECKSUM_XXH3_64:
            raise self.broken(f"checksum algorithm {hello.checksum_algorithm} is not known")
        if self.has_macs and not hello.features & FEATURE_MAC:
            raise ConnectionClosed(
                "this agent knows no MACs of blocks: bring it up to date, or use no namespace key"
            )
        if hello.block_tokens == 0 or hello.items_max == 0:
            raise self.broken("a limit of 0")
        return hello

    def _map(self, descriptors: List[int]) -> Arena:
        size, wanted = os.fstat(descriptors[0]).st_size, self.hello.arena_bytes
        if wanted == 0 or size < wanted:
            raise self.broken(f"an arena of {size} bytes was announced as {wanted}")
        try:
            return Arena(descriptors[0], wanted)
        except OSError as error:
            reason = f"the arena of {wanted} bytes was not mapped: {error}"
            raise ConnectionClosed(reason) from error


def _connect(sock: socket.socket, path: str, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    sock.settimeout(timeout)
    while True:
        try:
            sock.connect(path)
            return
        except (FileNotFoundError, ConnectionRefusedError) as error:
            hint = "is the agent running, and is this its engine.socket (HEARTH_SOCKET)?"
            raise type(error)(error.errno, f"no agent answers there: {hint}", path) from None
        except PermissionError as error:
            hint = "join the group of the agent's socket"
            raise PermissionError(error.errno, f"no permission: {hint}", path) from None
        except BlockingIOError as error:
            # The queue of connections is full; a socket with a timeout does not wait for it.
            if time.monotonic() >= deadline:
                raise TimeoutError(error.errno, "the agent takes no connections", path) from None
            time.sleep(0.01)
