//! The stand-in's driver functions for streams and events.

const std = @import("std");
const gate = @import("gate.zig");
const state = @import("state.zig");
const stream = @import("stream.zig");
const types = @import("types.zig");
const Event = stream.Event;
const Fault = @import("codes.zig").Fault;
const Handle = types.Handle;

const non_blocking = 1;
const disable_timing = 2;

fn create(out: ?*Handle, flags: u32) Fault!void {
    const to = out orelse return error.InvalidValue;
    if (flags & ~@as(u32, non_blocking) != 0) return error.InvalidValue;
    const made = try stream.create(state.currentDevice());
    stream.streams.append(state.allocator, made) catch return error.OutOfMemory;
    state.count("open.streams", 1);
    to.* = @ptrFromInt(made.handle);
}

fn createWithPriority(out: ?*Handle, flags: u32, priority: i32) Fault!void {
    _ = priority;
    return create(out, flags);
}

/// Destroys a stream; its queued work is still executed.
fn destroy(handle: Handle) Fault!void {
    const number = @intFromPtr(handle);
    if (number <= 2) return error.InvalidHandle;
    const found = try stream.find(handle);
    const at = std.mem.indexOfScalar(*stream.Stream, stream.streams.items, found).?;
    _ = stream.streams.swapRemove(at);
    state.count("open.streams", -1);
    stream.end(found, false);
}

fn query(handle: Handle) Fault!void {
    if (!(try stream.find(handle)).isIdle()) return error.NotReady;
}

fn synchronize(handle: Handle) Fault!void {
    return (try stream.find(handle)).finish();
}

fn awaitEvent(handle: Handle, event: Handle, flags: u32) Fault!void {
    _ = flags;
    const awaited = try findEvent(event);
    const task: stream.Task = .{
        .await_event = .{ .event = awaited.handle, .ticket = awaited.recorded },
    };
    return (try stream.find(handle)).push(task);
}

fn launchHostFunction(handle: Handle, call: ?types.HostFunction, data: ?*anyopaque) Fault!void {
    const function = call orelse return error.InvalidValue;
    const task: stream.Task = .{ .function = .{ .call = function, .data = data } };
    return (try stream.find(handle)).push(task);
}

fn addCallback(handle: Handle, call: ?types.Callback, data: ?*anyopaque, flags: u32) Fault!void {
    if (flags != 0) return error.InvalidValue;
    const callback = call orelse return error.InvalidValue;
    const task: stream.Task = .{ .callback = .{ .call = callback, .data = data } };
    return (try stream.find(handle)).push(task);
}

fn findEvent(handle: Handle) Fault!*Event {
    return stream.findEvent(@intFromPtr(handle)) orelse error.InvalidHandle;
}

fn createEvent(out: ?*Handle, flags: u32) Fault!void {
    const to = out orelse return error.InvalidValue;
    if (flags > 7) return error.InvalidValue;
    const event = state.allocator.create(Event) catch return error.OutOfMemory;
    errdefer state.allocator.destroy(event);
    event.* = .{
        .handle = state.newHandle(),
        .device = state.currentDevice(),
        .has_time = flags & disable_timing == 0,
    };
    stream.events.append(state.allocator, event) catch return error.OutOfMemory;
    state.count("open.events", 1);
    to.* = @ptrFromInt(event.handle);
}

fn destroyEvent(handle: Handle) Fault!void {
    stream.removeEvent(try findEvent(handle));
}

fn record(handle: Handle, on: Handle) Fault!void {
    const event = try findEvent(handle);
    const found = try stream.find(on);
    if (found.device != event.device) return error.InvalidHandle;
    const ticket = event.recorded + 1;
    try found.push(.{ .record = .{ .event = event.handle, .ticket = ticket } });
    event.recorded = ticket;
}

fn queryEvent(handle: Handle) Fault!void {
    const event = try findEvent(handle);
    try state.checkLost(event.device);
    if (event.done < event.recorded) return error.NotReady;
}

