//! A simulated kernel for tests of the memory code: each system call can be made to fail, and open
//! objects are counted.

const std = @import("std");
const Error = @import("../abi/status.zig").Error;
const System = @import("../base/system.zig").System;

pub const Call = enum {
    none,
    memfd,
    truncate,
    seal,
    map,
    huge,
    dump,
    populate,
    collapse,
    lock,
    prefer,
};

pub const FailingSystem = struct {
    pub var failing: Call = .none;
    pub var open_files: i32 = 0;
    pub var mappings: i32 = 0;

    fn gate(call: Call) Error!void {
        if (failing == call) return error.OutOfMemory;
    }

    pub fn memfdCreate(name: [*:0]const u8, flags: u32) Error!i32 {
        try gate(.memfd);
        const fd = try System.memfdCreate(name, flags);
        open_files += 1;
        return fd;
    }

    pub fn truncate(fd: i32, bytes: u64) Error!void {
        try gate(.truncate);
        return System.truncate(fd, bytes);
    }

    pub fn sizeOf(fd: i32) Error!u64 {
        return System.sizeOf(fd);
    }

    pub fn seal(fd: i32, wanted: u32) Error!void {
        try gate(.seal);
        return System.seal(fd, wanted);
    }

    pub fn sealsOf(fd: i32) Error!u32 {
        return System.sealsOf(fd);
    }

    pub fn closeOnExec(fd: i32) Error!void {
        return System.closeOnExec(fd);
    }

    pub fn pageBytesOf(fd: i32) Error!u32 {
        return System.pageBytesOf(fd);
    }

    pub fn map(fd: i32, bytes: u64, writable: bool) Error![*]align(4096) u8 {
        try gate(.map);
        const base = try System.map(fd, bytes, writable);
        mappings += 1;
        return base;
    }

    pub fn unmap(address: [*]align(4096) u8, bytes: u64) void {
        mappings -= 1;
        System.unmap(address, bytes);
    }

    pub fn adviseHuge(address: [*]align(4096) u8, bytes: u64) Error!void {
        try gate(.huge);
        return System.adviseHuge(address, bytes);
    }

    pub fn excludeFromDumps(address: [*]align(4096) u8, bytes: u64) Error!void {
        try gate(.dump);
        return System.excludeFromDumps(address, bytes);
    }

    pub fn populate(address: [*]u8, bytes: u64) Error!void {
        try gate(.populate);
        return System.populate(address, bytes);
    }

    pub fn collapse(address: [*]u8, bytes: u64) Error!void {
        try gate(.collapse);
        return System.collapse(address, bytes);
    }

    pub fn prefer(address: [*]u8, bytes: u64, node: u32) Error!void {
        try gate(.prefer);
        return System.prefer(address, bytes, node);
    }

    pub fn lock(address: [*]const u8, bytes: u64) Error!void {
        try gate(.lock);
        return System.lock(address, bytes);
    }

    pub fn close(fd: i32) void {
        open_files -= 1;
        System.close(fd);
    }
};

const Region = @import("../mem/region.zig").RegionOf(FailingSystem);

fn request(lock_memory: u32) @import("../abi/types.zig").RegionRequest {
    return .{ .bytes = 1 << 20, .huge_pages = 0, .lock_memory = lock_memory };
}

test "a create that fails half-way leaves neither file nor mapping" {
    inline for (.{ Call.memfd, Call.truncate, Call.seal, Call.map, Call.dump }) |call| {
        FailingSystem.failing = call;
        defer FailingSystem.failing = .none;
        try std.testing.expectError(error.OutOfMemory, Region.create(request(0)));
        try std.testing.expectEqual(@as(i32, 0), FailingSystem.open_files);
        try std.testing.expectEqual(@as(i32, 0), FailingSystem.mappings);
    }
}

test "a failure to populate or lock memory is an error or a flag, as requested" {
    var region = try Region.create(request(1));
    defer region.destroy();
    FailingSystem.failing = .populate;
    try std.testing.expectError(error.OutOfMemory, region.populate(0, 4096));
    FailingSystem.failing = .lock;
    defer FailingSystem.failing = .none;
    try region.populate(0, 4096);
    try std.testing.expectEqual(@as(u32, 1), region.info(1).flags & 1);
    region.lock_wish = .require;
    try std.testing.expectError(error.OutOfMemory, region.populate(4096, 4096));
}

