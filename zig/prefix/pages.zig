//! Allocates zeroed memory directly from the kernel, which provides pages at first access.

const std = @import("std");
const linux = std.os.linux;
const errno = @import("../base/errno.zig");
const Error = @import("../abi/status.zig").Error;

pub const page_bytes = 4096;

/// Returns at least `count` zeroed elements of `T`. Large allocations use huge pages if the kernel
/// supports them: lookups access memory at random, and small pages would cost a TLB miss each.
pub fn map(comptime T: type, count: usize) Error![]T {
    const bytes = std.mem.alignForward(usize, @max(1, count * @sizeOf(T)), page_bytes);
    const flags: linux.MAP = .{ .TYPE = .PRIVATE, .ANONYMOUS = true, .NORESERVE = true };
    const protection: linux.PROT = .{ .READ = true, .WRITE = true };
    const address = try errno.check(linux.mmap(null, bytes, protection, flags, -1, 0));
    const memory: [*]align(page_bytes) u8 = @ptrFromInt(address);
    // Kernels without huge pages refuse this advice; small pages are only slower.
    _ = linux.madvise(memory, bytes, linux.MADV.HUGEPAGE);
    return @as([*]T, @ptrCast(memory))[0..count];
}

pub fn unmap(slice: anytype) void {
    const bytes = std.mem.sliceAsBytes(slice);
    const whole = std.mem.alignForward(usize, @max(1, bytes.len), page_bytes);
    // munmap fails only for an address that was not mapped.
    std.debug.assert(linux.errno(linux.munmap(@ptrCast(@alignCast(bytes.ptr)), whole)) == .SUCCESS);
}

/// Zeroes the memory and returns its pages to the kernel.
pub fn wipe(slice: anytype) void {
    const bytes = std.mem.sliceAsBytes(slice);
    const whole = std.mem.alignForward(usize, @max(1, bytes.len), page_bytes);
    const memory: [*]align(page_bytes) u8 = @ptrCast(@alignCast(bytes.ptr));
    if (linux.errno(linux.madvise(memory, whole, linux.MADV.DONTNEED)) != .SUCCESS) {
        @memset(bytes, 0);
    }
}
