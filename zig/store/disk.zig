//! A disk: jobs on the files of one folder. The event loop submits jobs, helper threads make the
//! calls that may block, and one eventfd reports completions. `depth` limits the jobs in progress,
//! and the completion queue has room for all of them.

const std = @import("std");
const linux = std.os.linux;
const errno = @import("../base/errno.zig");
const faults = @import("../base/faults.zig");
const sync = @import("../base/mutex.zig");
const wakes = @import("../base/wake.zig");
const types = @import("../abi/types.zig");
const status = @import("../abi/status.zig");
const Fifo = @import("../base/fifo.zig").Fifo;
const Folder = @import("folder.zig").Folder;
const jobs = @import("job.zig");
const Job = jobs.Job;
const Ring = @import("ring.zig").Ring;
const RegisteredBuffers = @import("registered.zig").RegisteredBuffers;
const Error = status.Error;

const depth_max = 1024;
const threads_max = 64;
/// Default number of helper threads. With io_uring a helper is busy only while it opens, links or
/// checks a file; without io_uring it also moves the bytes.
const threads_beside_ring = 8;
const threads_alone = 32;
const stack_bytes = 256 * 1024;

/// State of the io_uring thread. `registering`: the ring works, but its thread waits while the
/// kernel pins the arena page by page; helper threads move the bytes until then.
const RingState = enum { none, starting, registering, works, failed };

