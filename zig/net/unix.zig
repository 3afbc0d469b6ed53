//! Functions that Bun's Unix sockets lack: sending and receiving file descriptors, peer
//! credentials, and notifications to systemd.

const std = @import("std");
const linux = std.os.linux;
const errno = @import("../base/errno.zig");
const types = @import("../abi/types.zig");
const Error = @import("../abi/status.zig").Error;

const scm_rights = 1;
const so_peergroups = 59;
const so_peerpidfd = 77;

/// A `cmsghdr` (control message) that carries exactly one descriptor.
const RightsMessage = extern struct {
    len: usize = @sizeOf(usize) + 2 * @sizeOf(i32) + @sizeOf(i32),
    level: i32 = linux.SOL.SOCKET,
    kind: i32 = scm_rights,
    fd: i32,
    padding: i32 = 0,
};

/// A `cmsghdr` (control message) that carries several descriptors.
const RightsList = extern struct {
    len: usize = 0,
    level: i32 = linux.SOL.SOCKET,
    kind: i32 = scm_rights,
    fds: [8]i32,
};

/// Returns the credentials of the process that connected, and a pidfd, which identifies that
/// process even if its process id is reused.
pub fn peerOf(socket: i32) Error!types.PeerInfo {
    const Credentials = extern struct { pid: u32, uid: u32, gid: u32 };
    var credentials: Credentials = undefined;
    try option(socket, linux.SO.PEERCRED, std.mem.asBytes(&credentials));
    var pid_fd: i32 = -1;
    option(socket, so_peerpidfd, std.mem.asBytes(&pid_fd)) catch |err| {
        if (err != error.Unsupported) return err;
        // Kernels before Linux 6.5 lack SO_PEERPIDFD. The process id may have been reused since
        // connect(), but these kernels offer nothing better.
        const opened = linux.pidfd_open(@intCast(credentials.pid), 0);
        pid_fd = if (errno.check(opened)) |fd| @intCast(fd) else |_| -1;
    };
    return .{
        .pid = credentials.pid,
        .uid = credentials.uid,
        .gid = credentials.gid,
        .pid_fd = pid_fd,
    };
}

/// Writes the supplementary groups that the peer process had when it connected, and returns their
/// number. Returns `Full` if `out` is too small.
pub fn groupsOf(socket: i32, out: []u32) Error!u32 {
    const bytes = std.mem.sliceAsBytes(out);
    var length: linux.socklen_t = @intCast(bytes.len);
    const level = linux.SOL.SOCKET;
    const result = linux.getsockopt(socket, level, so_peergroups, bytes.ptr, &length);
    if (linux.errno(result) == .RANGE) return error.Full;
    _ = try errno.check(result);
    return @intCast(length / @sizeOf(u32));
}

fn option(socket: i32, name: u32, out: []u8) Error!void {
    var length: linux.socklen_t = @intCast(out.len);
    const result = linux.getsockopt(socket, linux.SOL.SOCKET, name, out.ptr, &length);
    _ = try errno.check(result);
    if (length != out.len) return error.Unsupported;
}

/// Sends `bytes` with the descriptor `fd` attached to the first byte. Returns the number of bytes
/// sent; the caller sends the rest without a descriptor.
pub fn sendWithFd(socket: i32, bytes: []const u8, fd: i32) Error!u32 {
    const parts = [_]std.posix.iovec_const{.{ .base = bytes.ptr, .len = bytes.len }};
    const control: RightsMessage = .{ .fd = fd };
    const message: linux.msghdr_const = .{
        .name = null,
        .namelen = 0,
        .iov = &parts,
        .iovlen = 1,
        .control = &control,
        .controllen = @sizeOf(RightsMessage),
        .flags = 0,
    };
    const flags = linux.MSG.NOSIGNAL | linux.MSG.DONTWAIT;
    return @intCast(try errno.checkRepeat(linux.sendmsg, .{ socket, &message, flags }));
}

/// Creates two connected sockets that preserve message boundaries (SOCK_SEQPACKET). The caller owns
/// both.
pub fn socketPair() Error![2]i32 {
    var ends: [2]i32 = undefined;
    const kind = linux.SOCK.SEQPACKET | linux.SOCK.CLOEXEC;
    _ = try errno.check(linux.socketpair(linux.AF.UNIX, kind, 0, &ends));
    return ends;
}

/// Receives into `bytes`. `fd` receives the attached descriptor, or -1 if there is none; the kernel
/// closes any further descriptors.
pub fn receiveWithFd(socket: i32, bytes: []u8, fd: *i32) Error!u32 {
    var parts = [_]std.posix.iovec{.{ .base = bytes.ptr, .len = bytes.len }};
    var control: RightsMessage = .{ .fd = -1 };
    var message: linux.msghdr = .{
        .name = null,
        .namelen = 0,
        .iov = &parts,
        .iovlen = 1,
        .control = &control,
        // Excludes the padding, which would have room for a second descriptor.
        .controllen = @offsetOf(RightsMessage, "padding"),
        .flags = 0,
    };
    const flags = linux.MSG.DONTWAIT | linux.MSG.CMSG_CLOEXEC;
    const count = try errno.checkRepeat(linux.recvmsg, .{ socket, &message, flags });
    const got_rights = message.controllen >= @offsetOf(RightsMessage, "padding") and
        control.level == linux.SOL.SOCKET and control.kind == scm_rights;
    fd.* = if (got_rights) control.fd else -1;
    if (count == 0 and fd.* == -1) return error.Closed;
    return @intCast(count);
}

