//! Copies between the region (arena) and the memory of a device.

const std = @import("std");
const monotonic = @import("../base/monotonic.zig");
const Fifo = @import("../base/fifo.zig").Fifo;
const types = @import("../abi/gpu_types.zig");
const status = @import("../abi/status.zig");
const cuda = @import("driver.zig");
const caller_file = @import("caller.zig");
const worker_file = @import("worker.zig");
const Caller = caller_file.Caller;
const Memory = @import("memories.zig").Memory;
const Runs = @import("runs.zig").Runs;
const Worker = worker_file.Worker;
const Job = worker_file.Job;
const Outcome = worker_file.Outcome;
const Error = status.Error;

/// Largest number of copies in progress per direction: enough that the device never waits for this
/// thread.
pub const flights_max = 32;
/// Largest number of pieces in one driver call: some drivers crash at tens of thousands.
pub const batch_max = 1024;
/// Slowest accepted copy rate, 100 MB/s. A slower copy counts as stalled.
const ns_per_byte = 10;

/// A copy job that was issued to the device and is not completed.
pub const Flight = struct {
    token: u64,
    memory: *Memory,
    bytes: u64,
    issued_at: u64,
    /// The result that the job reports when the device has finished its copies.
    outcome: Outcome,
    /// True if an event marks the end of the copy. Otherwise the copy ends when the whole stream is
    /// idle.
    is_recorded: bool,
};

/// One copy direction: a CUDA stream, and an event for each copy in progress. The copies of a
/// stream end in the order of issue.
pub const Way = struct {
    stream: ?cuda.Stream = null,
    events: [flights_max]?cuda.Event = @splat(null),
    buffer: [flights_max]Flight = undefined,
    flights: Fifo(Flight) = .{ .items = &.{} },
    landed_at: u64 = 0,

    pub fn open(way: *Way, caller: *Caller) Error!void {
        way.flights = .{ .items = &way.buffer };
        const driver = caller.driver;
        try caller.check(driver.cuStreamCreate(&way.stream, cuda.stream_non_blocking));
        for (&way.events) |*event| {
            try caller.check(driver.cuEventCreate(event, cuda.event_without_timing));
        }
    }

    pub fn close(way: *Way, caller: *Caller) void {
        for (way.events) |kept| if (kept) |event| {
            caller.ignore(caller.driver.cuEventDestroy_v2(event));
        };
        if (way.stream) |stream| caller.ignore(caller.driver.cuStreamDestroy_v2(stream));
        way.forget();
    }

    pub fn forget(way: *Way) void {
        way.events = @splat(null);
        way.stream = null;
    }

    fn nextEvent(way: *const Way) cuda.Event {
        return way.events[(way.flights.head + way.flights.count) % flights_max].?;
    }

    /// Returns `success` if the oldest copy of this direction has ended, `not_ready` if it has not,
    /// or the error of the device.
    pub fn query(way: *Way, caller: *Caller) cuda.Result {
        const flight = &way.flights.items[way.flights.head];
        if (flight.is_recorded) {
            const event = way.events[way.flights.head].?;
            const code = caller.driver.cuEventQuery(event);
            if (code == caller_file.success or code == caller_file.not_ready) return code;
            if (caller_file.isFatal(code)) return code;
            // The event is unusable, but the copy may have succeeded: wait for the whole stream
            // instead.
            flight.is_recorded = false;
            flight.outcome = .{ .status = .device_failed, .code = code };
        }
        return caller.driver.cuStreamQuery(way.stream.?);
    }

    pub fn land(way: *Way) Flight {
        way.landed_at = monotonic.now();
        return way.flights.pop();
    }

    pub fn isStalled(way: *const Way, limit_ns: u64) bool {
        if (way.flights.count == 0) return false;
        const oldest = &way.flights.items[way.flights.head];
        const since = @max(oldest.issued_at, way.landed_at);
        return monotonic.now() -| since > limit_ns + oldest.bytes * ns_per_byte;
    }

    /// Returns the event of the newest copy in progress from or to `memory`; null if there is none.
    fn eventOf(way: *const Way, memory: *const Memory) ?cuda.Event {
        var index = way.flights.count;
        while (index > 0) {
            index -= 1;
            const at = (way.flights.head + index) % flights_max;
            const flight = &way.flights.items[at];
            if (flight.memory == memory) return way.events[at].?;
        }
        return null;
    }
};

/// Argument arrays of the driver call that copies many pieces (cuMemcpyBatchAsync).
pub const Batch = struct {
    to: []cuda.Pointer,
    from: []cuda.Pointer,
    bytes: []usize,
    count: usize = 0,
    /// False if the driver lacks this call.
    is_offered: bool,
};

