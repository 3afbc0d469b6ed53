//! TCP sockets for lanes: non-blocking, closed on exec, with large buffers, and with detection of
//! dead peers.

const std = @import("std");
const linux = std.os.linux;
const errno = @import("../base/errno.zig");
const faults = @import("../base/faults.zig");
const Error = @import("../abi/status.zig").Error;
const IpAddress = std.Io.net.IpAddress;

/// Milliseconds that sent bytes may stay unacknowledged before the connection fails.
const unanswered_ms: i32 = 10_000;
/// Seconds without traffic after which the kernel sends a keep-alive probe.
const idle_s: i32 = 5;
const asked_every_s: i32 = 2;
const asked_times: i32 = 3;
const backlog = 256;
/// Round-trip time in microseconds below which a peer counts as near. For near peers a small send
/// buffer keeps the network busy and its bytes in the cache: it halves the processor time per byte
/// over the loopback interface. `near_bytes` is below the kernel's default of `net.core.wmem_max`.
const near_us = 500;
const near_bytes: i32 = 200 * 1024;

pub const Address = struct {
    storage: extern union { any: linux.sockaddr, in: linux.sockaddr.in, in6: linux.sockaddr.in6 },
    length: linux.socklen_t,

    /// Parses an IPv4 or IPv6 address, terminated by a zero byte.
    pub fn parse(host: []const u8, number: u32) Error!Address {
        if (number > std.math.maxInt(u16)) return error.BadRequest;
        const text = std.mem.sliceTo(host, 0);
        const parsed = IpAddress.parse(text, @intCast(number)) catch return error.BadRequest;
        const big_port = std.mem.nativeToBig(u16, @intCast(number));
        switch (parsed) {
            .ip4 => |ip| return .{
                .storage = .{ .in = .{ .port = big_port, .addr = @bitCast(ip.bytes) } },
                .length = @sizeOf(linux.sockaddr.in),
            },
            .ip6 => |ip| return .{
                .storage = .{ .in6 = .{
                    .port = big_port,
                    .flowinfo = 0,
                    .addr = ip.bytes,
                    .scope_id = 0,
                } },
                .length = @sizeOf(linux.sockaddr.in6),
            },
        }
    }

    fn family(address: *const Address) u32 {
        return address.storage.any.family;
    }

    fn port(address: *const Address) u16 {
        const big = if (address.family() == linux.AF.INET)
            address.storage.in.port
        else
            address.storage.in6.port;
        return std.mem.bigToNative(u16, big);
    }
};

fn create(family: u32, buffer_bytes: u32) Error!i32 {
    const kind = linux.SOCK.STREAM | linux.SOCK.CLOEXEC | linux.SOCK.NONBLOCK;
    const made = faults.call(.@"lane.socket", linux.socket, .{ family, kind, 0 });
    const fd: i32 = @intCast(try errno.check(made));
    errdefer _ = linux.close(fd);
    // Before connecting, because the TCP handshake fixes the window scale.
    if (buffer_bytes > 0) {
        try set(fd, linux.SOL.SOCKET, linux.SO.SNDBUF, @intCast(buffer_bytes));
        try set(fd, linux.SOL.SOCKET, linux.SO.RCVBUF, @intCast(buffer_bytes));
    }
    return fd;
}

fn set(fd: i32, level: u32, name: u32, value: i32) Error!void {
    const bytes = std.mem.asBytes(&value);
    const arguments = .{ fd, @as(i32, @intCast(level)), name, bytes, bytes.len };
    _ = try errno.check(faults.call(.@"lane.socket", linux.setsockopt, arguments));
}

/// Sets the socket options of an accepted or dialled connection.
fn tune(fd: i32) Error!void {
    const tcp = linux.IPPROTO.TCP;
    try set(fd, tcp, linux.TCP.NODELAY, 1);
    try set(fd, tcp, linux.TCP.USER_TIMEOUT, unanswered_ms);
    try set(fd, tcp, linux.TCP.KEEPIDLE, idle_s);
    try set(fd, tcp, linux.TCP.KEEPINTVL, asked_every_s);
    try set(fd, tcp, linux.TCP.KEEPCNT, asked_times);
    try set(fd, linux.SOL.SOCKET, linux.SO.KEEPALIVE, 1);
}

/// Limits the send buffer of an accepted connection if the peer is near. For other peers the kernel
/// chooses the size.
pub fn sizeForNear(fd: i32) void {
    // struct tcp_info in linux/tcp.h has 8 bytes and 15 words before tcpi_rtt.
    var info: [72]u8 = @splat(0);
    var length: linux.socklen_t = info.len;
    const tcp = linux.IPPROTO.TCP;
    if (linux.errno(linux.getsockopt(fd, tcp, linux.TCP.INFO, &info, &length)) != .SUCCESS) return;
    const rtt_us = std.mem.readInt(u32, info[68..72], .little);
    if (length < info.len or rtt_us == 0 or rtt_us > near_us) return;
    const bytes = std.mem.asBytes(&near_bytes);
    // If the kernel refuses, the connection keeps its buffer size.
    _ = linux.setsockopt(fd, linux.SOL.SOCKET, linux.SO.SNDBUF, bytes, bytes.len);
}

pub const Listener = struct { fd: i32, port: u16 };

