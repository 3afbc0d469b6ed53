//! The stand-in's driver functions that allocate memory, register host memory, and describe
//! pointers.

const std = @import("std");
const linux = std.os.linux;
const gate = @import("gate.zig");
const memory = @import("memory.zig");
const pinned = @import("pinned.zig");
const state = @import("state.zig");
const stream = @import("stream.zig");
const types = @import("types.zig");
const Fault = @import("codes.zig").Fault;
const Pointer = types.Pointer;

fn allocate(out: ?*Pointer, bytes: usize) Fault!void {
    const to = out orelse return error.InvalidValue;
    if (bytes == 0) return error.InvalidValue;
    const device = state.currentDevice();
    const address = try memory.reserve(bytes);
    const physical = try memory.create(device, bytes);
    errdefer physical.release();
    const range = try memory.addRange(.{
        .address = address,
        .bytes = bytes,
        .physical = physical,
        .kind = .allocated,
        .device = device,
    });
    state.count("open.allocations", 1);
    to.* = range.address;
}

/// Frees device memory after all work of the device has ended, as the driver does.
fn free(address: Pointer) Fault!void {
    if (address == 0) return;
    const found = memory.find(address) orelse return error.InvalidValue;
    if (found.kind != .allocated or found.address != address) return error.InvalidValue;
    try stream.finishAll(found.device);
    // Other threads may have changed the table during the wait, so find the range again.
    const range = memory.find(address) orelse return error.InvalidValue;
    memory.removeRange(range);
    state.count("open.allocations", -1);
}

fn memoryInfo(free_bytes: ?*usize, total: ?*usize) Fault!void {
    const device = state.currentDevice();
    const all = state.plan.memory_bytes;
    (free_bytes orelse return error.InvalidValue).* = all - device.used_bytes;
    (total orelse return error.InvalidValue).* = all;
}

fn addressRange(base: ?*Pointer, bytes: ?*usize, address: Pointer) Fault!void {
    const range = memory.find(address) orelse return error.NotFound;
    if (base) |to| to.* = range.address;
    if (bytes) |to| to.* = range.bytes;
}

fn register(address: u64, bytes: usize, flags: u32) Fault!void {
    // Valid flags: portable, mapped into the device, device memory, read-only.
    if (flags > 0xf or !pinned.isHost(address, bytes)) return error.InvalidValue;
    try pinned.add(.{
        .address = address,
        .bytes = bytes,
        .device = state.currentDevice(),
        .is_portable = flags & 1 != 0,
        .is_own = false,
    });
}

fn unregister(address: u64) Fault!void {
    const found = pinned.beginningAt(address) orelse return error.NotRegistered;
    if (found.is_own) return error.InvalidValue;
    pinned.remove(found);
}

fn allocateHost(out: ?*u64, bytes: usize, flags: u32) Fault!void {
    const to = out orelse return error.InvalidValue;
    if (bytes == 0 or flags > 7) return error.InvalidValue;
    const prot: linux.PROT = .{ .READ = true, .WRITE = true };
    const kind: linux.MAP = .{ .TYPE = .PRIVATE, .ANONYMOUS = true };
    const rounded = std.mem.alignForward(usize, bytes, memory.page_bytes);
    const address = try memory.checked(linux.mmap(null, rounded, prot, kind, -1, 0));
    errdefer _ = linux.munmap(@ptrFromInt(address), rounded);
    try pinned.add(.{
        .address = address,
        .bytes = rounded,
        .device = state.currentDevice(),
        .is_portable = true,
        .is_own = true,
    });
    to.* = address;
}

fn freeHost(address: u64) Fault!void {
    const found = pinned.beginningAt(address) orelse return error.InvalidValue;
    if (!found.is_own) return error.InvalidValue;
    try stream.finishAll(found.device);
    pinned.remove(pinned.beginningAt(address) orelse return error.InvalidValue);
}

/// Returns a CUpointer_attribute; only those that Hearth uses are implemented.
fn pointerAttribute(out: ?*anyopaque, which: i32, address: u64) Fault!void {
    const to = out orelse return error.InvalidValue;
    const small: *align(1) u32 = @ptrCast(to);
    const large: *align(1) u64 = @ptrCast(to);
    const range = memory.find(address) orelse {
        const device = state.currentDevice();
        const host = try pinned.holding(address, 1, device) orelse return error.InvalidValue;
        switch (which) {
            2 => small.* = 1,
            9 => small.* = host.device.index,
            else => return error.InvalidValue,
        }
        return;
    };
    const is_legacy = range.kind == .allocated and state.plan.has_ipc;
    switch (which) {
        1 => large.* = @intFromPtr(range.device),
        2 => small.* = 2,
        3 => large.* = address,
        // Synchronous memory operations and managed memory: both are always false.
        6, 8 => small.* = 0,
        7 => large.* = range.address,
        9 => small.* = range.device.index,
        10 => small.* = @intFromBool(is_legacy),
        11 => large.* = range.address,
        12 => large.* = range.bytes,
        13 => small.* = 1,
        14 => large.* = @intFromBool(range.physical.is_exportable),
        15 => small.* = @intFromBool(state.plan.has_dma_buf),
        else => return error.InvalidValue,
    }
}

fn setPointerAttribute(value: ?*const anyopaque, which: i32, address: u64) Fault!void {
    _ = memory.find(address) orelse return error.InvalidValue;
    if (value == null or which != 6) return error.InvalidValue;
}

pub const entries = struct {
    pub fn cuMemAlloc_v2(out: ?*Pointer, bytes: usize) callconv(.c) i32 {
        return gate.call("cuMemAlloc_v2", .context, allocate, .{ out, bytes });
    }

    pub fn cuMemFree_v2(address: Pointer) callconv(.c) i32 {
        return gate.call("cuMemFree_v2", .context, free, .{address});
    }

    pub fn cuMemGetInfo_v2(free_bytes: ?*usize, total: ?*usize) callconv(.c) i32 {
        return gate.call("cuMemGetInfo_v2", .context, memoryInfo, .{ free_bytes, total });
    }

    pub fn cuMemGetAddressRange_v2(
        base: ?*Pointer,
        bytes: ?*usize,
        address: Pointer,
    ) callconv(.c) i32 {
        const args = .{ base, bytes, address };
        return gate.call("cuMemGetAddressRange_v2", .context, addressRange, args);
    }

    pub fn cuMemHostRegister_v2(address: u64, bytes: usize, flags: u32) callconv(.c) i32 {
        return gate.call("cuMemHostRegister_v2", .context, register, .{ address, bytes, flags });
    }

    pub fn cuMemHostUnregister(address: u64) callconv(.c) i32 {
        return gate.call("cuMemHostUnregister", .context, unregister, .{address});
    }

    pub fn cuMemHostAlloc(out: ?*u64, bytes: usize, flags: u32) callconv(.c) i32 {
        return gate.call("cuMemHostAlloc", .context, allocateHost, .{ out, bytes, flags });
    }

    pub fn cuMemFreeHost(address: u64) callconv(.c) i32 {
        return gate.call("cuMemFreeHost", .context, freeHost, .{address});
    }

    pub fn cuPointerGetAttribute(out: ?*anyopaque, which: i32, address: u64) callconv(.c) i32 {
        const args = .{ out, which, address };
        return gate.call("cuPointerGetAttribute", .context, pointerAttribute, args);
    }

    pub fn cuPointerSetAttribute(
        value: ?*const anyopaque,
        which: i32,
        address: u64,
    ) callconv(.c) i32 {
        const args = .{ value, which, address };
        return gate.call("cuPointerSetAttribute", .context, setPointerAttribute, args);
    }
};
