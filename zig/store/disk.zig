//! A disk: jobs on the files of one folder. The event loop submits, helper threads make the calls
//! that may block, and one eventfd says that completions wait. What is in flight is bounded by
//! `depth`, and the completions have room for all of it.

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
const Error = status.Error;

const depth_max = 1024;
const threads_max = 64;
const stack_bytes = 256 * 1024;

pub const Disk = struct {
    allocator: std.mem.Allocator,
    headers: []align(4096) u8,
    folder: Folder = .{},
    event_fd: i32,
    mutex: sync.Mutex = .{},
    work: sync.Condition = .{},
    slots: []Job,
    free: Fifo(*Job),
    /// Jobs for whose next step a helper is wanted.
    ready: Fifo(*Job),
    done: Fifo(types.DiskDone),
    /// The eventfd was written and its completions not all reaped.
    woken: bool = false,
    stopping: bool = false,
    threads: []std.Thread,
    threads_started: usize = 0,

    pub fn create(allocator: std.mem.Allocator, request: types.DiskRequest) Error!*Disk {
        if (request.depth == 0 or request.depth > depth_max) return error.BadRequest;
        if (request.threads == 0 or request.threads > threads_max) return error.BadRequest;
        if (request.headers == 0) return error.NullArgument;
        if (request.headers % 4096 != 0) return error.BadRequest;
        try faults.gate(.@"disk.memory");
        const disk = try allocator.create(Disk);
        errdefer allocator.destroy(disk);
        const depth = request.depth;
        const slots = try allocator.alloc(Job, depth);
        errdefer allocator.free(slots);
        const places = try allocator.alloc(*Job, 2 * depth);
        errdefer allocator.free(places);
        const done = try allocator.alloc(types.DiskDone, depth);
        errdefer allocator.free(done);
        const threads = try allocator.alloc(std.Thread, request.threads);
        errdefer allocator.free(threads);
        try faults.gate(.@"disk.eventfd");
        const event_fd = try wakes.create();
        errdefer _ = linux.close(event_fd);
        const headers: [*]align(4096) u8 = @ptrFromInt(request.headers);
        disk.* = .{
            .allocator = allocator,
            .headers = headers[0 .. @as(usize, depth) * jobs.header_bytes],
            .event_fd = event_fd,
            .slots = slots,
            .free = .{ .items = places[0..depth] },
            .ready = .{ .items = places[depth..] },
            .done = .{ .items = done },
            .threads = threads,
        };
        for (slots) |*slot| disk.free.push(slot);
        errdefer disk.stopThreads();
        try disk.startThreads();
        return disk;
    }

    fn startThreads(disk: *Disk) Error!void {
        for (disk.threads) |*thread| {
            try faults.gate(.@"disk.thread");
            const config: std.Thread.SpawnConfig = .{ .stack_size = stack_bytes };
            // With libc, a spawn fails only for want of memory or of a free process slot.
            thread.* = std.Thread.spawn(config, helpLoop, .{disk}) catch return error.OutOfMemory;
            disk.threads_started += 1;
        }
    }

    fn stopThreads(disk: *Disk) void {
        disk.mutex.lock();
        disk.stopping = true;
        disk.work.broadcast();
        disk.mutex.unlock();
        for (disk.threads[0..disk.threads_started]) |thread| thread.join();
    }

    /// Frees everything, or, where jobs are in flight, nothing: `Busy`. Then the threads end by
    /// themselves, should the kernel ever let them go. Never waits for a job.
    pub fn close(disk: *Disk) Error!void {
        disk.mutex.lock();
        const in_flight = disk.free.count < disk.slots.len;
        if (in_flight) disk.stopping = true;
        disk.mutex.unlock();
        if (in_flight) return error.Busy;
        disk.stopThreads();
        disk.folder.close();
        _ = linux.close(disk.event_fd);
        const allocator = disk.allocator;
        allocator.free(disk.slots);
        allocator.free(disk.free.items.ptr[0 .. 2 * disk.slots.len]);
        allocator.free(disk.done.items);
        allocator.free(disk.threads);
        allocator.destroy(disk);
    }

    pub fn submit(disk: *Disk, request: types.DiskJob) Error!void {
        var job: Job = try .prepare(request, disk.headers);
        errdefer job.release();
        disk.mutex.lock();
        defer disk.mutex.unlock();
        // Of what is finished and not reaped, too, no more than `depth`.
        if (disk.free.count <= disk.done.count) return error.Full;
        const slot = disk.free.pop();
        slot.* = job;
        disk.ready.push(slot);
        disk.work.signal();
    }

    /// Moves up to `out.len` completions; never waits.
    pub fn reap(disk: *Disk, out: []types.DiskDone) u32 {
        disk.mutex.lock();
        defer disk.mutex.unlock();
        const count = @min(out.len, disk.done.count);
        for (out[0..count]) |*done| done.* = disk.done.pop();
        if (disk.done.count == 0) disk.woken = false;
        return @intCast(count);
    }

    pub fn info(disk: *Disk, handle: u64) types.DiskInfo {
        return .{
            .handle = handle,
            .event_fd = disk.event_fd,
            .method = @intFromEnum(types.DiskMethod.threads),
            .method_errno = 0,
            .direct = @intFromBool(disk.folder.direct),
            .registered = 0,
            .registered_errno = 0,
        };
    }

    fn helpLoop(disk: *Disk) void {
        disk.mutex.lock();
        defer disk.mutex.unlock();
        while (true) {
            while (disk.ready.count == 0 and !disk.stopping) disk.work.wait(&disk.mutex);
            if (disk.ready.count == 0) return;
            const job = disk.ready.pop();
            disk.mutex.unlock();
            disk.serve(job);
            disk.mutex.lock();
            disk.complete(job);
        }
    }

    /// Takes a job as far as this thread can.
    fn serve(disk: *Disk, job: *Job) void {
        errno.forget();
        while (job.step != .done) disk.serveStep(job) catch |err| job.fail(err);
        job.close(&disk.folder);
        job.release();
    }

    fn serveStep(disk: *Disk, job: *Job) Error!void {
        switch (job.step) {
            .begin => try job.begin(&disk.folder),
            .move => {
                if (job.mayMove()) job.moveHere();
                try job.account();
            },
            .finish => try job.finish(&disk.folder),
            .done => {},
        }
    }

    /// With the mutex held. One wake serves all completions until they are reaped.
    fn complete(disk: *Disk, job: *Job) void {
        disk.done.push(job.outcome);
        disk.free.push(job);
        if (disk.woken) return;
        disk.woken = true;
        wakes.ring(disk.event_fd);
    }
};
