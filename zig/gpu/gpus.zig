//! The GPUs of this host. The event loop submits jobs, one thread per device executes them, and one
//! eventfd reports completions. The numbers of jobs and of their pieces are limited.
//!
//! Any driver call may hang. A watch thread detects a device thread that makes no progress, marks
//! its device as lost and completes its jobs. The hung thread is abandoned with all memory that it
//! may still access, and the region never closes.

const std = @import("std");
const linux = std.os.linux;
const sync = @import("../base/mutex.zig");
const wakes = @import("../base/wake.zig");
const pause = @import("../base/faults.zig").pause;
const monotonic = @import("../base/monotonic.zig");
const Fifo = @import("../base/fifo.zig").Fifo;
const types = @import("../abi/gpu_types.zig");
const status = @import("../abi/status.zig");
const Region = @import("../mem/root.zig").Region;
const cuda = @import("driver.zig");
const caller_file = @import("caller.zig");
const memories = @import("memories.zig");
const slices_file = @import("slices.zig");
const making = @import("making.zig");
const worker_file = @import("worker.zig");
const Worker = worker_file.Worker;
const Job = worker_file.Job;
const Outcome = worker_file.Outcome;
const Error = status.Error;

pub const Next = union(enum) { job: Job, stop, none };

pub const Gpus = struct {
    allocator: std.mem.Allocator,
    driver: cuda.Driver,
    region: ?*Region,
    slices: slices_file.Slices = .{ .items = &.{} },
    jobs_max: u32,
    pieces_max: u32,
    give_up_ns: u64,
    event_fd: i32 = -1,
    watch_fd: i32 = -1,
    watch: ?std.Thread = null,
    mutex: sync.Mutex = .{},
    workers: []Worker = &.{},
    /// The allocation of which `workers` is the used part.
    room: []Worker = &.{},
    done: Fifo(types.GpuDone) = .{ .items = &.{} },
    /// True from the write to the eventfd until all completions are reaped.
    woken: bool = false,
    /// Number of jobs whose completions are not reaped.
    unreaped: u32 = 0,
    /// Number of jobs submitted and not completed.
    outstanding: u32 = 0,
    /// Total number of pieces of jobs that are not completed.
    pieces: u32 = 0,
    stopping: bool = false,
    /// True if a device may still write to the region, which then must never close.
    keeps_region: bool = false,
    /// Number of device threads in `quieten`, during which no device issues copies.
    quiet: std.atomic.Value(u32) = .init(0),

    pub fn info(gpus: *const Gpus, index: u32) Error!types.GpuDevice {
        if (index >= gpus.workers.len) return error.OutOfRange;
        return gpus.workers[index].describe();
    }

    /// Returns whether any device can copy many pieces in one call.
    pub fn hasBatches(gpus: *const Gpus) bool {
        return for (gpus.workers) |*worker| {
            if (worker.batch.is_offered) break true;
        } else false;
    }

    pub fn submit(gpus: *Gpus, request: types.GpuJob) Error!void {
        const operation = std.enums.fromInt(types.GpuOperation, request.operation) orelse
            return error.BadRequest;
        errdefer dropDescriptor(operation, request.fd);
        var job: Job = .{ .request = request, .operation = operation };
        switch (operation) {
            .import_ipc => job.handle = (try at(cuda.IpcHandle, request.buffer)).*,
            .export_ipc => _ = try at(cuda.IpcHandle, request.buffer),
            .to_gpu, .from_gpu => job.pieces = try gpus.copyPieces(request),
            else => {},
        }
        errdefer gpus.freePieces(job.pieces);
        gpus.mutex.lock();
        defer gpus.mutex.unlock();
        const worker = try gpus.workerOf(operation, request);
        if (worker.has_ended) return error.Closed;
        const spare: u32 = if (operation == .end) @intCast(gpus.workers.len) else 0;
        if (gpus.unreaped >= gpus.jobs_max + spare) return error.Full;
        const count: u32 = @intCast(job.pieces.len);
        if (count > gpus.pieces_max - gpus.pieces) return error.Full;
        gpus.unreaped += 1;
        gpus.outstanding += 1;
        gpus.pieces += count;
        worker.jobs.push(job);
        if (worker.is_abandoned) gpus.failJobs(worker) else worker.wake();
        if (gpus.outstanding == 1) wakes.ring(gpus.watch_fd);
    }

    fn at(comptime T: type, address: u64) Error!*T {
        return @as(?*T, @ptrFromInt(address)) orelse error.NullArgument;
    }

    fn copyPieces(gpus: *Gpus, request: types.GpuJob) Error![]types.GpuPiece {
        if (request.count == 0) return &.{};
        if (request.count > gpus.pieces_max) return error.Full;
        const given = @as(?[*]const types.GpuPiece, @ptrFromInt(request.buffer)) orelse
            return error.NullArgument;
        return gpus.allocator.dupe(types.GpuPiece, given[0..request.count]);
    }

    pub fn freePieces(gpus: *Gpus, pieces: []types.GpuPiece) void {
        gpus.allocator.free(pieces);
    }

    /// Returns the device thread for a job. A job that concerns all devices goes to the first
    /// usable device.
    fn workerOf(
        gpus: *Gpus,
        operation: types.GpuOperation,
        request: types.GpuJob,
    ) Error!*Worker {
        const index = switch (operation) {
            .register => return gpus.healthy() orelse &gpus.workers[0],
            .import_ipc, .import_fd, .allocate, .end => request.device,
            else => memories.deviceOf(request.memory),
        };
        if (index < gpus.workers.len) return &gpus.workers[index];
        return switch (operation) {
            .import_ipc, .import_fd, .allocate, .end => error.OutOfRange,
            else => error.StaleHandle,
        };
    }

    fn healthy(gpus: *Gpus) ?*Worker {
        for (gpus.workers) |*worker| {
            if (!worker.isLost() and !worker.has_ended) return worker;
        }
        return null;
    }

    /// Takes the next job for a device's thread. The watch checks the thread's progress while it
    /// has a job or `is_busy` is set.
    pub fn takeJob(gpus: *Gpus, worker: *Worker, is_busy: bool) Next {
        gpus.mutex.lock();
        defer gpus.mutex.unlock();
        if (worker.is_abandoned) return .stop;
        worker.is_working = is_busy or worker.jobs.count > 0;
        if (worker.jobs.count == 0) return if (gpus.stopping) .stop else .none;
        const job = worker.jobs.pop();
        if (job.adopt_from == null) {
            const token = job.request.token;
            worker.taken[worker.taken_count] =
                .{ .token = token, .pieces = @intCast(job.pieces.len) };
            worker.taken_count += 1;
        }
        return .{ .job = job };
    }

    pub fn complete(gpus: *Gpus, worker: *Worker, token: u64, outcome: Outcome) void {
        gpus.mutex.lock();
        defer gpus.mutex.unlock();
        if (worker.is_abandoned) return;
        const index = for (worker.taken[0..worker.taken_count], 0..) |taken, index| {
            if (taken.token == token) break index;
        } else unreachable;
        gpus.settle(worker.taken[index], outcome);
        worker.taken_count -= 1;
        worker.taken[index] = worker.taken[worker.taken_count];
    }

    /// Completes a job and wakes the reader unless it was already woken. The caller holds the
    /// mutex.
    fn settle(gpus: *Gpus, taken: worker_file.Taken, outcome: Outcome) void {
        gpus.done.push(.{
            .token = taken.token,
            .result = outcome.result,
            .status = @intFromEnum(outcome.status),
            .code = outcome.code,
        });
        gpus.outstanding -= 1;
        gpus.pieces -= taken.pieces;
        if (gpus.woken) return;
        gpus.woken = true;
        wakes.ring(gpus.event_fd);
    }

    /// Writes an exported handle to the job's buffer, unless the job was already completed because
    /// this thread hung.
    pub fn hand(gpus: *Gpus, worker: *Worker, buffer: u64, handle: *const cuda.IpcHandle) void {
        gpus.mutex.lock();
        defer gpus.mutex.unlock();
        if (worker.is_abandoned) return;
        @as(*cuda.IpcHandle, @ptrFromInt(buffer)).* = handle.*;
    }

    pub fn reportOpen(gpus: *Gpus, worker: *Worker) void {
        gpus.mutex.lock();
        defer gpus.mutex.unlock();
        worker.is_open = true;
    }

    pub fn tellEnded(gpus: *Gpus, worker: *Worker) void {
        gpus.mutex.lock();
        defer gpus.mutex.unlock();
        worker.has_ended = true;
    }

    pub fn hasAbandoned(gpus: *Gpus, worker: *Worker) bool {
        gpus.mutex.lock();
        defer gpus.mutex.unlock();
        return worker.is_abandoned;
    }

    pub fn keepRegion(gpus: *Gpus) void {
        gpus.mutex.lock();
        defer gpus.mutex.unlock();
        gpus.keeps_region = true;
    }

    pub fn failQueued(gpus: *Gpus, worker: *Worker) void {
        gpus.mutex.lock();
        defer gpus.mutex.unlock();
        gpus.failJobs(worker);
    }

    /// Completes the queued jobs of a lost device, for which no driver call was made. The caller
    /// holds the mutex.
    fn failJobs(gpus: *Gpus, worker: *Worker) void {
        for (0..worker.jobs.count) |_| {
            const job = worker.jobs.pop();
            const is_end = job.operation == .end and job.adopt_from == null;
            if (is_end and !worker.is_abandoned) {
                worker.jobs.push(job);
                continue;
            }
            if (job.adopt_from != null) continue;
            dropDescriptor(job.operation, job.request.fd);
            gpus.freePieces(job.pieces);
            const code = worker.lost.load(.acquire);
            const outcome: Outcome = if (is_end) .{} else .{ .status = .lost, .code = code };
            const token = job.request.token;
            gpus.settle(.{ .token = token, .pieces = @intCast(job.pieces.len) }, outcome);
        }
    }

    /// Counts a copy that is about to be issued. Returns false, without counting it, if another
    /// device thread is in `quieten`.
    pub fn mayTouch(gpus: *Gpus, worker: *Worker) bool {
        _ = worker.touching.fetchAdd(1, .seq_cst);
        if (gpus.quiet.load(.seq_cst) == 0) return true;
        worker.untouch();
        return false;
    }

    /// Waits until no other device copies, and prevents new copies until `endQuiet`. Waits at most
    /// three times the limit after which a hung device counts as lost.
    pub fn quieten(gpus: *Gpus, worker: *Worker) void {
        _ = gpus.quiet.fetchAdd(1, .seq_cst);
        const end = monotonic.now() + 3 * gpus.give_up_ns;
        while (monotonic.now() < end) {
            const is_busy = for (gpus.workers) |*other| {
                if (other.isLost() or other.caller.isGivenUp()) continue;
                if (other.touching.load(.seq_cst) > 0) break true;
            } else false;
            if (!is_busy) return;
            worker.beat();
            pause(1);
        }
    }

    pub fn endQuiet(gpus: *Gpus) void {
        _ = gpus.quiet.fetchSub(1, .seq_cst);
        for (gpus.workers) |*worker| worker.wake();
    }

    /// Makes another device register the slices again that were registered in the lost device's
    /// context.
    pub fn handOver(gpus: *Gpus, from: *Worker) void {
        gpus.mutex.lock();
        defer gpus.mutex.unlock();
        if (gpus.stopping) return;
        const heir = gpus.healthy() orelse return;
        heir.jobs.push(.{
            .request = std.mem.zeroes(types.GpuJob),
            .operation = .register,
            .adopt_from = from.index,
        });
        heir.wake();
        wakes.ring(gpus.watch_fd);
    }

    /// Moves up to `out.len` completions to `out` and returns their number. Never waits.
    pub fn reap(gpus: *Gpus, out: []types.GpuDone) u32 {
        gpus.mutex.lock();
        defer gpus.mutex.unlock();
        const count: u32 = @intCast(@min(out.len, gpus.done.count));
        for (out[0..count]) |*done| done.* = gpus.done.pop();
        gpus.unreaped -= count;
        if (gpus.done.count == 0) gpus.woken = false;
        return count;
    }

    /// Runs the watch thread, which checks that the device threads make progress.
    pub fn watchLoop(gpus: *Gpus) void {
        const step_ns = std.math.clamp(gpus.give_up_ns / 8, std.time.ns_per_ms, std.time.ns_per_s);
        const step: linux.timespec = .{
            .sec = @intCast(step_ns / std.time.ns_per_s),
            .nsec = @intCast(step_ns % std.time.ns_per_s),
        };
        while (true) {
            const must_look = gpus.look() orelse return;
            var polled =
                [_]linux.pollfd{.{ .fd = gpus.watch_fd, .events = linux.POLL.IN, .revents = 0 }};
            var limit = step;
            _ = linux.ppoll(&polled, 1, if (must_look) &limit else null, null);
            if (polled[0].revents == 0) continue;
            var count: u64 = 0;
            _ = linux.read(gpus.watch_fd, std.mem.asBytes(&count), 8);
        }
    }

    /// Abandons device threads without progress. Returns whether any device needs to be checked
    /// again; null if the watch thread must end.
    fn look(gpus: *Gpus) ?bool {
        gpus.mutex.lock();
        defer gpus.mutex.unlock();
        if (gpus.stopping) return null;
        const now = monotonic.now();
        var must_look = gpus.outstanding > 0;
        for (gpus.workers) |*worker| {
            if (worker.is_abandoned or !worker.is_working) continue;
            must_look = true;
            // A thread that still runs marks its device as lost itself, after half of this time.
            const silent_ns = now -| worker.alive_at.load(.acquire);
            if (silent_ns > 2 * gpus.give_up_ns) gpus.abandon(worker);
        }
        return must_look;
    }

    /// Abandons a hung thread: marks its device as lost and completes its jobs. The caller holds
    /// the mutex.
    fn abandon(gpus: *Gpus, worker: *Worker) void {
        worker.is_abandoned = true;
        worker.caller.is_given_up.store(true, .release);
        worker.is_open = true;
        gpus.keeps_region = true;
        _ = worker.lost.cmpxchgStrong(0, caller_file.timeout, .acq_rel, .acquire);
        const code = worker.lost.load(.acquire);
        for (worker.taken[0..worker.taken_count]) |taken| {
            gpus.settle(taken, .{ .status = .lost, .code = code, .result = 1 });
        }
        worker.taken_count = 0;
        gpus.failJobs(worker);
    }

    /// Stops all threads and frees everything. Returns `Busy` if a completion is not reaped or a
    /// device has not ended.
    pub fn close(gpus: *Gpus) Error!void {
        {
            gpus.mutex.lock();
            defer gpus.mutex.unlock();
            if (gpus.unreaped > 0) return error.Busy;
            for (gpus.workers) |*worker| {
                if (!worker.has_ended and !worker.is_abandoned) return error.Busy;
            }
        }
        making.destroy(gpus);
    }
};

fn dropDescriptor(operation: types.GpuOperation, fd: i32) void {
    if (operation == .import_fd and fd >= 0) _ = linux.close(fd);
}

test {
    _ = @import("runs.zig");
    _ = @import("slices.zig");
    _ = @import("test_gpus.zig");
}
