//! The verbs stand-in's completion queues, and the channels that wake waiting threads.

const std = @import("std");
const linux = std.os.linux;
const layout = @import("layout.zig");
const state = @import("state.zig");
const events = @import("events.zig");
const pairs = @import("pairs.zig");
const Context = @import("devices.zig").Context;

const allocator = std.heap.c_allocator;
const busy = @intFromEnum(linux.E.BUSY);
/// Nanoseconds to wait for the acknowledgement of events when a queue is destroyed. A real library
/// waits for ever.
const acknowledge_ns = 2 * std.time.ns_per_s;

const Channel = struct {
    channel: layout.Channel,
    era: u32,
    /// Descriptor to which events are written.
    fd: i32,
};

pub const Completion = struct {
    wc: layout.Wc,
    pair: u32,
    /// Total number of requests of the queue pair that have completed up to this one.
    reclaims: u64,
};

pub const Queue = struct {
    cq: layout.Cq,
    era: u32,
    ring: []Completion,
    first: usize = 0,
    count: usize = 0,
    armed: enum { no, for_any, for_solicited } = .no,
    is_broken: bool = false,
    events_reported: u32 = 0,
    children: u32 = 0,
    next: ?*Queue = null,

    pub fn of(cq: *layout.Cq) *Queue {
        return @fieldParentPtr("cq", cq);
    }

    pub fn append(queue: *Queue, completion: Completion) void {
        if (queue.count == queue.ring.len) return queue.overrun();
        queue.ring[(queue.first + queue.count) % queue.ring.len] = completion;
        queue.count += 1;
        const wakes = switch (queue.armed) {
            .no => false,
            .for_any => true,
            .for_solicited => completion.wc.status != layout.Status.success,
        };
        if (!wakes) return;
        queue.armed = .no;
        queue.notify();
    }

    fn notify(queue: *Queue) void {
        const channel = queue.cq.channel orelse return;
        const kept: *Channel = @fieldParentPtr("channel", channel);
        const word: [*]const u8 = @ptrCast(&queue);
        std.debug.assert(linux.write(kept.fd, word, 8) == 8);
    }

    /// Stops the queue after an overflow: it was created too small.
    fn overrun(queue: *Queue) void {
        if (queue.is_broken) return;
        queue.is_broken = true;
        const context = Context.of(queue.cq.context);
        events.push(context, .{ .cq = &queue.cq }, layout.Event.cq_error);
    }
};

/// List of all queues, in which an event's queue is looked up: an event may outlive its queue.
var queues: ?*Queue = null;

fn find(wanted: *Queue) ?*Queue {
    var each = queues;
    while (each) |queue| : (each = queue.next) if (queue == wanted) return queue;
    return null;
}

export fn ibv_create_comp_channel(opened: *layout.Context) ?*layout.Channel {
    state.lock.lock();
    defer state.lock.unlock();
    if (state.entered(.ibv_create_comp_channel)) |code| return failed(*layout.Channel, code);
    var pipe: [2]i32 = undefined;
    const made = linux.errno(linux.pipe2(&pipe, .{ .CLOEXEC = true }));
    if (made != .SUCCESS) return failed(*layout.Channel, @intFromEnum(made));
    const kept = allocator.create(Channel) catch {
        for (pipe) |fd| _ = linux.close(fd);
        return failed(*layout.Channel, 12);
    };
    kept.* = .{
        .channel = .{ .context = opened, .fd = pipe[0], .refcnt = 0 },
        .era = state.era,
        .fd = pipe[1],
    };
    Context.of(opened).children += 1;
    state.opened(.channels);
    return &kept.channel;
}

fn failed(comptime T: type, code: i32) ?T {
    state.setErrno(code);
    return null;
}

export fn ibv_destroy_comp_channel(channel: *layout.Channel) i32 {
    state.lock.lock();
    defer state.lock.unlock();
    if (state.entered(.ibv_destroy_comp_channel)) |code| return code;
    if (channel.refcnt > 0) return busy;
    const kept: *Channel = @fieldParentPtr("channel", channel);
    _ = linux.close(channel.fd);
    _ = linux.close(kept.fd);
    Context.of(channel.context).children -= 1;
    state.closed(.channels, kept.era);
    allocator.destroy(kept);
    return 0;
}

