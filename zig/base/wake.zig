//! Eventfds: a native thread writes to one to wake another thread or the event loop.

const std = @import("std");
const linux = std.os.linux;
const errno = @import("errno.zig");
const Error = @import("../abi/status.zig").Error;

pub fn create() Error!i32 {
    const flags = linux.EFD.CLOEXEC | linux.EFD.NONBLOCK;
    return @intCast(try errno.check(linux.eventfd(0, flags)));
}

/// Wakes the reader of the eventfd. The write fails only at 2^64 unread wakes.
pub fn ring(fd: i32) void {
    const one: u64 = 1;
    _ = linux.write(fd, std.mem.asBytes(&one), 8);
}
