//! The lock of a folder: an open file with an exclusive flock, which the kernel releases when its
//! process ends.

const std = @import("std");
const linux = std.os.linux;
const errno = @import("../base/errno.zig");
const faults = @import("../base/faults.zig");
const Error = @import("../abi/status.zig").Error;

const exclusive_without_waiting = 2 | 4;

/// Locks the file at `path`, creating it if it is missing, and returns the open descriptor. Returns
/// `TryAgain` if another process has the lock.
pub fn take(path: [*:0]const u8) Error!i32 {
    const flags: linux.O = .{ .ACCMODE = .RDWR, .CREAT = true, .NOFOLLOW = true, .CLOEXEC = true };
    const where = .{ linux.AT.FDCWD, path, flags, 0o600 };
    const opened = faults.repeat(.@"lock.open", linux.openat, where);
    const fd: i32 = @intCast(try errno.checkFile(opened));
    errdefer _ = linux.close(fd);
    const locked = faults.repeat(.@"lock.flock", linux.flock, .{ fd, exclusive_without_waiting });
    _ = try errno.checkFile(locked);
    return fd;
}
