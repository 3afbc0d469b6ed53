//! The stand-in's devices and their primary contexts.

const std = @import("std");
const codes = @import("codes.zig");
const gate = @import("gate.zig");
const memory = @import("memory.zig");
const pinned = @import("pinned.zig");
const state = @import("state.zig");
const stream = @import("stream.zig");
const types = @import("types.zig");
const vmm = @import("vmm.zig");
const Device = state.Device;
const Fault = codes.Fault;

/// Destroys all objects of a device's context and discards its queued work.
fn destroy(device: *Device) void {
    if (device.default_stream) |default| stream.end(default, true);
    device.default_stream = null;
    var at: usize = 0;
    while (at < stream.streams.items.len) {
        const each = stream.streams.items[at];
        if (each.device != device) {
            at += 1;
            continue;
        }
        _ = stream.streams.swapRemove(at);
        state.count("open.streams", -1);
        stream.end(each, true);
    }
    while (device.threads > 0) state.wait();
    at = 0;
    while (at < stream.events.items.len) {
        const each = stream.events.items[at];
        if (each.device == device) stream.removeEvent(each) else at += 1;
    }
    at = 0;
    while (at < memory.ranges.items.len) {
        const each = memory.ranges.items[at];
        if (each.device != device or each.kind == .mapped) {
            at += 1;
            continue;
        }
        state.count(if (each.kind == .opened) "open.imports" else "open.allocations", -1);
        memory.removeRange(each);
    }
    at = 0;
    while (at < pinned.all.items.len) {
        const each = pinned.all.items[at];
        if (each.device == device) pinned.remove(each) else at += 1;
    }
}

/// Resets the state as in a new process: no context, no memory, all counters zero.
pub fn forgetAll() void {
    for (&state.devices) |*device| destroy(device);
    // Memory that a lost device could not free no longer counts as used.
    vmm.forgetAll();
    for (&state.devices, 0..) |*device, index| device.* = .{ .index = @intCast(index) };
    state.is_initialized = false;
    state.copies = 0;
    state.forgetCounts();
}

fn init(flags: u32) Fault!void {
    if (flags != 0) return error.InvalidValue;
    if (state.plan.devices == 0) return error.NoDevice;
    for (&state.devices, 0..) |*device, index| device.index = @intCast(index);
    state.is_initialized = true;
}

fn driverVersion(out: ?*i32) Fault!void {
    (out orelse return error.InvalidValue).* = state.plan.driver;
}

fn deviceCount(out: ?*i32) Fault!void {
    (out orelse return error.InvalidValue).* = @intCast(state.plan.devices);
}

fn deviceGet(out: ?*i32, index: i32) Fault!void {
    _ = try state.deviceAt(index);
    (out orelse return error.InvalidValue).* = index;
}

fn deviceName(out: ?[*]u8, room: i32, index: i32) Fault!void {
    const device = try state.deviceAt(index);
    const to = (out orelse return error.InvalidValue)[0..@intCast(@max(room, 0))];
    var text: [32]u8 = undefined;
    const name = std.fmt.bufPrint(&text, "Stand-in GPU {d}\x00", .{device.index}) catch unreachable;
    const length = @min(name.len, to.len);
    @memcpy(to[0..length], name[0..length]);
    if (length > 0) to[length - 1] = 0;
}

fn deviceUuid(out: ?*[16]u8, index: i32) Fault!void {
    const device = try state.deviceAt(index);
    const to = out orelse return error.InvalidValue;
    to.* = "stand-in-gpu-\x00\x00\x00".*;
    to[15] = @intCast(device.index);
}

fn deviceMemory(out: ?*usize, index: i32) Fault!void {
    _ = try state.deviceAt(index);
    (out orelse return error.InvalidValue).* = state.plan.memory_bytes;
}

fn attribute(out: ?*i32, which: i32, index: i32) Fault!void {
    const device = try state.deviceAt(index);
    const plan = &state.plan;
    (out orelse return error.InvalidValue).* = switch (which) {
        // Warp size, threads per block, and number of processors have the values of a real device.
        10 => 32,
        1 => 1024,
        16 => 132,
        18 => 0,
        19, 41, 99, 110, 115, 116 => 1,
        33 => bus(device),
        34, 50 => 0,
        75 => 9,
        76 => 0,
        102, 103 => @intFromBool(plan.has_vmm),
        124 => @intFromBool(plan.has_dma_buf),
        134 => plan.numa[device.index],
        else => return error.InvalidValue,
    };
}

fn bus(device: *const Device) i32 {
    return 0x3b + @as(i32, @intCast(device.index));
}

fn busId(out: ?[*]u8, room: i32, index: i32) Fault!void {
    const device = try state.deviceAt(index);
    const to = (out orelse return error.InvalidValue)[0..@intCast(@max(room, 0))];
    const number: u32 = @intCast(bus(device));
    _ = std.fmt.bufPrint(to, "0000:{X:0>2}:00.0\x00", .{number}) catch return error.InvalidValue;
}

fn retain(out: ?*types.Handle, index: i32) Fault!void {
    const device = try state.deviceAt(index);
    const to = out orelse return error.InvalidValue;
    try state.checkLost(device);
    if (device.retains == 0) state.count("open.contexts", 1);
    device.retains += 1;
    device.is_reset = false;
    to.* = device;
}

