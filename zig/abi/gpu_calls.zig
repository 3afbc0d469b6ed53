//! The functions behind the GPU exports: each checks its request and calls gpu/gpus.zig.

const std = @import("std");
const types = @import("gpu_types.zig");
const calls = @import("calls.zig");
const handles = @import("../base/handles.zig");
const making = @import("../gpu/making.zig");
const Gpus = @import("../gpu/gpus.zig").Gpus;
const Error = @import("status.zig").Error;
const required = calls.required;

const gpus_max = 64;
var all: handles.HandleTable(Gpus, gpus_max, 7) = .{};

pub fn create(request: ?*const types.GpusRequest, info: ?*types.GpusInfo) Error!void {
    const out = try required(info);
    const made = try making.open(std.heap.c_allocator, (try required(request)).*);
    out.* = .{
        .handle = 0,
        .event_fd = -1,
        .state = @intFromEnum(made.state),
        .devices = 0,
        .driver_version = made.version,
        .code = made.code,
        .has_batches = 0,
    };
    const gpus = made.gpus orelse return;
    errdefer making.destroy(gpus);
    out.handle = try all.add(gpus);
    out.event_fd = gpus.event_fd;
    out.devices = @intCast(gpus.workers.len);
    out.has_batches = @intFromBool(gpus.hasBatches());
}

pub fn device(handle: u64, index: u32, out: ?*types.GpuDevice) Error!void {
    const place = try required(out);
    place.* = try (try all.get(handle)).info(index);
}

pub fn submit(handle: u64, job: ?*const types.GpuJob) Error!void {
    const wanted = try required(job);
    return (try all.get(handle)).submit(wanted.*);
}

pub fn reap(handle: u64, done: ?[*]types.GpuDone, count: u32) Error!u32 {
    const out = try required(done);
    return (try all.get(handle)).reap(out[0..count]);
}

pub fn close(handle: u64) Error!void {
    try (try all.get(handle)).close();
    _ = try all.remove(handle);
}
