//! Errno in one place: each named where it means something, the rest kept for `hearth_last_errno`.

const std = @import("std");
const linux = std.os.linux;
const Error = @import("../abi/status.zig").Error;

threadlocal var last: i32 = 0;

/// The errno behind this thread's last `error.System` (or any other system error).
pub fn lastErrno() i32 {
    return last;
}

/// The value of a raw system call, or the error its errno stands for.
pub fn check(result: usize) Error!usize {
    const errno = linux.errno(result);
    if (errno == .SUCCESS) return result;
    last = @intFromEnum(errno);
    return switch (errno) {
        .NOMEM, .NOBUFS, .NOSPC => error.OutOfMemory,
        .MFILE, .NFILE => error.NoDescriptors,
        .PERM, .ACCES => error.NotPermitted,
        .AGAIN, .INTR => error.TryAgain,
        .NOSYS, .OPNOTSUPP, .NOPROTOOPT => error.Unsupported,
        .PIPE, .CONNRESET, .NOTCONN, .SRCH => error.Closed,
        .BUSY => error.Busy,
        else => error.System,
    };
}

/// The errno of a call that is not the kernel's, for `lastErrno`.
pub fn keep(code: i32) void {
    last = code;
}

/// No errno so far: what `lastErrno` says from now on is of a later call.
pub fn forget() void {
    last = 0;
}

/// As `check`, for calls on files, where some errnos mean something else or more.
pub fn checkFile(result: usize) Error!usize {
    const code = linux.errno(result);
    const meaning: Error = switch (code) {
        .EXIST => error.Exists,
        .NOENT => error.Missing,
        .NOSPC, .DQUOT => error.NoSpace,
        .ROFS => error.ReadOnly,
        // A block device reports its media errors under the later names, a file system that it
        // is damaged as UCLEAN.
        .IO, .REMOTEIO, .NODATA, .ILSEQ, .NOLINK, .TIMEDOUT, .UCLEAN, .NXIO => error.IoError,
        else => return check(result),
    };
    last = @intFromEnum(code);
    return meaning;
}

/// As `check`, for a call that may be cut short by a signal and is then simply repeated.
pub fn checkRepeat(comptime function: anytype, args: anytype) Error!usize {
    while (true) {
        const result: usize = @call(.auto, function, args);
        if (linux.errno(result) != .INTR) return check(result);
    }
}
