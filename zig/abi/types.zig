//! Types of the boundary. All have explicit widths and no implicit padding, which `assertNoPadding`
//! checks.

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
    /// 1 if the code was compiled for AES instructions.
    has_aes: u32,
};

/// How to allocate the memory of an arena. Each option: 0 off, 1 try, 2 require.
pub const RegionRequest = extern struct {
    bytes: u64,
    huge_pages: u32,
    lock_memory: u32,
};

/// The arena of an earlier process, with its content.
pub const AdoptRequest = extern struct {
    bytes: u64,
    fd: i32,
    /// An option as in `RegionRequest`.
    lock_memory: u32,
};

/// A mapping of another process's arena.
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
    /// 4096, or the huge page size if the arena has huge pages.
    page_bytes: u32,
    /// Bytes whose pages were populated through the queue, in total.
    populated_bytes: u64,
    /// Bytes of these pages that are locked in memory.
    locked_bytes: u64,
    /// Bit 0: the kernel refused to lock at least once. Bit 1: transparent huge pages were advised.
    flags: u32,
    /// Number of transparent huge pages of 2 MiB.
    huge_pages: u32,
};

/// A copy between a region and private memory of the caller.
pub const CopyRequest = extern struct {
    region: u64,
    offset: u64,
    bytes: u64,
    /// Address of the caller's memory.
    buffer: u64,
    /// 1: `out` receives XXH3-64 of the bytes.
    checksum: u32,
    reserved: u32,
};

/// A span of a region and the seed of its pattern.
pub const SpanRequest = extern struct {
    region: u64,
    offset: u64,
    bytes: u64,
    seed: u64,
};

pub const QueueRequest = extern struct {
    /// Largest number of operations submitted and not reaped; a power of two up to 65,536.
    entries: u32,
    threads: u32,
    /// Largest number of processes watched at the same time.
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
    /// Populates the pages of the span, and locks them if the region was created with locking.
    populate = 1,
    /// `result` is XXH3-64 of the span.
    checksum = 2,
    /// `argument` is the address of a `MacRequest`, valid until the completion; `result` is 1 if
    /// the span matches its MAC, else 0.
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
    /// The errno behind the status, or 0.
    errno: i32,
};

/// How a disk moves bytes. 0 lets the library choose.
pub const DiskMethod = enum(u32) { auto = 0, io_uring = 1, threads = 2 };

pub const DiskRequest = extern struct {
    /// Address of `depth` headers of 4096 bytes, aligned to 4096, valid as long as the disk.
    headers: u64,
    /// The region to register with the ring, or 0.
    arena: u64,
    /// Largest number of jobs in flight.
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
    /// The registration has not ended yet.
    under_way = 2,
};

pub const DiskInfo = extern struct {
    handle: u64,
    event_fd: i32,
    /// The `DiskMethod` in use: never `auto`.
    method: u32,
    /// The errno with which io_uring failed, or 0.
    method_errno: i32,
    /// 1 if files are opened with O_DIRECT. Known after the folder is open.
    direct: u32,
    /// A `DiskRegistration`: whether the arena is registered with the ring.
    registered: u32,
    /// The errno with which the registration failed, or 0.
    registered_errno: i32,
};

pub const DiskOperation = enum(u32) {
    /// Opens the disk's folder, whose path is in `buffer`; the first job of a disk.
    open = 0,
    /// Writes header and span to a new file; `result` is the bytes allocated for it.
    store = 1,
    /// Reads header and span; `result` is XXH3-64 of the span, `extra` the size of the file.
    load = 2,
    /// Reads the header; `extra` is the size of the file.
    peek = 3,
    remove = 4,
    /// Moves `path` to `target` without replacing an existing file.
    rename = 5,
    /// Fills `buffer` with entries of the folder from the position `offset`; `result` is the bytes
    /// filled (0 at the end), `extra` the next position. An entry is the file's bytes, its
    /// allocated bytes (u64 each), the length of its name (u8) and its name.
    list = 6,
    /// Runs syncfs on the file system.
    sync = 7,
    /// `result` is the free bytes of the file system, `extra` its size.
    space = 8,
};

