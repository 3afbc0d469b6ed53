//! Opens and closes the GPUs of this host: finds them, and starts and stops their threads.

const std = @import("std");
const linux = std.os.linux;
const pause = @import("../base/faults.zig").pause;
const wakes = @import("../base/wake.zig");
const types = @import("../abi/gpu_types.zig");
const regions = @import("../mem/root.zig").table;
const cuda = @import("driver.zig");
const caller_file = @import("caller.zig");
const finding = @import("finding.zig");
const memories = @import("memories.zig");
const slices = @import("slices.zig");
const copies = @import("copies.zig");
const Gpus = @import("gpus.zig").Gpus;
const Identity = @import("identity.zig").Identity;
const worker_file = @import("worker.zig");
const Worker = worker_file.Worker;
const Memory = memories.Memory;
const Error = @import("../abi/status.zig").Error;

const jobs_max = 65_536;
const pieces_max = 1 << 24;
const slices_max = 8192;

/// The opened GPUs, or the reason why there are none.
pub const Made = struct {
    gpus: ?*Gpus = null,
    state: types.GpuState,
    version: u32 = 0,
    code: i32 = 0,
};

pub fn open(allocator: std.mem.Allocator, request: types.GpusRequest) Error!Made {
    if (request.jobs == 0 or request.jobs > jobs_max) return error.BadRequest;
    if (request.pieces == 0 or request.pieces > pieces_max) return error.BadRequest;
    if (request.give_up_ms == 0) return error.BadRequest;
    const path: ?[*:0]const u8 = @ptrFromInt(request.library);
    return switch (cuda.Driver.open(path orelse "libcuda.so.1")) {
        .no_library => .{ .state = .no_library },
        .lacks => .{ .state = .too_old },
        .driver => |driver| create(allocator, driver, request),
    };
}

/// Opens the GPUs with the given driver, which may be a simulated one.
pub fn create(
    allocator: std.mem.Allocator,
    driver: cuda.Driver,
    request: types.GpusRequest,
) Error!Made {
    const limit_ns = 2 * @as(u64, request.give_up_ms) * std.time.ns_per_ms;
    const found = try finding.find(allocator, driver, limit_ns);
    var made: Made = .{ .state = .no_device, .version = found.version, .code = found.code };
    if (found.code != caller_file.success) {
        made.state = switch (found.code) {
            caller_file.no_device => .no_device,
            caller_file.system_not_ready => .not_ready,
            else => .failed,
        };
        return made;
    }
    made.code = caller_file.no_device;
    if (found.count == 0) return made;
    const gpus = try make(allocator, driver, request, found.identities[0..found.count]);
    waitForAll(gpus);
    made.code = gpus.workers[0].lost.load(.acquire);
    for (gpus.workers) |*worker| {
        if (worker.isLost()) continue;
        made = .{ .gpus = gpus, .state = .ready, .version = found.version };
        return made;
    }
    destroy(gpus);
    made.state = .failed;
    return made;
}

fn make(
    allocator: std.mem.Allocator,
    driver: cuda.Driver,
    request: types.GpusRequest,
    found: []const Identity,
) Error!*Gpus {
    const gpus = try allocator.create(Gpus);
    errdefer allocator.destroy(gpus);
    gpus.* = .{
        .allocator = allocator,
        .driver = driver,
        .region = null,
        .jobs_max = request.jobs,
        .pieces_max = request.pieces,
        .give_up_ns = @as(u64, request.give_up_ms) * std.time.ns_per_ms,
    };
    if (request.region != 0) gpus.region = try regions.acquire(request.region);
    errdefer if (gpus.region) |region| regions.release(region);
    errdefer freeTables(gpus);
    gpus.slices.items = try allocator.alloc(slices.Slice, slices_max);
    const spare = 2 * found.len;
    gpus.done.items = try allocator.alloc(types.GpuDone, request.jobs + spare);
    gpus.room = try allocator.alloc(Worker, found.len);
    errdefer stop(gpus);
    gpus.event_fd = try wakes.create();
    gpus.watch_fd = try wakes.create();
    for (gpus.room, found, 0..) |*worker, known, index| {
        worker.* = try makeWorker(gpus, known, @intCast(index), request.jobs + spare);
        worker.memories.caller = &worker.caller;
        gpus.workers = gpus.room[0 .. index + 1];
    }
    for (gpus.workers) |*worker| try worker.start();
    gpus.watch = std.Thread.spawn(.{}, Gpus.watchLoop, .{gpus}) catch return error.OutOfMemory;
    return gpus;
}

