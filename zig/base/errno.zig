//! Maps errnos to errors. The library names each errno that has a meaning for callers and keeps the
//! others for `hearth_last_errno`.

const std = @import("std");
const linux = std.os.linux;
const Error = @import("../abi/status.zig").Error;

threadlocal var last: i32 = 0;

/// The errno behind the last `error.System`, or other system error, of this thread.
pub fn lastErrno() i32 {
    return last;
}

/// The value of a raw system call, or the error that its errno maps to.
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

/// Keeps the errno of a call into a library for `lastErrno`.
pub fn keep(code: i32) void {
    last = code;
}

/// Clears the errno: `lastErrno` then reports later calls only.
pub fn forget() void {
    last = 0;
}

/// Like `check`, for calls on files, where some errnos have other meanings.
pub fn checkFile(result: usize) Error!usize {
    const code = linux.errno(result);
    const meaning: Error = switch (code) {
        .EXIST => error.Exists,
        .NOENT => error.Missing,
        .NOSPC, .DQUOT => error.NoSpace,
        .ROFS => error.ReadOnly,
        // A block device reports media errors under the later names; a damaged file system reports
        // UCLEAN.
        .IO, .REMOTEIO, .NODATA, .ILSEQ, .NOLINK, .TIMEDOUT, .UCLEAN, .NXIO => error.IoError,
        else => return check(result),
    };
    last = @intFromEnum(code);
    return meaning;
}

/// Like `check`, for a call that a signal may interrupt; repeats such a call.
pub fn checkRepeat(comptime function: anytype, args: anytype) Error!usize {
    while (true) {
        const result: usize = @call(.auto, function, args);
        if (linux.errno(result) != .INTR) return check(result);
    }
}
