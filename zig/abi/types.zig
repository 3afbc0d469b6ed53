//! Types of the library's C interface. All have explicit widths and no implicit padding, which
//! `assertNoPadding` checks.

const std = @import("std");
const gpu = @import("gpu_types.zig");
const mac = @import("mac_types.zig");
const rdma = @import("rdma_types.zig");
const router = @import("router_types.zig");

pub const AbiInfo = extern struct {
    /// First 16 bytes of SHA-256 of the manifest text (see manifest.zig).
    abi_hash: [16]u8,
    /// Build mode of the library: 0 Debug, 1 ReleaseSafe, 2 ReleaseFast, 3 ReleaseSmall.
    optimize_mode: u32,
    /// 1 if the code was compiled for AES instructions.
    has_aes: u32,
};

/// Size of an arena and how to allocate its memory. Each option: 0 off, 1 try, 2 require.
pub const RegionRequest = extern struct {
    bytes: u64,
    huge_pages: u32,
    lock_memory: u32,
};

/// A request to take over the arena of an earlier process, with its content.
pub const AdoptRequest = extern struct {
    bytes: u64,
    fd: i32,
    /// Whether to lock the memory, as in `RegionRequest`: 0 off, 1 try, 2 require.
    lock_memory: u32,
};

/// A request to map another process's arena.
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
    /// Page size of the region in bytes: 4096, or the huge page size if it has huge pages.
    page_bytes: u32,
    /// Total bytes whose pages were allocated by `populate` operations.
    populated_bytes: u64,
    /// Bytes of the populated pages that are locked in memory.
    locked_bytes: u64,
    /// Bit 0: the kernel refused to lock memory at least once. Bit 1: transparent huge pages were
    /// requested.
    flags: u32,
    /// Number of transparent huge pages of 2 MiB in use.
    huge_pages: u32,
};

/// A copy between a region and other memory of the calling process.
pub const CopyRequest = extern struct {
    region: u64,
    offset: u64,
    bytes: u64,
    /// Address of the caller's memory to copy from or to.
    buffer: u64,
    /// 1: the call writes XXH3-64 of the copied bytes to `out`. 0: no checksum.
    checksum: u32,
    reserved: u32,
};

/// A span of a region and the seed of its test pattern.
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
    /// Does nothing and completes at once; `result` is `argument`.
    nop = 0,
    /// Allocates the pages of the span, and locks them if the region was created with locking.
    populate = 1,
    /// Computes XXH3-64 of the span, which is the `result`.
    checksum = 2,
    /// Checks the MAC of a span. `argument` is the address of a `MacRequest`, valid until the
    /// completion; `result` is 1 if the span matches, else 0.
    mac = 3,
};

pub const Submission = extern struct {
    token: u64,
    region: u64,
    offset: u64,
    bytes: u64,
    argument: u64,
    /// An `Operation` as a number.
    operation: u32,
    reserved: u32,
};

pub const Completion = extern struct {
    token: u64,
    result: u64,
    /// 0 or a `Status`.
    status: i32,
    /// The errno that caused the status; 0 if there is none.
    errno: i32,
};

/// The system calls with which a disk moves bytes. `auto` lets the library choose.
pub const DiskMethod = enum(u32) { auto = 0, io_uring = 1, threads = 2 };

pub const DiskRequest = extern struct {
    /// Address of `depth` headers of 4096 bytes, aligned to 4096. The memory must stay valid while
    /// the disk is open.
    headers: u64,
    /// Handle of the region to register with io_uring; 0 for none.
    arena: u64,
    /// Largest number of jobs in progress.
    depth: u32,
    /// Number of threads for file system calls and checksums; 0 lets the library choose.
    threads: u32,
    /// A `DiskMethod` as a number.
    method: u32,
    reserved: u32,
};

pub const DiskRegistration = enum(u32) {
    none = 0,
    registered = 1,
    /// The arena is being registered.
    under_way = 2,
};

pub const DiskInfo = extern struct {
    handle: u64,
    event_fd: i32,
    /// The `DiskMethod` in use; never `auto`.
    method: u32,
    /// The errno with which io_uring failed; 0 if it did not fail.
    method_errno: i32,
    /// 1 if files are opened with O_DIRECT. Valid after the job `open` has completed.
    direct: u32,
    /// A `DiskRegistration` as a number: whether the arena is registered with io_uring.
    registered: u32,
    /// The errno with which registering the arena failed; 0 if it did not fail.
    registered_errno: i32,
};

pub const DiskOperation = enum(u32) {
    /// Opens the disk's folder, whose path is in `buffer`. Must be the first job of a disk.
    open = 0,
    /// Writes header and span to a new file; `result` is the number of bytes allocated for it.
    store = 1,
    /// Reads header and span; `result` is XXH3-64 of the span, `extra` the file's size in bytes.
    load = 2,
    /// Reads only the header; `extra` is the file's size in bytes.
    peek = 3,
    remove = 4,
    /// Renames `path` to `target` without replacing an existing file.
    rename = 5,
    /// Fills `buffer` with entries of the folder, starting at the position `offset`; `result` is
    /// the number of bytes filled (0 at the end), `extra` the next position. An entry consists of
    /// the file's size, its allocated bytes (u64 each), the length of its name (u8) and its name.
    list = 6,
    /// Writes all data of the file system to stable storage (syncfs).
    sync = 7,
    /// Measures the file system: `result` is its free bytes, `extra` its total bytes.
    space = 8,
};

