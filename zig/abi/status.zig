//! Return values of the exported functions: 0 or positive means success, negative is a `Status`.

const std = @import("std");

/// Status numbers. They never change; `src/native/abi.gen.ts` contains the same table.
pub const Status = enum(i32) {
    ok = 0,
    /// A required pointer was null.
    null_argument = -1,
    /// The handle was never issued, belongs to another kind of object, or is closed.
    stale_handle = -2,
    /// An operation in progress still uses the object.
    busy = -3,
    /// An offset or length lies outside the object.
    out_of_range = -4,
    /// A queue, table or buffer has no room; the call changed nothing.
    full = -5,
    /// This kernel, device or build does not support the function.
    unsupported = -6,
    /// Memory is exhausted, or a limit forbids the allocation.
    no_memory = -7,
    /// The kernel forbids the call to this process.
    not_permitted = -8,
    /// The call would block; try again later.
    try_again = -9,
    /// The other side has closed the connection.
    closed = -10,
    /// A field of the request has an invalid value.
    bad_request = -11,
    /// The call failed with another errno, which `hearth_last_errno` returns.
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
    /// The device reported an error while reading or writing.
    io_error = -18,
    /// Sealed or saved data is damaged, or belongs to another position or key.
    forged = -19,
    /// The GPU is lost: it stays unusable until this process ends.
    lost = -20,
    /// The GPU driver or the device refused; the `code` of the completion gives the reason.
    device_failed = -21,
    /// This process, or the host, has no file descriptor left (RLIMIT_NOFILE, fs.file-max).
    no_descriptors = -22,
};

/// All errors that functions of the library return.
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

/// Returns 0, or the negative status of the error.
pub fn code(result: Error!void) i32 {
    if (result) |_| return 0 else |err| return @intFromEnum(fromError(err));
}

/// Returns the count, or the negative status of the error.
pub fn codeOrCount(result: Error!u32) i32 {
    if (result) |count| return @intCast(count) else |err| return @intFromEnum(fromError(err));
}

test "every error maps to a status and every status except ok to an error" {
    const errors = @typeInfo(Error).error_set.?;
    const statuses = @typeInfo(Status).@"enum".fields;
    try std.testing.expectEqual(statuses.len, errors.len + 1);
}
