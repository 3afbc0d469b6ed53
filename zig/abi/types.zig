//! Everything that crosses the boundary. Explicit widths, no implicit padding: `assertNoPadding`
//! holds it.

const std = @import("std");
const gpu = @import("gpu_types.zig");
const mac = @import("mac_types.zig");
const rdma = @import("rdma_types.zig");
const router = @import("router_types.zig");

pub const AbiInfo = extern struct {
    /// First 16 bytes of SHA-256 over the manifest text (see manifest.zig).
    abi_hash: [16]u8,
    /// 0 Debug, 1 ReleaseSafe, 2 ReleaseFast, 3 ReleaseSmall.
    optimize_mode: u32,
    /// 1 where the code was compiled for AES instructions.
    has_aes: u32,
};

/// How to get the memory of an arena. Each wish: 0 off, 1 try, 2 require.
pub const RegionRequest = extern struct {
    bytes: u64,
    huge_pages: u32,
    lock_memory: u32,
};

/// The arena of a process that went before, as it left it.
pub const AdoptRequest = extern struct {
    bytes: u64,
    fd: i32,
    /// A wish, as in `RegionRequest`.
    lock_memory: u32,
};

/// A mapping of somebody else's arena.
pub const MapRequest = extern struct {
    bytes: u64,
    fd: i32,
    writable: u32,
};

pub const RegionInfo = extern struct {
    handle: u64,
    address: u64,
    bytes: u64,
    fd: i32,
    /// 4096, or the huge page size where they were had.
    page_bytes: u32,
    /// Bytes whose pages were populated through the queue, in total.
    populated_bytes: u64,
    /// Of these, locked in memory.
    locked_bytes: u64,
    /// Bit 0: kernel refused to lock at least once. Bit 1: transparent huge pages were advised.
    flags: u32,
    /// Transparent huge pages of 2 MiB that were had.
    huge_pages: u32,
};

/// A copy between a region and private memory of the caller.
pub const CopyRequest = extern struct {
    region: u64,
    offset: u64,
    bytes: u64,
    /// Address of the caller's memory.
    buffer: u64,
    /// 1: out receives XXH3-64 of the bytes.
    checksum: u32,
    reserved: u32,
};

/// A stretch of a region, and the seed of its pattern.
pub const SpanRequest = extern struct {
    region: u64,
    offset: u64,
    bytes: u64,
    seed: u64,
};

pub const QueueRequest = extern struct {
    /// Operations submitted and not reaped yet, at most; a power of two up to 65,536.
    entries: u32,
    threads: u32,
    /// Processes watched at the same time, at most.
    watches: u32,
    reserved: u32,
};

pub const QueueInfo = extern struct {
    handle: u64,
    event_fd: i32,
    reserved: u32,
};

pub const Operation = enum(u32) {
    /// Completes at once; `result` is `argument`.
    nop = 0,
    /// Populates (and, where asked for at creation, locks) the pages of the span.
    populate = 1,
    /// `result` is XXH3-64 of the span.
    checksum = 2,
    /// `argument` is the address of a `MacRequest`, which stays there until the completion;
    /// `result` is 1 if the span has its MAC, else 0.
    mac = 3,
};

pub const Submission = extern struct {
    token: u64,
    region: u64,
    offset: u64,
    bytes: u64,
    argument: u64,
    /// An `Operation`.
    operation: u32,
    reserved: u32,
};

pub const Completion = extern struct {
    token: u64,
    result: u64,
    /// Zero or a `Status`.
    status: i32,
    /// The errno behind it, or 0.
    errno: i32,
};

/// How the bytes of a disk are moved. 0 lets the library choose.
pub const DiskMethod = enum(u32) { auto = 0, io_uring = 1, threads = 2 };

