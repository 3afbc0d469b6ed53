//! The functions behind the exports. Each checks the pointers and ranges of its request, then calls
//! the library function that does the work.

const std = @import("std");
const builtin = @import("builtin");
const hash = @import("../hash/root.zig");
const memory = @import("../mem/root.zig");
const handles = @import("../base/handles.zig");
const silent = @import("../net/silent.zig");
const tune = @import("../net/tune.zig");
const plain = @import("../net/plain.zig");
const unix = @import("../net/unix.zig");
const errno = @import("../base/errno.zig");
const types = @import("types.zig");
const status = @import("status.zig");
const manifest = @import("manifest.zig");
const Queue = @import("../io/queue.zig").Queue;
const Disk = @import("../store/disk.zig").Disk;
const folder_lock = @import("../store/lock.zig");
const faulty = @import("../base/faults.zig");
const Error = status.Error;

const queues_max = 16;
const disks_max = 64;
var disks: handles.HandleTable(Disk, disks_max, 3) = .{};
var queues: handles.HandleTable(Queue, queues_max, 2) = .{};

pub fn required(pointer: anytype) Error!@typeInfo(@TypeOf(pointer)).optional.child {
    return pointer orelse error.NullArgument;
}

pub fn bytesAt(address: ?[*]const u8, length: u64) Error![]const u8 {
    if (length == 0) return &.{};
    return (try required(address))[0..@intCast(length)];
}

pub fn writableAt(address: ?[*]u8, length: u64) Error![]u8 {
    if (length == 0) return &.{};
    return (try required(address))[0..@intCast(length)];
}

pub fn abi(out: ?*types.AbiInfo) Error!void {
    (try required(out)).* = .{
        .abi_hash = manifest.abi_hash,
        .optimize_mode = @intFromEnum(builtin.mode),
        .has_aes = @intFromBool(std.crypto.core.aes.has_hardware_support),
    };
}

pub fn regionCreate(request: ?*const types.RegionRequest, info: ?*types.RegionInfo) Error!void {
    const out = try required(info);
    var region = try memory.Region.create((try required(request)).*);
    errdefer region.destroy();
    const handle = try memory.table.add(region);
    out.* = (try memory.table.get(handle)).info(handle);
}

pub fn regionAdopt(request: ?*const types.AdoptRequest, info: ?*types.RegionInfo) Error!void {
    const out = try required(info);
    var region = try memory.Region.adopt((try required(request)).*);
    errdefer region.destroyView();
    const handle = try memory.table.add(region);
    out.* = (try memory.table.get(handle)).info(handle);
}

pub fn regionMap(request: ?*const types.MapRequest, info: ?*types.RegionInfo) Error!void {
    const out = try required(info);
    var region = try memory.Region.mapForeign((try required(request)).*);
    errdefer region.destroy();
    const handle = try memory.table.add(region);
    out.* = (try memory.table.get(handle)).info(handle);
}

pub fn regionInfo(handle: u64, info: ?*types.RegionInfo) Error!void {
    (try required(info)).* = (try memory.table.get(handle)).info(handle);
}

pub fn regionBind(handle: u64, offset: u64, bytes: u64, node: u32) Error!void {
    try (try memory.table.get(handle)).prefer(offset, bytes, node);
}

pub fn copyIn(request: ?*const types.CopyRequest, sum: ?*u64) Error!void {
    const wanted = try required(request);
    const to = try (try memory.table.get(wanted.region)).writableSpan(wanted.offset, wanted.bytes);
    const from = try bytesAt(@ptrFromInt(wanted.buffer), wanted.bytes);
    if (wanted.checksum == 0) return hash.copy(to, from);
    (try required(sum)).* = hash.publishChecksum(to, from);
}

pub fn copyOut(request: ?*const types.CopyRequest, sum: ?*u64) Error!void {
    const wanted = try required(request);
    const from = try (try memory.table.get(wanted.region)).span(wanted.offset, wanted.bytes);
    const to = try writableAt(@ptrFromInt(wanted.buffer), wanted.bytes);
    if (wanted.checksum == 0) return hash.copy(to, from);
    (try required(sum)).* = hash.copyChecksum(to, from);
}

pub fn regionChecksum(request: ?*const types.SpanRequest, sum: ?*u64) Error!void {
    const wanted = try required(request);
    const out = try required(sum);
    const bytes = try (try memory.table.get(wanted.region)).span(wanted.offset, wanted.bytes);
    out.* = hash.checksum(bytes);
}

pub fn regionFill(request: ?*const types.SpanRequest) Error!void {
    const wanted = try required(request);
    const region = try memory.table.get(wanted.region);
    hash.patternFill(wanted.seed, try region.writableSpan(wanted.offset, wanted.bytes));
}

pub fn regionCheck(request: ?*const types.SpanRequest, wrong_at: ?*u64) Error!void {
    const wanted = try required(request);
    const out = try required(wrong_at);
    const bytes = try (try memory.table.get(wanted.region)).span(wanted.offset, wanted.bytes);
    out.* = if (hash.patternCheck(wanted.seed, bytes)) |at| at else std.math.maxInt(u64);
}

