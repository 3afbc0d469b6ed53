//! A thread that serves lanes. It waits for all its lanes at once and gives each a turn of at most
//! one receive and one send call. It never blocks on a single lane.
//!
//! It uses edge-triggered epoll and is woken for whole records. A version with io_uring (a send and
//! a receive in flight per lane) used 2 to 8 % less processor time.

const std = @import("std");
const linux = std.os.linux;
const errno = @import("../base/errno.zig");
const faults = @import("../base/faults.zig");
const wakes = @import("../base/wake.zig");
const monotonic = @import("../base/monotonic.zig");
const types = @import("../abi/types.zig");
const records = @import("records.zig");
const sockets = @import("sockets.zig");
const lane_file = @import("lane.zig");
const Lane = lane_file.Lane;
const Lanes = @import("lanes.zig").Lanes;
const Error = @import("../abi/status.zig").Error;
const Fault = types.LaneFault;
const List = std.DoublyLinkedList;

pub const listeners_max = 8;
/// Largest number of connections accepted in a row from one listener before the lanes get their
/// turn.
const accepts_max = 64;
/// Largest number of unauthenticated connections per thread.
const strangers_max = 64;
const stack_bytes = 256 * 1024;
/// Interval in milliseconds at which the thread checks deadlines.
const tick_ms = 20;
const wake_token = 0;
const events_max = 64;
/// Number of unused record buffers that the thread keeps instead of freeing them.
const spares_max = 8;

