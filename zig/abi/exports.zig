//! Every function the library exports. No logic here: cast, call, map the error.

const std = @import("std");
const builtin = @import("builtin");
const hash = @import("../hash/root.zig");
const memory = @import("../mem/root.zig");
const handles = @import("../base/handles.zig");
const unix = @import("../net/unix.zig");
const errno = @import("../base/errno.zig");
const types = @import("types.zig");
const status = @import("status.zig");
const manifest = @import("manifest.zig");
const echo = @import("echo.zig");
const Queue = @import("../io/queue.zig").Queue;
const Error = status.Error;
const code = status.code;
const codeOrCount = status.codeOrCount;

const queues_max = 16;
var queues: handles.HandleTable(Queue, queues_max, 2) = .{};

fn required(pointer: anytype) Error!@typeInfo(@TypeOf(pointer)).optional.child {
    return pointer orelse error.NullArgument;
}

fn bytesAt(address: ?[*]const u8, length: u64) Error![]const u8 {
    if (length == 0) return &.{};
    return (try required(address))[0..@intCast(length)];
}

fn writableAt(address: ?[*]u8, length: u64) Error![]u8 {
    if (length == 0) return &.{};
    return (try required(address))[0..@intCast(length)];
}

/// The functions by exported name; parameters are what the generator turns into bindings.
pub const exports = struct {
    pub fn hearth_abi(out: ?*types.AbiInfo) callconv(.c) i32 {
        return code(abi(out));
    }

    /// Round-trip test of the structs: `out` receives struct number `index` from `in`, every bit inverted.
    pub fn hearth_abi_echo(index: u32, in: ?[*]const u8, out: ?[*]u8) callconv(.c) i32 {
        return code(echo.run(index, in, out));
    }

    pub fn hearth_last_errno() callconv(.c) i32 {
        return errno.lastErrno();
    }

    pub fn hearth_region_create(
        request: ?*const types.RegionRequest,
        info: ?*types.RegionInfo,
    ) callconv(.c) i32 {
        return code(regionCreate(request, info));
    }

    pub fn hearth_region_map(
        request: ?*const types.MapRequest,
        info: ?*types.RegionInfo,
    ) callconv(.c) i32 {
        return code(regionMap(request, info));
    }

    pub fn hearth_region_info(handle: u64, info: ?*types.RegionInfo) callconv(.c) i32 {
        return code(regionInfo(handle, info));
    }

    pub fn hearth_region_close(handle: u64) callconv(.c) i32 {
        return code(memory.table.close(handle));
    }

    pub fn hearth_region_copy_in(request: ?*const types.CopyRequest, sum: ?*u64) callconv(.c) i32 {
        return code(copyIn(request, sum));
    }

    pub fn hearth_region_copy_out(request: ?*const types.CopyRequest, sum: ?*u64) callconv(.c) i32 {
        return code(copyOut(request, sum));
    }

    pub fn hearth_region_checksum(request: ?*const types.SpanRequest, sum: ?*u64) callconv(.c) i32 {
        return code(regionChecksum(request, sum));
    }

    /// Fills the span with the pattern of its seed.
    pub fn hearth_region_fill(request: ?*const types.SpanRequest) callconv(.c) i32 {
        return code(regionFill(request));
    }

    /// `wrong_at` receives the first offset that differs from the pattern, or 2^64-1.
    pub fn hearth_region_check(
        request: ?*const types.SpanRequest,
        wrong_at: ?*u64,
    ) callconv(.c) i32 {
        return code(regionCheck(request, wrong_at));
    }

    pub fn hearth_queue_create(
        request: ?*const types.QueueRequest,
        info: ?*types.QueueInfo,
    ) callconv(.c) i32 {
        return code(queueCreate(request, info));
    }

    pub fn hearth_queue_submit(
        handle: u64,
        submissions: ?[*]const types.Submission,
        count: u32,
    ) callconv(.c) i32 {
        return codeOrCount(queueSubmit(handle, submissions, count));
    }

    pub fn hearth_queue_reap(
        handle: u64,
        completions: ?[*]types.Completion,
        count: u32,
    ) callconv(.c) i32 {
        return codeOrCount(queueReap(handle, completions, count));
    }

    pub fn hearth_queue_watch(handle: u64, pid_fd: i32, token: u32) callconv(.c) i32 {
        return code(queueWatch(handle, pid_fd, token));
    }

    pub fn hearth_queue_unwatch(handle: u64, pid_fd: i32) callconv(.c) i32 {
        return code(queueUnwatch(handle, pid_fd));
    }

    pub fn hearth_queue_close(handle: u64) callconv(.c) i32 {
        return code(queueClose(handle));
    }

    pub fn hearth_prefix_digests(request: ?*const types.DigestRequest) callconv(.c) i32 {
        return codeOrCount(prefixDigests(request));
    }

    /// One digest per item of `item_bytes`: keyed BLAKE3 of the item alone.
    pub fn hearth_chain_digests(
        key: ?*const [32]u8,
        items: ?[*]const u8,
        item_bytes: u32,
        count: u32,
        out: ?[*][32]u8,
    ) callconv(.c) i32 {
        return code(chainDigests(key, items, item_bytes, count, out));
    }

    pub fn hearth_block_keys(
        digests: ?[*]const [32]u8,
        layer: u32,
        count: u32,
        out: ?[*][32]u8,
    ) callconv(.c) i32 {
        return code(blockKeys(digests, layer, count, out));
    }

    pub fn hearth_blake3(
        data: ?[*]const u8,
        length: u64,
        out: ?*[32]u8,
    ) callconv(.c) i32 {
        return code(blake3(data, length, out));
    }

    pub fn hearth_blake3_keyed(
        key: ?*const [32]u8,
        data: ?[*]const u8,
        length: u64,
        out: ?*[32]u8,
    ) callconv(.c) i32 {
        return code(blake3Keyed(key, data, length, out));
    }

    pub fn hearth_blake3_derive_key(
        context: ?[*]const u8,
        context_length: u64,
        material: ?[*]const u8,
        material_length: u64,
        out: ?*[32]u8,
    ) callconv(.c) i32 {
        return code(blake3DeriveKey(context, context_length, material, material_length, out));
    }

    pub fn hearth_xxh3_64(data: ?[*]const u8, length: u64, out: ?*u64) callconv(.c) i32 {
        return code(xxh3_64(data, length, out));
    }

    /// Canonical form: 16 bytes, big-endian.
    pub fn hearth_xxh3_128(data: ?[*]const u8, length: u64, out: ?*[16]u8) callconv(.c) i32 {
        return code(xxh3_128(data, length, out));
    }

    pub fn hearth_socket_peer(socket: i32, out: ?*types.PeerInfo) callconv(.c) i32 {
        return code(socketPeer(socket, out));
    }

    pub fn hearth_socket_send_fd(
        socket: i32,
        data: ?[*]const u8,
        length: u32,
        fd: i32,
    ) callconv(.c) i32 {
        return codeOrCount(socketSendFd(socket, data, length, fd));
    }

    pub fn hearth_socket_receive_fd(
        socket: i32,
        data: ?[*]u8,
        length: u32,
        fd: ?*i32,
    ) callconv(.c) i32 {
        return codeOrCount(socketReceiveFd(socket, data, length, fd));
    }

    pub fn hearth_close_fd(fd: i32) callconv(.c) i32 {
        return code(closeFd(fd));
    }

    pub fn hearth_notify(
        path: ?[*]const u8,
        path_length: u32,
        state: ?[*]const u8,
        state_length: u32,
    ) callconv(.c) i32 {
        return code(notify(path, path_length, state, state_length));
    }

    /// CLOCK_MONOTONIC in microseconds: what systemd compares, and no clock of Bun's shows.
    pub fn hearth_monotonic_us(out: ?*u64) callconv(.c) i32 {
        return code(monotonicUs(out));
    }

    pub fn hearth_probe_io_uring() callconv(.c) i32 {
        return code(unix.probeIoUring());
    }
};

