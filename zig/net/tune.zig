//! Sets options of sockets that the JavaScript runtime created. The runtime does not expose their
//! descriptors, so this code examines all descriptors of the process.

const std = @import("std");
const linux = std.os.linux;
const errno = @import("../base/errno.zig");
const Error = @import("../abi/status.zig").Error;

const ip_recverr = 11;
const ipv6_recverr = 25;

/// Sets options of each UDP socket of this process that is bound to `port`, and returns their
/// number. Disables the kernel's error queue: with it, an unreachable peer (ICMP "port
/// unreachable") makes the next send to any other peer fail. Sets both buffers to `buffer_bytes`,
/// as far as net.core.rmem_max and wmem_max permit.
pub fn tuneUdp(port: u16, buffer_bytes: u32) Error!u32 {
    return tuneAll(.{ .kind = linux.SOCK.DGRAM, .port = port }, tune, .{buffer_bytes});
}

/// Limits the work that the listening TCP sockets on `port` can cause in one turn of the event
/// loop, because the runtime accepts every waiting connection and reads every full buffer in one
/// turn. `backlog` limits the waiting connections, `receive_bytes` the receive buffer of each
/// accepted connection. Returns the number of these sockets.
pub fn tuneListener(port: u16, backlog: u31, receive_bytes: u32) Error!u32 {
    const sockets: Sockets = .{ .kind = linux.SOCK.STREAM, .port = port, .listens = true };
    return tuneAll(sockets, limit, .{ backlog, receive_bytes });
}

const Sockets = struct { kind: i32, port: u16, listens: bool = false };

fn tuneAll(sockets: Sockets, comptime apply: anytype, arguments: anytype) Error!u32 {
    const flags: linux.O = .{ .DIRECTORY = true, .CLOEXEC = true };
    const opened = try errno.checkRepeat(linux.open, .{ "/proc/self/fd", flags, 0 });
    const folder: i32 = @intCast(opened);
    defer _ = linux.close(folder);
    var buffer: [4096]u8 align(8) = undefined;
    var tuned: u32 = 0;
    while (true) {
        const count = try errno.check(linux.getdents64(folder, &buffer, buffer.len));
        if (count == 0) return tuned;
        var at: usize = 0;
        while (at < count) {
            const entry: *const linux.dirent64 = @ptrCast(@alignCast(&buffer[at]));
            at += entry.reclen;
            const name_at: [*:0]const u8 = @ptrCast(&entry.name);
            const fd = std.fmt.parseInt(i32, std.mem.span(name_at), 10) catch continue;
            if (!isOne(sockets, fd)) continue;
            try @call(.auto, apply, .{fd} ++ arguments);
            tuned += 1;
        }
    }
}

fn isOne(sockets: Sockets, fd: i32) bool {
    const kind = option(fd, linux.SOL.SOCKET, linux.SO.TYPE) catch return false;
    if (kind != sockets.kind) return false;
    if (sockets.listens) {
        const listens = option(fd, linux.SOL.SOCKET, linux.SO.ACCEPTCONN) catch return false;
        if (listens == 0) return false;
    }
    var address: linux.sockaddr.in6 = undefined;
    var length: linux.socklen_t = @sizeOf(linux.sockaddr.in6);
    _ = errno.check(linux.getsockname(fd, @ptrCast(&address), &length)) catch return false;
    const is_ip = address.family == linux.AF.INET or address.family == linux.AF.INET6;
    // IPv4 and IPv6 addresses have the port at the same offset.
    return is_ip and std.mem.bigToNative(u16, address.port) == sockets.port;
}

fn limit(fd: i32, backlog: u31, receive_bytes: u32) Error!void {
    // Accepted connections inherit the buffer size. The kernel doubles it for its own overhead.
    try setOption(fd, linux.SOL.SOCKET, linux.SO.RCVBUF, @intCast(receive_bytes));
    _ = try errno.check(linux.listen(fd, backlog));
}

fn tune(fd: i32, buffer_bytes: u32) Error!void {
    try setOption(fd, linux.IPPROTO.IP, ip_recverr, 0);
    const domain = try option(fd, linux.SOL.SOCKET, linux.SO.DOMAIN);
    if (domain == linux.AF.INET6) try setOption(fd, linux.IPPROTO.IPV6, ipv6_recverr, 0);
    for ([_]u32{ linux.SO.RCVBUF, linux.SO.SNDBUF }) |name| {
        // The kernel returns twice the requested size. A larger buffer is not changed.
        const has = try option(fd, linux.SOL.SOCKET, name);
        if (@divTrunc(has, 2) < buffer_bytes) {
            try setOption(fd, linux.SOL.SOCKET, name, @intCast(buffer_bytes));
        }
    }
}