pub fn queueCreate(request: ?*const types.QueueRequest, info: ?*types.QueueInfo) Error!void {
    const out = try required(info);
    const queue = try Queue.create(std.heap.c_allocator, (try required(request)).*);
    errdefer queue.destroy();
    const handle = try queues.add(queue);
    out.* = .{ .handle = handle, .event_fd = queue.event_fd, .reserved = 0 };
}

pub fn queueSubmit(handle: u64, submissions: ?[*]const types.Submission, count: u32) Error!u32 {
    const queue = try queues.get(handle);
    return queue.submit((try required(submissions))[0..count]);
}

pub fn queueReap(handle: u64, completions: ?[*]types.Completion, count: u32) Error!u32 {
    const queue = try queues.get(handle);
    return queue.reap((try required(completions))[0..count]);
}

pub fn queueWatch(handle: u64, pid_fd: i32, token: u32) Error!void {
    if (pid_fd < 0) return error.BadRequest;
    return (try queues.get(handle)).watch(pid_fd, token);
}

pub fn queueUnwatch(handle: u64, pid_fd: i32) Error!void {
    return (try queues.get(handle)).unwatch(pid_fd);
}

pub fn queueClose(handle: u64) Error!void {
    (try queues.remove(handle)).destroy();
}

pub fn diskCreate(request: ?*const types.DiskRequest, info: ?*types.DiskInfo) Error!void {
    const out = try required(info);
    const disk = try Disk.create(std.heap.c_allocator, (try required(request)).*);
    errdefer disk.close() catch |err| std.debug.assert(err == error.Busy);
    const handle = try disks.add(disk);
    out.* = disk.info(handle);
}

pub fn diskInfo(handle: u64, info: ?*types.DiskInfo) Error!void {
    (try required(info)).* = (try disks.get(handle)).info(handle);
}

pub fn diskSubmit(handle: u64, job: ?*const types.DiskJob) Error!void {
    return (try disks.get(handle)).submit((try required(job)).*);
}

pub fn diskReap(handle: u64, done: ?[*]types.DiskDone, count: u32) Error!u32 {
    const disk = try disks.get(handle);
    return disk.reap((try required(done))[0..count]);
}

pub fn diskClose(handle: u64) Error!void {
    return (try disks.remove(handle)).close();
}

pub fn plainListen(out: ?*types.PlainListener) Error!void {
    const place = try required(out);
    place.* = try plain.listen();
}

pub fn plainServe(region: u64, listener: i32, connections: u32) Error!void {
    return plain.serve(region, listener, connections);
}

pub fn plainPull(request: ?*const types.PlainPull) Error!void {
    return plain.pull((try required(request)).*);
}

pub fn fileLock(path: ?[*]const u8, path_length: u32) Error!u32 {
    const text = try bytesAt(path, path_length);
    var buffer: [4096]u8 = undefined;
    if (text.len == 0 or text.len >= buffer.len) return error.BadRequest;
    @memcpy(buffer[0..text.len], text);
    buffer[text.len] = 0;
    return @intCast(try folder_lock.take(buffer[0..text.len :0]));
}

pub fn faults(plan: ?[*]const u8, length: u32) Error!void {
    return faulty.set(try bytesAt(plan, length));
}

pub fn faultPoint(name: ?[*]const u8, length: u32) Error!u32 {
    return faulty.hitForeign((try required(name))[0..length]);
}

pub fn faultCounts(out: ?[*]u8, length: u32) Error!u32 {
    return faulty.report((try required(out))[0..length]);
}

pub fn prefixDigests(request: ?*const types.DigestRequest) Error!u32 {
    const wanted = try required(request);
    if (wanted.block_tokens == 0 or wanted.block_tokens > 65_536) return error.BadRequest;
    const tokens = try bytesAt(@ptrFromInt(wanted.tokens), @as(u64, wanted.token_count) * 4);
    const count = wanted.token_count / wanted.block_tokens;
    if (count == 0) return 0;
    const out: ?[*][32]u8 = @ptrFromInt(wanted.out);
    const block_bytes = wanted.block_tokens * 4;
    const whole = tokens[0 .. @as(usize, count) * block_bytes];
    hash.prefixDigests(&wanted.key, whole, block_bytes, (try required(out))[0..count]);
    return count;
}

pub fn chainDigests(
    key: ?*const [32]u8,
    items: ?[*]const u8,
    item_bytes: u32,
    count: u32,
    out: ?[*][32]u8,
) Error!void {
    if (item_bytes == 0 or item_bytes > 64) return error.BadRequest;
    if (count == 0) return;
    const all = try bytesAt(items, @as(u64, item_bytes) * count);
    hash.chainDigests(try required(key), all, item_bytes, (try required(out))[0..count]);
}

pub fn blockKeys(digests: ?[*]const [32]u8, layer: u32, count: u32, out: ?[*][32]u8) Error!void {
    if (count == 0) return;
    hash.blockKeys((try required(digests))[0..count], layer, (try required(out))[0..count]);
}