pub fn listen(address: *const Address, buffer_bytes: u32) Error!Listener {
    const fd = try create(address.family(), buffer_bytes);
    errdefer _ = linux.close(fd);
    try set(fd, linux.SOL.SOCKET, linux.SO.REUSEADDR, 1);
    _ = try errno.check(linux.bind(fd, &address.storage.any, address.length));
    _ = try errno.check(linux.listen(fd, backlog));
    var bound = address.*;
    _ = try errno.check(linux.getsockname(fd, &bound.storage.any, &bound.length));
    return .{ .fd = fd, .port = bound.port() };
}

/// Accepts the next waiting connection; null if none waits. On `OutOfMemory` a connection may still
/// be waiting.
pub fn accept(listener: i32) Error!?i32 {
    const flags = linux.SOCK.CLOEXEC | linux.SOCK.NONBLOCK;
    while (true) {
        const got = faults.call(.@"lane.accept", linux.accept4, .{ listener, null, null, flags });
        switch (linux.errno(got)) {
            .SUCCESS => {},
            .AGAIN => return null,
            .MFILE, .NFILE, .NOBUFS, .NOMEM => return error.OutOfMemory,
            .BADF, .INVAL, .NOTSOCK, .FAULT => return error.System,
            // The waiting connection failed before it was accepted; try the next one.
            else => continue,
        }
        const fd: i32 = @intCast(got);
        tune(fd) catch {
            _ = linux.close(fd);
            continue;
        };
        return fd;
    }
}

/// Starts to connect. The socket becomes writable when the connection is established or has failed.
pub fn connect(address: *const Address, buffer_bytes: u32) Error!i32 {
    const fd = try create(address.family(), buffer_bytes);
    errdefer _ = linux.close(fd);
    try tune(fd);
    const arguments = .{ fd, &address.storage.any, address.length };
    const result = faults.call(.@"lane.connect", linux.connect, arguments);
    if (linux.errno(result) == .INPROGRESS) return fd;
    _ = try errno.check(result);
    return fd;
}

/// Returns whether a started connection is established.
pub fn isConnected(fd: i32) bool {
    var code: i32 = 0;
    var length: linux.socklen_t = @sizeOf(i32);
    const bytes = std.mem.asBytes(&code);
    const result = linux.getsockopt(fd, linux.SOL.SOCKET, linux.SO.ERROR, bytes, &length);
    return linux.errno(result) == .SUCCESS and code == 0;
}

/// Makes epoll report the socket as readable only when `bytes` bytes are available (SO_RCVLOWAT),
/// at the end of the stream, or when the receive buffer is full. If this already holds, epoll
/// reports it at once.
pub fn wakeAt(fd: i32, bytes: u32) Error!void {
    try set(fd, linux.SOL.SOCKET, linux.SO.RCVLOWAT, @intCast(bytes));
}

/// Sends `first`, then `second`, without waiting. Returns the number of bytes that the kernel
/// accepted; null if it accepts none now.
pub fn send(fd: i32, first: []const u8, second: []const u8) Error!?usize {
    const parts = [_]std.posix.iovec_const{
        .{ .base = first.ptr, .len = first.len },
        .{ .base = second.ptr, .len = second.len },
    };
    const message: linux.msghdr_const = .{
        .name = null,
        .namelen = 0,
        .iov = &parts,
        .iovlen = if (second.len > 0) 2 else 1,
        .control = null,
        .controllen = 0,
        .flags = 0,
    };
    const flags = linux.MSG.NOSIGNAL | linux.MSG.DONTWAIT;
    const result = faults.repeat(.@"lane.send", linux.sendmsg, .{ fd, &message, flags });
    return moved(result);
}

/// Receives into `first`, then `second`, without waiting. Returns the number of bytes; null if none
/// are available now. Returns `Closed` at the end of the stream.
pub fn receive(fd: i32, first: []u8, second: []u8) Error!?usize {
    var parts = [_]std.posix.iovec{
        .{ .base = first.ptr, .len = first.len },
        .{ .base = second.ptr, .len = second.len },
    };
    var message: linux.msghdr = .{
        .name = null,
        .namelen = 0,
        .iov = &parts,
        .iovlen = if (second.len > 0) 2 else 1,
        .control = null,
        .controllen = 0,
        .flags = 0,
    };
    const flags = linux.MSG.DONTWAIT;
    const result = faults.repeat(.@"lane.receive", linux.recvmsg, .{ fd, &message, flags });
    const count = try moved(result);
    if (count == 0) return error.Closed;
    return count;
}

fn moved(result: usize) Error!?usize {
    if (linux.errno(result) == .AGAIN) return null;
    return try errno.check(result);
}

test "text addresses parse to socket addresses" {
    const four = try Address.parse("127.0.0.1\x00rest", 80);
    try std.testing.expectEqual(80, four.port());
    try std.testing.expectEqual([4]u8{ 127, 0, 0, 1 }, @as([4]u8, @bitCast(four.storage.in.addr)));
    const six = try Address.parse("::1", 65_535);
    try std.testing.expectEqual(65_535, six.port());
    try std.testing.expectEqual(1, six.storage.in6.addr[15]);
    for ([_][]const u8{ "", "localhost", "127.0.0.256", "1.2.3", ":::" }) |text| {
        try std.testing.expectError(error.BadRequest, Address.parse(text, 1));
    }
    try std.testing.expectError(error.BadRequest, Address.parse("::1", 65_536));
}