fn option(fd: i32, level: i32, name: u32) Error!i32 {
    var value: i32 = 0;
    var length: linux.socklen_t = @sizeOf(i32);
    const bytes = std.mem.asBytes(&value);
    _ = try errno.check(linux.getsockopt(fd, level, name, bytes.ptr, &length));
    return value;
}

fn setOption(fd: i32, level: i32, name: u32, value: i32) Error!void {
    const bytes = std.mem.asBytes(&value);
    _ = try errno.check(linux.setsockopt(fd, level, name, bytes.ptr, bytes.len));
}

test "only the socket of the given port is tuned" {
    var fds: [3]i32 = undefined;
    var port: u16 = 0;
    for (&fds, 0..) |*fd, i| {
        const domain: u32 = if (i == 2) linux.AF.INET6 else linux.AF.INET;
        const kind = linux.SOCK.DGRAM | linux.SOCK.CLOEXEC;
        fd.* = @intCast(try errno.check(linux.socket(domain, kind, 0)));
        try setOption(fd.*, linux.IPPROTO.IP, ip_recverr, 1);
        if (i == 2) try setOption(fd.*, linux.IPPROTO.IPV6, ipv6_recverr, 1);
    }
    defer for (fds) |fd| {
        _ = linux.close(fd);
    };
    var here: linux.sockaddr.in = .{ .port = 0, .addr = std.mem.nativeToBig(u32, 0x7f000001) };
    _ = try errno.check(linux.bind(fds[0], @ptrCast(&here), @sizeOf(linux.sockaddr.in)));
    var length: linux.socklen_t = @sizeOf(linux.sockaddr.in);
    _ = try errno.check(linux.getsockname(fds[0], @ptrCast(&here), &length));
    port = std.mem.bigToNative(u16, here.port);
    var loopback: linux.sockaddr.in6 = std.mem.zeroes(linux.sockaddr.in6);
    loopback.family = linux.AF.INET6;
    loopback.port = here.port;
    loopback.addr[15] = 1;
    const has_v6 = if (errno.check(
        linux.bind(fds[2], @ptrCast(&loopback), @sizeOf(linux.sockaddr.in6)),
    )) |_| true else |_| false;

    const expected: u32 = if (has_v6) 2 else 1;
    try std.testing.expectEqual(expected, try tuneUdp(port, 100 * 1024));
    try std.testing.expectEqual(0, try option(fds[0], linux.IPPROTO.IP, ip_recverr));
    try std.testing.expectEqual(1, try option(fds[1], linux.IPPROTO.IP, ip_recverr));
    if (has_v6) {
        try std.testing.expectEqual(0, try option(fds[2], linux.IPPROTO.IPV6, ipv6_recverr));
    }
    const room = try option(fds[0], linux.SOL.SOCKET, linux.SO.RCVBUF);
    try std.testing.expect(room >= 200 * 1024);
    // A second call does not shrink a buffer.
    try std.testing.expectEqual(expected, try tuneUdp(port, 4096));
    try std.testing.expectEqual(room, try option(fds[0], linux.SOL.SOCKET, linux.SO.RCVBUF));
}

test "a listener hands over no more connections than its backlog" {
    const kind = linux.SOCK.STREAM | linux.SOCK.CLOEXEC;
    const listener: i32 = @intCast(try errno.check(linux.socket(linux.AF.INET, kind, 0)));
    defer _ = linux.close(listener);
    var here: linux.sockaddr.in = .{ .port = 0, .addr = std.mem.nativeToBig(u32, 0x7f000001) };
    _ = try errno.check(linux.bind(listener, @ptrCast(&here), @sizeOf(linux.sockaddr.in)));
    var length: linux.socklen_t = @sizeOf(linux.sockaddr.in);
    _ = try errno.check(linux.getsockname(listener, @ptrCast(&here), &length));
    const port = std.mem.bigToNative(u16, here.port);
    // A socket that does not listen is not changed.
    try std.testing.expectEqual(0, try tuneListener(port, 2, 32 * 1024));
    _ = try errno.check(linux.listen(listener, 512));
    try std.testing.expectEqual(1, try tuneListener(port, 2, 32 * 1024));
    try std.testing.expectEqual(64 * 1024, try option(listener, linux.SOL.SOCKET, linux.SO.RCVBUF));

    var connected: u32 = 0;
    var fds: [8]i32 = undefined;
    for (&fds) |*fd| {
        const own = kind | linux.SOCK.NONBLOCK;
        fd.* = @intCast(try errno.check(linux.socket(linux.AF.INET, own, 0)));
        _ = linux.connect(fd.*, @ptrCast(&here), @sizeOf(linux.sockaddr.in));
        var ready = [_]linux.pollfd{.{ .fd = fd.*, .events = linux.POLL.OUT, .revents = 0 }};
        if (try errno.check(linux.poll(&ready, 1, 50)) == 1) connected += 1;
    }
    defer for (fds) |fd| {
        _ = linux.close(fd);
    };
    try std.testing.expectEqual(3, connected);
}
