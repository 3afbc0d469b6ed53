//! The stand-in's streams: threads that execute queued work in order.

const std = @import("std");
const linux = std.os.linux;
const codes = @import("codes.zig");
const state = @import("state.zig");
const types = @import("types.zig");
const Range = @import("memory.zig").Range;
const Pinned = @import("pinned.zig").Pinned;
const Device = state.Device;
const Fault = codes.Fault;

const stack_bytes = 1024 * 1024;

/// Bytes of a copy that are contiguous in source and destination. A segment prevents the removal of
/// its memory.
pub const Segment = struct {
    to: [*]u8,
    from: [*]const u8,
    bytes: u64,
    ranges: [2]?*Range = .{ null, null },
    pinned: ?*Pinned = null,
    /// True for the first segment of a piece: the segments of one piece count as one copy.
    is_first: bool,
};

pub const Event = struct {
    handle: usize,
    device: *Device,
    has_time: bool,
    recorded: u64 = 0,
    done: u64 = 0,
    done_ns: u64 = 0,
};

pub const Task = union(enum) {
    copies: []Segment,
    fill: struct { segment: Segment, value: u8 },
    record: struct { event: usize, ticket: u64 },
    await_event: struct { event: usize, ticket: u64 },
    function: struct { call: types.HostFunction, data: ?*anyopaque },
    callback: struct { call: types.Callback, data: ?*anyopaque },
};

const Work = struct { node: std.DoublyLinkedList.Node = .{}, task: Task };

pub const Stream = struct {
    handle: usize,
    device: *Device,
    queue: std.DoublyLinkedList = .{},
    is_busy: bool = false,
    /// The stream was destroyed: no more work will be queued, and the thread ends after the queued
    /// work.
    is_ending: bool = false,
    /// The context was destroyed: queued work is discarded.
    is_dropped: bool = false,

    pub fn isIdle(stream: *const Stream) bool {
        return stream.queue.first == null and !stream.is_busy;
    }

    /// Waits until all work queued so far has ended or the device is lost.
    pub fn finish(stream: *Stream) Fault!void {
        const device = stream.device;
        while (!stream.isIdle()) {
            try state.checkLost(device);
            state.wait();
        }
        try state.checkLost(device);
    }

    /// Queues work. If it succeeds, the stream owns the segments of a copy.
    pub fn push(stream: *Stream, task: Task) Fault!void {
        const work = state.allocator.create(Work) catch return error.OutOfMemory;
        work.* = .{ .task = task };
        stream.queue.append(&work.node);
        state.wake();
    }

    fn isDead(stream: *const Stream) bool {
        return stream.is_dropped or stream.device.lost != 0;
    }

    fn run(stream: *Stream) void {
        state.lock();
        defer state.unlock();
        while (true) {
            const node = stream.queue.popFirst() orelse {
                if (stream.is_ending) break;
                state.wait();
                continue;
            };
            const work: *Work = @fieldParentPtr("node", node);
            stream.is_busy = true;
            stream.perform(&work.task);
            stream.is_busy = false;
            state.allocator.destroy(work);
            state.wake();
        }
        stream.device.threads -= 1;
        state.allocator.destroy(stream);
        state.wake();
    }

    fn perform(stream: *Stream, task: *Task) void {
        switch (task.*) {
            .copies => |segments| {
                for (segments) |*segment| {
                    if (!stream.isDead()) stream.copy(segment);
                    letGo(segment);
                }
                state.allocator.free(segments);
            },
            .fill => |*fill| {
                if (!stream.isDead()) @memset(fill.segment.to[0..fill.segment.bytes], fill.value);
                letGo(&fill.segment);
            },
            .record => |record| {
                const event = findEvent(record.event) orelse return;
                if (stream.isDead()) return;
                event.done = @max(event.done, record.ticket);
                event.done_ns = now();
            },
            .await_event => |awaited| while (!stream.isDead()) {
                const event = findEvent(awaited.event) orelse return;
                if (event.done >= awaited.ticket) return;
                state.wait();
            },
            .function => |function| if (!stream.isDead()) {
                state.unlock();
                defer state.lock();
                function.call(function.data);
            },
            .callback => |callback| {
                const code = stream.device.lost;
                state.unlock();
                defer state.lock();
                callback.call(@ptrFromInt(stream.handle), code, callback.data);
            },
        }
    }

    fn copy(stream: *Stream, segment: *const Segment) void {
        const plan = &state.plan;
        var is_flipped = false;
        if (segment.is_first) {
            state.copies += 1;
            const number = state.copies;
            while (plan.stall_at != 0 and number >= plan.stall_at) {
                if (stream.isDead()) return;
                state.wait();
            }
            if (stream.isDead()) return;
            if (plan.ruleOf("copy")) |rule| {
                if (rule.code) |code| return state.lose(stream.device, code);
            }
            is_flipped = number == plan.flip_at;
            state.count("copies", 1);
            if (plan.delay_ms > 0) {
                state.unlock();
                defer state.lock();
                sleep(plan.delay_ms);
            }
        }
        state.count("bytes", @intCast(segment.bytes));
        state.unlock();
        defer state.lock();
        @memmove(segment.to[0..segment.bytes], segment.from[0..segment.bytes]);
        if (is_flipped) segment.to[segment.bytes / 2] ^= 0x10;
    }
};

