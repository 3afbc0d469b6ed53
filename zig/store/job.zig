//! One disk job and its steps before, during and after the transfer of its bytes. With io_uring and
//! with threads the steps are the same; only the transfer differs.

const std = @import("std");
const linux = std.os.linux;
const errno = @import("../base/errno.zig");
const faults = @import("../base/faults.zig");
const hash = @import("../hash/root.zig");
const types = @import("../abi/types.zig");
const status = @import("../abi/status.zig");
const regions = @import("../mem/root.zig").table;
const Region = @import("../mem/root.zig").Region;
const folders = @import("folder.zig");
const listing = @import("listing.zig");
const checkPath = @import("path.zig").check;
const Folder = folders.Folder;
const Path = folders.Path;
const Error = status.Error;

pub const header_bytes = 4096;
const page_bytes = 4096;
/// Number of times a read or write that moved no byte or was interrupted is repeated before the job
/// fails.
const stalls_max = 16;
/// Largest span in bytes: Linux moves at most 0x7ffff000 bytes in one call, header included.
const bytes_max = 0x7fff_f000 - header_bytes;

fn wholePages(bytes: u64) u64 {
    return std.mem.alignForward(u64, bytes, page_bytes);
}

pub const Job = struct {
    pub const Step = enum { begin, move, account, finish, done };

    request: types.DiskJob,
    operation: types.DiskOperation,
    region: ?*Region,
    /// Memory to transfer: the header and, except for `peek`, the span in whole pages.
    parts: [2]std.posix.iovec,
    part_count: u8,
    step: Step = .begin,
    /// The file being written. For reads only its `fd` is used.
    file: folders.NewFile = .{},
    /// Bytes of `parts` transferred so far.
    moved: u64 = 0,
    /// Bytes of `parts` that must be transferred. The file may end before the padding after them.
    needed: u64 = 0,
    stalls: u8 = 0,
    verdict: faults.Verdict = .{},
    /// Raw result of the last read or write system call.
    answer: usize = 0,
    /// io_uring state: the parts still to transfer, the number of requests, how many of them are
    /// open, and their results.
    left: [2]std.posix.iovec = undefined,
    left_count: u8 = 0,
    asked: u8 = 0,
    asked_open: u8 = 0,
    answers: [2]i32 = .{ 0, 0 },
    outcome: types.DiskDone = std.mem.zeroes(types.DiskDone),

    /// Validates a request. The job's region stays open until `release`.
    pub fn prepare(request: types.DiskJob, headers: []align(page_bytes) u8) Error!Job {
        const operation = std.enums.fromInt(types.DiskOperation, request.operation) orelse
            return error.BadRequest;
        var job: Job = .{
            .request = request,
            .operation = operation,
            .region = null,
            .parts = undefined,
            .part_count = 0,
        };
        job.outcome.token = request.token;
        switch (operation) {
            .open, .sync, .space => {},
            .list => try checkPath(&request.path, true),
            .remove => try checkPath(&request.path, false),
            .rename => {
                try checkPath(&request.path, false);
                try checkPath(&request.target, false);
            },
            .peek => {
                try checkPath(&request.path, false);
                try job.addHeader(headers);
            },
            .store, .load => {
                try checkPath(&request.path, false);
                if (job.spare()) |_| try checkPath(&request.target, false);
                try job.addHeader(headers);
                try job.addSpan();
            },
        }
        if (operation == .open or operation == .list) {
            if (request.buffer == 0 or request.buffer_bytes == 0) return error.NullArgument;
        }
        return job;
    }

    fn addHeader(job: *Job, headers: []align(page_bytes) u8) Error!void {
        const offset = @as(u64, job.request.header) * header_bytes;
        if (offset >= headers.len) return error.OutOfRange;
        job.parts[0] = .{ .base = headers.ptr + offset, .len = header_bytes };
        job.part_count = 1;
        job.needed = header_bytes;
    }

    fn addSpan(job: *Job) Error!void {
        const request = &job.request;
        if (request.bytes == 0 or request.bytes > bytes_max) return error.BadRequest;
        if (request.offset % page_bytes != 0) return error.BadRequest;
        const region = try regions.acquire(request.region);
        errdefer regions.release(region);
        const span = try region.writableSpan(request.offset, wholePages(request.bytes));
        job.region = region;
        job.parts[1] = .{ .base = span.ptr, .len = span.len };
        job.part_count = 2;
        job.needed += request.bytes;
    }

    pub fn release(job: *Job) void {
        if (job.region) |region| regions.release(region);
        job.region = null;
    }

    pub fn path(job: *const Job) Path {
        return @ptrCast(&job.request.path);
    }

    /// Returns the path of the old file that a store overwrites; null if the request names none.
    fn spare(job: *const Job) ?Path {
        if (job.operation != .store or job.request.target[0] == 0) return null;
        return @ptrCast(&job.request.target);
    }

    fn buffer(job: *const Job) []u8 {
        const address: [*]u8 = @ptrFromInt(job.request.buffer);
        return address[0..@intCast(job.request.buffer_bytes)];
    }

    /// Runs all steps before the transfer. An operation without a transfer runs completely.
    pub fn begin(job: *Job, folder: *Folder) Error!void {
        job.step = .done;
        switch (job.operation) {
            .open => folder.* = try .open(try job.folderPath()),
            .store => {
                job.clearPadding();
                job.file = if (job.spare()) |name|
                    try folder.reuse(name, job.needed)
                else
                    try folder.create(job.path(), .@"store.open");
                job.step = .move;
            },
            .load => try job.openToRead(folder, .@"load.open", .@"load.stat"),
            .peek => try job.openToRead(folder, .@"peek.open", .@"peek.stat"),
            .remove => try folder.remove(job.path()),
            .rename => try folder.rename(job.path(), @ptrCast(&job.request.target)),
            .list => {
                const from = job.request.offset;
                const page = try listing.read(folder, job.path(), from, job.buffer());
                job.outcome.result = page.bytes;
                job.outcome.extra = page.next;
            },
            .sync => try folder.sync(),
            .space => {
                const space = try folder.space();
                job.outcome.result = space.free;
                job.outcome.extra = space.total;
            },
        }
    }

    fn folderPath(job: *const Job) Error!Path {
        const text = job.buffer();
        if (std.mem.indexOfScalar(u8, text, 0) != text.len - 1) return error.BadRequest;
        return text[0 .. text.len - 1 :0];
    }

    /// Zeroes the memory after the payload up to the end of its page, which may contain bytes of
    /// another tenant's block.
    fn clearPadding(job: *Job) void {
        const span = job.parts[1].base[0..job.parts[1].len];
        @memset(span[@intCast(job.request.bytes)..], 0);
        job.needed = header_bytes + span.len;
    }

    fn openToRead(
        job: *Job,
        folder: *const Folder,
        open_point: faults.Point,
        stat_point: faults.Point,
    ) Error!void {
        job.file.fd = try folder.openForRead(job.path(), open_point);
        const size = try folders.sizeOf(job.file.fd, stat_point);
        job.outcome.extra = size.bytes;
        if (size.bytes < job.needed) return error.Short;
        job.step = .move;
    }

    fn movePoint(job: *const Job) faults.Point {
        return switch (job.operation) {
            .store => .@"store.write",
            .load => .@"load.read",
            else => .@"peek.read",
        };
    }

    /// Returns whether to make the next read or write. False: the fault plan has already set
    /// `answer`.
    pub fn mayMove(job: *Job) bool {
        job.step = .account;
        job.verdict = faults.hit(job.movePoint());
        const code = job.verdict.errno orelse return true;
        job.answer = faults.failure(code);
        return false;
    }

    /// Returns the parts of memory that are not yet transferred.
    pub fn remaining(job: *const Job, parts: *[2]std.posix.iovec) []std.posix.iovec {
        var skip = job.moved;
        var count: usize = 0;
        for (job.parts[0..job.part_count]) |part| {
            const skipped = @min(skip, part.len);
            skip -= skipped;
            if (skipped == part.len) continue;
            parts[count] = .{ .base = part.base + skipped, .len = part.len - skipped };
            count += 1;
        }
        return parts[0..count];
    }

    /// Reads or writes on this thread and sets `answer`.
    pub fn moveHere(job: *Job) void {
        var memory: [2]std.posix.iovec = undefined;
        const parts = job.remaining(&memory);
        const at: i64 = @intCast(job.moved);
        job.answer = if (job.operation == .store)
            linux.pwritev(job.file.fd, @ptrCast(parts.ptr), parts.len, at)
        else
            linux.preadv(job.file.fd, parts.ptr, parts.len, at);
    }

    /// Returns the remaining parts for io_uring. They stay valid until the kernel has completed the
    /// requests.
    pub fn takeParts(job: *Job) []std.posix.iovec {
        const parts = job.remaining(&job.left);
        job.left_count = @intCast(parts.len);
        return parts;
    }

    /// Combines the results of the job's io_uring requests in `answer`: the number of bytes moved
    /// without a gap from the start.
    pub fn gatherAnswers(job: *Job) void {
        job.answer = @bitCast(@as(isize, job.answers[0]));
        if (job.asked < 2 or job.answers[0] != job.left[0].len) return;
        const second = job.answers[1];
        // An error of the second request shows when its bytes are requested again.
        if (second > 0) job.answer += @intCast(second);
    }

    /// Processes `answer`. If bytes are missing, the job's next step is another transfer.
    pub fn account(job: *Job) Error!void {
        job.step = .move;
        job.verdict.after();
        switch (linux.errno(job.answer)) {
            .INTR, .AGAIN => if (job.stalls < stalls_max) {
                job.stalls += 1;
                return;
            },
            else => {},
        }
        const count = try errno.checkFile(job.answer);
        var memory: [2]std.posix.iovec = undefined;
        const read = if (job.operation == .store) memory[0..0] else job.remaining(&memory);
        const end = job.moved + job.verdict.moved(count, read);
        if (end >= job.needed) {
            job.step = .finish;
            return;
        }
        // Direct I/O must continue at a page boundary, so a partly read page is read again.
        const whole = std.mem.alignBackward(u64, end, page_bytes);
        if (whole == job.moved) {
            job.stalls += 1;
            // A file shorter than its expected size returns 0 bytes at its end.
            if (count == 0 and job.operation != .store) return error.Short;
            if (job.stalls >= stalls_max) return error.IoError;
        }
        job.moved = whole;
    }

    /// Runs all steps after the transfer: publishes a stored file, or checksums loaded bytes.
    pub fn finish(job: *Job, folder: *const Folder) Error!void {
        job.step = .done;
        switch (job.operation) {
            .store => {
                const size = try folders.sizeOf(job.file.fd, .@"store.stat");
                try folder.publish(&job.file, job.path());
                job.outcome.result = size.allocated;
            },
            .load => {
                const span = job.parts[1].base[0..@intCast(job.request.bytes)];
                job.outcome.result = hash.checksum(span);
            },
            else => {},
        }
    }

    /// Records the error with which the job will complete.
    pub fn fail(job: *Job, err: Error) void {
        job.step = .done;
        job.outcome.status = @intFromEnum(status.fromError(err));
        job.outcome.errno = errno.lastErrno();
    }

    /// Closes the job's files. An unpublished new file is removed.
    pub fn close(job: *Job, folder: *const Folder) void {
        if (job.file.fd < 0) return;
        switch (job.operation) {
            .store => folder.discard(&job.file),
            .load => faults.close(.@"load.close", job.file.fd),
            else => faults.close(.@"peek.close", job.file.fd),
        }
        job.file.fd = -1;
    }
};

