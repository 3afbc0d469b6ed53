//! One device and the thread that alone calls the driver for it: a context is current per thread,
//! and calls may block. Copies are issued to a stream for each direction and found finished by
//! events, so many are under way.

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

/// Looks at what is under way before it sleeps between two of them.
const looks_max = 64;
const step_ns_max = 200_000;

pub const Job = struct {
    request: types.GpuJob,
    operation: types.GpuOperation,
    pieces: []types.GpuPiece = &.{},
    handle: cuda.IpcHandle = .{ .bytes = @splat(0) },
    /// Nobody waits: registers anew what the context of this lost device had registered.
    adopt_from: ?u32 = null,
};

/// How a job ended.
pub const Outcome = struct {
    status: status.Status = .ok,
    code: i32 = 0,
    result: u64 = 0,
};

/// A job that was taken from the queue and not completed.
pub const Taken = struct {
    token: u64,
    pieces: u32,
};

/// What this thread is stuck in is seen by the watch, which then speaks for it.
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
    /// Of one call for many pieces.
    batch: copies.Batch,
    looks: u32 = 0,
    /// The context is gone, and nothing of it touches the region any more.
    is_stopped: bool = false,

    lost: std.atomic.Value(i32) = .init(0),
    pageable: std.atomic.Value(u64) = .init(0),
    /// Copies that are issued or under way.
    touching: std.atomic.Value(u32) = .init(0),
    /// When this thread last showed that it goes on.
    alive_at: std.atomic.Value(u64) = .init(0),

    // With the hub's mutex held.
    jobs: Fifo(Job),
    taken: []Taken,
    taken_count: usize = 0,
    is_working: bool = true,
    is_open: bool = false,
    has_ended: bool = false,
    /// It is stuck for good: whatever it still does is nobody's business.
    is_abandoned: bool = false,

    pub fn start(worker: *Worker) Error!void {
        worker.beat();
        // With libc, a spawn fails only for want of memory or of a free process slot.
        worker.thread = std.Thread.spawn(.{}, run, .{worker}) catch return error.OutOfMemory;
    }

    fn run(worker: *Worker) void {
        worker.open() catch worker.refuse();
        // The driver's own threads, begun until here, would have the name as well.
        finding.nameThread("hearth-gpu");
        worker.hub.tellOpen(worker);
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

    /// The device could not be opened: it is listed, and of no use.
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

    /// The next job; null when there will be none.
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

    /// Until there may be something new to see.
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

    /// Completes what is finished, and gives the device up where it brings nothing to an end.
    pub fn poll(worker: *Worker) void {
        worker.beat();
        // Nothing is under way, or another thread speaks for this one.
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

    /// What a job ends with whose call said that the device is lost, or that came too late.
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

    /// The job's result; null where it is under way and completes later.
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

    /// A step of waiting for copies under way.
    pub fn wait(worker: *Worker) Error!void {
        worker.rest();
        worker.poll();
        if (worker.isLost()) return error.Lost;
    }

    /// Gives everything back, after what is under way.
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

    /// Ends the context, with which everything under way on the device ends. Where that fails the
    /// device may go on writing to the region for ever, and those who wait are told so.
    pub fn lose(worker: *Worker, code: cuda.Result) void {
        if (worker.caller.isGivenUp()) return;
        worker.lost.store(code, .release);
        worker.hub.failQueued(worker);
        // What it had registered goes with its context, and others may be copying there.
        const is_owner = worker.hub.slices.hasOf(worker.index);
        if (is_owner) worker.hub.quieten(worker);
        defer if (is_owner) worker.hub.goOn();
        worker.beat();
        const driver = worker.caller.driver;
        worker.caller.ignore(driver.cuCtxSetCurrent(null));
        const reset = driver.cuDevicePrimaryCtxReset_v2(worker.identity.device);
        worker.hub.slices.expire(worker.index);
        if (worker.caller.isGivenUp()) return;
        worker.is_stopped = reset == caller_file.success;
        // Releasing one that lives on would wait for what is under way.
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

    pub fn told(worker: *const Worker) types.GpuDevice {
        var device = worker.identity.told;
        device.lost = worker.lost.load(.acquire);
        device.pageable_copies = worker.pageable.load(.monotonic);
        return device;
    }
};
