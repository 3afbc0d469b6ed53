//! Tests of the GPU code with a simulated driver (a table of functions), for cases that no real
//! library produces.

const std = @import("std");
const linux = std.os.linux;
const types = @import("../abi/gpu_types.zig");
const pause = @import("../base/faults.zig").pause;
const cuda = @import("driver.zig");
const making = @import("making.zig");
const Gpus = @import("gpus.zig").Gpus;
const testing = std.testing;

const devices = 2;

/// A driver whose calls all succeed and do nothing.
const simulated: cuda.Driver = blk: {
    @setEvalBranchQuota(10_000);
    var driver: cuda.Driver = undefined;
    for (@typeInfo(cuda.Driver).@"struct".fields) |field| {
        const is_optional = @typeInfo(field.type) == .optional;
        @field(driver, field.name) = if (is_optional) null else succeeding(field.type);
    }
    driver.cuDeviceGetCount = &counted;
    driver.cuStreamCreate = &streamMade;
    driver.cuEventCreate = &eventMade;
    break :blk driver;
};

fn succeeding(comptime Pointer: type) Pointer {
    const P = @typeInfo(@typeInfo(Pointer).pointer.child).@"fn".params;
    const of = struct {
        fn Of(comptime at: usize) type {
            return P[at].type.?;
        }
    }.Of;
    return switch (P.len) {
        1 => &struct {
            fn f(_: of(0)) callconv(.c) cuda.Result {
                return 0;
            }
        }.f,
        2 => &struct {
            fn f(_: of(0), _: of(1)) callconv(.c) cuda.Result {
                return 0;
            }
        }.f,
        3 => &struct {
            fn f(_: of(0), _: of(1), _: of(2)) callconv(.c) cuda.Result {
                return 0;
            }
        }.f,
        4 => &struct {
            fn f(_: of(0), _: of(1), _: of(2), _: of(3)) callconv(.c) cuda.Result {
                return 0;
            }
        }.f,
        else => @compileError("no required call has this many parameters"),
    };
}

fn counted(count: *c_int) callconv(.c) cuda.Result {
    count.* = devices;
    return 0;
}

fn streamMade(stream: *?cuda.Stream, _: c_uint) callconv(.c) cuda.Result {
    stream.* = @ptrFromInt(8);
    return 0;
}

fn eventMade(event: *?cuda.Event, _: c_uint) callconv(.c) cuda.Result {
    event.* = @ptrFromInt(8);
    return 0;
}

const request: types.GpusRequest = .{
    .region = 0,
    .library = 0,
    .jobs = 4,
    .pieces = 4,
    .give_up_ms = 30_000,
    .reserved = 0,
};

fn jobOf(operation: types.GpuOperation, token: u64) types.GpuJob {
    var job = std.mem.zeroes(types.GpuJob);
    job.operation = @intFromEnum(operation);
    job.token = token;
    job.fd = -1;
    return job;
}

fn reapAll(gpus: *Gpus, out: []types.GpuDone) void {
    var count: u32 = 0;
    while (count < out.len) {
        count += gpus.reap(out[count..]);
        if (count < out.len) pause(1);
    }
}

fn end(gpus: *Gpus) !void {
    for (0..gpus.workers.len) |index| {
        var job = jobOf(.end, index);
        job.device = @intCast(index);
        try gpus.submit(job);
    }
    var done: [devices]types.GpuDone = undefined;
    reapAll(gpus, done[0..gpus.workers.len]);
    for (done[0..gpus.workers.len]) |each| try testing.expectEqual(0, each.status);
    try gpus.close();
}

fn openAndEnd(allocator: std.mem.Allocator) !void {
    const made = try making.create(allocator, simulated, request);
    try testing.expectEqual(.ready, made.state);
    try end(made.gpus.?);
}

test "opening GPUs without memory fails and leaves nothing open" {
    try testing.checkAllAllocationFailures(testing.allocator, openAndEnd, .{});
}

fn withoutHostPointers(
    value: *c_int,
    which: cuda.Attribute,
    _: cuda.Device,
) callconv(.c) cuda.Result {
    value.* = @intFromBool(which != .host_pointers);
    return 0;
}

fn withoutAnswers(_: *c_int, _: cuda.Attribute, _: cuda.Device) callconv(.c) cuda.Result {
    return 1;
}

test "batches are offered only if a device accepts host addresses" {
    var driver = simulated;
    driver.cuMemcpyBatchAsync_v2 = @ptrCast(&counted);
    for ([_]bool{ false, true }) |takes| {
        driver.cuDeviceGetAttribute = if (takes) &withoutAnswers else &withoutHostPointers;
        const gpus = (try making.create(testing.allocator, driver, request)).gpus.?;
        try testing.expectEqual(takes, gpus.workers[0].batch.is_offered);
        try end(gpus);
    }
}

test "GPUs close only when all jobs are reaped and every device has ended" {
    const gpus = (try making.create(testing.allocator, simulated, request)).gpus.?;
    try testing.expectError(error.Busy, gpus.close());
    var job = jobOf(.allocate, 7);
    job.bytes = 1;
    try gpus.submit(job);
    var done: [1]types.GpuDone = undefined;
    reapAll(gpus, &done);
    try testing.expectEqual(7, done[0].token);
    try testing.expectEqual(0, gpus.reap(&done));
    try end(gpus);
}

test "an invalid job is refused and not counted" {
    const gpus = (try making.create(testing.allocator, simulated, request)).gpus.?;
    var job = jobOf(.allocate, 1);
    job.operation = 99;
    try testing.expectError(error.BadRequest, gpus.submit(job));
    job = jobOf(.allocate, 1);
    job.device = devices;
    try testing.expectError(error.OutOfRange, gpus.submit(job));
    job = jobOf(.free, 1);
    job.memory = std.math.maxInt(u64);
    try testing.expectError(error.StaleHandle, gpus.submit(job));
    try testing.expectError(error.NullArgument, gpus.submit(jobOf(.import_ipc, 1)));
    try testing.expectError(error.NullArgument, gpus.submit(jobOf(.export_ipc, 1)));
    job = jobOf(.to_gpu, 1);
    job.count = 1;
    try testing.expectError(error.NullArgument, gpus.submit(job));
    job.count = std.math.maxInt(u32);
    try testing.expectError(error.Full, gpus.submit(job));
    try testing.expectError(error.OutOfRange, gpus.info(devices));
    try testing.expectEqual(0, gpus.outstanding);
    try end(gpus);
}

test "the descriptor of a job is closed in every case" {
    const gpus = (try making.create(testing.allocator, simulated, request)).gpus.?;
    var job = jobOf(.import_fd, 1);
    job.device = devices;
    job.fd = @intCast(linux.open("/dev/null", .{ .CLOEXEC = true }, 0));
    try testing.expectError(error.OutOfRange, gpus.submit(job));
    try testing.expectEqual(.BADF, linux.errno(linux.close(job.fd)));
    // This simulated driver has no virtual memory management.
    job.device = 0;
    job.bytes = 4096;
    job.fd = @intCast(linux.open("/dev/null", .{ .CLOEXEC = true }, 0));
    try gpus.submit(job);
    var done: [1]types.GpuDone = undefined;
    reapAll(gpus, &done);
    const unsupported = @intFromEnum(@import("../abi/status.zig").Status.unsupported);
    try testing.expectEqual(unsupported, done[0].status);
    try testing.expectEqual(.BADF, linux.errno(linux.close(job.fd)));
    try end(gpus);
}