fn release(index: i32) Fault!void {
    const device = try state.deviceAt(index);
    if (device.retains == 0) return error.InvalidContext;
    // Waits for copies in progress, as the driver does.
    if (device.retains == 1) {
        stream.finishAll(device) catch |fault| if (fault != error.Lost) return fault;
    }
    device.retains -= 1;
    if (device.retains > 0) return;
    device.is_reset = false;
    state.count("open.contexts", -1);
    destroy(device);
}

/// Destroys the context without waiting for queued work. Callers that retained it must still
/// release it.
fn reset(index: i32) Fault!void {
    const device = try state.deviceAt(index);
    device.is_reset = device.retains > 0;
    destroy(device);
}

fn setCurrent(handle: types.Handle) Fault!void {
    if (handle == null) {
        state.current = null;
        return;
    }
    for (&state.devices) |*device| {
        if (@as(*anyopaque, device) != handle.?) continue;
        if (device.retains == 0) return error.InvalidContext;
        state.current = device;
        return;
    }
    return error.InvalidContext;
}

fn getCurrent(out: ?*types.Handle) Fault!void {
    (out orelse return error.InvalidValue).* = state.current;
}

fn currentDevice(out: ?*i32) Fault!void {
    (out orelse return error.InvalidValue).* = @intCast(state.currentDevice().index);
}

fn synchronize() Fault!void {
    return stream.finishAll(state.currentDevice());
}

fn errorName(code: i32, out: ?*?[*:0]const u8) Fault!void {
    const to = out orelse return error.InvalidValue;
    to.* = codes.name(code);
    if (to.* == null) return error.InvalidValue;
}

pub const entries = struct {
    pub fn cuInit(flags: u32) callconv(.c) i32 {
        return gate.call("cuInit", .nothing, init, .{flags});
    }

    pub fn cuDriverGetVersion(out: ?*i32) callconv(.c) i32 {
        return gate.call("cuDriverGetVersion", .nothing, driverVersion, .{out});
    }

    pub fn cuDeviceGetCount(out: ?*i32) callconv(.c) i32 {
        return gate.call("cuDeviceGetCount", .driver, deviceCount, .{out});
    }

    pub fn cuDeviceGet(out: ?*i32, index: i32) callconv(.c) i32 {
        return gate.call("cuDeviceGet", .driver, deviceGet, .{ out, index });
    }

    pub fn cuDeviceGetName(out: ?[*]u8, room: i32, index: i32) callconv(.c) i32 {
        return gate.call("cuDeviceGetName", .driver, deviceName, .{ out, room, index });
    }

    pub fn cuDeviceGetUuid(out: ?*[16]u8, index: i32) callconv(.c) i32 {
        return gate.call("cuDeviceGetUuid", .driver, deviceUuid, .{ out, index });
    }

    pub fn cuDeviceGetUuid_v2(out: ?*[16]u8, index: i32) callconv(.c) i32 {
        return gate.call("cuDeviceGetUuid_v2", .driver, deviceUuid, .{ out, index });
    }

    pub fn cuDeviceTotalMem_v2(out: ?*usize, index: i32) callconv(.c) i32 {
        return gate.call("cuDeviceTotalMem_v2", .driver, deviceMemory, .{ out, index });
    }

    pub fn cuDeviceGetAttribute(out: ?*i32, which: i32, index: i32) callconv(.c) i32 {
        return gate.call("cuDeviceGetAttribute", .driver, attribute, .{ out, which, index });
    }

    pub fn cuDeviceGetPCIBusId(out: ?[*]u8, room: i32, index: i32) callconv(.c) i32 {
        return gate.call("cuDeviceGetPCIBusId", .driver, busId, .{ out, room, index });
    }

    pub fn cuDevicePrimaryCtxRetain(out: ?*types.Handle, index: i32) callconv(.c) i32 {
        return gate.call("cuDevicePrimaryCtxRetain", .driver, retain, .{ out, index });
    }

    pub fn cuDevicePrimaryCtxRelease_v2(index: i32) callconv(.c) i32 {
        return gate.call("cuDevicePrimaryCtxRelease_v2", .driver, release, .{index});
    }

    pub fn cuDevicePrimaryCtxReset_v2(index: i32) callconv(.c) i32 {
        return gate.call("cuDevicePrimaryCtxReset_v2", .driver, reset, .{index});
    }

    pub fn cuCtxSetCurrent(handle: types.Handle) callconv(.c) i32 {
        return gate.call("cuCtxSetCurrent", .driver, setCurrent, .{handle});
    }

    pub fn cuCtxGetCurrent(out: ?*types.Handle) callconv(.c) i32 {
        return gate.call("cuCtxGetCurrent", .driver, getCurrent, .{out});
    }

    pub fn cuCtxGetDevice(out: ?*i32) callconv(.c) i32 {
        return gate.call("cuCtxGetDevice", .context, currentDevice, .{out});
    }

    pub fn cuCtxSynchronize() callconv(.c) i32 {
        return gate.call("cuCtxSynchronize", .context, synchronize, .{});
    }

    pub fn cuGetErrorName(code: i32, out: ?*?[*:0]const u8) callconv(.c) i32 {
        return gate.call("cuGetErrorName", .nothing, errorName, .{ code, out });
    }

    pub fn cuGetErrorString(code: i32, out: ?*?[*:0]const u8) callconv(.c) i32 {
        return gate.call("cuGetErrorString", .nothing, errorName, .{ code, out });
    }
};