pub var streams: std.ArrayList(*Stream) = .empty;
pub var events: std.ArrayList(*Event) = .empty;

pub fn hold(segment: *const Segment) void {
    for (segment.ranges) |range| {
        if (range) |held| held.copies += 1;
    }
    if (segment.pinned) |pinned| pinned.copies += 1;
}

fn letGo(segment: *const Segment) void {
    for (segment.ranges) |range| {
        if (range) |held| held.letGo();
    }
    if (segment.pinned) |pinned| pinned.letGo();
}

pub fn create(device: *Device) Fault!*Stream {
    const stream = state.allocator.create(Stream) catch return error.OutOfMemory;
    errdefer state.allocator.destroy(stream);
    stream.* = .{ .handle = state.newHandle(), .device = device };
    const config: std.Thread.SpawnConfig = .{ .stack_size = stack_bytes };
    const thread = std.Thread.spawn(config, Stream.run, .{stream}) catch return error.OutOfMemory;
    thread.detach();
    device.threads += 1;
    return stream;
}

/// Returns the stream of a handle. 0, 1 and 2 are the default streams.
pub fn find(handle: types.Handle) Fault!*Stream {
    const number = @intFromPtr(handle);
    if (number <= 2) {
        const device = state.currentDevice();
        if (device.default_stream == null) device.default_stream = try create(device);
        return device.default_stream.?;
    }
    for (streams.items) |stream| {
        if (stream.handle == number) return stream;
    }
    return error.InvalidHandle;
}

pub fn findEvent(number: usize) ?*Event {
    for (events.items) |event| {
        if (event.handle == number) return event;
    }
    return null;
}

/// Waits for all streams of a device, as a synchronizing call does.
pub fn finishAll(device: *Device) Fault!void {
    if (device.default_stream) |stream| try stream.finish();
    var at: usize = 0;
    while (at < streams.items.len) {
        const stream = streams.items[at];
        if (stream.device != device or stream.isIdle()) {
            at += 1;
            continue;
        }
        try state.checkLost(device);
        // The wait releases the mutex, so streams may be created and destroyed during it.
        state.wait();
        at = 0;
    }
    try state.checkLost(device);
}

pub fn end(stream: *Stream, is_dropped: bool) void {
    stream.is_ending = true;
    stream.is_dropped = is_dropped or stream.is_dropped;
    state.wake();
}

fn sleep(ms: u64) void {
    const nanoseconds = ms * 1_000_000;
    var request: linux.timespec = .{
        .sec = @intCast(nanoseconds / 1_000_000_000),
        .nsec = @intCast(nanoseconds % 1_000_000_000),
    };
    // A signal may shorten the sleep; no test depends on its length.
    _ = linux.nanosleep(&request, null);
}

fn now() u64 {
    var time: linux.timespec = undefined;
    // clock_gettime cannot fail for CLOCK_MONOTONIC.
    _ = linux.clock_gettime(.MONOTONIC, &time);
    return @as(u64, @intCast(time.sec)) * 1_000_000_000 + @as(u64, @intCast(time.nsec));
}

pub fn removeEvent(event: *Event) void {
    const at = std.mem.indexOfScalar(*Event, events.items, event).?;
    _ = events.swapRemove(at);
    state.count("open.events", -1);
    state.allocator.destroy(event);
    state.wake();
}