pub const Worker = struct {
    hub: *Lanes,
    epoll_fd: i32,
    wake_fd: i32,
    thread: ?std.Thread = null,
    /// Lanes of this worker. Only its own thread uses the list.
    lanes: List = .{},
    strangers: u32 = 0,
    /// Unused record buffers; the last entry was used most recently and may be in the cache.
    spares: [spares_max][]u8 = undefined,
    spare_count: usize = 0,
    /// True if connections may be waiting that the thread has not accepted yet.
    accept_again: bool = false,
    /// The mutex protects the following fields.
    arriving: List = .{},
    is_called: bool = false,
    listeners: [listeners_max]i32 = @splat(-1),

    pub fn create(hub: *Lanes) Error!Worker {
        try faults.gate(.@"lanes.eventfd");
        const wake_fd = try wakes.create();
        errdefer _ = linux.close(wake_fd);
        const made = faults.call(.@"lanes.epoll", linux.epoll_create1, .{linux.EPOLL.CLOEXEC});
        const epoll_fd: i32 = @intCast(try errno.check(made));
        errdefer _ = linux.close(epoll_fd);
        const worker: Worker = .{ .hub = hub, .epoll_fd = epoll_fd, .wake_fd = wake_fd };
        try worker.watch(wake_fd, wake_token, linux.EPOLL.IN | linux.EPOLL.ET);
        return worker;
    }

    /// Frees the worker. Its thread must have ended or never have started.
    pub fn destroy(worker: *Worker) void {
        for (worker.listeners) |fd| {
            if (fd >= 0) _ = linux.close(fd);
        }
        for (worker.spares[0..worker.spare_count]) |spare| worker.hub.allocator.free(spare);
        _ = linux.close(worker.epoll_fd);
        _ = linux.close(worker.wake_fd);
    }

    pub fn start(worker: *Worker) Error!void {
        try faults.gate(.@"lanes.thread");
        const config: std.Thread.SpawnConfig = .{ .stack_size = stack_bytes };
        // With libc, spawn fails only if memory or process slots run out.
        worker.thread = std.Thread.spawn(config, run, .{worker}) catch return error.OutOfMemory;
    }

    fn watch(worker: *const Worker, fd: i32, token: u64, events: u32) Error!void {
        var event: linux.epoll_event = .{ .events = events, .data = .{ .u64 = token } };
        const arguments = .{ worker.epoll_fd, linux.EPOLL.CTL_ADD, fd, &event };
        _ = try errno.check(faults.call(.@"lanes.epoll", linux.epoll_ctl, arguments));
    }

    /// Wakes the thread so that it handles changes made by other threads. The caller holds the
    /// mutex.
    pub fn call(worker: *Worker) void {
        if (worker.is_called) return;
        worker.is_called = true;
        wakes.ring(worker.wake_fd);
    }

    /// Starts to accept connections on the listening socket. The caller holds the mutex.
    pub fn addListener(worker: *Worker, fd: i32) Error!void {
        for (&worker.listeners, 0..) |*place, index| {
            if (place.* >= 0) continue;
            try worker.watch(fd, 1 + index, linux.EPOLL.IN | linux.EPOLL.ET);
            place.* = fd;
            return;
        }
        return error.Full;
    }

    /// Gives the worker a lane that no other worker has in its list. The caller holds the mutex.
    pub fn give(worker: *Worker, lane: *Lane) void {
        lane.worker = worker;
        worker.arriving.append(&lane.node);
        worker.call();
    }

    /// Gives `scratch` a buffer for one record; the lane returns it with `takeBack` after the
    /// record. Returns false if memory runs out. Called on the worker's thread.
    pub fn lend(worker: *Worker, scratch: *[]u8) bool {
        if (scratch.len > 0) return true;
        if (worker.spare_count > 0) {
            worker.spare_count -= 1;
            scratch.* = worker.spares[worker.spare_count];
            return true;
        }
        faults.gate(.@"lanes.memory") catch return false;
        scratch.* = worker.hub.allocator.alloc(u8, records.sealed_max) catch return false;
        return true;
    }

    pub fn takeBack(worker: *Worker, scratch: *[]u8) void {
        const memory = scratch.*;
        if (memory.len == 0) return;
        scratch.* = &.{};
        if (worker.spare_count == spares_max) return worker.hub.allocator.free(memory);
        worker.spares[worker.spare_count] = memory;
        worker.spare_count += 1;
    }

    fn run(worker: *Worker) void {
        var is_busy = false;
        while (true) {
            worker.wait(if (is_busy) 0 else worker.timeoutMs());
            if (worker.handleChanges()) break;
            const more = worker.accept_again and worker.acceptSome();
            is_busy = worker.turnAll() or more;
        }
        while (worker.lanes.first) |node| worker.end(@fieldParentPtr("node", node), .closed);
    }

    /// Returns the milliseconds until deadlines are checked again; -1 if there are none.
    fn timeoutMs(worker: *Worker) i32 {
        const waits = worker.strangers > 0 or worker.accept_again or worker.hub.hasOpening();
        return if (waits) tick_ms else -1;
    }

    fn wait(worker: *Worker, timeout_ms: i32) void {
        var events: [events_max]linux.epoll_event = undefined;
        const got = linux.epoll_wait(worker.epoll_fd, &events, events.len, timeout_ms);
        // Only EINTR is possible here: the descriptor stays open as long as the thread runs.
        if (linux.errno(got) != .SUCCESS) return;
        for (events[0..got]) |event| {
            const token = event.data.u64;
            if (token == wake_token) {
                var count: u64 = 0;
                _ = linux.read(worker.wake_fd, std.mem.asBytes(&count), 8);
            } else if (token <= listeners_max) {
                worker.accept_again = true;
            } else {
                const lane: *Lane = @ptrFromInt(token);
                const over = linux.EPOLL.RDHUP | linux.EPOLL.HUP | linux.EPOLL.ERR;
                if (event.events & over != 0) lane.hung_up = true;
                if (event.events & (linux.EPOLL.IN | over) != 0) lane.readable = true;
                if (event.events & (linux.EPOLL.OUT | over) != 0) lane.writable = true;
            }
        }
    }

    /// Handles changes by other threads and expired deadlines. Returns true if the thread must end.
    fn handleChanges(worker: *Worker) bool {
        const hub = worker.hub;
        hub.mutex.lock();
        defer hub.mutex.unlock();
        if (hub.opening > 0) hub.expire(monotonic.now());
        if (!worker.is_called) return false;
        worker.is_called = false;
        while (worker.arriving.popFirst()) |node| {
            worker.lanes.append(node);
            worker.adopt(@fieldParentPtr("node", node));
        }
        var next = worker.lanes.first;
        while (next) |node| : (next = node.next) {
            const lane: *Lane = @fieldParentPtr("node", node);
            lane.releaseStopped();
        }
        return hub.stopping;
    }

    fn adopt(worker: *Worker, lane: *Lane) void {
        const events = linux.EPOLL.IN | linux.EPOLL.OUT | linux.EPOLL.RDHUP | linux.EPOLL.ET;
        worker.watch(lane.fd, @intFromPtr(lane), events) catch {
            if (lane.session) |session| session.end(.broken);
        };
    }

    fn turnAll(worker: *Worker) bool {
        const now = if (worker.strangers > 0) monotonic.now() else 0;
        var is_busy = false;
        var next = worker.lanes.first;
        while (next) |node| {
            next = node.next;
            const lane: *Lane = @fieldParentPtr("node", node);
            if (lane.is_closing.load(.acquire)) {
                worker.end(lane, .closed);
            } else if (lane.session == null and now > lane.deadline) {
                worker.end(lane, .expired);
            } else if (lane.turn()) |more| {
                if (lane.next_worker) |other| worker.handOver(lane, other) else if (more) {
                    is_busy = true;
                }
            } else |trouble| worker.end(lane, lane_file.faultOf(trouble));
        }
        return is_busy;
    }

    /// Closes a lane and ends its session.
    fn end(worker: *Worker, lane: *Lane, fault: Fault) void {
        worker.lanes.remove(&lane.node);
        if (lane.session == null or lane.next_worker != null) worker.strangers -= 1;
        if (lane.session) |session| {
            worker.hub.mutex.lock();
            session.end(fault);
            worker.hub.mutex.unlock();
        }
        lane.shut();
    }

    /// Moves a lane to the worker that `workerOf` assigned, because the lanes of a session are
    /// spread over all threads.
    fn handOver(worker: *Worker, lane: *Lane, other: *Worker) void {
        lane.next_worker = null;
        worker.strangers -= 1;
        if (other == worker) return;
        worker.lanes.remove(&lane.node);
        // epoll_ctl cannot fail for a watched descriptor.
        _ = linux.epoll_ctl(worker.epoll_fd, linux.EPOLL.CTL_DEL, lane.fd, null);
        worker.hub.mutex.lock();
        defer worker.hub.mutex.unlock();
        other.give(lane);
    }

    /// Accepts a limited number of connections, so that a fast dialler does not delay the lanes.
    /// Returns true if more may be waiting.
    fn acceptSome(worker: *Worker) bool {
        worker.accept_again = false;
        var more = false;
        for (worker.listeners) |listener| {
            if (listener < 0) continue;
            for (0..accepts_max) |_| {
                const fd = sockets.accept(listener) catch {
                    // The process may lack descriptors; the thread tries again at the next tick.
                    worker.accept_again = true;
                    break;
                } orelse break;
                worker.acceptOne(fd);
            } else more = true;
        }
        if (more) worker.accept_again = true;
        return more;
    }

    /// Accepts one connection. At the limit of unauthenticated connections it closes the oldest of
    /// them: a peer that knows the secret is authenticated within one round trip.
    fn acceptOne(worker: *Worker, fd: i32) void {
        if (worker.hub.socket_bytes == 0) sockets.sizeForNear(fd);
        if (worker.strangers >= strangers_max) worker.endOldestStranger();
        const lane = Lane.stranger(worker.hub, worker, fd, monotonic.now()) orelse {
            _ = linux.close(fd);
            return;
        };
        const events = linux.EPOLL.IN | linux.EPOLL.OUT | linux.EPOLL.RDHUP | linux.EPOLL.ET;
        worker.lanes.append(&lane.node);
        worker.strangers += 1;
        worker.watch(fd, @intFromPtr(lane), events) catch worker.end(lane, .broken);
    }

    fn endOldestStranger(worker: *Worker) void {
        var next = worker.lanes.first;
        while (next) |node| : (next = node.next) {
            const lane: *Lane = @fieldParentPtr("node", node);
            if (lane.session == null) return worker.end(lane, .full);
        }
    }
};

