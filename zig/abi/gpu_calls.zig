//! What stands behind the GPU exports.

const types = @import("gpu_types.zig");
const calls = @import("calls.zig");
const Error = @import("status.zig").Error;
const required = calls.required;

pub fn create(request: ?*const types.GpusRequest, info: ?*types.GpusInfo) Error!void {
    _ = try required(request);
    (try required(info)).* = .{
        .handle = 0,
        .event_fd = -1,
        .state = @intFromEnum(types.GpuState.no_library),
        .devices = 0,
        .driver_version = 0,
        .code = 0,
        .has_batches = 0,
    };
}

pub fn device(handle: u64, index: u32, out: ?*types.GpuDevice) Error!void {
    _ = .{ handle, index };
    _ = try required(out);
    return error.StaleHandle;
}

pub fn submit(handle: u64, job: ?*const types.GpuJob) Error!void {
    _ = handle;
    _ = try required(job);
    return error.StaleHandle;
}

pub fn reap(handle: u64, done: ?[*]types.GpuDone, count: u32) Error!u32 {
    _ = .{ handle, count };
    _ = try required(done);
    return error.StaleHandle;
}

pub fn close(handle: u64) Error!void {
    _ = handle;
    return error.StaleHandle;
}
