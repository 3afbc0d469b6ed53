"""Names and numbers of the engine protocol, version 1; see ``docs/internals/engine-protocol.md``."""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import List, NamedTuple, Optional, Tuple, Union

VERSION = 1
MAGIC = b"HRTH"
CHECKSUM_XXH3_64 = 1
HEADER_BYTES = 16
DIGEST_BYTES = 32
NAME_BYTES = 32
MANIFEST_BYTES_MAX = 65_536
PING_BYTES_MAX = 64
#: The layer of a block whose layers all lie in one object.
LAYER_ALL = 0xFFFF_FFFF

#: A bit of the greeting's features: the agent copies from and to GPUs.
FEATURE_GPU = 1
#: Several connections form one engine: operations 23 to 28, chain keys of 16 bytes.
FEATURE_ENGINE = 2
#: Items of COMMIT and of ACQUIRE's reply carry a MAC.
FEATURE_MAC = 4
MAC_BYTES = 16
#: The agent takes REPORT.
FEATURE_REPORT = 8
GPU_UUID_BYTES = 16
GPU_HANDLE_BYTES = 64

FLAG_REPLY = 1
FLAG_NO_REPLY = 2

Readable = Union[bytes, bytearray, memoryview]


class Op(IntEnum):
    HELLO = 1
    PING = 2
    IDENTIFY = 3
    MATCH = 4
    RESERVE = 5
    COMMIT = 6
    ABORT = 7
    ACQUIRE = 8
    RELEASE = 9
    GPU_STORED = 10
    GPU_EVICTED = 11
    SESSION_COMMIT = 12
    SESSION_RELEASE = 13
    SESSION_STATUS = 14
    ALIAS = 15
    SESSION_LIST = 16
    GPU_DEVICES = 17
    GPU_REGISTER = 18
    GPU_UNREGISTER = 19
    GPU_STORE = 20
    GPU_LOAD = 21
    GPU_WARM = 22
    JOIN = 23
    LOOKUP = 24
    UNHOLD = 25
    ANNOUNCE = 26
    COMMAND = 27
    NAMESPACE = 28
    REPORT = 29


class FrameStatus(IntEnum):
    """Why a whole frame is refused."""

    OK = 0
    MALFORMED = 1
    UNKNOWN_OP = 2
    VERSION = 3
    FRAME_TOO_LARGE = 4
    NOT_GREETED = 5
    LIMIT = 6
    INTERNAL = 7
    MANIFEST_REFUSED = 8
    OVERSTAYED = 9
    DRAINING = 10


class Outcome(IntEnum):
    """The outcome of one block of a request."""

    OK = 0
    MISS = 1
    FULL = 2
    PRESENT = 3
    STALE = 4
    CORRUPT = 5
    TOO_LARGE = 6
    LATE = 7
    PENDING = 8
    SKIPPED = 9
    REJECTED = 10
    DEVICE = 11


class Tier(IntFlag):
    """Tiers as a mask; in a request ``Tier(0)`` stands for all."""

    GPU = 1
    RAM = 2
    SSD = 4
    PEER = 8


TIER_ANY = Tier(0)
TIER_MASK = 15


class IdentifyKind(IntEnum):
    TOKENS = 0
    CHAIN_KEYS = 1
    ENGINE_HASHES = 2
    SHORT_KEYS = 3


class AliasKind(IntEnum):
    ENGINE_HASH = 0
    SHA256 = 1


class Role(IntEnum):
    """The part of an engine that a connection belongs to."""

    OTHER = 0
    SCHEDULER = 1
    WORKER = 2


class LookupFlag(IntFlag):
    FAMILY = 1
    HOLD = 2
    FETCH = 4
    WAIT = 8
    PROGRESS = 16
    DIGESTS = 32


class Header(NamedTuple):
    length: int
    op: int
    flags: int
    status: int
    request_id: int
    count: int


class Hello(NamedTuple):
    """The agent's answer to the greeting; sizes in bytes."""

    version: int
    checksum_algorithm: int
    features: int
    namespace_id: bytes
    incarnation: int
    arena_bytes: int
    arena_ready_bytes: int
    block_bytes_max: int
    frame_bytes_max: int
    items_max: int
    handles_max: int
    lease_ms: int
    block_tokens: int


