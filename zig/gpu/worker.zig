//! The thread of one GPU. It alone calls the driver for its GPU, because a context is current per
//! thread and calls may block. It issues copies to one stream per direction and polls events for
//! their ends: many copies are in progress at once.

const std = @import("std");
const linux = std.os.linux;
const monotonic = @import("../base/monotonic.zig");
const wakes = @import("../base/wake.zig");
const Fifo = @import("../base/fifo.zig").Fifo;
const types = @import("../abi/gpu_types.zig");
const status = @import("../abi/status.zig");
const cuda = @import("driver.zig");
const caller_file = @import("caller.zig");
const copies = @import("copies.zig");
const finding = @import("finding.zig");
const registering = @import("registering.zig");
const memories_file = @import("memories.zig");
const Caller = caller_file.Caller;
const Gpus = @import("gpus.zig").Gpus;
const Identity = @import("identity.zig").Identity;
const Memories = memories_file.Memories;
const Memory = memories_file.Memory;
const Error = status.Error;

/// Number of polls of the copies in progress before the thread starts to sleep between polls.
const looks_max = 64;
const step_ns_max = 200_000;

pub const Job = struct {
    request: types.GpuJob,
    operation: types.GpuOperation,
    pieces: []types.GpuPiece = &.{},
    handle: cuda.IpcHandle = .{ .bytes = @splat(0) },
    /// Set for an internal job without a completion: registers the slices of this lost device
    /// again.
    adopt_from: ?u32 = null,
};

/// Result of a job, as its completion reports it.
pub const Outcome = struct {
    status: status.Status = .ok,
    code: i32 = 0,
    result: u64 = 0,
};

/// A job that the thread took from the queue and has not completed.
pub const Taken = struct {
    token: u64,
    pieces: u32,
};