/// Makes a job that reads a header and 8192 bytes.
fn moving(header: *[header_bytes]u8, span: *[8192]u8) Job {
    return .{
        .request = std.mem.zeroes(types.DiskJob),
        .operation = .load,
        .region = null,
        .parts = .{
            .{ .base = header, .len = header.len },
            .{ .base = span, .len = span.len },
        },
        .part_count = 2,
        .needed = header_bytes + 8000,
        .step = .account,
    };
}

test "a transfer continues from the page in which it stopped" {
    var header: [header_bytes]u8 = undefined;
    var span: [8192]u8 = undefined;
    var job = moving(&header, &span);
    job.answer = header_bytes + 5000;
    try job.account();
    try std.testing.expectEqual(.move, job.step);
    const rest = job.takeParts();
    try std.testing.expectEqual(1, rest.len);
    try std.testing.expectEqual(@intFromPtr(&span) + 4096, @intFromPtr(rest[0].base));
    try std.testing.expectEqual(4096, rest[0].len);
    // The padding of the last page may be missing, but not the payload.
    job.answer = 3904;
    try job.account();
    try std.testing.expectEqual(.finish, job.step);
    job.answer = 0;
    try std.testing.expectError(error.Short, job.account());
}

test "a transfer without progress fails after a bounded number of attempts" {
    var header: [header_bytes]u8 = undefined;
    var span: [8192]u8 = undefined;
    inline for (.{ .{ linux.E.AGAIN, error.TryAgain }, .{ linux.E.INTR, error.TryAgain } }) |case| {
        var job = moving(&header, &span);
        job.answer = faults.failure(case[0]);
        for (0..stalls_max) |_| try job.account();
        try std.testing.expectError(case[1], job.account());
    }
    var job = moving(&header, &span);
    job.operation = .store;
    job.answer = 100;
    for (1..stalls_max) |_| try job.account();
    try std.testing.expectError(error.IoError, job.account());
}

test "of two answers only bytes without a gap count" {
    var header: [header_bytes]u8 = undefined;
    var span: [8192]u8 = undefined;
    var job = moving(&header, &span);
    job.asked = @intCast(job.takeParts().len);
    const eio = -@as(i32, @intFromEnum(linux.E.IO));
    const cases = .{
        .{ 4096, 8192, 4096 + 8192 },
        .{ 4096, 100, 4196 },
        .{ 2048, 8192, 2048 },
        .{ 4096, eio, 4096 },
    };
    inline for (cases) |case| {
        job.answers = .{ case[0], case[1] };
        job.gatherAnswers();
        try std.testing.expectEqual(@as(usize, case[2]), job.answer);
    }
    job.answers = .{ eio, 8192 };
    job.gatherAnswers();
    try std.testing.expectEqual(.IO, linux.errno(job.answer));
}
