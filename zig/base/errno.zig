//! Maps errnos to `Error` values. Each errno that callers must distinguish has its own error; all
//! others become `error.System`, and `hearth_last_errno` returns their number.

const std = @import("std");
const linux = std.os.linux;
const Error = @import("../abi/status.zig").Error;

threadlocal var last: i32 = 0;

/// Returns the errno of the last call that failed on this thread; 0 after `forget`.
pub fn lastErrno() i32 {
    return last;
}

/// Returns the value of a raw system call, or the error to which its errno maps.
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

/// Stores the errno of a failed library call, so that `lastErrno` returns it.
pub fn keep(code: i32) void {
    last = code;
}

/// Clears this thread's stored errno, so that `lastErrno` reports only later failures.
pub fn forget() void {
    last = 0;
}

/// Like `check`, for calls on files, where some errnos map to other errors (EIO to `IoError`).
pub fn checkFile(result: usize) Error!usize {
    const code = linux.errno(result);
    const meaning: Error = switch (code) {
        .EXIST => error.Exists,
        .NOENT => error.Missing,
        .NOSPC, .DQUOT => error.NoSpace,
        .ROFS => error.ReadOnly,
        // Block devices report media errors as REMOTEIO, NODATA, ILSEQ, NOLINK, TIMEDOUT or NXIO; a
        // damaged file system reports UCLEAN.
        .IO, .REMOTEIO, .NODATA, .ILSEQ, .NOLINK, .TIMEDOUT, .UCLEAN, .NXIO => error.IoError,
        else => return check(result),
    };
    last = @intFromEnum(code);
    return meaning;
}

/// Like `check`, but repeats the call while a signal interrupts it (EINTR).
pub fn checkRepeat(comptime function: anytype, args: anytype) Error!usize {
    while (true) {
        const result: usize = @call(.auto, function, args);
        if (linux.errno(result) != .INTR) return check(result);
    }
}
