//! Classifies the result codes (CUresult) of driver calls.

const std = @import("std");
const driver = @import("driver.zig");
const Error = @import("../abi/status.zig").Error;

pub const success: driver.Result = 0;
pub const out_of_memory: driver.Result = 2;
pub const no_device: driver.Result = 100;
pub const not_ready: driver.Result = 600;
pub const already_registered: driver.Result = 712;
pub const not_supported: driver.Result = 801;
pub const system_not_ready: driver.Result = 802;
/// CUDA_ERROR code for a timeout. Also used as the code of a device that completed nothing in time.
pub const timeout: driver.Result = 909;

/// Returns whether this result makes the context unusable, so that every later call returns the
/// same result.
pub fn isFatal(result: driver.Result) bool {
    return switch (result) {
        // 4: the driver is shutting down. 709: the context was destroyed.
        4, 709 => true,
        // Device in exclusive use or gone, or memory or link errors that cannot be corrected.
        46, 214, 220, 226 => true,
        // Illegal address, launch timeout, assert, and exceptions of kernels and hardware.
        700, 702, 710, 714...719, 721 => true,
        // Ended by the MPS service, which shares devices; or a device other than the GPU failed.
        810, 911 => true,
        timeout => true,
        else => false,
    };
}

/// Makes driver calls and keeps the code of the last failed call.
pub const Caller = struct {
    driver: *const driver.Driver,
    code: driver.Result = 0,
    /// True if the watch thread has abandoned this thread, which must then make no further driver
    /// call.
    is_given_up: std.atomic.Value(bool) = .init(false),

    pub fn check(caller: *Caller, result: driver.Result) Error!void {
        if (caller.isGivenUp()) return error.Lost;
        if (result == success) return;
        caller.code = result;
        if (isFatal(result)) return error.Lost;
        return error.DeviceFailed;
    }

    pub fn isGivenUp(caller: *const Caller) bool {
        return caller.is_given_up.load(.acquire);
    }

    /// Returns an optional function of this driver, or `Unsupported` if the driver lacks it.
    pub fn need(caller: *Caller, call: anytype) Error!@typeInfo(@TypeOf(call)).optional.child {
        caller.code = 0;
        return call orelse error.Unsupported;
    }

    /// Like `check`, but returns no error, for calls whose failure changes nothing.
    pub fn ignore(caller: *Caller, result: driver.Result) void {
        if (result != success) caller.code = result;
    }
};
