//! The stand-in's device memory: memfds at addresses that the host cannot access. Each file has a
//! second mapping that only the stream threads use.

const std = @import("std");
const linux = std.os.linux;
const state = @import("state.zig");
const Fault = @import("codes.zig").Fault;
const Device = state.Device;

pub const page_bytes = 4096;
/// Alignment and granularity of an allocation in bytes, as with the driver.
pub const granularity = 2 << 20;
const window_bytes = 4 << 40;
/// Name of the memory's files. Descriptors of files with another name are refused.
const file_name = "standin-cuda";

/// A memory file, which may be mapped at device addresses.
pub const Physical = struct {
    fd: i32,
    bytes: u64,
    shadow: [*]u8,
    device: *Device,
    references: u32 = 1,
    /// True if the bytes count as used on the device; false for memory that another process
    /// allocated.
    is_own: bool,
    /// Whether the memory may be exported as a descriptor.
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

/// A range of device addresses with memory behind it.
pub const Range = struct {
    address: u64,
    bytes: u64,
    physical: *Physical,
    kind: Kind,
    device: *Device,
    /// Inode of the file, which identifies the memory for IPC. The next field counts its open
    /// handles.
    inode: u64 = 0,
    opens: u32 = 1,
    /// Whether copies may access the memory. Mapped memory is accessible only after cuMemSetAccess.
    is_accessible: bool = true,
    /// Number of queued copies that use the range. The range stays until they have ended.
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

/// Reserves device addresses that were never used before, so that the use of stale addresses is
/// detected.
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

/// Adds memory of an existing file. If it succeeds, the memory owns the descriptor.
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

/// Adds a range to the table. If it succeeds, the range owns the reference to `range.physical`.
pub fn addRange(range: Range) Fault!*Range {
    const added = state.allocator.create(Range) catch return error.OutOfMemory;
    errdefer state.allocator.destroy(added);
    added.* = range;
    ranges.append(state.allocator, added) catch return error.OutOfMemory;
    return added;
}

/// Removes a range. Copies that still use it are a mistake of the caller: they are counted as
/// misuse, and the memory stays until they have ended.
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

/// Returns the size of a file that this stand-in created; `InvalidValue` for any other file.
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