/// A job for a disk. The library owns the span, the header and the buffer until the job's
/// completion.
pub const DiskJob = extern struct {
    token: u64,
    region: u64,
    offset: u64,
    bytes: u64,
    /// Address of the memory for paths and folder entries that the operation reads or writes.
    buffer: u64,
    buffer_bytes: u64,
    /// A `DiskOperation` as a number.
    operation: u32,
    /// Index of the header in `headers` that the job reads or writes.
    header: u32,
    /// Path relative to the disk's folder, terminated by a zero byte.
    path: [64]u8,
    target: [64]u8,
};

pub const DiskDone = extern struct {
    token: u64,
    result: u64,
    extra: u64,
    /// 0 or a `Status`.
    status: i32,
    /// The errno that caused the status; 0 if there is none.
    errno: i32,
};

pub const PeerInfo = extern struct {
    pid: u32,
    uid: u32,
    gid: u32,
    /// A pidfd of the process, which the caller must close; -1 if the kernel does not support it.
    pid_fd: i32,
};

pub const DigestRequest = extern struct {
    key: [32]u8,
    /// Address of `token_count` tokens, little-endian u32.
    tokens: u64,
    /// Address of the output: 32 bytes for each full block.
    out: u64,
    token_count: u32,
    block_tokens: u32,
};

/// The cipher of a lane's payload. `none` seals only the hello and welcome records.
pub const LaneCipher = enum(u32) { aegis_128l = 0, aes_128_gcm = 1, none = 2 };

/// The reason why a session or a transfer failed.
pub const LaneFault = enum(u32) {
    none = 0,
    /// The connection failed or ended early.
    broken = 1,
    /// A record was changed, repeated, left out, or belongs to another lane or session.
    forged = 2,
    /// More bytes arrived than the receiving side expected.
    too_long = 3,
    cancelled = 4,
    /// The lanes were not connected before the deadline.
    expired = 5,
    /// One of the two sides ended the session.
    closed = 6,
    /// The other side does not know the session, or has a different secret.
    refused = 7,
    @"unreachable" = 8,
    full = 9,
};

pub const LaneEvent = enum(u32) {
    /// All lanes of the session are connected.
    opened = 0,
    /// The session has ended. No further event of this session follows.
    ended = 1,
    sent = 2,
    received = 3,
};

pub const LanesRequest = extern struct {
    /// Handle of the region (arena) with all spans; it cannot close before the lanes.
    region: u64,
    /// Largest number of bytes sealed with one key; 0 for the cipher's default.
    rekey_bytes: u64,
    threads: u32,
    /// Send and receive buffer of each socket in bytes (SO_SNDBUF, SO_RCVBUF); 0 lets the kernel
    /// choose.
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
    /// Identifies the session to the other side; sent unencrypted.
    id: [16]u8,
    secret: [32]u8,
    /// A `LaneCipher` as a number.
    cipher: u32,
    lanes: u32,
    /// Milliseconds from now within which all lanes must be connected.
    timeout_ms: u32,
    reserved: u32,
};

pub const LaneTransfer = extern struct {
    token: u64,
    offset: u64,
    bytes: u64,
    /// Number by which both sides identify the transfer.
    number: u32,
    reserved: u32,
};

pub const LaneDone = extern struct {
    /// Token that the caller gave to the session or the transfer.
    token: u64,
    /// XXH3-64 of a received span.
    checksum: u64,
    /// A `LaneEvent` as a number.
    event: u32,
    /// A `LaneFault` as a number.
    fault: u32,
};

/// The listening socket of the plain-TCP benchmark server.
pub const PlainListener = extern struct {
    fd: i32,
    port: u32,
};

/// A request of the plain-TCP benchmark client to pull blocks.
pub const PlainPull = extern struct {
    region: u64,
    blocks: u64,
    block_bytes: u64,
    port: u32,
    connections: u32,
    /// Largest number of blocks requested and not yet received, over all connections.
    in_flight: u32,
    reserved: u32,
};

/// Session, lane, direction and cipher of records that are sealed and opened without a socket.
pub const RecordPlace = extern struct {
    id: [16]u8,
    secret: [32]u8,
    rekey_bytes: u64,
    lane: u32,
    /// 0: sent by the side that dialled. 1: sent to it.
    direction: u32,
    /// A `LaneCipher` as a number.
    cipher: u32,
    reserved: u32,
};

/// Enums, by their names in the TypeScript bindings.
pub const enums = .{
    .{ .name = "OPERATION", .type = Operation },
    .{ .name = "DISK_METHOD", .type = DiskMethod },
    .{ .name = "DISK_REGISTRATION", .type = DiskRegistration },
    .{ .name = "DISK_OPERATION", .type = DiskOperation },
    .{ .name = "LANE_CIPHER", .type = LaneCipher },
    .{ .name = "LANE_FAULT", .type = LaneFault },
    .{ .name = "LANE_EVENT", .type = LaneEvent },
} ++ gpu.enums ++ rdma.enums;

/// Structs, in the order of their numbers in `hearth_abi_echo`.
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
