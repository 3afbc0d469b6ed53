//! What every export returns: zero or positive is success, negative a `Status`.

const std = @import("std");

/// Stable numbers; `src/native/abi.gen.ts` carries the same table.
pub const Status = enum(i32) {
    ok = 0,
    /// A pointer that must not be null was null.
    null_argument = -1,
    /// The handle was never given out, is of another kind, or was closed before.
    stale_handle = -2,
    /// Something in flight still uses the object.
    busy = -3,
    /// An offset or length lies outside of the object.
    out_of_range = -4,
    /// A ring, table or buffer has no room; nothing was taken.
    full = -5,
    /// This kernel, device or build does not offer it.
    unsupported = -6,
    /// The kernel has no memory to give (or a limit forbids it).
    no_memory = -7,
    /// The kernel forbids it to this process.
    not_permitted = -8,
    /// Not now: the socket or resource would block.
    try_again = -9,
    /// The other side is gone.
    closed = -10,
    /// A field of the request has a value that is not allowed.
    bad_request = -11,
    /// Any other errno; `hearth_last_errno` tells which.
    system = -12,
    /// The name is taken.
    exists = -13,
    /// There is no such file.
    missing = -14,
    /// The file ends before what was asked for.
    short = -15,
    /// The file system or the quota is full.
    no_space = -16,
    /// The file system is mounted read-only.
    read_only = -17,
    /// The device failed to read or write.
    io_error = -18,
    /// What was sealed has been changed, or does not belong here.
    forged = -19,
    /// The device is lost: nothing of it works until this process ends.
    lost = -20,
    /// The driver or the device refused; its own code says why.
    device_failed = -21,
    /// This process, or the host, has no file descriptor left (RLIMIT_NOFILE, fs.file-max).
    no_descriptors = -22,
};

/// Every error the library's own functions return.
pub const Error = error{
    NullArgument,
    StaleHandle,
    Busy,
    OutOfRange,
    Full,
    Unsupported,
    OutOfMemory,
    NotPermitted,
    TryAgain,
    Closed,
    BadRequest,
    System,
    Exists,
    Missing,
    Short,
    NoSpace,
    ReadOnly,
    IoError,
    Forged,
    Lost,
    DeviceFailed,
    NoDescriptors,
};

pub fn fromError(err: Error) Status {
    return switch (err) {
        error.NullArgument => .null_argument,
        error.StaleHandle => .stale_handle,
        error.Busy => .busy,
        error.OutOfRange => .out_of_range,
        error.Full => .full,
        error.Unsupported => .unsupported,
        error.OutOfMemory => .no_memory,
        error.NotPermitted => .not_permitted,
        error.TryAgain => .try_again,
        error.Closed => .closed,
        error.BadRequest => .bad_request,
        error.System => .system,
        error.Exists => .exists,
        error.Missing => .missing,
        error.Short => .short,
        error.NoSpace => .no_space,
        error.ReadOnly => .read_only,
        error.IoError => .io_error,
        error.Forged => .forged,
        error.Lost => .lost,
        error.DeviceFailed => .device_failed,
        error.NoDescriptors => .no_descriptors,
    };
}

/// The status of `!void`, as the exports return it.
pub fn code(result: Error!void) i32 {
    if (result) |_| return 0 else |err| return @intFromEnum(fromError(err));
}

/// The status of `!u32`: the count itself, or the negative status.
pub fn codeOrCount(result: Error!u32) i32 {
    if (result) |count| return @intCast(count) else |err| return @intFromEnum(fromError(err));
}

test "every error has a status and every status but ok an error" {
    const errors = @typeInfo(Error).error_set.?;
    const statuses = @typeInfo(Status).@"enum".fields;
    try std.testing.expectEqual(statuses.len, errors.len + 1);
}