pub const DiskRequest = extern struct {
    /// Address of `depth` headers of 4096 bytes, aligned to 4096, that live as long as the disk.
    headers: u64,
    /// The region to register with the ring, or 0.
    arena: u64,
    /// Jobs in flight at most.
    depth: u32,
    /// Threads for file system calls and checksums; 0 lets the library choose.
    threads: u32,
    /// A `DiskMethod`.
    method: u32,
    reserved: u32,
};

pub const DiskRegistration = enum(u32) {
    none = 0,
    registered = 1,
    /// It is known later.
    under_way = 2,
};

pub const DiskInfo = extern struct {
    handle: u64,
    event_fd: i32,
    /// The `DiskMethod` in use: never `auto`.
    method: u32,
    /// Why it is not io_uring although it was to be tried: an errno, or 0.
    method_errno: i32,
    /// 1 where files are opened with O_DIRECT. Known when the folder is open.
    direct: u32,
    /// A `DiskRegistration`: whether the arena is registered with the ring.
    registered: u32,
    /// Why it is not: an errno, or 0.
    registered_errno: i32,
};

pub const DiskOperation = enum(u32) {
    /// Opens the disk's folder, named by `buffer`; the first job of a disk.
    open = 0,
    /// Writes header and span to a new file; `result` is its allocated bytes.
    store = 1,
    /// Reads header and span; `result` is XXH3-64 of the span, `extra` the size of the file.
    load = 2,
    /// Reads the header; `extra` is the size of the file.
    peek = 3,
    remove = 4,
    /// Moves `path` to `target`, never over an existing file.
    rename = 5,
    /// Fills `buffer` with entries of the folder from the position `offset` on; `result` is the
    /// bytes filled, `extra` the position of what follows. Nothing filled: the end. An entry is
    /// its bytes, its allocated bytes (u64 each), the length of its name (u8) and its name.
    list = 6,
    /// syncfs.
    sync = 7,
    /// `result` is the free bytes of the file system, `extra` all of them.
    space = 8,
};

/// Work for a disk. The span, the header and the buffer are the library's until the completion.
pub const DiskJob = extern struct {
    token: u64,
    region: u64,
    offset: u64,
    bytes: u64,
    /// Address of memory for the job's words or answer.
    buffer: u64,
    buffer_bytes: u64,
    /// A `DiskOperation`.
    operation: u32,
    /// Index of the header.
    header: u32,
    /// Relative to the disk's folder, ends at the first zero byte.
    path: [64]u8,
    target: [64]u8,
};

pub const DiskDone = extern struct {
    token: u64,
    result: u64,
    extra: u64,
    /// Zero or a `Status`.
    status: i32,
    /// The errno behind it, or 0.
    errno: i32,
};

pub const PeerInfo = extern struct {
    pid: u32,
    uid: u32,
    gid: u32,
    /// A descriptor of the process itself, to be closed by the caller; -1 where the kernel has
    /// none.
    pid_fd: i32,
};

pub const DigestRequest = extern struct {
    key: [32]u8,
    /// Address of `token_count` little-endian u32.
    tokens: u64,
    /// Address of 32 bytes for each full block.
    out: u64,
    token_count: u32,
    block_tokens: u32,
};

/// How the bytes of a lane are sealed. With `none` only its hello and its welcome are.
pub const LaneCipher = enum(u32) { aegis_128l = 0, aes_128_gcm = 1, none = 2 };

/// Why a session or a transfer came to nothing.
pub const LaneFault = enum(u32) {
    none = 0,
    /// The connection failed, or ended in the middle.
    broken = 1,
    /// A record was changed, repeated, left out, or is of another place.
    forged = 2,
    /// More bytes came than were announced.
    too_long = 3,
    cancelled = 4,
    /// It was not there in time.
    expired = 5,
    /// One of the two sides ended the session.
    closed = 6,
    /// The other side knows no such session, or not its secret.
    refused = 7,
    @"unreachable" = 8,
    full = 9,
};

pub const LaneEvent = enum(u32) {
    /// All lanes of a session are up.
    opened = 0,
    /// The last event of a session.
    ended = 1,
    sent = 2,
    received = 3,
};