fn abi(out: ?*types.AbiInfo) Error!void {
    (try required(out)).* = .{
        .abi_hash = manifest.abi_hash,
        .optimize_mode = @intFromEnum(builtin.mode),
        .has_aes = @intFromBool(std.crypto.core.aes.has_hardware_support),
    };
}

fn regionCreate(request: ?*const types.RegionRequest, info: ?*types.RegionInfo) Error!void {
    const out = try required(info);
    var region = try memory.Region.create((try required(request)).*);
    errdefer region.destroy();
    const handle = try memory.table.add(region);
    out.* = (try memory.table.get(handle)).info(handle);
}

fn regionMap(request: ?*const types.MapRequest, info: ?*types.RegionInfo) Error!void {
    const out = try required(info);
    var region = try memory.Region.mapForeign((try required(request)).*);
    errdefer region.destroy();
    const handle = try memory.table.add(region);
    out.* = (try memory.table.get(handle)).info(handle);
}

fn regionInfo(handle: u64, info: ?*types.RegionInfo) Error!void {
    (try required(info)).* = (try memory.table.get(handle)).info(handle);
}

fn copyIn(request: ?*const types.CopyRequest, sum: ?*u64) Error!void {
    const wanted = try required(request);
    const to = try (try memory.table.get(wanted.region)).writableSpan(wanted.offset, wanted.bytes);
    const from = try bytesAt(@ptrFromInt(wanted.buffer), wanted.bytes);
    if (wanted.checksum == 0) return hash.copy(to, from);
    (try required(sum)).* = hash.publishChecksum(to, from);
}

fn copyOut(request: ?*const types.CopyRequest, sum: ?*u64) Error!void {
    const wanted = try required(request);
    const from = try (try memory.table.get(wanted.region)).span(wanted.offset, wanted.bytes);
    const to = try writableAt(@ptrFromInt(wanted.buffer), wanted.bytes);
    if (wanted.checksum == 0) return hash.copy(to, from);
    (try required(sum)).* = hash.copyChecksum(to, from);
}