pub const Disk = struct {
    allocator: std.mem.Allocator,
    headers: []align(4096) u8,
    folder: Folder = .{},
    event_fd: i32,
    mutex: sync.Mutex = .{},
    work: sync.Condition = .{},
    slots: []Job,
    free: Fifo(*Job),
    /// Jobs whose next step is for a helper thread.
    ready: Fifo(*Job),
    /// True if a helper thread was woken and has not yet taken a job.
    helper_woken: bool = false,
    /// Jobs whose bytes the io_uring thread moves.
    transfers: Fifo(*Job),
    done: Fifo(types.DiskDone),
    /// True from the write to the eventfd until all completions are reaped.
    woken: bool = false,
    ring: ?Ring = null,
    arena: u64,
    ring_state: RingState = .none,
    /// True if the io_uring thread was woken and has not yet taken the transfers.
    ring_woken: bool = false,
    ring_settled: sync.Condition = .{},
    /// The errnos with which io_uring and the registration of the arena failed; 0 if they did not
    /// fail.
    method_errno: i32 = 0,
    registered_errno: i32 = 0,
    stopping: bool = false,
    threads: []std.Thread,
    threads_started: usize = 0,

    pub fn create(allocator: std.mem.Allocator, request: types.DiskRequest) Error!*Disk {
        if (request.depth == 0 or request.depth > depth_max) return error.BadRequest;
        if (request.threads > threads_max) return error.BadRequest;
        if (request.headers == 0) return error.NullArgument;
        if (request.headers % 4096 != 0) return error.BadRequest;
        const method = std.enums.fromInt(types.DiskMethod, request.method) orelse
            return error.BadRequest;
        try faults.gate(.@"disk.memory");
        const disk = try allocator.create(Disk);
        errdefer allocator.destroy(disk);
        const depth = request.depth;
        const headers: [*]align(4096) u8 = @ptrFromInt(request.headers);
        disk.* = .{
            .allocator = allocator,
            .headers = headers[0 .. @as(usize, depth) * jobs.header_bytes],
            .arena = request.arena,
            .event_fd = -1,
            .slots = &.{},
            .free = .{ .items = &.{} },
            .ready = .{ .items = &.{} },
            .transfers = .{ .items = &.{} },
            .done = .{ .items = &.{} },
            .threads = &.{},
        };
        errdefer disk.freeMemory();
        try disk.allocate(depth);
        try faults.gate(.@"disk.eventfd");
        disk.event_fd = try wakes.create();
        errdefer _ = linux.close(disk.event_fd);
        try disk.choose(method);
        errdefer if (disk.ring) |*ring| ring.destroy();
        errdefer disk.stopThreads();
        try disk.startThreads(request.threads);
        return disk;
    }

    fn allocate(disk: *Disk, depth: u32) Error!void {
        disk.slots = try disk.allocator.alloc(Job, depth);
        disk.free.items = try disk.allocator.alloc(*Job, depth);
        disk.ready.items = try disk.allocator.alloc(*Job, depth);
        disk.transfers.items = try disk.allocator.alloc(*Job, depth);
        disk.done.items = try disk.allocator.alloc(types.DiskDone, depth);
        disk.threads = try disk.allocator.alloc(std.Thread, threads_max + 1);
        for (disk.slots) |*slot| disk.free.push(slot);
    }

    fn freeMemory(disk: *Disk) void {
        disk.allocator.free(disk.slots);
        disk.allocator.free(disk.free.items);
        disk.allocator.free(disk.ready.items);
        disk.allocator.free(disk.transfers.items);
        disk.allocator.free(disk.done.items);
        disk.allocator.free(disk.threads);
    }

    fn choose(disk: *Disk, method: types.DiskMethod) Error!void {
        if (method == .threads) return;
        disk.ring = Ring.create(@intCast(disk.slots.len)) catch |err| {
            if (method == .io_uring) return err;
            disk.method_errno = errno.lastErrno();
            return;
        };
        disk.ring_state = .starting;
    }

    fn startThreads(disk: *Disk, wanted: u32) Error!void {
        const depth: u32 = @intCast(disk.slots.len);
        const usual: u32 = if (disk.ring == null) threads_alone else threads_beside_ring;
        const helpers = if (wanted == 0) @min(usual, depth) else wanted;
        for (0..helpers) |_| try disk.startThread(helpLoop);
        if (disk.ring != null) try disk.startThread(ringLoop);
    }

    fn startThread(disk: *Disk, comptime loop: fn (*Disk) void) Error!void {
        try faults.gate(.@"disk.thread");
        const config: std.Thread.SpawnConfig = .{ .stack_size = stack_bytes };
        // With libc, spawn fails only if memory or process slots run out.
        disk.threads[disk.threads_started] = std.Thread.spawn(config, loop, .{disk}) catch
            return error.OutOfMemory;
        disk.threads_started += 1;
    }

    /// Makes all threads end when no job is left. The caller holds the mutex.
    fn tellStop(disk: *Disk) void {
        disk.stopping = true;
        disk.wakeAll();
    }

    fn wakeAll(disk: *Disk) void {
        disk.work.broadcast();
        if (disk.ring) |*ring| wakes.ring(ring.wake_fd);
    }

    fn stopThreads(disk: *Disk) void {
        disk.mutex.lock();
        disk.tellStop();
        disk.mutex.unlock();
        for (disk.threads[0..disk.threads_started]) |thread| thread.join();
    }

    /// Stops the threads and frees the disk. Returns `Busy` and frees nothing while jobs are in
    /// progress; the threads then end when the kernel has completed these jobs. Never waits for a
    /// job.
    pub fn close(disk: *Disk) Error!void {
        disk.mutex.lock();
        const in_flight = disk.free.count < disk.slots.len;
        if (in_flight) disk.tellStop();
        disk.mutex.unlock();
        if (in_flight) return error.Busy;
        disk.stopThreads();
        if (disk.ring) |*ring| ring.destroy();
        disk.folder.close();
        _ = linux.close(disk.event_fd);
        disk.freeMemory();
        disk.allocator.destroy(disk);
    }

    pub fn submit(disk: *Disk, request: types.DiskJob) Error!void {
        var job: Job = try .prepare(request, disk.headers);
        errdefer job.release();
        disk.mutex.lock();
        // Jobs that are completed but not reaped also count against `depth`.
        if (disk.free.count <= disk.done.count) {
            disk.mutex.unlock();
            return error.Full;
        }
        const slot = disk.free.pop();
        slot.* = job;
        disk.wantHelper(slot);
    }

    /// Queues the job for a helper thread. The caller holds the mutex; this function unlocks it.
    /// Waking a thread can cost more than the rest of the submission, so at most one helper is
    /// being woken: it wakes the next one if more jobs wait.
    fn wantHelper(disk: *Disk, job: *Job) void {
        disk.ready.push(job);
        const is_woken = disk.helper_woken;
        disk.helper_woken = true;
        disk.mutex.unlock();
        if (!is_woken) disk.work.signal();
    }

    /// Moves up to `out.len` completions to `out` and returns their number. Never waits.
    pub fn reap(disk: *Disk, out: []types.DiskDone) u32 {
        disk.mutex.lock();
        defer disk.mutex.unlock();
        const count = @min(out.len, disk.done.count);
        for (out[0..count]) |*done| done.* = disk.done.pop();
        if (disk.done.count == 0) disk.woken = false;
        return @intCast(count);
    }

    pub fn info(disk: *Disk, handle: u64) types.DiskInfo {
        disk.mutex.lock();
        defer disk.mutex.unlock();
        const method: types.DiskMethod = switch (disk.ring_state) {
            .none, .failed => .threads,
            .starting, .registering, .works => .io_uring,
        };
        const registered: types.DiskRegistration = switch (disk.ring_state) {
            .registering => .under_way,
            .works => if (disk.ring.?.buffers.arena != 0) .registered else .none,
            .none, .starting, .failed => .none,
        };
        return .{
            .handle = handle,
            .event_fd = disk.event_fd,
            .method = @intFromEnum(method),
            .method_errno = disk.method_errno,
            .direct = @intFromBool(disk.folder.direct),
            .registered = @intFromEnum(registered),
            .registered_errno = disk.registered_errno,
        };
    }

    fn helpLoop(disk: *Disk) void {
        beBatch();
        disk.mutex.lock();
        defer disk.mutex.unlock();
        while (true) {
            while (disk.ready.count == 0 and !disk.isOver()) disk.work.wait(&disk.mutex);
            if (disk.ready.count == 0) return;
            const job = disk.ready.pop();
            disk.helper_woken = disk.ready.count > 0;
            if (disk.helper_woken) disk.work.signal();
            disk.mutex.unlock();
            const is_done = disk.serve(job);
            disk.mutex.lock();
            if (is_done) disk.complete(job) else disk.handOver(job);
        }
    }

    /// Runs a job on this helper thread. Returns false if the io_uring thread must move the job's
    /// bytes.
    fn serve(disk: *Disk, job: *Job) bool {
        errno.forget();
        while (job.step != .done) {
            if (job.step == .move) {
                if (!job.mayMove()) continue;
                if (@atomicLoad(RingState, &disk.ring_state, .acquire) == .works) return false;
                job.moveHere();
            } else {
                disk.serveStep(job) catch |err| job.fail(err);
            }
        }
        job.close(&disk.folder);
        job.release();
        return true;
    }

    fn serveStep(disk: *Disk, job: *Job) Error!void {
        switch (job.step) {
            .begin => {
                if (job.operation == .open) disk.waitForRing();
                try job.begin(&disk.folder);
            },
            .account => try job.account(),
            .finish => try job.finish(&disk.folder),
            .move, .done => {},
        }
    }

    /// Adds the job's completion and wakes the reader unless it was already woken. The caller holds
    /// the mutex.
    fn complete(disk: *Disk, job: *Job) void {
        disk.done.push(job.outcome);
        disk.free.push(job);
        if (disk.isOver()) disk.wakeAll();
        if (disk.woken) return;
        disk.woken = true;
        wakes.ring(disk.event_fd);
    }

    /// Passes the job to the io_uring thread. The caller holds the mutex.
    fn handOver(disk: *Disk, job: *Job) void {
        disk.transfers.push(job);
        if (disk.ring_woken) return;
        disk.ring_woken = true;
        wakes.ring(disk.ring.?.wake_fd);
    }

    /// Prepares requests for all waiting transfers, on the io_uring thread. Returns true if the
    /// disk is closing and no job needs a thread.
    pub fn takeTransfers(disk: *Disk, ring: *Ring) bool {
        disk.mutex.lock();
        defer disk.mutex.unlock();
        disk.ring_woken = false;
        while (disk.transfers.count > 0) ring.add(disk.transfers.pop());
        return disk.isOver();
    }

    /// Returns whether the disk is closing and no job needs a thread. The caller holds the mutex.
    fn isOver(disk: *const Disk) bool {
        return disk.stopping and disk.free.count == disk.slots.len;
    }

    /// Returns a job to the helper threads after the io_uring thread has moved its bytes or failed
    /// to.
    pub fn giveBack(disk: *Disk, job: *Job) void {
        disk.mutex.lock();
        disk.wantHelper(job);
    }

    fn ringLoop(disk: *Disk) void {
        beBatch();
        const ring = &disk.ring.?;
        errno.forget();
        if (ring.enable()) {
            if (disk.arena != 0) {
                // Registering a large arena takes seconds; jobs proceed without the ring meanwhile.
                disk.settleRing(.registering);
                disk.registerArena(ring);
            }
            disk.settleRing(.works);
            ring.own(disk);
        } else |_| {
            disk.method_errno = errno.lastErrno();
            disk.settleRing(.failed);
        }
    }

    fn registerArena(disk: *Disk, ring: *Ring) void {
        const fd = ring.uring.fd;
        if (RegisteredBuffers.register(fd, disk.headers, disk.arena)) |buffers| {
            ring.buffers = buffers;
        } else |_| {
            // Without registration the disk works but uses more processor time.
            disk.registered_errno = errno.lastErrno();
        }
    }

    fn settleRing(disk: *Disk, state: RingState) void {
        disk.mutex.lock();
        defer disk.mutex.unlock();
        @atomicStore(RingState, &disk.ring_state, state, .release);
        disk.ring_settled.broadcast();
    }

    fn waitForRing(disk: *Disk) void {
        disk.mutex.lock();
        defer disk.mutex.unlock();
        while (disk.ring_state == .starting) disk.ring_settled.wait(&disk.mutex);
    }
};

/// Sets the batch scheduling policy for this helper thread. Otherwise the kernel may run the helper
/// at once in place of the event loop that woke it. If the kernel refuses, the policy stays
/// unchanged.
fn beBatch() void {
    const batch = 3;
    var parameter: i32 = 0;
    _ = linux.syscall3(.sched_setscheduler, 0, batch, @intFromPtr(&parameter));
}
