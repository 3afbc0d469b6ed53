"""Client of the Hearth agent: KV blocks in shared memory, named over a Unix socket.

    with Client("/run/hearth/engine.sock", Manifest(...)) as client:
        digests = client.identify(tokens)
        client.put(digests[0], None, block)
        found = client.get(digests)
"""

from .client import Client
from .cuda import CudaError
from .errors import ConnectionClosed, HearthError, ProtocolError, RefusedError, TimedOut
from .gpu import GpuMemory, LayerLoads, Piece
from .held import ReadableBlock, WritableSlot
from .layout import (
    LAYER_ALL,
    Block,
    FrameStatus,
    GpuDevice,
    Hello,
    Match,
    MediaItem,
    Namespace,
    Outcome,
    Role,
    SessionItem,
    SessionPage,
    SessionStatus,
    Tier,
    WarmOffer,
)
from .manifest import Manifest
from .namespace_key import NamespaceKey
from .ticket import CommandTicket, LookupResult, LookupTicket, Ticket
from .xxh3 import xxh3_64

__all__ = [
    "LAYER_ALL",
    "Block",
    "Client",
    "ConnectionClosed",
    "CommandTicket",
    "CudaError",
    "FrameStatus",
    "GpuDevice",
    "GpuMemory",
    "HearthError",
    "Hello",
    "LayerLoads",
    "LookupResult",
    "LookupTicket",
    "Manifest",
    "Match",
    "MediaItem",
    "Namespace",
    "NamespaceKey",
    "Outcome",
    "Piece",
    "ProtocolError",
    "ReadableBlock",
    "RefusedError",
    "Role",
    "SessionItem",
    "SessionPage",
    "SessionStatus",
    "Ticket",
    "Tier",
    "TimedOut",
    "WarmOffer",
    "WritableSlot",
    "xxh3_64",
]