fn synchronizeEvent(handle: Handle) Fault!void {
    const wanted = (try findEvent(handle)).recorded;
    while (true) {
        const event = try findEvent(handle);
        try state.checkLost(event.device);
        if (event.done >= wanted) return;
        state.wait();
    }
}

fn elapsed(out: ?*f32, from: Handle, to: Handle) Fault!void {
    const start = try findEvent(from);
    const end = try findEvent(to);
    const isTimed = start.has_time and end.has_time and start.recorded > 0 and end.recorded > 0;
    if (!isTimed) return error.InvalidHandle;
    if (start.done < start.recorded or end.done < end.recorded) return error.NotReady;
    const ns = @as(i64, @intCast(end.done_ns)) - @as(i64, @intCast(start.done_ns));
    (out orelse return error.InvalidValue).* = @as(f32, @floatFromInt(ns)) / 1e6;
}

pub const entries = struct {
    pub fn cuStreamCreate(out: ?*Handle, flags: u32) callconv(.c) i32 {
        return gate.call("cuStreamCreate", .context, create, .{ out, flags });
    }

    pub fn cuStreamCreateWithPriority(
        out: ?*Handle,
        flags: u32,
        priority: i32,
    ) callconv(.c) i32 {
        const args = .{ out, flags, priority };
        return gate.call("cuStreamCreateWithPriority", .context, createWithPriority, args);
    }

    pub fn cuStreamDestroy_v2(handle: Handle) callconv(.c) i32 {
        return gate.call("cuStreamDestroy_v2", .context, destroy, .{handle});
    }

    pub fn cuStreamQuery(handle: Handle) callconv(.c) i32 {
        return gate.call("cuStreamQuery", .context, query, .{handle});
    }

    pub fn cuStreamSynchronize(handle: Handle) callconv(.c) i32 {
        return gate.call("cuStreamSynchronize", .context, synchronize, .{handle});
    }

    pub fn cuStreamWaitEvent(handle: Handle, event: Handle, flags: u32) callconv(.c) i32 {
        return gate.call("cuStreamWaitEvent", .context, awaitEvent, .{ handle, event, flags });
    }

    pub fn cuLaunchHostFunc(
        handle: Handle,
        function: ?types.HostFunction,
        data: ?*anyopaque,
    ) callconv(.c) i32 {
        const args = .{ handle, function, data };
        return gate.call("cuLaunchHostFunc", .context, launchHostFunction, args);
    }

    pub fn cuStreamAddCallback(
        handle: Handle,
        callback: ?types.Callback,
        data: ?*anyopaque,
        flags: u32,
    ) callconv(.c) i32 {
        const args = .{ handle, callback, data, flags };
        return gate.call("cuStreamAddCallback", .context, addCallback, args);
    }

    pub fn cuEventCreate(out: ?*Handle, flags: u32) callconv(.c) i32 {
        return gate.call("cuEventCreate", .context, createEvent, .{ out, flags });
    }

    pub fn cuEventDestroy_v2(handle: Handle) callconv(.c) i32 {
        return gate.call("cuEventDestroy_v2", .context, destroyEvent, .{handle});
    }

    pub fn cuEventRecord(handle: Handle, on: Handle) callconv(.c) i32 {
        return gate.call("cuEventRecord", .context, record, .{ handle, on });
    }

    pub fn cuEventQuery(handle: Handle) callconv(.c) i32 {
        return gate.call("cuEventQuery", .context, queryEvent, .{handle});
    }

    pub fn cuEventSynchronize(handle: Handle) callconv(.c) i32 {
        return gate.call("cuEventSynchronize", .context, synchronizeEvent, .{handle});
    }

    pub fn cuEventElapsedTime(out: ?*f32, from: Handle, to: Handle) callconv(.c) i32 {
        return gate.call("cuEventElapsedTime", .context, elapsed, .{ out, from, to });
    }
};