/// Issues a copy job, which completes when the device has finished it. If this function returns an
/// error, no copy of the job is in progress, unless the device is lost.
pub fn begin(worker: *Worker, job: *const Job, memory: *Memory) Error!void {
    const is_to_gpu = job.operation == .to_gpu;
    const bytes = try checkPieces(worker, job.pieces, memory, is_to_gpu);
    const way = &worker.ways[@intFromBool(is_to_gpu)];
    const other = &worker.ways[@intFromBool(!is_to_gpu)];
    while (way.flights.count == flights_max) try worker.wait();
    const caller = &worker.caller;
    const driver = caller.driver;
    if (other.eventOf(memory)) |event| {
        try caller.check(driver.cuStreamWaitEvent(way.stream.?, event, 0));
    }
    // If the device is lost after this point, `lose` ends the count of all its copies together.
    while (!worker.hub.mayTouch(worker)) try worker.wait();
    var outcome: Outcome = .{};
    issue(worker, job.pieces, memory, is_to_gpu) catch |err| {
        if (err == error.Lost) return err;
        // Copies issued before this error are in progress; the job fails after they have ended.
        outcome = .{ .status = status.fromError(err), .code = caller.code };
    };
    const recorded = driver.cuEventRecord(way.nextEvent(), way.stream.?);
    if (caller_file.isFatal(recorded)) return caller.check(recorded);
    memory.copies += 1;
    way.flights.push(.{
        .token = job.request.token,
        .memory = memory,
        .bytes = bytes,
        .issued_at = monotonic.now(),
        .outcome = outcome,
        .is_recorded = recorded == caller_file.success,
    });
    worker.looks = 0;
    // Without an event the thread must wait until the whole stream is idle.
    while (recorded != caller_file.success and way.flights.count > 0) {
        // On error `wait` has already completed this copy with all others of the device.
        worker.wait() catch return;
    }
}

/// Checks that all pieces are inside the region and the memory, and returns their total bytes.
fn checkPieces(
    worker: *Worker,
    pieces: []const types.GpuPiece,
    memory: *const Memory,
    is_to_gpu: bool,
) Error!u64 {
    const region = worker.hub.region orelse return error.OutOfRange;
    var bytes: u64 = 0;
    for (pieces) |piece| {
        _ = if (is_to_gpu)
            try region.span(piece.region_offset, piece.bytes)
        else
            try region.writableSpan(piece.region_offset, piece.bytes);
        if (!memory.holds(piece.memory_offset, piece.bytes)) return error.OutOfRange;
        bytes +|= piece.bytes;
    }
    return bytes;
}

fn issue(
    worker: *Worker,
    pieces: []const types.GpuPiece,
    memory: *const Memory,
    is_to_gpu: bool,
) Error!void {
    var runs: Runs = .{ .pieces = pieces, .slices = &worker.hub.slices };
    const batch = &worker.batch;
    batch.count = 0;
    while (runs.next()) |run| {
        const host = @intFromPtr(worker.hub.region.?.base) + run.region_offset;
        const device = memory.pointer + run.memory_offset;
        if (!run.is_registered) {
            // For unregistered memory the driver call returns only after the copy has ended.
            try flush(worker, is_to_gpu);
            _ = worker.pageable.fetchAdd(1, .monotonic);
        }
        batch.to[batch.count] = if (is_to_gpu) device else host;
        batch.from[batch.count] = if (is_to_gpu) host else device;
        batch.bytes[batch.count] = run.bytes;
        batch.count += 1;
        if (batch.count == batch.to.len or !run.is_registered) try flush(worker, is_to_gpu);
    }
    try flush(worker, is_to_gpu);
}

fn flush(worker: *Worker, is_to_gpu: bool) Error!void {
    const batch = &worker.batch;
    defer batch.count = 0;
    if (batch.count == 0) return;
    const stream = worker.ways[@intFromBool(is_to_gpu)].stream.?;
    if (batch.count > 1 and batch.is_offered) {
        const code = callBatch(worker, stream);
        if (code == caller_file.success or caller_file.isFatal(code)) {
            return worker.caller.check(code);
        }
        if (code == caller_file.not_supported) batch.is_offered = false;
        // The valid pieces are then copied again one by one, which does no harm.
    }
    const driver = worker.caller.driver;
    for (batch.to[0..batch.count], batch.from[0..batch.count], batch.bytes[0..batch.count]) //
    |to, from, bytes| {
        worker.beat();
        const code = if (is_to_gpu)
            driver.cuMemcpyHtoDAsync_v2(to, @ptrFromInt(from), bytes, stream)
        else
            driver.cuMemcpyDtoHAsync_v2(@ptrFromInt(to), from, bytes, stream);
        try worker.caller.check(code);
    }
}

fn callBatch(worker: *Worker, stream: cuda.Stream) cuda.Result {
    const batch = &worker.batch;
    const driver = worker.caller.driver;
    const to = batch.to.ptr;
    const from = batch.from.ptr;
    const bytes = batch.bytes.ptr;
    const count = batch.count;
    var attributes = [_]cuda.CopyAttributes{.{}};
    var starts = [_]usize{0};
    if (driver.cuMemcpyBatchAsync_v2) |call| {
        return call(to, from, bytes, count, &attributes, &starts, 1, stream);
    }
    var failed: usize = 0;
    const call = driver.cuMemcpyBatchAsync orelse return caller_file.not_supported;
    return call(to, from, bytes, count, &attributes, &starts, 1, &failed, stream);
}
