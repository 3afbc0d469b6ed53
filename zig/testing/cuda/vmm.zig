//! The stand-in's driver functions that allocate memory and addresses separately (virtual memory
//! management).

const std = @import("std");
const linux = std.os.linux;
const gate = @import("gate.zig");
const memory = @import("memory.zig");
const state = @import("state.zig");
const types = @import("types.zig");
const Fault = @import("codes.zig").Fault;
const Pointer = types.Pointer;

const posix_descriptor = 1;
const on_device = 1;
const read_write = 3;

const Handle = struct { number: u64, physical: *memory.Physical, references: u32, is_import: bool };
const Reservation = struct { address: u64, bytes: u64 };

var handles: std.ArrayList(Handle) = .empty;
var reservations: std.ArrayList(Reservation) = .empty;

pub fn forgetAll() void {
    var at: usize = 0;
    while (at < memory.ranges.items.len) {
        const range = memory.ranges.items[at];
        if (range.kind == .mapped) memory.removeRange(range) else at += 1;
    }
    for (handles.items) |handle| handle.physical.release();
    handles.clearRetainingCapacity();
    reservations.clearRetainingCapacity();
}

fn require() Fault!void {
    if (!state.plan.has_vmm) return error.NotSupported;
}

fn deviceOf(location: types.Location) Fault!*state.Device {
    if (location.kind != on_device) return error.InvalidValue;
    return state.deviceAt(location.id);
}

fn granularity(out: ?*usize, property: ?*const types.Property, option: u32) Fault!void {
    try require();
    _ = try deviceOf((property orelse return error.InvalidValue).location);
    if (option > 1) return error.InvalidValue;
    (out orelse return error.InvalidValue).* = memory.granularity;
}

fn create(out: ?*u64, bytes: usize, property: ?*const types.Property, flags: u64) Fault!void {
    try require();
    const to = out orelse return error.InvalidValue;
    const wanted = property orelse return error.InvalidValue;
    // Pinned memory (kind 1) is the only valid kind.
    if (wanted.kind != 1 or flags != 0) return error.InvalidValue;
    if (bytes == 0 or bytes % memory.granularity != 0) return error.InvalidValue;
    const physical = try memory.create(try deviceOf(wanted.location), bytes);
    errdefer physical.release();
    physical.is_exportable = wanted.handle_types & posix_descriptor != 0;
    to.* = try addHandle(physical, false);
}

fn addHandle(physical: *memory.Physical, is_import: bool) Fault!u64 {
    const number = state.newHandle();
    handles.append(state.allocator, .{
        .number = number,
        .physical = physical,
        .references = 1,
        .is_import = is_import,
    }) catch return error.OutOfMemory;
    state.count(if (is_import) "open.imports" else "open.allocations", 1);
    return number;
}

fn find(number: u64) Fault!*Handle {
    for (handles.items) |*handle| {
        if (handle.number == number) return handle;
    }
    return error.InvalidValue;
}

/// Releases an allocation's handle. Memory that is mapped stays until it is unmapped.
fn release(number: u64) Fault!void {
    const handle = try find(number);
    handle.references -= 1;
    if (handle.references > 0) return;
    state.count(if (handle.is_import) "open.imports" else "open.allocations", -1);
    handle.physical.release();
    const at = handle - handles.items.ptr;
    _ = handles.swapRemove(at);
}

/// Returns a handle for the memory that is mapped at an address: the handle with which it was
/// mapped, or a new one.
fn retainHandle(out: ?*u64, address: u64) Fault!void {
    try require();
    const to = out orelse return error.InvalidValue;
    const range = memory.find(address) orelse return error.InvalidValue;
    if (range.kind != .mapped) return error.InvalidValue;
    for (handles.items) |*handle| {
        if (handle.physical != range.physical) continue;
        handle.references += 1;
        to.* = handle.number;
        return;
    }
    to.* = try addHandle(range.physical, false);
    range.physical.references += 1;
}

