//! Moves bytes by io_uring. One thread owns the ring: it takes jobs whose files are open, submits
//! their reads and writes, and returns the jobs when the kernel has completed them. It makes no
//! other blocking call, so nothing delays transfers.

const std = @import("std");
const linux = std.os.linux;
const errno = @import("../base/errno.zig");
const faults = @import("../base/faults.zig");
const wakes = @import("../base/wake.zig");
const IoUring = linux.IoUring;
const Error = @import("../abi/status.zig").Error;
const Disk = @import("disk.zig").Disk;
const Job = @import("job.zig").Job;
const RegisteredBuffers = @import("registered.zig").RegisteredBuffers;

/// Open requests of one job: header and span.
const requests_per_job = 2;
/// `user_data` of the eventfd read that wakes the ring's thread. A job's requests carry its
/// address.
const wake_token = 0;
const answers_at_once = 64;
/// Number of times, 1 ms apart, that the thread submits again while the kernel refuses requests.
const refusals_max = 100;

pub const Ring = struct {
    uring: IoUring,
    buffers: RegisteredBuffers = .{},
    wake_fd: i32,
    wake_count: u64 = 0,
    wake_armed: bool = false,
    refusals: u32 = 0,

    /// Creates a disabled ring; the thread that will own it calls `enable`.
    pub fn create(depth: u32) Error!Ring {
        const wake_fd = try wakes.create();
        errdefer _ = linux.close(wake_fd);
        var parameters: linux.io_uring_params = undefined;
        const fd = try setUp(depth, &parameters);
        errdefer _ = linux.close(fd);
        if (parameters.features & linux.IORING_FEAT_SINGLE_MMAP == 0) return error.Unsupported;
        try faults.gate(.@"ring.map");
        var sq = IoUring.SubmissionQueue.init(fd, parameters) catch return error.OutOfMemory;
        errdefer sq.deinit();
        const cq = IoUring.CompletionQueue.init(fd, parameters, sq) catch return error.OutOfMemory;
        const flags = parameters.flags;
        const features = parameters.features;
        return .{
            .uring = .{ .fd = fd, .sq = sq, .cq = cq, .flags = flags, .features = features },
            .wake_fd = wake_fd,
        };
    }

    fn setUp(depth: u32, parameters: *linux.io_uring_params) Error!i32 {
        const entries = std.math.ceilPowerOfTwoAssert(u32, requests_per_job * depth + 1);
        const modern: u32 = linux.IORING_SETUP_SINGLE_ISSUER | linux.IORING_SETUP_COOP_TASKRUN |
            linux.IORING_SETUP_SUBMIT_ALL;
        // Kernels before Linux 6.0 refuse the modern flags with EINVAL.
        for ([_]u32{ modern, 0 }) |flags| {
            parameters.* = std.mem.zeroes(linux.io_uring_params);
            parameters.flags = linux.IORING_SETUP_R_DISABLED | flags;
            const arguments = .{ entries, parameters };
            const result = faults.call(.@"ring.setup", linux.io_uring_setup, arguments);
            if (linux.errno(result) == .INVAL and flags != 0) continue;
            return @intCast(try errno.check(result));
        }
        unreachable;
    }

    pub fn destroy(ring: *Ring) void {
        ring.uring.deinit();
        _ = linux.close(ring.wake_fd);
    }

    /// Enables the ring and makes the calling thread its owner.
    pub fn enable(ring: *Ring) Error!void {
        const what: linux.IORING_REGISTER = .REGISTER_ENABLE_RINGS;
        const arguments = .{ ring.uring.fd, what, null, 0 };
        _ = try errno.check(faults.call(.@"ring.enable", linux.io_uring_register, arguments));
    }

    /// Runs the ring's loop on the calling thread until the disk closes.
    pub fn own(ring: *Ring, disk: *Disk) void {
        while (true) {
            const over = disk.takeTransfers(ring);
            if (over and !ring.wake_armed) return;
            if (!over) ring.armWake();
            ring.enter(disk);
            ring.takeAnswers(disk);
        }
    }

    /// Returns a free submission entry. The ring has room for all open requests of a disk's jobs
    /// and the wake-up read.
    fn request(ring: *Ring) *linux.io_uring_sqe {
        return ring.uring.get_sqe() catch unreachable;
    }

    fn armWake(ring: *Ring) void {
        if (ring.wake_armed) return;
        const sqe = ring.request();
        sqe.prep_read(ring.wake_fd, std.mem.asBytes(&ring.wake_count), 0);
        sqe.user_data = wake_token;
        ring.wake_armed = true;
    }

    /// Prepares the requests of a job: one over both parts, or one for each part when reading into
    /// registered memory. A write always uses one request, so the file grows once and not twice (27
    /// % faster at 256 KiB).
    pub fn add(ring: *Ring, job: *Job) void {
        const parts = job.takeParts();
        const span = &parts[parts.len - 1];
        if (job.operation == .store or ring.bufferOf(job, span) == null) {
            ring.addVectored(job, parts);
            job.asked = 1;
        } else {
            ring.addFixed(job, parts);
            job.asked = @intCast(parts.len);
        }
        job.asked_open = job.asked;
    }

    fn addVectored(ring: *Ring, job: *Job, parts: []std.posix.iovec) void {
        const sqe = ring.request();
        if (job.operation == .store) {
            sqe.prep_writev(job.file.fd, @ptrCast(parts), job.moved);
        } else {
            sqe.prep_readv(job.file.fd, parts, job.moved);
        }
        sqe.user_data = @intFromPtr(job);
    }

    fn addFixed(ring: *Ring, job: *Job, parts: []std.posix.iovec) void {
        var at = job.moved;
        for (parts, 0..) |*part, number| {
            const sqe = ring.request();
            // The span is registered. The headers are registered whenever any buffer is.
            sqe.prep_read_fixed(job.file.fd, part, at, ring.bufferOf(job, part).?);
            sqe.user_data = @intFromPtr(job) | number;
            at += part.len;
        }
    }

    fn bufferOf(ring: *const Ring, job: *const Job, part: *const std.posix.iovec) ?u16 {
        return ring.buffers.indexOf(job.request.region, part);
    }

    /// Submits the prepared requests and waits for at least one completion.
    fn enter(ring: *Ring, disk: *Disk) void {
        const waiting = ring.uring.flush_sq();
        const flags = linux.IORING_ENTER_GETEVENTS;
        const arguments = .{ ring.uring.fd, waiting, 1, flags, null };
        const result = faults.call(.@"ring.enter", linux.io_uring_enter, arguments);
        const code = linux.errno(result);
        switch (code) {
            .SUCCESS, .INTR => {
                ring.refusals = 0;
                return;
            },
            // The kernel lacks memory or room for completions; both may be temporary.
            .AGAIN, .BUSY => ring.refusals += 1,
            else => ring.refusals = refusals_max,
        }
        if (ring.refusals >= refusals_max) ring.takeBack(disk, code);
        faults.pause(1);
    }

    /// Ends all requests that the kernel did not accept with the errno `code` and removes them from
    /// the ring.
    fn takeBack(ring: *Ring, disk: *Disk, code: linux.E) void {
        const sq = &ring.uring.sq;
        const head = @atomicLoad(u32, sq.head, .acquire);
        var at = head;
        while (at != sq.sqe_tail) : (at +%= 1) {
            const token = sq.sqes[sq.array[at & sq.mask]].user_data;
            ring.answer(disk, token, -@as(i32, @intFromEnum(code)));
        }
        sq.sqe_head = head;
        sq.sqe_tail = head;
        @atomicStore(u32, sq.tail, head, .release);
    }

    fn takeAnswers(ring: *Ring, disk: *Disk) void {
        while (true) {
            var answers: [answers_at_once]linux.io_uring_cqe = undefined;
            const ready = @min(answers.len, ring.uring.cq_ready());
            if (ready == 0) return;
            const cq = &ring.uring.cq;
            for (answers[0..ready], 0..) |*copy, i| {
                copy.* = cq.cqes[(cq.head.* +% @as(u32, @intCast(i))) & cq.mask];
            }
            ring.uring.cq_advance(ready);
            for (answers[0..ready]) |cqe| ring.answer(disk, cqe.user_data, cqe.res);
        }
    }

    fn answer(ring: *Ring, disk: *Disk, token: u64, result: i32) void {
        if (token == wake_token) {
            ring.wake_armed = false;
            return;
        }
        const job: *Job = @ptrFromInt(token & ~@as(u64, requests_per_job - 1));
        job.answers[@intCast(token & (requests_per_job - 1))] = result;
        job.asked_open -= 1;
        if (job.asked_open > 0) return;
        job.gatherAnswers();
        disk.giveBack(job);
    }
};
