//! Host memory that is registered with the stand-in's driver.

const std = @import("std");
const linux = std.os.linux;
const state = @import("state.zig");
const memory = @import("memory.zig");
const Fault = @import("codes.zig").Fault;
const Device = state.Device;

pub const Pinned = struct {
    address: u64,
    bytes: u64,
    device: *Device,
    is_portable: bool,
    /// True if cuMemHostAlloc allocated it; false if the caller registered its own memory.
    is_own: bool,
    /// Number of queued copies that use it.
    copies: u32 = 0,
    is_gone: bool = false,

    pub fn letGo(pinned: *Pinned) void {
        pinned.copies -= 1;
        if (pinned.is_gone and pinned.copies == 0) pinned.destroy();
    }

    fn destroy(pinned: *Pinned) void {
        if (pinned.is_own) _ = linux.munmap(@ptrFromInt(pinned.address), pinned.bytes);
        state.allocator.destroy(pinned);
    }

    fn end(pinned: *const Pinned) u64 {
        return pinned.address + pinned.bytes;
    }
};

pub var all: std.ArrayList(*Pinned) = .empty;

pub fn add(pinned: Pinned) Fault!void {
    for (all.items) |each| {
        if (pinned.address < each.end() and each.address < pinned.end()) {
            return error.AlreadyRegistered;
        }
    }
    const added = state.allocator.create(Pinned) catch return error.OutOfMemory;
    errdefer state.allocator.destroy(added);
    added.* = pinned;
    all.append(state.allocator, added) catch return error.OutOfMemory;
    state.count(counterOf(added), 1);
}

/// Removes a registration. Copies that still use it are a mistake of the caller and are counted as
/// misuse.
pub fn remove(pinned: *Pinned) void {
    const at = std.mem.indexOfScalar(*Pinned, all.items, pinned).?;
    _ = all.swapRemove(at);
    state.count(counterOf(pinned), -1);
    pinned.is_gone = true;
    if (pinned.copies == 0) return pinned.destroy();
    state.count("misuse.unregistered-under-copy", 1);
}

pub fn beginningAt(address: u64) ?*Pinned {
    for (all.items) |each| {
        if (each.address == address) return each;
    }
    return null;
}

/// Returns the registration that contains a span; null for unregistered memory. A span that is only
/// partly registered, or in two registrations, is refused, as some drivers do.
pub fn holding(address: u64, bytes: u64, device: *const Device) Fault!?*Pinned {
    if (bytes > std.math.maxInt(u64) - address) return error.InvalidValue;
    for (all.items) |each| {
        if (address >= each.end() or each.address >= address + bytes) continue;
        if (!each.is_portable and each.device != device) continue;
        const is_inside = address >= each.address and address + bytes <= each.end();
        return if (is_inside) each else error.InvalidValue;
    }
    return null;
}

/// Returns whether the whole span is mapped in this process and is not device memory.
pub fn isHost(address: u64, bytes: u64) bool {
    if (address == 0 or bytes == 0 or memory.isDevice(address)) return false;
    var at = std.mem.alignBackward(u64, address, memory.page_bytes);
    var present: [4096]u8 = undefined;
    while (at < address + bytes) {
        const step = @min(present.len * memory.page_bytes, address + bytes - at);
        const pages = std.mem.alignForward(u64, step, memory.page_bytes);
        const said = linux.mincore(@ptrFromInt(at), pages, &present);
        if (linux.errno(said) != .SUCCESS) return false;
        at += pages;
    }
    return true;
}

fn counterOf(pinned: *const Pinned) []const u8 {
    return if (pinned.is_own) "open.host" else "open.registrations";
}