test "spans outside the region are refused, even if their sum wraps" {
    var region = try Region.create(request(0));
    defer region.destroy();
    try std.testing.expectError(error.OutOfRange, region.span(1 << 20, 1));
    try std.testing.expectError(error.OutOfRange, region.span(std.math.maxInt(u64), 2));
    try std.testing.expectError(error.OutOfRange, region.span(1, std.math.maxInt(u64)));
    _ = try region.span(1 << 20, 0);
}

test "an unmodified arena is adopted, and any other is refused" {
    var made = try Region.create(request(0));
    const fd = made.fd;
    defer FailingSystem.close(fd);
    @memset(try made.writableSpan(4096, 4096), 7);
    made.destroyView();
    var wanted: @import("../abi/types.zig").AdoptRequest =
        .{ .bytes = 2 << 20, .fd = fd, .lock_memory = 0 };
    try std.testing.expectError(error.OutOfRange, Region.adopt(wanted));
    wanted.bytes = 1 << 20;
    inline for (.{ Call.map, Call.dump, Call.lock }) |call| {
        FailingSystem.failing = call;
        wanted.lock_memory = if (call == .lock) 2 else 0;
        try std.testing.expectError(error.OutOfMemory, Region.adopt(wanted));
        try std.testing.expectEqual(@as(i32, 0), FailingSystem.mappings);
    }
    FailingSystem.failing = .none;
    wanted.lock_memory = 1;
    var adopted = try Region.adopt(wanted);
    defer adopted.destroyView();
    for (try adopted.span(4096, 4096)) |byte| try std.testing.expectEqual(@as(u8, 7), byte);
    const info = adopted.info(1);
    try std.testing.expectEqual(@as(u64, 1 << 20), info.populated_bytes);
    try std.testing.expectEqual(@as(u32, 4096), info.page_bytes);
    const unsealed = try System.memfdCreate("x", 2);
    defer System.close(unsealed);
    try System.truncate(unsealed, 1 << 20);
    wanted.fd = unsealed;
    try std.testing.expectError(error.NotPermitted, Region.adopt(wanted));
}

test "an arena is sealed against resizing" {
    var region = try Region.create(request(0));
    defer region.destroy();
    try std.testing.expectError(error.NotPermitted, System.truncate(region.fd, 4096));
    const foreign: @import("../abi/types.zig").MapRequest =
        .{ .bytes = 2 << 20, .fd = region.fd, .writable = 0 };
    try std.testing.expectError(error.OutOfRange, Region.mapForeign(foreign));
}

test "a node is preferred for whole pages of a writable region" {
    var region = try Region.create(request(0));
    defer region.destroy();
    try std.testing.expectError(error.BadRequest, region.prefer(1, 4096, 0));
    try std.testing.expectError(error.BadRequest, region.prefer(0, 4095, 0));
    try std.testing.expectError(error.OutOfRange, region.prefer(1 << 20, 4096, 0));
    FailingSystem.failing = .prefer;
    try std.testing.expectError(error.OutOfMemory, region.prefer(0, 4096, 0));
    FailingSystem.failing = .none;
    region.prefer(4096, 8192, 0) catch |err| switch (err) {
        // This kernel has no NUMA support.
        error.Unsupported => return error.SkipZigTest,
        else => return err,
    };
    try std.testing.expectEqual(preferred, try policyAt(region.base + 4096));
    try std.testing.expectEqual(0, try policyAt(region.base));
    region.writable = false;
    try std.testing.expectError(error.NotPermitted, region.prefer(4096, 8192, 0));
}

const preferred = 1;

/// Returns the kernel's NUMA policy for the page at an address.
fn policyAt(address: [*]u8) !u32 {
    const linux = std.os.linux;
    const by_address = 2;
    var mode: u32 = 0;
    const at = @intFromPtr(address);
    const result = linux.syscall5(.get_mempolicy, @intFromPtr(&mode), 0, 0, at, by_address);
    return if (linux.errno(result) == .SUCCESS) mode else error.System;
}