fn exportHandle(out: ?*anyopaque, number: u64, kind: u32, flags: u64) Fault!void {
    try require();
    const to: *align(1) i32 = @ptrCast(out orelse return error.InvalidValue);
    const handle = try find(number);
    if (kind != posix_descriptor or flags != 0) return error.InvalidValue;
    if (!handle.physical.is_exportable) return error.InvalidValue;
    to.* = @intCast(try memory.checked(duplicate(handle.physical.fd)));
}

fn duplicate(fd: i32) usize {
    return linux.fcntl(fd, linux.F.DUPFD_CLOEXEC, 3);
}

/// Imports memory from a descriptor, which the caller still owns.
fn importHandle(out: ?*u64, descriptor: ?*anyopaque, kind: u32) Fault!void {
    try require();
    const to = out orelse return error.InvalidValue;
    if (kind != posix_descriptor) return error.NotSupported;
    const number = @intFromPtr(descriptor);
    if (number > std.math.maxInt(i32)) return error.InvalidValue;
    const bytes = try memory.sizeOfOurs(@intCast(number));
    const fd: i32 = @intCast(try memory.checked(duplicate(@intCast(number))));
    const physical = memory.adopt(state.currentDevice(), fd, bytes) catch |fault| {
        _ = linux.close(fd);
        return fault;
    };
    errdefer physical.release();
    physical.is_exportable = true;
    to.* = try addHandle(physical, true);
}

fn reserve(out: ?*Pointer, bytes: usize, alignment: usize, hint: u64, flags: u64) Fault!void {
    try require();
    const to = out orelse return error.InvalidValue;
    if (bytes == 0 or bytes % memory.granularity != 0 or flags != 0) return error.InvalidValue;
    // All addresses are multiples of the granularity, and using the hint is optional.
    _ = .{ alignment, hint };
    const address = try memory.reserve(bytes);
    const reservation: Reservation = .{ .address = address, .bytes = bytes };
    reservations.append(state.allocator, reservation) catch return error.OutOfMemory;
    state.count("open.reservations", 1);
    to.* = address;
}

fn freeAddress(address: Pointer, bytes: usize) Fault!void {
    for (reservations.items, 0..) |reservation, at| {
        if (reservation.address != address or reservation.bytes != bytes) continue;
        for (memory.ranges.items) |range| {
            if (range.address < address + bytes and address < range.end()) {
                return error.InvalidValue;
            }
        }
        _ = reservations.swapRemove(at);
        state.count("open.reservations", -1);
        return;
    }
    return error.InvalidValue;
}

fn map(address: Pointer, bytes: usize, offset: usize, number: u64, flags: u64) Fault!void {
    try require();
    const handle = try find(number);
    if (offset != 0 or flags != 0 or bytes == 0) return error.InvalidValue;
    if (bytes % memory.granularity != 0 or bytes > handle.physical.bytes) {
        return error.InvalidValue;
    }
    const is_reserved = for (reservations.items) |reservation| {
        const end = reservation.address + reservation.bytes;
        if (address >= reservation.address and address + bytes <= end) break true;
    } else false;
    if (!is_reserved) return error.InvalidValue;
    for (memory.ranges.items) |range| {
        if (range.address < address + bytes and address < range.end()) return error.InvalidValue;
    }
    _ = try memory.addRange(.{
        .address = address,
        .bytes = bytes,
        .physical = handle.physical,
        .kind = .mapped,
        .device = handle.physical.device,
        .is_accessible = false,
    });
    handle.physical.references += 1;
    state.count("open.mappings", 1);
}

/// Unmaps memory. The addresses must cover whole mappings.
fn unmap(address: Pointer, bytes: usize) Fault!void {
    try eachMapped(address, bytes, removeMapped);
}

fn setAccess(
    address: Pointer,
    bytes: usize,
    access: ?[*]const types.Access,
    count: usize,
) Fault!void {
    try require();
    const wanted = access orelse return error.InvalidValue;
    for (wanted[0..count]) |one| {
        _ = try deviceOf(one.location);
        try eachMapped(address, bytes, if (one.flags == read_write) &allow else &forbid);
    }
}