/// A job for a disk. The library owns the span, the header and the buffer until the completion.
pub const DiskJob = extern struct {
    token: u64,
    region: u64,
    offset: u64,
    bytes: u64,
    /// Address of memory for text that the job needs or returns.
    buffer: u64,
    buffer_bytes: u64,
    /// A `DiskOperation`.
    operation: u32,
    /// Index of the header.
    header: u32,
    /// Relative to the disk's folder, terminated by a zero byte.
    path: [64]u8,
    target: [64]u8,
};

pub const DiskDone = extern struct {
    token: u64,
    result: u64,
    extra: u64,
    /// Zero or a `Status`.
    status: i32,
    /// The errno behind the status, or 0.
    errno: i32,
};

pub const PeerInfo = extern struct {
    pid: u32,
    uid: u32,
    gid: u32,
    /// A pidfd of the process, which the caller closes; -1 if the kernel does not offer one.
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

/// How a lane seals its bytes. `none` seals its hello and welcome only.
pub const LaneCipher = enum(u32) { aegis_128l = 0, aes_128_gcm = 1, none = 2 };

/// Why a session or a transfer failed.
pub const LaneFault = enum(u32) {
    none = 0,
    /// The connection failed or ended early.
    broken = 1,
    /// A record was changed, repeated, left out, or belongs to another place.
    forged = 2,
    /// More bytes arrived than were announced.
    too_long = 3,
    cancelled = 4,
    /// It was not complete before its deadline.
    expired = 5,
    /// One of the two sides ended the session.
    closed = 6,
    /// The other side does not know the session or its secret.
    refused = 7,
    @"unreachable" = 8,
    full = 9,
};

pub const LaneEvent = enum(u32) {
    /// All lanes of a session are connected.
    opened = 0,
    /// The last event of a session.
    ended = 1,
    sent = 2,
    received = 3,
};

pub const LanesRequest = extern struct {
    /// The region of all spans; it cannot close before the lanes.
    region: u64,
    /// Largest number of bytes sealed with one key; 0 for the default of the cipher.
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
    /// An IPv4 or IPv6 address as text, terminated by a zero byte.
    host: [64]u8,
    port: u32,
    reserved: u32,
};

pub const LaneSession = extern struct {
    token: u64,
    /// Identifies the session; sent unencrypted.
    id: [16]u8,
    secret: [32]u8,
    /// A `LaneCipher`.
    cipher: u32,
    lanes: u32,
    /// Deadline for opening, in milliseconds from now.
    timeout_ms: u32,
    reserved: u32,
};

pub const LaneTransfer = extern struct {
    token: u64,
    offset: u64,
    bytes: u64,
    /// The number of the transfer on both sides.
    number: u32,
    reserved: u32,
};

pub const LaneDone = extern struct {
    /// The token of the session or the transfer.
    token: u64,
    /// XXH3-64 of a received span.
    checksum: u64,
    /// A `LaneEvent`.
    event: u32,
    /// A `LaneFault`.
    fault: u32,
};

/// The listening socket of a benchmark server.
pub const PlainListener = extern struct {
    fd: i32,
    port: u32,
};

/// Blocks that a benchmark client pulls.
pub const PlainPull = extern struct {
    region: u64,
    blocks: u64,
    block_bytes: u64,
    port: u32,
    connections: u32,
    /// Largest number of blocks requested and not received, over all connections.
    in_flight: u32,
    reserved: u32,
};

/// The place of records in a session, for sealing and opening them without a socket.
pub const RecordPlace = extern struct {
    id: [16]u8,
    secret: [32]u8,
    rekey_bytes: u64,
    lane: u32,
    /// 0 from the side that dialled, 1 to it.
    direction: u32,
    /// A `LaneCipher`.
    cipher: u32,
    reserved: u32,
};

/// Enums by their names in the bindings.
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
