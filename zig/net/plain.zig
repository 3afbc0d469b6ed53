//! A baseline for benchmarks of lanes: blocks over blocking TCP sockets, one thread for each
//! connection, without encryption, checks or counters.

const std = @import("std");
const linux = std.os.linux;
const errno = @import("../base/errno.zig");
const types = @import("../abi/types.zig");
const regions = @import("../mem/root.zig").table;
const Region = @import("../mem/root.zig").Region;
const Error = @import("../abi/status.zig").Error;

const connections_max = 64;
const thread_config: std.Thread.SpawnConfig = .{ .stack_size = 256 * 1024 };

/// The request for one block, as sent over the socket.
const Wish = extern struct { offset: u64, bytes: u64 };

/// The thread of one connection, and its result.
const Worker = struct {
    fd: i32,
    region: *Region,
    request: types.PlainPull,
    index: u32,
    thread: std.Thread = undefined,
    result: Error!void = {},

    fn close(worker: *Worker) void {
        worker.thread.join();
        _ = linux.close(worker.fd);
    }
};

/// Opens a listening socket on a free port of the loopback interface. Connections wait in the
/// backlog until `serve` runs.
pub fn listen() Error!types.PlainListener {
    const fd = try create();
    errdefer _ = linux.close(fd);
    var address = local(0);
    var length: linux.socklen_t = @sizeOf(linux.sockaddr.in);
    _ = try errno.check(linux.bind(fd, @ptrCast(&address), length));
    _ = try errno.check(linux.listen(fd, connections_max));
    _ = try errno.check(linux.getsockname(fd, @ptrCast(&address), &length));
    return .{ .fd = fd, .port = std.mem.bigToNative(u16, address.port) };
}

/// Accepts `connections` connections and serves each one until the client closes it. Blocks until
/// all have ended.
pub fn serve(handle: u64, listener: i32, connections: u32) Error!void {
    if (connections == 0 or connections > connections_max) return error.BadRequest;
    const region = try regions.acquire(handle);
    defer regions.release(region);
    var workers: [connections_max]Worker = undefined;
    var count: u32 = 0;
    errdefer for (workers[0..count]) |*worker| worker.close();
    while (count < connections) : (count += 1) {
        const accepted = try errno.checkRepeat(linux.accept4, .{
            listener, null, null, linux.SOCK.CLOEXEC,
        });
        try start(serveOne, &workers[count], region, @intCast(accepted), undefined, count);
    }
    try join(workers[0..count]);
}

/// Pulls blocks into the region, one after another, and continues at the start of the region when
/// it is full. Blocks until all blocks have arrived.
pub fn pull(request: types.PlainPull) Error!void {
    const connections = request.connections;
    if (connections == 0 or connections > connections_max) return error.BadRequest;
    if (request.in_flight < connections or request.block_bytes == 0) return error.BadRequest;
    const region = try regions.acquire(request.region);
    defer regions.release(region);
    if (region.bytes < request.block_bytes) return error.BadRequest;
    var workers: [connections_max]Worker = undefined;
    var count: u32 = 0;
    errdefer for (workers[0..count]) |*worker| worker.close();
    while (count < connections) : (count += 1) {
        const fd = try connect(request.port);
        try start(pullOne, &workers[count], region, fd, request, count);
    }
    try join(workers[0..count]);
}

fn start(
    comptime run: fn (*Worker) Error!void,
    worker: *Worker,
    region: *Region,
    fd: i32,
    request: types.PlainPull,
    index: u32,
) Error!void {
    errdefer _ = linux.close(fd);
    worker.* = .{ .fd = fd, .region = region, .request = request, .index = index };
    const keep = struct {
        fn keep(own: *Worker) void {
            own.result = run(own);
            _ = linux.shutdown(own.fd, linux.SHUT.RDWR);
        }
    }.keep;
    worker.thread = std.Thread.spawn(thread_config, keep, .{worker}) catch
        return error.OutOfMemory;
}