pub const LanesRequest = extern struct {
    /// The region that spans lie in; it cannot close before the lanes.
    region: u64,
    /// Bytes sealed with one key at most; 0 for what suits the cipher.
    rekey_bytes: u64,
    threads: u32,
    /// SO_SNDBUF and SO_RCVBUF; 0 leaves them to the kernel.
    socket_bytes: u32,
};

pub const LanesInfo = extern struct {
    handle: u64,
    event_fd: i32,
    reserved: u32,
};

pub const LaneAddress = extern struct {
    /// An IPv4 or IPv6 address as text, ends at the first zero byte.
    host: [64]u8,
    port: u32,
    reserved: u32,
};

pub const LaneSession = extern struct {
    token: u64,
    /// Names the session, in the clear.
    id: [16]u8,
    secret: [32]u8,
    /// A `LaneCipher`.
    cipher: u32,
    lanes: u32,
    /// When it is to be open, in milliseconds from now.
    timeout_ms: u32,
    reserved: u32,
};

pub const LaneTransfer = extern struct {
    token: u64,
    offset: u64,
    bytes: u64,
    /// The number by which both sides know it.
    number: u32,
    reserved: u32,
};

pub const LaneDone = extern struct {
    /// The session's or the transfer's.
    token: u64,
    /// XXH3-64 of a span that was received.
    checksum: u64,
    /// A `LaneEvent`.
    event: u32,
    /// A `LaneFault`.
    fault: u32,
};

/// Where a plain program takes connections.
pub const PlainListener = extern struct {
    fd: i32,
    port: u32,
};

/// Blocks that a plain program pulls.
pub const PlainPull = extern struct {
    region: u64,
    blocks: u64,
    block_bytes: u64,
    port: u32,
    connections: u32,
    /// Asked for and not there yet, over all connections.
    in_flight: u32,
    reserved: u32,
};

/// Where records belong, for sealing and opening them without a socket.
pub const RecordPlace = extern struct {
    id: [16]u8,
    secret: [32]u8,
    rekey_bytes: u64,
    lane: u32,
    /// 0 from who dialled, 1 to who dialled.
    direction: u32,
    /// A `LaneCipher`.
    cipher: u32,
    reserved: u32,
};

/// Enums by the names they have in the bindings.
pub const enums = .{
    .{ .name = "OPERATION", .type = Operation },
    .{ .name = "DISK_METHOD", .type = DiskMethod },
    .{ .name = "DISK_REGISTRATION", .type = DiskRegistration },
    .{ .name = "DISK_OPERATION", .type = DiskOperation },
    .{ .name = "LANE_CIPHER", .type = LaneCipher },
    .{ .name = "LANE_FAULT", .type = LaneFault },
    .{ .name = "LANE_EVENT", .type = LaneEvent },
} ++ gpu.enums ++ rdma.enums;

/// Structs in the order of their numbers for the round-trip test.
pub const all = .{
    AbiInfo,       RegionRequest, MapRequest,  RegionInfo,   CopyRequest,  SpanRequest,
    QueueRequest,  QueueInfo,     Submission,  Completion,   PeerInfo,     DigestRequest,
    DiskRequest,   DiskInfo,      DiskJob,     DiskDone,     AdoptRequest, LanesRequest,
    LanesInfo,     LaneAddress,   LaneSession, LaneTransfer, LaneDone,     RecordPlace,
    PlainListener, PlainPull,
} ++ router.all ++ gpu.all ++ rdma.all ++ mac.all;

fn assertNoPadding(comptime T: type) void {
    var end: usize = 0;
    for (@typeInfo(T).@"struct".fields) |field| {
        std.debug.assert(@offsetOf(T, field.name) == end);
        end += @sizeOf(field.type);
    }
    std.debug.assert(end == @sizeOf(T));
    std.debug.assert(@sizeOf(T) % 8 == 0);
}

comptime {
    for (all) |T| assertNoPadding(T);
}
