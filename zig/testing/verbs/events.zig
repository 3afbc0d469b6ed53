//! The verbs stand-in's asynchronous events of ports, devices and queue pairs. The pipe of the
//! context holds them until they are read.

const std = @import("std");
const linux = std.os.linux;
const layout = @import("layout.zig");
const state = @import("state.zig");
const pairs = @import("pairs.zig");
const Context = @import("devices.zig").Context;

const Element = @FieldType(layout.AsyncEvent, "element");

pub fn push(context: *Context, element: Element, kind: u32) void {
    var event = std.mem.zeroes(layout.AsyncEvent);
    event.element = element;
    event.event_type = kind;
    const bytes = std.mem.asBytes(&event);
    // There are far fewer events than a pipe can hold.
    std.debug.assert(linux.write(context.pipe[1], bytes, bytes.len) == bytes.len);
}

/// Returns the next event. Waits for one unless the descriptor is non-blocking.
export fn ibv_get_async_event(opened: *layout.Context, out: *layout.AsyncEvent) i32 {
    state.lock.lock();
    const fault = state.entered(.ibv_get_async_event);
    state.lock.unlock();
    if (fault) |code| {
        state.setErrno(code);
        return -1;
    }
    const context = Context.of(opened);
    while (true) {
        const bytes = std.mem.asBytes(out);
        const got = linux.read(context.pipe[0], bytes, bytes.len);
        if (linux.errno(got) != .SUCCESS) {
            state.setErrno(@intFromEnum(linux.errno(got)));
            return -1;
        }
        std.debug.assert(got == bytes.len);
        if (out.event_type != layout.Event.pair_access) return 0;
        state.lock.lock();
        defer state.lock.unlock();
        // Skip events of a destroyed queue pair.
        const pair = pairs.find(out.element.qp) orelse continue;
        pair.events_reported += 1;
        return 0;
    }
}

export fn ibv_ack_async_event(event: *layout.AsyncEvent) void {
    state.lock.lock();
    defer state.lock.unlock();
    _ = state.entered(.ibv_ack_async_event);
    if (event.event_type != layout.Event.pair_access) return;
    if (pairs.find(event.element.qp)) |pair| pair.qp.events_completed += 1;
}

export fn ibv_event_type_str(kind: u32) [*:0]const u8 {
    return switch (kind) {
        layout.Event.cq_error => "CQ error",
        layout.Event.pair_access => "local access violation work queue error",
        layout.Event.device_fatal => "local catastrophic error",
        layout.Event.port_active => "port active",
        layout.Event.port_error => "port error",
        layout.Event.gid_change => "GID table change",
        else => "unknown",
    };
}