fn join(workers: []Worker) Error!void {
    for (workers) |*worker| worker.close();
    for (workers) |worker| try worker.result;
}

fn serveOne(worker: *Worker) Error!void {
    var wish: Wish = undefined;
    while (try receive(worker.fd, std.mem.asBytes(&wish))) {
        try send(worker.fd, try worker.region.span(wish.offset, wish.bytes));
    }
}

/// Pulls the blocks `index`, `index + connections`, and so on, with a bounded number of unanswered
/// requests.
fn pullOne(worker: *Worker) Error!void {
    const request = worker.request;
    const ahead: u64 = request.in_flight / request.connections;
    const count = share(request.blocks, request.connections, worker.index);
    for (0..@min(ahead, count)) |number| try wishFor(worker, number);
    for (0..count) |number| {
        const offset = place(worker, number);
        const span = try worker.region.writableSpan(offset, request.block_bytes);
        if (!try receive(worker.fd, span)) return error.Closed;
        if (number + ahead < count) try wishFor(worker, number + ahead);
    }
}

/// Returns how many of the `blocks` connection `index` pulls.
fn share(blocks: u64, connections: u32, index: u32) u64 {
    return (blocks + connections - 1 - index) / connections;
}

fn place(worker: *Worker, number: u64) u64 {
    const request = worker.request;
    const slots = worker.region.bytes / request.block_bytes;
    return ((number * request.connections + worker.index) % slots) * request.block_bytes;
}

fn wishFor(worker: *Worker, number: u64) Error!void {
    const bytes = worker.request.block_bytes;
    const wish: Wish = .{ .offset = place(worker, number), .bytes = bytes };
    try send(worker.fd, std.mem.asBytes(&wish));
}

fn create() Error!i32 {
    const kind = linux.SOCK.STREAM | linux.SOCK.CLOEXEC;
    return @intCast(try errno.check(linux.socket(linux.AF.INET, kind, 0)));
}

fn local(port: u32) linux.sockaddr.in {
    const loopback = [4]u8{ 127, 0, 0, 1 };
    const big_port = std.mem.nativeToBig(u16, @truncate(port));
    return .{ .port = big_port, .addr = @bitCast(loopback) };
}

fn connect(port: u32) Error!i32 {
    const fd = try create();
    errdefer _ = linux.close(fd);
    const address = local(port);
    const length: linux.socklen_t = @sizeOf(linux.sockaddr.in);
    _ = try errno.checkRepeat(linux.connect, .{ fd, &address, length });
    const one: i32 = 1;
    const bytes = std.mem.asBytes(&one);
    const tcp: i32 = linux.IPPROTO.TCP;
    _ = try errno.check(linux.setsockopt(fd, tcp, linux.TCP.NODELAY, bytes, bytes.len));
    return fd;
}

fn send(fd: i32, bytes: []const u8) Error!void {
    var rest = bytes;
    while (rest.len > 0) {
        const flags = linux.MSG.NOSIGNAL;
        const arguments = .{ fd, rest.ptr, rest.len, flags, null, 0 };
        rest = rest[try errno.checkRepeat(linux.sendto, arguments)..];
    }
}

/// Fills `bytes`. Returns false if the other side closed the connection before the first byte.
fn receive(fd: i32, bytes: []u8) Error!bool {
    var filled: usize = 0;
    while (filled < bytes.len) {
        const rest = bytes[filled..];
        const arguments = .{ fd, rest.ptr, rest.len, linux.MSG.WAITALL, null, null };
        const got = try errno.checkRepeat(linux.recvfrom, arguments);
        if (got == 0) return if (filled == 0) false else error.Closed;
        filled += got;
    }
    return true;
}

test "each block belongs to exactly one connection" {
    for ([_]u64{ 0, 1, 7, 8, 9, 100 }) |blocks| {
        var sum: u64 = 0;
        for (0..8) |index| sum += share(blocks, 8, @intCast(index));
        try std.testing.expectEqual(blocks, sum);
    }
}