class Block(NamedTuple):
    """A block to be written or mirrored; ``parent`` None: none."""

    digest: bytes
    #: In bytes.
    length: int
    parent: Optional[bytes] = None
    #: The engine's own 64-bit hash of the block.
    alias: Optional[int] = None
    #: Never written to SSD, purged first.
    transient: bool = False


class Slot(NamedTuple):
    """Answer for one block of a RESERVE; all but ``outcome`` are 0 unless it is OK."""

    outcome: Outcome
    slot: int
    generation: int
    capacity: int
    offset: int


class Acquired(NamedTuple):
    """Answer for one block of an ACQUIRE; all but ``outcome`` are 0 unless it is OK."""

    outcome: Outcome
    slot: int
    generation: int
    length: int
    offset: int
    checksum: int
    #: 16 bytes; zeros: the block has none, or the connection no key.
    mac: bytes = bytes(MAC_BYTES)


class Commit(NamedTuple):
    slot: int
    generation: int
    #: XXH3-64 of the block's bytes; None lets the agent compute it.
    checksum: Optional[int] = None
    #: 16 bytes, on a connection with a key.
    mac: Optional[bytes] = None


class Match(NamedTuple):
    """How many leading blocks are present, and for each the best tier that has it (0: none)."""

    leading: int
    best: List[Tier]


class MediaItem(NamedTuple):
    """A multimodal input of a prompt: its first token's index, and its name of 1 to 256 bytes."""

    position: int
    name: bytes


class Lookup(NamedTuple):
    """Answer of a LOOKUP; the counts are over all ranks if it was asked for the family."""

    #: Blocks present without a gap.
    leading: int
    #: The blocks among them that are in RAM now, and reserved if that was asked for.
    ready: int
    #: Number of the reservation, 0: none.
    hold: int
    #: Another answer to the same request follows.
    more: bool
    #: The agent forgot the parent digest: ask with the whole prompt.
    unknown_parent: bool
    #: The engine's budget of reservations ended the ``ready`` run.
    budget_reached: bool
    #: Blocks behind ``leading`` that are being written or are announced.
    announced: int
    #: The bit of the best tier of each block, 0 behind ``leading``.
    tiers: bytes
    #: Digests of the connection's own rank, if requested.
    digests: List[bytes]


class Namespace(NamedTuple):
    """A namespace of requests with an adapter or a salt; ``handle`` counts on its connection."""

    handle: int
    namespace_id: bytes


class SessionStatus(NamedTuple):
    """The blocks of a session in RAM. ``outcome`` is MISS if the session is unknown."""

    outcome: Outcome
    blocks: int
    tokens: int
    bytes: int


class SessionItem(NamedTuple):
    """A session and what of it is where; a block on both tiers counts on both."""

    session: int
    #: Milliseconds since its last commit.
    idle_ms: int
    ram_blocks: int
    ram_bytes: int
    ssd_blocks: int
    ssd_bytes: int


class SessionPage(NamedTuple):
    """Sessions, the one committed to longest ago first; ``next`` 0: that was all."""

    next: int
    sessions: List[SessionItem]


class GpuDevice(NamedTuple):
    """A GPU that the agent copies from and to."""

    uuid: bytes
    memory_bytes: int
    #: None: not known.
    numa: Optional[int]
    dma_buf: bool
    batches: bool
    #: Nothing of it works until the agent is started again.
    lost: bool


class GpuMemoryItem(NamedTuple):
    """Memory for the agent; ``handle`` None: its descriptor was sent before."""

    uuid: bytes
    offset: int
    length: int
    allocation_bytes: int
    handle: Optional[bytes]


class GpuRegistered(NamedTuple):
    """Answer for one memory: its number is 0 unless the outcome is OK."""

    outcome: Outcome
    memory: int
    #: The driver's CUresult where the outcome is DEVICE.
    code: int


class CopyItem(NamedTuple):
    """A piece in its wire format."""

    slot: int
    generation: int
    memory: int
    slot_offset: int
    memory_offset: int
    length: int


class WarmOffer(NamedTuple):
    """Blocks wanted on the GPU; number 0 without blocks: none came."""

    number: int
    layer: int
    digests: List[bytes]


Handle = Tuple[int, int]
