//! Memory registered with io_uring, so that the kernel does not look up its pages for each request:
//! the headers, and the arena if the limit of locked memory allows it.

const std = @import("std");
const linux = std.os.linux;
const errno = @import("../base/errno.zig");
const faults = @import("../base/faults.zig");
const regions = @import("../mem/root.zig").table;
const Error = @import("../abi/status.zig").Error;

/// Largest buffer in bytes that the kernel accepts for registration.
const slice_bytes = 1 << 30;

pub const RegisteredBuffers = struct {
    headers: []const u8 = &.{},
    /// Handle of the registered region; 0 if none is registered.
    arena: u64 = 0,
    arena_base: usize = 0,

    /// Registers the buffers. Takes seconds for a large arena, because the kernel pins each page.
    pub fn register(ring_fd: i32, headers: []u8, arena: u64) Error!RegisteredBuffers {
        const region = try regions.acquire(arena);
        defer regions.release(region);
        const allocator = std.heap.c_allocator;
        const slices = std.math.divCeil(u64, region.bytes, slice_bytes) catch unreachable;
        try faults.gate(.@"ring.register");
        const vectors = try allocator.alloc(std.posix.iovec, @intCast(1 + slices));
        defer allocator.free(vectors);
        vectors[0] = .{ .base = headers.ptr, .len = headers.len };
        for (vectors[1..], 0..) |*vector, number| {
            const from = number * slice_bytes;
            const length = @min(slice_bytes, region.bytes - from);
            vector.* = .{ .base = region.base + from, .len = length };
        }
        const what: linux.IORING_REGISTER = .REGISTER_BUFFERS;
        const arguments = .{ ring_fd, what, vectors.ptr, @as(u32, @intCast(vectors.len)) };
        const result = faults.call(.@"ring.register", linux.io_uring_register, arguments);
        _ = try errno.check(result);
        return .{ .headers = headers, .arena = arena, .arena_base = @intFromPtr(region.base) };
    }

    /// Returns the index of the registered buffer that contains the whole part of `region`; null if
    /// none does.
    pub fn indexOf(self: *const RegisteredBuffers, region: u64, part: *const std.posix.iovec) ?u16 {
        if (self.arena == 0) return null;
        const address = @intFromPtr(part.base);
        const headers = @intFromPtr(self.headers.ptr);
        if (address >= headers and address < headers + self.headers.len) return 0;
        if (region != self.arena) return null;
        const from = address - self.arena_base;
        const slice = from / slice_bytes;
        if ((from + part.len - 1) / slice_bytes != slice) return null;
        return @intCast(1 + slice);
    }
};

test "a part that crosses slices has no registered buffer" {
    var headers: [4096]u8 = undefined;
    const self: RegisteredBuffers = .{ .headers = &headers, .arena = 7, .arena_base = 1 << 40 };
    const cases = .{
        .{ 0, 4096, 1 },
        .{ slice_bytes - 4096, 4096, 1 },
        .{ slice_bytes, 4096, 2 },
        .{ slice_bytes - 4096, 8192, null },
    };
    inline for (cases) |case| {
        const part: std.posix.iovec = .{ .base = @ptrFromInt((1 << 40) + case[0]), .len = case[1] };
        try std.testing.expectEqual(@as(?u16, case[2]), self.indexOf(7, &part));
        try std.testing.expectEqual(null, self.indexOf(8, &part));
    }
    const header: std.posix.iovec = .{ .base = &headers, .len = 4096 };
    try std.testing.expectEqual(0, self.indexOf(8, &header));
}
