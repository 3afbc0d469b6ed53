//! What a CUresult means for the device it came from.

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
/// Also what a device is lost with that brought nothing to an end in time.
pub const timeout: driver.Result = 909;

/// After these the context is of no use any more: every later call answers the same.
pub fn isFatal(result: driver.Result) bool {
    return switch (result) {
        // The driver is shutting down; the context was destroyed.
        4, 709 => true,
        // Exclusive, or gone; memory or links with errors that cannot be corrected, or that were
        // kept to this process.
        46, 214, 220, 226 => true,
        // Illegal address, launch timeout, assert, and the exceptions of kernels and hardware.
        700, 702, 710, 714...719, 721 => true,
        // Ended by the service that shares devices; a device beside the GPU failed.
        810, 911 => true,
        timeout => true,
        else => false,
    };
}

/// Keeps the code of the last call that was refused.
pub const Caller = struct {
    driver: *const driver.Driver,
    code: driver.Result = 0,
    /// Nobody waits for this thread any more: it is to leave the driver alone.
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

    /// A call that this driver may not have.
    pub fn need(caller: *Caller, call: anytype) Error!@typeInfo(@TypeOf(call)).optional.child {
        caller.code = 0;
        return call orelse error.Unsupported;
    }

    /// As `check`, where there is nothing more to do about it.
    pub fn ignore(caller: *Caller, result: driver.Result) void {
        if (result != success) caller.code = result;
    }
};