fn makeWorker(gpus: *Gpus, found: Identity, index: u32, jobs: usize) Error!Worker {
    const allocator = gpus.allocator;
    const items = try allocator.alloc(Memory, memories.memories_max);
    errdefer allocator.free(items);
    @memset(items, .{});
    const taken = try allocator.alloc(worker_file.Taken, jobs);
    errdefer allocator.free(taken);
    const queue = try allocator.alloc(worker_file.Job, jobs);
    errdefer allocator.free(queue);
    const to = try allocator.alloc(u64, copies.batch_max);
    errdefer allocator.free(to);
    const from = try allocator.alloc(u64, copies.batch_max);
    errdefer allocator.free(from);
    const bytes = try allocator.alloc(usize, copies.batch_max);
    errdefer allocator.free(bytes);
    const wake_fd = try wakes.create();
    return .{
        .hub = gpus,
        .index = index,
        .identity = found,
        .caller = .{ .driver = &gpus.driver },
        .wake_fd = wake_fd,
        .memories = .{
            .caller = undefined,
            .device = index,
            .ordinal = found.device,
            .items = items,
        },
        .ways = .{ .{}, .{} },
        .batch = .{
            .to = to,
            .from = from,
            .bytes = bytes,
            .is_offered = gpus.driver.hasBatches() and found.takes_host_pointers,
        },
        .jobs = .{ .items = queue },
        .taken = taken,
    };
}

/// Waits until all device threads have opened their devices. If a driver hangs, the watch thread
/// ends this wait.
fn waitForAll(gpus: *Gpus) void {
    while (true) {
        {
            gpus.mutex.lock();
            defer gpus.mutex.unlock();
            const waiting = for (gpus.workers) |*worker| {
                if (!worker.is_open) break true;
            } else false;
            if (!waiting) return;
        }
        pause(1);
    }
}

/// Stops all threads that do not hang. Returns whether all have ended.
fn stop(gpus: *Gpus) void {
    gpus.mutex.lock();
    gpus.stopping = true;
    for (gpus.workers) |*worker| worker.wake();
    gpus.mutex.unlock();
    for (gpus.workers) |*worker| {
        if (worker.thread) |thread| if (worker.is_abandoned) thread.detach() else thread.join();
    }
    if (gpus.watch) |watch| {
        wakes.ring(gpus.watch_fd);
        watch.join();
    }
}

pub fn destroy(gpus: *Gpus) void {
    stop(gpus);
    if (gpus.region) |region| if (!gpus.keeps_region) regions.release(region);
    for (gpus.workers) |*worker| if (worker.is_abandoned) return;
    freeTables(gpus);
    gpus.allocator.destroy(gpus);
}

fn freeTables(gpus: *Gpus) void {
    const allocator = gpus.allocator;
    for (gpus.workers) |*worker| {
        allocator.free(worker.memories.items);
        allocator.free(worker.taken);
        allocator.free(worker.jobs.items);
        allocator.free(worker.batch.to);
        allocator.free(worker.batch.from);
        allocator.free(worker.batch.bytes);
        _ = linux.close(worker.wake_fd);
    }
    if (gpus.event_fd >= 0) _ = linux.close(gpus.event_fd);
    if (gpus.watch_fd >= 0) _ = linux.close(gpus.watch_fd);
    allocator.free(gpus.room);
    allocator.free(gpus.slices.items);
    allocator.free(gpus.done.items);
}