fn regionChecksum(request: ?*const types.SpanRequest, sum: ?*u64) Error!void {
    const wanted = try required(request);
    const out = try required(sum);
    const bytes = try (try memory.table.get(wanted.region)).span(wanted.offset, wanted.bytes);
    out.* = hash.checksum(bytes);
}

fn regionFill(request: ?*const types.SpanRequest) Error!void {
    const wanted = try required(request);
    const region = try memory.table.get(wanted.region);
    hash.patternFill(wanted.seed, try region.writableSpan(wanted.offset, wanted.bytes));
}

fn regionCheck(request: ?*const types.SpanRequest, wrong_at: ?*u64) Error!void {
    const wanted = try required(request);
    const out = try required(wrong_at);
    const bytes = try (try memory.table.get(wanted.region)).span(wanted.offset, wanted.bytes);
    out.* = if (hash.patternCheck(wanted.seed, bytes)) |at| at else std.math.maxInt(u64);
}

fn queueCreate(request: ?*const types.QueueRequest, info: ?*types.QueueInfo) Error!void {
    const out = try required(info);
    const queue = try Queue.create(std.heap.c_allocator, (try required(request)).*);
    errdefer queue.destroy();
    const handle = try queues.add(queue);
    out.* = .{ .handle = handle, .event_fd = queue.event_fd, .reserved = 0 };
}

fn queueSubmit(handle: u64, submissions: ?[*]const types.Submission, count: u32) Error!u32 {
    const queue = try queues.get(handle);
    return queue.submit((try required(submissions))[0..count]);
}

fn queueReap(handle: u64, completions: ?[*]types.Completion, count: u32) Error!u32 {
    const queue = try queues.get(handle);
    return queue.reap((try required(completions))[0..count]);
}

fn queueWatch(handle: u64, pid_fd: i32, token: u32) Error!void {
    if (pid_fd < 0) return error.BadRequest;
    return (try queues.get(handle)).watch(pid_fd, token);
}

fn queueUnwatch(handle: u64, pid_fd: i32) Error!void {
    return (try queues.get(handle)).unwatch(pid_fd);
}

fn queueClose(handle: u64) Error!void {
    (try queues.remove(handle)).destroy();
}

fn prefixDigests(request: ?*const types.DigestRequest) Error!u32 {
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

fn chainDigests(
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

fn blockKeys(digests: ?[*]const [32]u8, layer: u32, count: u32, out: ?[*][32]u8) Error!void {
    if (count == 0) return;
    hash.blockKeys((try required(digests))[0..count], layer, (try required(out))[0..count]);
}

fn blake3(data: ?[*]const u8, length: u64, out: ?*[32]u8) Error!void {
    hash.hash(try bytesAt(data, length), try required(out));
}

fn blake3Keyed(
    key: ?*const [32]u8,
    data: ?[*]const u8,
    length: u64,
    out: ?*[32]u8,
) Error!void {
    hash.keyed(try required(key), try bytesAt(data, length), try required(out));
}

fn blake3DeriveKey(
    context: ?[*]const u8,
    context_length: u64,
    material: ?[*]const u8,
    material_length: u64,
    out: ?*[32]u8,
) Error!void {
    const name = try bytesAt(context, context_length);
    hash.deriveKey(name, try bytesAt(material, material_length), try required(out));
}

fn xxh3_64(data: ?[*]const u8, length: u64, out: ?*u64) Error!void {
    (try required(out)).* = hash.checksum(try bytesAt(data, length));
}

fn xxh3_128(data: ?[*]const u8, length: u64, out: ?*[16]u8) Error!void {
    const sum: u128 = hash.xxh3Wide(try bytesAt(data, length));
    std.mem.writeInt(u128, try required(out), sum, .big);
}

fn socketPeer(socket: i32, out: ?*types.PeerInfo) Error!void {
    const info = try required(out);
    info.* = try unix.peerOf(socket);
}

fn socketSendFd(socket: i32, data: ?[*]const u8, length: u32, fd: i32) Error!u32 {
    if (length == 0 or fd < 0) return error.BadRequest;
    return unix.sendWithFd(socket, try bytesAt(data, length), fd);
}

fn socketReceiveFd(socket: i32, data: ?[*]u8, length: u32, fd: ?*i32) Error!u32 {
    if (length == 0) return error.BadRequest;
    return unix.receiveWithFd(socket, try writableAt(data, length), try required(fd));
}

fn closeFd(fd: i32) Error!void {
    if (fd <= 2) return error.BadRequest;
    _ = try errno.check(std.os.linux.close(fd));
}

fn monotonicUs(out: ?*u64) Error!void {
    const microseconds = try required(out);
    var now: std.os.linux.timespec = undefined;
    _ = try errno.check(std.os.linux.clock_gettime(.MONOTONIC, &now));
    microseconds.* = @as(u64, @intCast(now.sec)) * 1_000_000 + @as(u64, @intCast(now.nsec)) / 1_000;
}

fn notify(path: ?[*]const u8, path_length: u32, state: ?[*]const u8, state_length: u32) Error!void {
    return unix.notify(try bytesAt(path, path_length), try bytesAt(state, state_length));
}