test "a fast dialler leaves lanes their turn" {
    var hub: Lanes = .{
        .allocator = std.testing.allocator,
        .region = undefined,
        .rekey_bytes = 0,
        .socket_bytes = 0,
        .event_fd = -1,
        .workers = &.{},
    };
    var worker = try Worker.create(&hub);
    defer worker.destroy();
    const listener = try sockets.listen(&try .parse("127.0.0.1", 0), 0);
    try worker.addListener(listener.fd);
    const there: sockets.Address = try .parse("127.0.0.1", listener.port);
    var callers: [accepts_max + 1]i32 = undefined;
    for (&callers) |*fd| {
        fd.* = try sockets.connect(&there, 0);
        var waits = [_]linux.pollfd{.{ .fd = fd.*, .events = linux.POLL.OUT, .revents = 0 }};
        _ = linux.poll(&waits, waits.len, -1);
    }
    defer for (callers) |fd| {
        _ = linux.close(fd);
    };
    try std.testing.expect(worker.acceptSome());
    try std.testing.expectEqual(accepts_max, worker.strangers);
    // The remaining connection must be accepted although epoll reports no new event for it.
    try std.testing.expect(worker.accept_again);
    const oldest = worker.lanes.first;
    try std.testing.expect(!worker.acceptSome());
    try std.testing.expect(!worker.accept_again);
    try std.testing.expect(worker.lanes.first != oldest);
    while (worker.lanes.first) |node| worker.end(@fieldParentPtr("node", node), .closed);
}
