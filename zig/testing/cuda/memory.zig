//! Memory of devices: files in memory, at addresses that the host cannot touch. Each file is also
//! mapped elsewhere, where only streams go.

const std = @import("std");
const linux = std.os.linux;
const state = @import("state.zig");
const Fault = @import("codes.zig").Fault;
const Device = state.Device;

pub const page_bytes = 4096;
/// What an allocation begins at and is a multiple of, as with the driver.
pub const granularity = 2 << 20;
const window_bytes = 4 << 40;
/// How the files are called: what has another name is no memory of ours.
const file_name = "standin-cuda";

/// The memory behind addresses.
pub const Physical = struct {
    fd: i32,
    bytes: u64,
    shadow: [*]u8,
    device: *Device,
    references: u32 = 1,
    /// Taken from the device's memory; not so what another process allocated.
    is_own: bool,
    /// Whether it may be exported as a descriptor.
    is_exportable: bool = false,

    pub fn release(physical: *Physical) void {
        physical.references -= 1;
        if (physical.references > 0) return;
        if (physical.is_own) physical.device.used_bytes -= physical.bytes;
        _ = linux.munmap(physical.shadow, physical.bytes);
        _ = linux.close(physical.fd);
        state.allocator.destroy(physical);
    }
};

pub const Kind = enum { allocated, opened, mapped };

/// Addresses with memory behind them.
pub const Range = struct {
    address: u64,
    bytes: u64,
    physical: *Physical,
    kind: Kind,
    device: *Device,
    /// Of the file, for handles of other processes; how often one of them was opened.
    inode: u64 = 0,
    opens: u32 = 1,
    /// Mapped memory may be touched once it was said who may.
    is_accessible: bool = true,
    /// Copies queued that go to it or come from it: it stays until they are over.
    copies: u32 = 0,
    is_gone: bool = false,

    pub fn end(range: *const Range) u64 {
        return range.address + range.bytes;
    }

    pub fn letGo(range: *Range) void {
        range.copies -= 1;
        if (range.is_gone and range.copies == 0) range.destroy();
    }

    fn destroy(range: *Range) void {
        range.physical.release();
        state.allocator.destroy(range);
    }
};

pub var ranges: std.ArrayList(*Range) = .empty;
var window: u64 = 0;
var window_used: u64 = 0;

/// Addresses that nobody had before, so that stale ones are found.
pub fn reserve(bytes: u64) Fault!u64 {
    if (window == 0) {
        const flags: linux.MAP = .{ .TYPE = .PRIVATE, .ANONYMOUS = true, .NORESERVE = true };
        const got = linux.mmap(null, window_bytes, .{}, flags, -1, 0);
        window = std.mem.alignForward(u64, try checked(got), granularity);
    }
    const wanted = std.mem.alignForward(u64, bytes, granularity) + granularity;
    if (window_used + wanted + granularity > window_bytes) return error.OutOfMemory;
    defer window_used += wanted;
    return window + window_used;
}

pub fn isDevice(address: u64) bool {
    return window != 0 and address >= window and address < window + window_bytes;
}

pub fn create(device: *Device, bytes: u64) Fault!*Physical {
    const rounded = std.mem.alignForward(u64, bytes, granularity);
    if (device.used_bytes + rounded > state.plan.memory_bytes) return error.OutOfMemory;
    const fd: i32 = @intCast(try checked(linux.memfd_create(file_name, linux.MFD.CLOEXEC)));
    errdefer _ = linux.close(fd);
    _ = try checked(linux.ftruncate(fd, @intCast(rounded)));
    const physical = try adopt(device, fd, rounded);
    physical.is_own = true;
    device.used_bytes += rounded;
    return physical;
}

/// Takes the descriptor over where it succeeds.
pub fn adopt(device: *Device, fd: i32, bytes: u64) Fault!*Physical {
    const prot: linux.PROT = .{ .READ = true, .WRITE = true };
    const flags: linux.MAP = .{ .TYPE = .SHARED, .NORESERVE = true };
    const at = try checked(linux.mmap(null, bytes, prot, flags, fd, 0));
    const shadow: [*]u8 = @ptrFromInt(at);
    errdefer _ = linux.munmap(shadow, bytes);
    const physical = state.allocator.create(Physical) catch return error.OutOfMemory;
    physical.* = .{
        .fd = fd,
        .bytes = bytes,
        .shadow = shadow,
        .device = device,
        .is_own = false,
    };
    return physical;
}

/// Takes the reference to `range.physical` over where it succeeds.
pub fn addRange(range: Range) Fault!*Range {
    const added = state.allocator.create(Range) catch return error.OutOfMemory;
    errdefer state.allocator.destroy(added);
    added.* = range;
    ranges.append(state.allocator, added) catch return error.OutOfMemory;
    return added;
}

/// Copies still queued for it are a mistake of the caller: they are counted, and do no harm here.
pub fn removeRange(range: *Range) void {
    const at = std.mem.indexOfScalar(*Range, ranges.items, range).?;
    _ = ranges.swapRemove(at);
    range.is_gone = true;
    if (range.copies == 0) return range.destroy();
    state.count("misuse.freed-under-copy", 1);
}

pub fn find(address: u64) ?*Range {
    for (ranges.items) |range| {
        if (address >= range.address and address < range.end()) return range;
    }
    return null;
}

/// The size of a file that a driver like this one made; InvalidValue for any other.
pub fn sizeOfOurs(fd: i32) Fault!u64 {
    var path: [32]u8 = undefined;
    var target: [64]u8 = undefined;
    const link = std.fmt.bufPrintZ(&path, "/proc/self/fd/{d}", .{fd}) catch unreachable;
    const read = linux.readlink(link, &target, target.len);
    if (linux.errno(read) != .SUCCESS) return error.InvalidValue;
    if (!std.mem.startsWith(u8, target[0..read], "/memfd:" ++ file_name)) {
        return error.InvalidValue;
    }
    var stat: linux.Statx = undefined;
    const asked: linux.STATX = .{ .SIZE = true };
    const said = linux.statx(fd, "", linux.AT.EMPTY_PATH, asked, &stat);
    if (linux.errno(said) != .SUCCESS) return error.InvalidValue;
    return stat.size;
}

pub fn inodeOf(fd: i32) Fault!u64 {
    var stat: linux.Statx = undefined;
    const asked: linux.STATX = .{ .INO = true };
    _ = try checked(linux.statx(fd, "", linux.AT.EMPTY_PATH, asked, &stat));
    return stat.ino;
}

pub fn checked(answer: usize) Fault!usize {
    return if (linux.errno(answer) == .SUCCESS) answer else error.OperatingSystem;
}
