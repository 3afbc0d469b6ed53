//! Finds and closes idle TCP connections that the JavaScript runtime accepted. The runtime does not
//! expose their descriptors, so this code examines all descriptors of the process.

const std = @import("std");
const linux = std.os.linux;
const errno = @import("../base/errno.zig");
const Error = @import("../abi/status.zig").Error;

const tcp_info = 11;
const state_established = 1;
const state_listen = 10;

/// The first fields of `struct tcp_info` (linux/tcp.h).
const Info = extern struct {
    state: u8 = 0,
    skipped: [51]u8 = undefined,
    last_data_recv_ms: u32 = 0,
    skipped_more: [72]u8 = undefined,
    bytes_received: u64 = 0,

    comptime {
        std.debug.assert(@offsetOf(Info, "last_data_recv_ms") == 52);
        std.debug.assert(@offsetOf(Info, "bytes_received") == 128);
        std.debug.assert(@sizeOf(Info) == 136);
    }
};

/// Closes the connections of the TCP server on `port` that have sent no byte for `silent_ms`
/// milliseconds since they were accepted. Examines `count` descriptors from number `first` on, and
/// returns how many connections of this server among them stay open.
pub fn endSilent(port: u16, first: u32, count: u32, silent_ms: u32) Error!u32 {
    var kept: u32 = 0;
    for (first..first + count) |number| {
        const fd: i32 = @intCast(number);
        if (!isBoundTo(fd, port)) continue;
        var info: Info = .{};
        var length: linux.socklen_t = @sizeOf(Info);
        const bytes = std.mem.asBytes(&info);
        const got = linux.getsockopt(fd, linux.IPPROTO.TCP, tcp_info, bytes.ptr, &length);
        if (linux.errno(got) != .SUCCESS or length < @sizeOf(Info)) continue;
        if (info.state == state_listen) continue;
        const is_silent = info.state == state_established and info.bytes_received == 0 and
            info.last_data_recv_ms >= silent_ms;
        // The runtime then reads the end of the stream and closes the descriptor.
        if (is_silent) _ = linux.shutdown(fd, linux.SHUT.RDWR) else kept += 1;
    }
    return kept;
}

fn isBoundTo(fd: i32, port: u16) bool {
    var address: linux.sockaddr.in6 = undefined;
    var length: linux.socklen_t = @sizeOf(linux.sockaddr.in6);
    const got = linux.getsockname(fd, @ptrCast(&address), &length);
    if (linux.errno(got) != .SUCCESS) return false;
    const is_ip = address.family == linux.AF.INET or address.family == linux.AF.INET6;
    // The port has the same offset in IPv4 and IPv6 addresses.
    return is_ip and std.mem.bigToNative(u16, address.port) == port;
}

test "a connection that has sent nothing is closed, one that has sent is counted" {
    const kind = linux.SOCK.STREAM | linux.SOCK.CLOEXEC;
    const listener: i32 = @intCast(try errno.check(linux.socket(linux.AF.INET, kind, 0)));
    defer _ = linux.close(listener);
    var address: linux.sockaddr.in = .{ .port = 0, .addr = std.mem.nativeToBig(u32, 0x7f00_0001) };
    var length: linux.socklen_t = @sizeOf(linux.sockaddr.in);
    _ = try errno.check(linux.bind(listener, @ptrCast(&address), length));
    _ = try errno.check(linux.listen(listener, 8));
    _ = try errno.check(linux.getsockname(listener, @ptrCast(&address), &length));
    var clients: [2]i32 = undefined;
    var served: [2]i32 = undefined;
    for (&clients, &served) |*client, *server| {
        client.* = @intCast(try errno.check(linux.socket(linux.AF.INET, kind, 0)));
        _ = try errno.check(linux.connect(client.*, @ptrCast(&address), length));
        server.* = @intCast(try errno.check(linux.accept4(listener, null, null, 0)));
    }
    defer for (clients ++ served) |fd| {
        _ = linux.close(fd);
    };
    _ = try errno.check(linux.write(clients[1], "x", 1));
    const port = std.mem.bigToNative(u16, address.port);
    var byte: [1]u8 = undefined;
    _ = try errno.check(linux.read(served[1], &byte, 1));
    // No connection has been silent for the 60 s limit.
    try std.testing.expectEqual(@as(u32, 2), try endSilent(port, 0, 256, 60_000));
    try std.testing.expectEqual(@as(u32, 1), try endSilent(port, 0, 256, 0));
    try std.testing.expectEqual(@as(usize, 0), try errno.check(linux.read(clients[0], &byte, 1)));
}
