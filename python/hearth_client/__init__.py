"""Client of the Hearth agent: KV blocks in shared memory, named over a Unix socket.

    with Client("/run/hearth/engine.sock", Manifest(...)) as client:
        digests = client.identify(tokens)
        client.put(digests[0], None, block)
        found = client.get(digests)
"""

from .client import Client
from .errors import ConnectionClosed, HearthError, ProtocolError, RefusedError
from .held import ReadableBlock, WritableSlot
from .layout import (
    LAYER_ALL,
    Block,
    FrameStatus,
    Hello,
    Match,
    Outcome,
    SessionItem,
    SessionPage,
    SessionStatus,
    Tier,
)
from .manifest import Manifest
from .xxh3 import xxh3_64

__all__ = [
    "LAYER_ALL",
    "Block",
    "Client",
    "ConnectionClosed",
    "FrameStatus",
    "HearthError",
    "Hello",
    "Manifest",
    "Match",
    "Outcome",
    "ProtocolError",
    "ReadableBlock",
    "RefusedError",
    "SessionItem",
    "SessionPage",
    "SessionStatus",
    "Tier",
    "WritableSlot",
    "xxh3_64",
]