/// Sends one datagram to systemd's notification socket (sd_notify(3)), with the descriptors that
/// systemd must keep if `state` contains FDSTORE=1. A path `@name` means an abstract socket.
pub fn notify(path: []const u8, state: []const u8, fds: []const i32) Error!void {
    var control: RightsList = .{ .fds = undefined };
    if (fds.len > control.fds.len) return error.BadRequest;
    @memcpy(control.fds[0..fds.len], fds);
    control.len = @offsetOf(RightsList, "fds") + fds.len * @sizeOf(i32);
    var address: linux.sockaddr.un = .{ .path = @splat(0) };
    if (path.len == 0 or path.len >= address.path.len) return error.BadRequest;
    @memcpy(address.path[0..path.len], path);
    if (path[0] == '@') address.path[0] = 0;
    const kind = linux.SOCK.DGRAM | linux.SOCK.CLOEXEC;
    const socket: i32 = @intCast(try errno.check(linux.socket(linux.AF.UNIX, kind, 0)));
    defer _ = linux.close(socket);
    const parts = [_]std.posix.iovec_const{.{ .base = state.ptr, .len = state.len }};
    const message: linux.msghdr_const = .{
        .name = @ptrCast(&address),
        .namelen = @intCast(@offsetOf(linux.sockaddr.un, "path") + path.len),
        .iov = &parts,
        .iovlen = 1,
        .control = if (fds.len == 0) null else &control,
        .controllen = if (fds.len == 0) 0 else std.mem.alignForward(usize, control.len, 8),
        .flags = 0,
    };
    const flags = linux.MSG.NOSIGNAL | linux.MSG.DONTWAIT;
    _ = try errno.checkRepeat(linux.sendmsg, .{ socket, &message, flags });
}

/// Returns an error if the kernel does not allow this process to create an io_uring.
pub fn probeIoUring() Error!void {
    var parameters = std.mem.zeroes(linux.io_uring_params);
    const fd = try errno.check(linux.io_uring_setup(8, &parameters));
    _ = linux.close(@intCast(fd));
}

test "a notification carries descriptors" {
    const name = "\x00hearth-notify-test";
    var address: linux.sockaddr.un = .{ .path = @splat(0) };
    @memcpy(address.path[0..name.len], name);
    const length = @offsetOf(linux.sockaddr.un, "path") + name.len;
    const kind = linux.SOCK.DGRAM | linux.SOCK.CLOEXEC;
    const opened = try errno.check(linux.socket(linux.AF.UNIX, kind, 0));
    const socket: i32 = @intCast(opened);
    defer _ = linux.close(socket);
    _ = try errno.check(linux.bind(socket, @ptrCast(&address), length));
    const file: i32 = @intCast(try errno.check(linux.memfd_create("x", 0)));
    defer _ = linux.close(file);
    try notify("@hearth-notify-test", "READY=1", &.{});
    try notify("@hearth-notify-test", "FDSTORE=1", &.{file});
    var bytes: [16]u8 = undefined;
    var received: i32 = -1;
    try std.testing.expectEqual(@as(u32, 7), try receiveWithFd(socket, &bytes, &received));
    try std.testing.expectEqual(@as(i32, -1), received);
    try std.testing.expectEqual(@as(u32, 9), try receiveWithFd(socket, &bytes, &received));
    try std.testing.expectEqualStrings("FDSTORE=1", bytes[0..9]);
    try std.testing.expect(received > 2 and received != file);
    _ = linux.close(received);
    const many: [9]i32 = @splat(file);
    try std.testing.expectError(error.BadRequest, notify("@hearth-notify-test", "x", &many));
}

test "a descriptor crosses a socket pair" {
    var pair: [2]i32 = undefined;
    _ = try errno.check(linux.socketpair(linux.AF.UNIX, linux.SOCK.STREAM, 0, &pair));
    defer for (pair) |fd| {
        _ = linux.close(fd);
    };
    const file: i32 = @intCast(try errno.check(linux.memfd_create("x", 0)));
    defer _ = linux.close(file);
    try std.testing.expectEqual(@as(u32, 5), try sendWithFd(pair[0], "hello", file));
    var bytes: [16]u8 = undefined;
    var received: i32 = -1;
    try std.testing.expectEqual(@as(u32, 5), try receiveWithFd(pair[1], &bytes, &received));
    try std.testing.expect(received > 2 and received != file);
    _ = linux.close(received);
    try std.testing.expectError(error.TryAgain, receiveWithFd(pair[1], &bytes, &received));
}

test "the second of two descriptors in one message is closed" {
    const ends = try socketPair();
    defer for (ends) |fd| {
        _ = linux.close(fd);
    };
    const file: i32 = @intCast(try errno.check(linux.memfd_create("x", 0)));
    defer _ = linux.close(file);
    var control: RightsList = .{ .fds = @splat(file) };
    control.len = @offsetOf(RightsList, "fds") + 2 * @sizeOf(i32);
    const parts = [_]std.posix.iovec_const{.{ .base = "x", .len = 1 }};
    const message: linux.msghdr_const = .{
        .name = null,
        .namelen = 0,
        .iov = &parts,
        .iovlen = 1,
        .control = &control,
        .controllen = std.mem.alignForward(usize, control.len, 8),
        .flags = 0,
    };
    _ = try errno.check(linux.sendmsg(ends[0], &message, linux.MSG.NOSIGNAL));
    var bytes: [4]u8 = undefined;
    var received: i32 = -1;
    try std.testing.expectEqual(@as(u32, 1), try receiveWithFd(ends[1], &bytes, &received));
    try std.testing.expect(received > 2 and received != file);
    _ = linux.close(received);
    // The next descriptor number is free, so no second descriptor arrived.
    const next: i32 = @intCast(try errno.check(linux.dup(file)));
    defer _ = linux.close(next);
    try std.testing.expectEqual(received, next);
}
