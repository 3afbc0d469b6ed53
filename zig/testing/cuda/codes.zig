//! The CUDA result codes (CUresult) that this stand-in returns.

/// Errors of the stand-in's functions; each maps to a result code.
pub const Fault = error{
    InvalidValue,
    OutOfMemory,
    NoDevice,
    InvalidDevice,
    InvalidContext,
    OperatingSystem,
    InvalidHandle,
    NotFound,
    NotReady,
    AlreadyRegistered,
    NotRegistered,
    NotPermitted,
    NotSupported,
    /// The device was lost while the call waited for a stream; the result code is
    /// `state.lost_code`.
    Lost,
};

pub const success = 0;
pub const not_initialized = 3;
pub const context_destroyed = 709;
pub const invalid_context = 201;

pub fn of(fault: Fault, lost_code: i32) i32 {
    return switch (fault) {
        error.InvalidValue => 1,
        error.OutOfMemory => 2,
        error.NoDevice => 100,
        error.InvalidDevice => 101,
        error.InvalidContext => invalid_context,
        error.OperatingSystem => 304,
        error.InvalidHandle => 400,
        error.NotFound => 500,
        error.NotReady => 600,
        error.AlreadyRegistered => 712,
        error.NotRegistered => 713,
        error.NotPermitted => 800,
        error.NotSupported => 801,
        error.Lost => lost_code,
    };
}

/// Returns whether the code makes the context unusable: bad memory, NVLink, illegal access, kernel
/// timeouts, and kernel faults.
pub fn isSticky(code: i32) bool {
    return switch (code) {
        46, 214, 220, 226, 700, 702, 710, 714...719, 721, 810, 911 => true,
        else => false,
    };
}

pub fn name(code: i32) ?[*:0]const u8 {
    return switch (code) {
        0 => "CUDA_SUCCESS",
        1 => "CUDA_ERROR_INVALID_VALUE",
        2 => "CUDA_ERROR_OUT_OF_MEMORY",
        3 => "CUDA_ERROR_NOT_INITIALIZED",
        46 => "CUDA_ERROR_DEVICE_UNAVAILABLE",
        100 => "CUDA_ERROR_NO_DEVICE",
        101 => "CUDA_ERROR_INVALID_DEVICE",
        201 => "CUDA_ERROR_INVALID_CONTEXT",
        214 => "CUDA_ERROR_ECC_UNCORRECTABLE",
        220 => "CUDA_ERROR_NVLINK_UNCORRECTABLE",
        226 => "CUDA_ERROR_CONTAINED",
        304 => "CUDA_ERROR_OPERATING_SYSTEM",
        400 => "CUDA_ERROR_INVALID_HANDLE",
        500 => "CUDA_ERROR_NOT_FOUND",
        600 => "CUDA_ERROR_NOT_READY",
        700 => "CUDA_ERROR_ILLEGAL_ADDRESS",
        702 => "CUDA_ERROR_LAUNCH_TIMEOUT",
        709 => "CUDA_ERROR_CONTEXT_IS_DESTROYED",
        710 => "CUDA_ERROR_ASSERT",
        712 => "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        713 => "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        714 => "CUDA_ERROR_HARDWARE_STACK_ERROR",
        719 => "CUDA_ERROR_LAUNCH_FAILED",
        800 => "CUDA_ERROR_NOT_PERMITTED",
        801 => "CUDA_ERROR_NOT_SUPPORTED",
        802 => "CUDA_ERROR_SYSTEM_NOT_READY",
        803 => "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        999 => "CUDA_ERROR_UNKNOWN",
        else => null,
    };
}