pub fn blake3(data: ?[*]const u8, length: u64, out: ?*[32]u8) Error!void {
    hash.hash(try bytesAt(data, length), try required(out));
}

pub fn blake3Keyed(
    key: ?*const [32]u8,
    data: ?[*]const u8,
    length: u64,
    out: ?*[32]u8,
) Error!void {
    hash.keyed(try required(key), try bytesAt(data, length), try required(out));
}

pub fn blake3DeriveKey(
    context: ?[*]const u8,
    context_length: u64,
    material: ?[*]const u8,
    material_length: u64,
    out: ?*[32]u8,
) Error!void {
    const name = try bytesAt(context, context_length);
    hash.deriveKey(name, try bytesAt(material, material_length), try required(out));
}

pub fn xxh3_64(data: ?[*]const u8, length: u64, out: ?*u64) Error!void {
    (try required(out)).* = hash.checksum(try bytesAt(data, length));
}

pub fn xxh3_128(data: ?[*]const u8, length: u64, out: ?*[16]u8) Error!void {
    const sum: u128 = hash.xxh3Wide(try bytesAt(data, length));
    std.mem.writeInt(u128, try required(out), sum, .big);
}

pub fn socketPeer(socket: i32, out: ?*types.PeerInfo) Error!void {
    const info = try required(out);
    info.* = try unix.peerOf(socket);
}

pub fn socketPeerGroups(socket: i32, out: ?[*]u32, max: u32) Error!u32 {
    return unix.groupsOf(socket, (try required(out))[0..max]);
}

pub fn socketSendFd(socket: i32, data: ?[*]const u8, length: u32, fd: i32) Error!u32 {
    if (length == 0 or fd < 0) return error.BadRequest;
    return unix.sendWithFd(socket, try bytesAt(data, length), fd);
}

pub fn socketReceiveFd(socket: i32, data: ?[*]u8, length: u32, fd: ?*i32) Error!u32 {
    if (length == 0) return error.BadRequest;
    return unix.receiveWithFd(socket, try writableAt(data, length), try required(fd));
}

pub fn socketPair(out: ?*[2]i32) Error!void {
    (try required(out)).* = try unix.socketPair();
}

pub fn tuneListener(port: u32, backlog: u32, receive_bytes: u32) Error!u32 {
    if (port == 0 or port > std.math.maxInt(u16)) return error.BadRequest;
    if (backlog == 0 or backlog > std.math.maxInt(u31)) return error.BadRequest;
    if (receive_bytes == 0 or receive_bytes > std.math.maxInt(i32)) return error.BadRequest;
    return tune.tuneListener(@intCast(port), @intCast(backlog), receive_bytes);
}

pub fn tuneUdp(port: u32, buffer_bytes: u32) Error!u32 {
    if (port == 0 or port > std.math.maxInt(u16)) return error.BadRequest;
    if (buffer_bytes > std.math.maxInt(i32)) return error.BadRequest;
    return tune.tuneUdp(@intCast(port), buffer_bytes);
}

/// Largest number of file descriptors examined in one call; that many take a few milliseconds of
/// the event loop.
const descriptors_max = 16 * 1024;

pub fn endSilent(port: u32, first: u32, count: u32, silent_ms: u32) Error!u32 {
    if (port == 0 or port > std.math.maxInt(u16)) return error.BadRequest;
    if (count > descriptors_max or first > std.math.maxInt(i32) - count) return error.BadRequest;
    return silent.endSilent(@intCast(port), first, count, silent_ms);
}

pub fn closeFd(fd: i32) Error!void {
    if (fd <= 2) return error.BadRequest;
    _ = try errno.check(std.os.linux.close(fd));
}

pub fn monotonicUs(out: ?*u64) Error!void {
    const microseconds = try required(out);
    var now: std.os.linux.timespec = undefined;
    _ = try errno.check(std.os.linux.clock_gettime(.MONOTONIC, &now));
    microseconds.* = @as(u64, @intCast(now.sec)) * 1_000_000 + @as(u64, @intCast(now.nsec)) / 1_000;
}

/// Writes the processor time that the calling thread has used, in microseconds.
pub fn threadCpuUs(out: ?*u64) Error!void {
    const microseconds = try required(out);
    var used: std.os.linux.timespec = undefined;
    _ = try errno.check(std.os.linux.clock_gettime(.THREAD_CPUTIME_ID, &used));
    microseconds.* = @as(u64, @intCast(used.sec)) * 1_000_000 + @as(u64, @intCast(used.nsec)) / 1_000;
}

pub fn notify(
    path: ?[*]const u8,
    path_length: u32,
    state: ?[*]const u8,
    state_length: u32,
    fds: ?[*]const i32,
    fd_count: u32,
) Error!void {
    const files = if (fd_count == 0) &.{} else (try required(fds))[0..fd_count];
    return unix.notify(try bytesAt(path, path_length), try bytesAt(state, state_length), files);
}
