//! Return values of the exports: zero or positive is success, negative a `Status`.

const std = @import("std");

/// Stable numbers; `src/native/abi.gen.ts` carries the same table.
pub const Status = enum(i32) {
    ok = 0,
    /// A pointer that must not be null was null.
    null_argument = -1,
    /// The handle was never issued, is of another kind, or was closed before.
    stale_handle = -2,
    /// Something in flight still uses the object.
    busy = -3,
    /// An offset or length lies outside the object.
    out_of_range = -4,
    /// A ring, table or buffer has no room; the call changed nothing.
    full = -5,
    /// This kernel, device or build does not offer the function.
    unsupported = -6,
    /// The kernel has no memory, or a limit forbids the allocation.
    no_memory = -7,
    /// The kernel forbids the call to this process.
    not_permitted = -8,
    /// The socket or resource would block; try again later.
    try_again = -9,
    /// The other side has closed the connection.
    closed = -10,
    /// A field of the request has an invalid value.
    bad_request = -11,
    /// Any other errno; `hearth_last_errno` returns it.
    system = -12,
    /// The name already exists.
    exists = -13,
    /// The file does not exist.
    missing = -14,
    /// The file is shorter than the requested range.
    short = -15,
    /// The file system or the quota is full.
    no_space = -16,
    /// The file system is mounted read-only.
    read_only = -17,
    /// The device failed to read or write.
    io_error = -18,
    /// Sealed data was changed or belongs to another place.
    forged = -19,
    /// The device is lost: it stays unusable until this process ends.
    lost = -20,
    /// The driver or the device refused; the code of the driver gives the reason.
    device_failed = -21,
    /// This process, or the host, has no file descriptor left (RLIMIT_NOFILE, fs.file-max).
    no_descriptors = -22,
};

/// Every error that the library's functions return.
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

/// The status of a `!void` result.
pub fn code(result: Error!void) i32 {
    if (result) |_| return 0 else |err| return @intFromEnum(fromError(err));
}

/// The count of a `!u32` result, or its negative status.
pub fn codeOrCount(result: Error!u32) i32 {
    if (result) |count| return @intCast(count) else |err| return @intFromEnum(fromError(err));
}

test "every error maps to a status and every status except ok to an error" {
    const errors = @typeInfo(Error).error_set.?;
    const statuses = @typeInfo(Status).@"enum".fields;
    try std.testing.expectEqual(statuses.len, errors.len + 1);
}