export fn ibv_create_cq(
    opened: *layout.Context,
    entries: i32,
    cq_context: ?*anyopaque,
    channel: ?*layout.Channel,
    vector: i32,
) ?*layout.Cq {
    state.lock.lock();
    defer state.lock.unlock();
    if (state.entered(.ibv_create_cq)) |code| return failed(*layout.Cq, code);
    if (entries < 1 or entries > 65535 or vector != 0) return failed(*layout.Cq, 22);
    const ring = allocator.alloc(Completion, @intCast(entries)) catch
        return failed(*layout.Cq, 12);
    const queue = allocator.create(Queue) catch {
        allocator.free(ring);
        return failed(*layout.Cq, 12);
    };
    queue.* = .{
        .cq = std.mem.zeroes(layout.Cq),
        .era = state.era,
        .ring = ring,
        .next = queues,
    };
    queue.cq.context = opened;
    queue.cq.channel = channel;
    queue.cq.cq_context = cq_context;
    queue.cq.cqe = entries;
    queues = queue;
    if (channel) |used| used.refcnt += 1;
    Context.of(opened).children += 1;
    state.opened(.cqs);
    return &queue.cq;
}

export fn ibv_destroy_cq(cq: *layout.Cq) i32 {
    state.lock.lock();
    defer state.lock.unlock();
    if (state.entered(.ibv_destroy_cq)) |code| return code;
    const queue = Queue.of(cq);
    if (queue.children > 0) return busy;
    if (!state.waitUntilEqual(&queue.events_reported, &cq.comp_events_completed, acknowledge_ns)) {
        return busy;
    }
    var link = &queues;
    while (link.* != queue) link = &link.*.?.next;
    link.* = queue.next;
    if (cq.channel) |used| used.refcnt -= 1;
    Context.of(cq.context).children -= 1;
    state.closed(.cqs, queue.era);
    allocator.free(queue.ring);
    allocator.destroy(queue);
    return 0;
}

/// Returns the next event. Waits for one unless the descriptor is non-blocking.
export fn ibv_get_cq_event(
    channel: *layout.Channel,
    out: **layout.Cq,
    cq_context: *?*anyopaque,
) i32 {
    state.lock.lock();
    const fault = state.entered(.ibv_get_cq_event);
    state.lock.unlock();
    if (fault) |code| {
        state.setErrno(code);
        return -1;
    }
    while (true) {
        var named: *Queue = undefined;
        const got = linux.read(channel.fd, @ptrCast(&named), 8);
        if (linux.errno(got) != .SUCCESS) {
            state.setErrno(@intFromEnum(linux.errno(got)));
            return -1;
        }
        state.lock.lock();
        defer state.lock.unlock();
        const queue = find(named) orelse continue;
        queue.events_reported += 1;
        out.* = &queue.cq;
        cq_context.* = queue.cq.cq_context;
        return 0;
    }
}

export fn ibv_ack_cq_events(cq: *layout.Cq, count: u32) void {
    state.lock.lock();
    defer state.lock.unlock();
    _ = state.entered(.ibv_ack_cq_events);
    cq.comp_events_completed += count;
}

/// Arms the queue: the next completion raises an event. A completion that is already queued does
/// not.
pub fn arm(cq: *layout.Cq, solicited: i32) callconv(.c) i32 {
    state.lock.lock();
    defer state.lock.unlock();
    if (state.entered(.ibv_req_notify_cq)) |code| return code;
    const queue = Queue.of(cq);
    if (queue.armed != .for_any) queue.armed = if (solicited != 0) .for_solicited else .for_any;
    return 0;
}

pub fn poll(cq: *layout.Cq, room: i32, out: [*]layout.Wc) callconv(.c) i32 {
    state.lock.lock();
    defer state.lock.unlock();
    if (state.entered(.ibv_poll_cq)) |code| return -code;
    const queue = Queue.of(cq);
    if (queue.is_broken) return -@as(i32, @intFromEnum(linux.E.IO));
    var count: usize = 0;
    while (count < room and queue.count > 0) : (count += 1) {
        const completion = queue.ring[queue.first];
        queue.first = (queue.first + 1) % queue.ring.len;
        queue.count -= 1;
        out[count] = completion.wc;
        if (pairs.withNumber(completion.pair)) |pair| pair.reclaimed = completion.reclaims;
    }
    return @intCast(count);
}