/// State of a GPU's thread. If the thread hangs in a driver call, the watch thread completes its
/// jobs.
pub const Worker = struct {
    hub: *Gpus,
    index: u32,
    identity: Identity,
    caller: Caller,
    thread: ?std.Thread = null,
    wake_fd: i32,
    has_context: bool = false,
    memories: Memories,
    ways: [2]copies.Way,
    /// Argument arrays of the driver call that copies many pieces.
    batch: copies.Batch,
    looks: u32 = 0,
    /// True once the context is destroyed, so that the device no longer accesses the region.
    is_stopped: bool = false,

    lost: std.atomic.Value(i32) = .init(0),
    pageable: std.atomic.Value(u64) = .init(0),
    /// Number of copies that are being issued or in progress.
    touching: std.atomic.Value(u32) = .init(0),
    /// When this thread last reported progress, in nanoseconds of the monotonic clock.
    alive_at: std.atomic.Value(u64) = .init(0),

    // The mutex of `hub` protects the following fields.
    jobs: Fifo(Job),
    taken: []Taken,
    taken_count: usize = 0,
    is_working: bool = true,
    is_open: bool = false,
    has_ended: bool = false,
    /// True if the thread hangs and was abandoned. Its later results are ignored.
    is_abandoned: bool = false,

    pub fn start(worker: *Worker) Error!void {
        worker.beat();
        // With libc, spawn fails only if memory or process slots run out.
        worker.thread = std.Thread.spawn(.{}, run, .{worker}) catch return error.OutOfMemory;
    }

    fn run(worker: *Worker) void {
        worker.open() catch worker.refuse();
        // Named only after `open`, because driver threads inherit the name of the thread that
        // starts them.
        finding.nameThread("hearth-gpu");
        worker.hub.reportOpen(worker);
        while (worker.take()) |job| worker.perform(job);
        if (!worker.has_ended and !worker.hub.hasAbandoned(worker)) worker.finish();
    }

    fn open(worker: *Worker) Error!void {
        const caller = &worker.caller;
        const driver = caller.driver;
        var context: ?cuda.Context = null;
        try caller.check(driver.cuDevicePrimaryCtxRetain(&context, worker.identity.device));
        worker.has_context = true;
        try caller.check(driver.cuCtxSetCurrent(context));
        for (&worker.ways) |*way| try way.open(caller);
    }

    /// Marks a device that could not be opened: it is listed but unusable.
    fn refuse(worker: *Worker) void {
        if (worker.caller.isGivenUp()) return;
        worker.lost.store(worker.caller.code, .release);
        for (&worker.ways) |*way| way.close(&worker.caller);
        worker.release();
        worker.is_stopped = true;
    }

    fn release(worker: *Worker) void {
        if (!worker.has_context) return;
        worker.has_context = false;
        const driver = worker.caller.driver;
        worker.caller.ignore(driver.cuCtxSetCurrent(null));
        worker.caller.ignore(driver.cuDevicePrimaryCtxRelease_v2(worker.identity.device));
    }

    pub fn beat(worker: *Worker) void {
        worker.alive_at.store(monotonic.now(), .release);
    }

    pub fn isLost(worker: *const Worker) bool {
        return worker.lost.load(.acquire) != 0;
    }

    fn inFlight(worker: *const Worker) usize {
        return worker.ways[0].flights.count + worker.ways[1].flights.count;
    }

    /// Waits for the next job and polls copies meanwhile. Returns null when the thread must end.
    fn take(worker: *Worker) ?Job {
        while (true) {
            worker.poll();
            switch (worker.hub.takeJob(worker, worker.inFlight() > 0)) {
                .job => |job| return job,
                .stop => return null,
                .none => worker.rest(),
            }
        }
    }

    /// Waits a short time for a copy to end or a job to arrive; without copies in progress, waits
    /// until the thread is woken.
    pub fn rest(worker: *Worker) void {
        worker.looks +|= 1;
        if (worker.inFlight() > 0 and worker.looks < looks_max) return std.atomic.spinLoopHint();
        var polled =
            [_]linux.pollfd{.{ .fd = worker.wake_fd, .events = linux.POLL.IN, .revents = 0 }};
        const step_ns = @min(@as(u64, worker.looks) * 500, step_ns_max);
        var step: linux.timespec = .{ .sec = 0, .nsec = @intCast(step_ns) };
        const limit = if (worker.inFlight() > 0) &step else null;
        _ = linux.ppoll(&polled, 1, limit, null);
        if (polled[0].revents == 0) return;
        var count: u64 = 0;
        _ = linux.read(worker.wake_fd, std.mem.asBytes(&count), 8);
    }

    /// Completes finished copies. Marks the device as lost if it failed or made no progress in
    /// time.
    pub fn poll(worker: *Worker) void {
        worker.beat();
        // The device is already lost: its copies were completed.
        if (worker.isLost()) return;
        for (&worker.ways) |*way| {
            while (way.flights.count > 0) {
                const code = way.query(&worker.caller);
                if (code == caller_file.not_ready) break;
                if (code != caller_file.success) return worker.lose(code);
                const flight = way.land();
                flight.memory.copies -= 1;
                worker.untouch();
                worker.looks = 0;
                worker.complete(flight.token, flight.outcome);
            }
            if (way.isStalled(worker.hub.give_up_ns)) return worker.lose(caller_file.timeout);
        }
    }

    pub fn untouch(worker: *Worker) void {
        _ = worker.touching.fetchSub(1, .seq_cst);
    }

    pub fn complete(worker: *Worker, token: u64, outcome: Outcome) void {
        worker.hub.complete(worker, token, outcome);
    }

    fn perform(worker: *Worker, job: Job) void {
        defer worker.hub.freePieces(job.pieces);
        const token = job.request.token;
        if (job.adopt_from) |owner| return registering.adopt(worker, owner);
        if (job.operation == .end) {
            worker.finish();
            return worker.complete(token, .{});
        }
        var handle = job.handle;
        const result = worker.carryOut(&job, &handle) catch |err| {
            var outcome: Outcome = .{ .status = status.fromError(err) };
            if (err == error.DeviceFailed) outcome.code = worker.caller.code;
            if (err == error.Lost) outcome = worker.fail(job.operation);
            return worker.complete(token, outcome);
        };
        const value = result orelse return;
        if (job.operation == .export_ipc) worker.hub.hand(worker, job.request.buffer, &handle);
        worker.complete(token, .{ .result = value });
    }

    /// Marks the device as lost and returns the result of the job whose call failed. The result is
    /// 1 if the device may still access the job's memory.
    fn fail(worker: *Worker, operation: types.GpuOperation) Outcome {
        const was_lost = worker.isLost();
        if (!was_lost) worker.lose(worker.caller.code);
        const may_touch = switch (operation) {
            .to_gpu, .from_gpu => !was_lost and !worker.is_stopped,
            else => false,
        };
        const code = worker.lost.load(.acquire);
        return .{ .status = .lost, .code = code, .result = @intFromBool(may_touch) };
    }

    /// Runs a job and returns its result; null if a copy was issued that completes later.
    fn carryOut(worker: *Worker, job: *const Job, handle: *cuda.IpcHandle) Error!?u64 {
        const request = &job.request;
        const memories = &worker.memories;
        defer if (job.operation == .import_fd) {
            _ = linux.close(request.fd);
        };
        if (worker.isLost()) return error.Lost;
        worker.caller.code = 0;
        switch (job.operation) {
            .register => try registering.register(worker, request.offset, request.bytes),
            .import_ipc => return try memories.importIpc(job.handle, request.bytes),
            .import_fd => return try memories.importFd(request.fd, request.bytes),
            .allocate => return try memories.allocate(request.bytes, request.flags & 1 != 0),
            .free => try worker.free(try memories.find(request.memory)),
            .to_gpu, .from_gpu => {
                try copies.begin(worker, job, try memories.find(request.memory));
                return null;
            },
            .export_ipc => {
                return try memories.exportIpc(try memories.find(request.memory), handle);
            },
            .export_fd => return try memories.exportFd(try memories.find(request.memory)),
            .export_dma_buf => {
                const memory = try memories.find(request.memory);
                return try memories.exportDmaBuf(memory, request.offset, request.bytes);
            },
            .end => unreachable,
        }
        return 0;
    }

    fn free(worker: *Worker, memory: *Memory) Error!void {
        while (memory.copies > 0) try worker.wait();
        try worker.memories.free(memory);
    }

    /// Makes one step of waiting for copies in progress. Returns `Lost` if the device is lost.
    pub fn wait(worker: *Worker) Error!void {
        worker.rest();
        worker.poll();
        if (worker.isLost()) return error.Lost;
    }

    /// Frees everything on the device after the copies in progress have ended.
    fn finish(worker: *Worker) void {
        worker.giveBack() catch |err| {
            if (err == error.Lost and !worker.isLost()) worker.lose(worker.caller.code);
        };
        worker.release();
        worker.hub.tellEnded(worker);
    }

    fn giveBack(worker: *Worker) Error!void {
        while (worker.inFlight() > 0) try worker.wait();
        if (worker.isLost()) return;
        try worker.memories.freeAll();
        try registering.unregister(worker);
        for (&worker.ways) |*way| way.close(&worker.caller);
    }

    /// Marks the device as lost and destroys its context, which stops all of its work. If that
    /// fails, the device may write to the region for ever; the completions report this.
    pub fn lose(worker: *Worker, code: cuda.Result) void {
        if (worker.caller.isGivenUp()) return;
        worker.lost.store(code, .release);
        worker.hub.failQueued(worker);
        // Registrations end with the context, and other devices may be copying through those of
        // this device.
        const is_owner = worker.hub.slices.hasOf(worker.index);
        if (is_owner) worker.hub.quieten(worker);
        defer if (is_owner) worker.hub.endQuiet();
        worker.beat();
        const driver = worker.caller.driver;
        worker.caller.ignore(driver.cuCtxSetCurrent(null));
        const reset = driver.cuDevicePrimaryCtxReset_v2(worker.identity.device);
        worker.hub.slices.expire(worker.index);
        if (worker.caller.isGivenUp()) return;
        worker.is_stopped = reset == caller_file.success;
        // Releasing a context that still works would wait for the copies in progress.
        if (worker.is_stopped) worker.release() else worker.has_context = false;
        if (!worker.is_stopped) worker.hub.keepRegion();
        for (&worker.ways) |*way| {
            while (way.flights.count > 0) worker.complete(way.flights.pop().token, .{
                .status = .lost,
                .code = code,
                .result = @intFromBool(!worker.is_stopped),
            });
            way.forget();
        }
        worker.memories.forgetAll();
        worker.touching.store(0, .seq_cst);
        worker.hub.handOver(worker);
    }

    pub fn wake(worker: *Worker) void {
        wakes.ring(worker.wake_fd);
    }

    pub fn describe(worker: *const Worker) types.GpuDevice {
        var device = worker.identity.properties;
        device.lost = worker.lost.load(.acquire);
        device.pageable_copies = worker.pageable.load(.monotonic);
        return device;
    }
};
