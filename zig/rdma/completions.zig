//! The thread of one RDMA device. It collects completed READs and events of the device: it polls
//! for a short time, then sleeps until it is woken.

const std = @import("std");
const linux = std.os.linux;
const monotonic = @import("../base/monotonic.zig");
const verbs = @import("verbs.zig");
const Device = @import("device.zig").Device;
const Hub = @import("hub.zig").Hub;
const Link = @import("link.zig").Link;

const batch = 32;
/// Nanoseconds of polling before the thread sleeps. Waking up takes longer than a block from a near
/// host needs.
const spin_ns = 20 * std.time.ns_per_us;
/// Interval in milliseconds at which the thread checks deadlines while a queue pair is being
/// flushed.
const tick_ms = 50;

pub fn run(device: *Device) void {
    var busy_at: u64 = 0;
    while (!device.hub.stopping.load(.acquire)) {
        if (poll(device) > 0) {
            busy_at = monotonic.now();
            continue;
        }
        const is_waiting = device.in_flight.load(.monotonic) > 0;
        if (is_waiting and monotonic.now() -% busy_at < spin_ns) {
            std.atomic.spinLoopHint();
            continue;
        }
        // Poll once more: completions that arrived before the notification was armed cause no
        // notification.
        if (device.context.ops.req_notify_cq(device.queue, 0) != 0) fatal(device);
        if (poll(device) > 0) continue;
        sleep(device);
    }
}

/// Processes completions and returns their number.
fn poll(device: *Device) usize {
    var over: [batch]verbs.Wc = undefined;
    const count = device.context.ops.poll_cq(device.queue, batch, &over);
    if (count < 0) {
        fatal(device);
        return 0;
    }
    if (count == 0) return 0;
    const hub = device.hub;
    hub.mutex.lock();
    defer hub.mutex.unlock();
    for (over[0..@intCast(count)]) |*each| {
        const link = linkOf(hub, each.wr_id) orelse continue;
        link.complete(@truncate(each.wr_id), each.status);
    }
    if (device.starved) {
        device.starved = false;
        pumpAll(hub, device);
    }
    return @intCast(count);
}

/// Returns the link of a completion; null if its queue pair no longer exists.
fn linkOf(hub: *Hub, id: u64) ?*Link {
    const slot: u16 = @truncate(id >> 16);
    if (slot >= hub.links.len) return null;
    const link = &hub.links[slot];
    if (link.generation != @as(u32, @truncate(id >> 32))) return null;
    return switch (link.phase) {
        .connected, .failing, .flushing, .destroying => link,
        else => null,
    };
}

pub fn pumpAll(hub: *Hub, device: *const Device) void {
    for (hub.links) |*link| {
        if (link.phase == .connected and link.port.?.device == device) link.pump();
    }
}

fn sleep(device: *Device) void {
    const in = linux.POLL.IN;
    // The descriptors of a failed device stay readable without further events, so they are not
    // polled.
    const is_gone = device.fatal;
    var waits = [_]linux.pollfd{
        .{ .fd = device.wake_fd, .events = in, .revents = 0 },
        .{ .fd = if (is_gone) -1 else device.channel.fd, .events = in, .revents = 0 },
        .{ .fd = if (is_gone) -1 else device.context.async_fd, .events = in, .revents = 0 },
    };
    // `waits` shows the ready descriptors even if poll(2) fails.
    _ = linux.poll(&waits, waits.len, timeoutOf(device));
    if (waits[0].revents & in != 0) {
        var count: u64 = 0;
        _ = linux.read(device.wake_fd, std.mem.asBytes(&count), 8);
    }
    if (waits[1].revents & in != 0) takeWake(device);
    if (waits[2].revents & in != 0) takeAsync(device);
    if ((waits[1].revents | waits[2].revents) & ~@as(i16, in) != 0) fatal(device);
    takeAwayLate(device);
}

fn timeoutOf(device: *Device) i32 {
    device.hub.mutex.lock();
    defer device.hub.mutex.unlock();
    return if (device.flushing > 0) tick_ms else -1;
}

fn takeWake(device: *Device) void {
    var queue: ?*verbs.Cq = null;
    var user: ?*anyopaque = null;
    const symbols = &device.hub.symbols;
    if (symbols.ibv_get_cq_event(device.channel, &queue, &user) == 0) {
        symbols.ibv_ack_cq_events(device.queue, 1);
    }
}

/// Destroys queue pairs that were not flushed before their deadline.
fn takeAwayLate(device: *Device) void {
    const hub = device.hub;
    hub.mutex.lock();
    defer hub.mutex.unlock();
    if (device.flushing == 0) return;
    const now = monotonic.now();
    for (hub.links) |*link| {
        if (link.phase != .flushing or link.port.?.device != device) continue;
        if (now > link.deadline) link.takeAway();
    }
}

fn takeAsync(device: *Device) void {
    const hub = device.hub;
    var event: verbs.AsyncEvent = undefined;
    if (hub.symbols.ibv_get_async_event(device.context, &event) != 0) return;
    // The device refuses to destroy a queue pair whose events are not acknowledged.
    defer hub.symbols.ibv_ack_async_event(&event);
    switch (event.event_type) {
        verbs.event_device_fatal, verbs.event_cq_err => fatal(device),
        verbs.event_port_active,
        verbs.event_port_err,
        verbs.event_lid_change,
        verbs.event_gid_change,
        verbs.event_client_reregister,
        => hub.refresh(device),
        verbs.event_qp_fatal => failPair(hub, event.element.qp, verbs.wc_fatal_err),
        verbs.event_qp_req_err => failPair(hub, event.element.qp, verbs.wc_rem_inv_req_err),
        verbs.event_qp_access_err => failPair(hub, event.element.qp, verbs.wc_rem_access_err),
        else => {},
    }
}

fn failPair(hub: *Hub, qp: ?*verbs.Qp, code: i32) void {
    hub.mutex.lock();
    defer hub.mutex.unlock();
    for (hub.links) |*link| {
        if (link.isOpen() and link.qp == qp) link.fail(.broken, code);
    }
}

fn fatal(device: *Device) void {
    const hub = device.hub;
    {
        hub.mutex.lock();
        defer hub.mutex.unlock();
        if (device.fatal) return;
        device.fatal = true;
    }
    hub.refresh(device);
}
