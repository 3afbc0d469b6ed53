//! Copies with a checksum. The checksum is taken of what landed, while it is still in the cache, so
//! that a second pass over memory is not paid for.

const std = @import("std");
const xxh3 = @import("xxh3.zig");
const stream = @import("stream.zig");
const assert = std.debug.assert;

/// Small enough to stay in the first two cache levels, large enough for memcpy to get going.
const piece_bytes = 16 * 1024;

comptime {
    assert(piece_bytes % xxh3.block_bytes == 0);
}

/// XXH3-64 with seed 0: what travels beside every payload.
pub fn checksum(data: []const u8) u64 {
    return xxh3.hash64(data);
}

/// Copies `src` to `dst`, which are of equal length and do not overlap.
pub fn copy(dst: []u8, src: []const u8) void {
    @memcpy(dst, src);
}

/// Copies `src` to `dst` and answers the checksum of the bytes that arrived.
pub fn copyChecksum(dst: []u8, src: []const u8) u64 {
    assert(dst.len == src.len);
    if (src.len <= xxh3.block_bytes) {
        @memcpy(dst, src);
        return xxh3.hash64(dst);
    }
    const blocks_end = (src.len - 1) / xxh3.block_bytes * xxh3.block_bytes;
    var long: xxh3.Long = .{};
    var at: usize = 0;
    while (at < blocks_end) {
        const end = @min(at + piece_bytes, blocks_end);
        @memcpy(dst[at..end], src[at..end]);
        long.blocks(dst[at..end]);
        at = end;
    }
    @memcpy(dst[at..], src[at..]);
    return long.finish64(dst);
}

/// Copies `src` to `dst` for somebody else to read, and answers the checksum of what was sent.
/// Whoever reads `dst` and finds the same checksum there knows that it arrived.
pub fn publishChecksum(dst: []u8, src: []const u8) u64 {
    assert(dst.len == src.len);
    if (!stream.worthIt(dst)) return copyChecksum(dst, src);
    const blocks_end = (src.len - 1) / xxh3.block_bytes * xxh3.block_bytes;
    var long: xxh3.Long = .{};
    var at: usize = 0;
    while (at < blocks_end) {
        const end = @min(at + piece_bytes, blocks_end);
        // Hashing brings the piece into the cache, from where it is copied.
        long.blocks(src[at..end]);
        stream.copy(dst[at..end], src[at..end]);
        at = end;
    }
    @memcpy(dst[at..], src[at..]);
    stream.fence();
    return long.finish64(src);
}

test "a copy with a checksum is a copy and the checksum" {
    const allocator = std.testing.allocator;
    const src = try allocator.alloc(u8, 70_000);
    defer allocator.free(src);
    const dst = try allocator.alignedAlloc(u8, .@"64", 70_000);
    defer allocator.free(dst);
    for (src, 0..) |*byte, i| byte.* = @truncate(i *% 31 +% i / 251);
    const lengths = [_]usize{
        0,     1,     240,   241,   1023,  1024,   1025,
        16384, 16385, 17408, 17409, 32768, 65_536, 70_000,
    };
    for (lengths) |len| {
        @memset(dst, 0xaa);
        const wanted = std.hash.XxHash3.hash(0, src[0..len]);
        try std.testing.expectEqual(wanted, copyChecksum(dst[0..len], src[0..len]));
        try std.testing.expectEqualSlices(u8, src[0..len], dst[0..len]);
        @memset(dst, 0x55);
        try std.testing.expectEqual(wanted, publishChecksum(dst[0..len], src[0..len]));
        try std.testing.expectEqualSlices(u8, src[0..len], dst[0..len]);
    }
}
