//! Submission and completion queues: the event loop submits many operations, native threads execute
//! them, and one eventfd reports completions. Native threads never call into JavaScript.
//!
//! `entries` limits the operations that are in progress or whose completions are not reaped. The
//! completion queue has room for these and for every watched process, so no completion is lost and
//! no thread waits to report one. A watch may leave one completion after `unwatch`.

const std = @import("std");
const linux = std.os.linux;
const errno = @import("../base/errno.zig");
const sync = @import("../base/mutex.zig");
const wakes = @import("../base/wake.zig");
const Fifo = @import("../base/fifo.zig").Fifo;
const types = @import("../abi/types.zig");
const hash = @import("../hash/root.zig");
const status = @import("../abi/status.zig");
const Region = @import("../mem/root.zig").Region;
const regions = @import("../mem/root.zig").table;
const MacRequest = @import("../abi/mac_types.zig").MacRequest;
const Error = status.Error;

const entries_max = 65_536;
const threads_max = 16;
const watches_max = 4096;
/// While threads still have work, the reader is woken only when this many completions are waiting.
const wake_every = 32;
/// epoll token of the eventfd that wakes the watch thread to stop it.
const wake_token = std.math.maxInt(u64);

const Job = struct {
    submission: types.Submission,
    region: ?*Region,
};