fn removeMapped(range: *memory.Range) void {
    memory.removeRange(range);
    state.count("open.mappings", -1);
}

fn allow(range: *memory.Range) void {
    range.is_accessible = true;
}

fn forbid(range: *memory.Range) void {
    range.is_accessible = false;
}

/// Calls `body` for each mapping in these addresses. Returns `InvalidValue` and calls nothing
/// unless whole mappings cover exactly these addresses.
fn eachMapped(address: Pointer, bytes: usize, body: *const fn (*memory.Range) void) Fault!void {
    var at = address;
    while (at < address + bytes) {
        const range = memory.find(at) orelse return error.InvalidValue;
        const is_whole = range.address == at and range.end() <= address + bytes;
        if (range.kind != .mapped or !is_whole) return error.InvalidValue;
        at = range.end();
    }
    at = address;
    while (at < address + bytes) {
        const range = memory.find(at).?;
        at = range.end();
        body(range);
    }
}

pub const entries = struct {
    pub fn cuMemGetAllocationGranularity(
        out: ?*usize,
        property: ?*const types.Property,
        option: u32,
    ) callconv(.c) i32 {
        const args = .{ out, property, option };
        return gate.call("cuMemGetAllocationGranularity", .driver, granularity, args);
    }

    pub fn cuMemCreate(
        out: ?*u64,
        bytes: usize,
        property: ?*const types.Property,
        flags: u64,
    ) callconv(.c) i32 {
        return gate.call("cuMemCreate", .driver, create, .{ out, bytes, property, flags });
    }

    pub fn cuMemRelease(number: u64) callconv(.c) i32 {
        return gate.call("cuMemRelease", .driver, release, .{number});
    }

    pub fn cuMemRetainAllocationHandle(out: ?*u64, address: u64) callconv(.c) i32 {
        return gate.call("cuMemRetainAllocationHandle", .driver, retainHandle, .{ out, address });
    }

    pub fn cuMemExportToShareableHandle(
        out: ?*anyopaque,
        number: u64,
        kind: u32,
        flags: u64,
    ) callconv(.c) i32 {
        const args = .{ out, number, kind, flags };
        return gate.call("cuMemExportToShareableHandle", .driver, exportHandle, args);
    }

    pub fn cuMemImportFromShareableHandle(
        out: ?*u64,
        descriptor: ?*anyopaque,
        kind: u32,
    ) callconv(.c) i32 {
        const args = .{ out, descriptor, kind };
        return gate.call("cuMemImportFromShareableHandle", .context, importHandle, args);
    }

    pub fn cuMemAddressReserve(
        out: ?*Pointer,
        bytes: usize,
        alignment: usize,
        hint: u64,
        flags: u64,
    ) callconv(.c) i32 {
        const args = .{ out, bytes, alignment, hint, flags };
        return gate.call("cuMemAddressReserve", .driver, reserve, args);
    }

    pub fn cuMemAddressFree(address: Pointer, bytes: usize) callconv(.c) i32 {
        return gate.call("cuMemAddressFree", .driver, freeAddress, .{ address, bytes });
    }

    pub fn cuMemMap(
        address: Pointer,
        bytes: usize,
        offset: usize,
        number: u64,
        flags: u64,
    ) callconv(.c) i32 {
        return gate.call("cuMemMap", .driver, map, .{ address, bytes, offset, number, flags });
    }

    pub fn cuMemUnmap(address: Pointer, bytes: usize) callconv(.c) i32 {
        return gate.call("cuMemUnmap", .driver, unmap, .{ address, bytes });
    }

    pub fn cuMemSetAccess(
        address: Pointer,
        bytes: usize,
        access: ?[*]const types.Access,
        count: usize,
    ) callconv(.c) i32 {
        return gate.call("cuMemSetAccess", .driver, setAccess, .{ address, bytes, access, count });
    }
};