pub const Queue = struct {
    allocator: std.mem.Allocator,
    entries: u32,
    watches: u32,
    event_fd: i32,
    epoll_fd: i32,
    wake_fd: i32,
    mutex: sync.Mutex = .{},
    work: sync.Condition = .{},
    jobs: Fifo(Job),
    done: Fifo(types.Completion),
    /// Operations submitted and not yet completed.
    outstanding: u32 = 0,
    watching: u32 = 0,
    /// True from the write to the eventfd until all completions are reaped.
    woken: bool = false,
    stopping: bool = false,
    threads: []std.Thread,
    threads_started: usize = 0,

    pub fn create(allocator: std.mem.Allocator, request: types.QueueRequest) Error!*Queue {
        if (request.entries == 0 or request.entries > entries_max) return error.BadRequest;
        if (!std.math.isPowerOfTwo(request.entries)) return error.BadRequest;
        if (request.threads == 0 or request.threads > threads_max) return error.BadRequest;
        if (request.watches > watches_max) return error.BadRequest;
        const queue = try allocator.create(Queue);
        errdefer allocator.destroy(queue);
        const jobs = try allocator.alloc(Job, request.entries);
        errdefer allocator.free(jobs);
        const done = try allocator.alloc(types.Completion, request.entries + 2 * request.watches);
        errdefer allocator.free(done);
        const threads = try allocator.alloc(std.Thread, request.threads + 1);
        errdefer allocator.free(threads);
        const event_fd = try wakes.create();
        errdefer _ = linux.close(event_fd);
        const wake_fd = try wakes.create();
        errdefer _ = linux.close(wake_fd);
        const epoll_fd: i32 = @intCast(try errno.check(linux.epoll_create1(linux.EPOLL.CLOEXEC)));
        errdefer _ = linux.close(epoll_fd);
        queue.* = .{
            .allocator = allocator,
            .entries = request.entries,
            .watches = request.watches,
            .event_fd = event_fd,
            .epoll_fd = epoll_fd,
            .wake_fd = wake_fd,
            .jobs = .{ .items = jobs },
            .done = .{ .items = done },
            .threads = threads,
        };
        try queue.addToEpoll(wake_fd, wake_token, linux.EPOLL.IN);
        errdefer queue.stopThreads();
        try queue.startThreads();
        return queue;
    }

    /// Stops the threads and frees the queue. Operations in progress finish; operations that have
    /// not started are discarded.
    pub fn destroy(queue: *Queue) void {
        queue.stopThreads();
        while (queue.jobs.count > 0) release(queue.jobs.pop().region);
        _ = linux.close(queue.epoll_fd);
        _ = linux.close(queue.wake_fd);
        _ = linux.close(queue.event_fd);
        const allocator = queue.allocator;
        allocator.free(queue.jobs.items);
        allocator.free(queue.done.items);
        allocator.free(queue.threads);
        allocator.destroy(queue);
    }

    fn startThreads(queue: *Queue) Error!void {
        // With libc, spawn fails only if memory or process slots run out.
        for (queue.threads, 0..) |*thread, index| {
            thread.* = if (index == 0)
                std.Thread.spawn(.{}, watchLoop, .{queue}) catch return error.OutOfMemory
            else
                std.Thread.spawn(.{}, workLoop, .{queue}) catch return error.OutOfMemory;
            queue.threads_started += 1;
        }
    }

    fn stopThreads(queue: *Queue) void {
        queue.mutex.lock();
        queue.stopping = true;
        queue.work.broadcast();
        queue.mutex.unlock();
        wakes.ring(queue.wake_fd);
        for (queue.threads[0..queue.threads_started]) |thread| thread.join();
    }

    /// Accepts all `submissions`, or none of them and returns the error. Each submission's region
    /// stays open until the operation has ended.
    pub fn submit(queue: *Queue, submissions: []const types.Submission) Error!u32 {
        queue.mutex.lock();
        defer queue.mutex.unlock();
        const unreaped = queue.outstanding + queue.done.count;
        if (submissions.len + unreaped > queue.entries + queue.watches) return error.Full;
        if (submissions.len > queue.entries - queue.outstanding) return error.Full;
        for (submissions, 0..) |submission, index| {
            const job = prepare(submission) catch |err| {
                queue.takeBack(index);
                return err;
            };
            queue.jobs.push(job);
        }
        queue.outstanding += @intCast(submissions.len);
        if (submissions.len == 1) queue.work.signal() else queue.work.broadcast();
        return @intCast(submissions.len);
    }

    /// Removes the `count` newest jobs from the queue. The caller has held the mutex since adding
    /// them, so no thread has taken one.
    fn takeBack(queue: *Queue, count: usize) void {
        for (0..count) |_| release(queue.jobs.takeBack().region);
    }

    fn prepare(submission: types.Submission) Error!Job {
        const operation = std.enums.fromInt(types.Operation, submission.operation) orelse
            return error.BadRequest;
        if (operation == .nop) return .{ .submission = submission, .region = null };
        const region = try regions.acquire(submission.region);
        errdefer release(region);
        _ = try region.span(submission.offset, submission.bytes);
        return .{ .submission = submission, .region = region };
    }

    /// Moves up to `out.len` completions to `out` and returns their number. Never waits.
    pub fn reap(queue: *Queue, out: []types.Completion) u32 {
        queue.mutex.lock();
        defer queue.mutex.unlock();
        const count = @min(out.len, queue.done.count);
        for (out[0..count]) |*completion| {
            completion.* = queue.done.pop();
        }
        if (queue.done.count == 0) queue.woken = false;
        return @intCast(count);
    }

    /// Watches the process of `pid_fd`; its end produces one completion with `token`. The watch
    /// owns the descriptor until `unwatch` closes it, so the descriptor number identifies this
    /// watch even after the process has ended.
    pub fn watch(queue: *Queue, pid_fd: i32, token: u64) Error!void {
        if (token == wake_token or token > std.math.maxInt(u32)) return error.BadRequest;
        queue.mutex.lock();
        defer queue.mutex.unlock();
        if (queue.watching == queue.watches) return error.Full;
        try queue.addToEpoll(pid_fd, token, linux.EPOLL.IN | linux.EPOLL.ONESHOT);
        queue.watching += 1;
    }

    /// Ends a watch and closes its descriptor, whether or not its completion has been reported. A
    /// completion that is being reported may still arrive: the queue has room for it if completions
    /// are reaped at least every `watches` calls.
    pub fn unwatch(queue: *Queue, pid_fd: i32) Error!void {
        queue.mutex.lock();
        defer queue.mutex.unlock();
        _ = try errno.check(linux.epoll_ctl(queue.epoll_fd, linux.EPOLL.CTL_DEL, pid_fd, null));
        _ = linux.close(pid_fd);
        queue.watching -= 1;
    }

    fn addToEpoll(queue: *Queue, fd: i32, data: u64, events: u32) Error!void {
        var event: linux.epoll_event = .{ .events = events, .data = .{ .u64 = data } };
        _ = try errno.check(linux.epoll_ctl(queue.epoll_fd, linux.EPOLL.CTL_ADD, fd, &event));
    }

    fn watchLoop(queue: *Queue) void {
        var events: [64]linux.epoll_event = undefined;
        while (true) {
            const result = linux.epoll_wait(queue.epoll_fd, &events, events.len, -1);
            // Only EINTR is possible here: the descriptor stays open as long as the thread runs.
            if (linux.errno(result) != .SUCCESS) continue;
            queue.mutex.lock();
            defer queue.mutex.unlock();
            if (queue.stopping) return;
            for (events[0..result]) |event| queue.reportDeath(event.data.u64);
        }
    }

    fn reportDeath(queue: *Queue, token: u64) void {
        queue.complete(.{ .token = token, .result = 1, .status = 0, .errno = 0 });
        queue.wake();
    }

    fn workLoop(queue: *Queue) void {
        queue.mutex.lock();
        defer queue.mutex.unlock();
        while (true) {
            while (queue.jobs.count == 0 and !queue.stopping) queue.work.wait(&queue.mutex);
            if (queue.stopping) return;
            const job = queue.jobs.pop();
            queue.mutex.unlock();
            const completion = execute(job);
            release(job.region);
            queue.mutex.lock();
            queue.complete(completion);
            queue.outstanding -= 1;
            // While more jobs wait, waking the reader for each completion would take processor time
            // from the jobs.
            const enough = queue.done.count >= wake_every;
            if (queue.jobs.count == 0 or enough) queue.wake();
        }
    }

    /// Adds a completion. The caller holds the mutex.
    fn complete(queue: *Queue, completion: types.Completion) void {
        queue.done.push(completion);
    }

    /// Wakes the reader unless it was already woken for completions that it has not reaped. The
    /// caller holds the mutex.
    fn wake(queue: *Queue) void {
        if (queue.woken) return;
        queue.woken = true;
        wakes.ring(queue.event_fd);
    }
};

fn execute(job: Job) types.Completion {
    const submission = job.submission;
    var completion: types.Completion =
        .{ .token = submission.token, .result = 0, .status = 0, .errno = 0 };
    completion.result = perform(submission, job.region) catch |err| {
        completion.status = @intFromEnum(status.fromError(err));
        completion.errno = errno.lastErrno();
        return completion;
    };
    return completion;
}

fn perform(submission: types.Submission, region: ?*Region) Error!u64 {
    const operation: types.Operation = @enumFromInt(submission.operation);
    switch (operation) {
        .nop => return submission.argument,
        .populate => {
            try region.?.populate(submission.offset, submission.bytes);
            return submission.bytes;
        },
        .checksum => return hash.checksum(try region.?.span(submission.offset, submission.bytes)),
        .mac => {
            if (submission.argument == 0) return error.NullArgument;
            const request: *const MacRequest = @ptrFromInt(submission.argument);
            if (request.bytes != submission.bytes) return error.BadRequest;
            const span = try region.?.span(submission.offset, submission.bytes);
            return @intFromBool(request.matches(span));
        },
    }
}

fn release(region: ?*Region) void {
    if (region) |open| regions.release(open);
}
