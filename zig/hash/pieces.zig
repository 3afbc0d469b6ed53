//! Computes XXH3-64 of a span that consists of pieces, while the pieces are copied: each byte is
//! read from memory once.

const std = @import("std");
const copying = @import("copy.zig");
const stream = @import("stream.zig");
const xxh3 = @import("xxh3.zig");
const assert = std.debug.assert;
const block_bytes = xxh3.block_bytes;
const stripe_bytes = 64;

pub const PiecesChecksum = struct {
    /// Total bytes of all pieces.
    length: u64,
    /// Number of bytes absorbed so far.
    taken: u64 = 0,
    long: xxh3.Long = .{},
    /// Number of bytes in `kept` after its first stripe; they are not absorbed yet.
    waiting: usize = 0,
    /// The last absorbed stripe of 64 bytes, then `waiting` bytes.
    kept: [stripe_bytes + block_bytes]u8 align(64) = undefined,

    pub fn init(length: u64) PiecesChecksum {
        return .{ .length = length };
    }

    /// Adds the next bytes of the span to the checksum.
    pub fn update(self: *PiecesChecksum, data: []const u8) void {
        self.take(.none, undefined, data);
    }

    /// Adds the next bytes of the span to the checksum and copies them to `dst`. The hashed bytes
    /// equal the copied bytes even if another process changes `src` during the copy. With
    /// `.streamed`, the caller must call `stream.fence` before another process may read the bytes.
    pub fn copy(
        self: *PiecesChecksum,
        comptime store: stream.Store,
        dst: [*]u8,
        src: []const u8,
    ) void {
        self.take(store, dst, src);
    }

    fn take(
        self: *PiecesChecksum,
        comptime store: stream.Store,
        dst: [*]u8,
        src: []const u8,
    ) void {
        assert(src.len <= self.length - self.taken);
        if (src.len == 0) return;
        // The last block, even if it is complete, stays in `kept`, because XXH3 hashes the end of
        // an input differently.
        const blocks_end = (self.length - 1) / block_bytes * block_bytes;
        var at: usize = 0;
        while (at < src.len) {
            if (self.waiting == 0 and self.taken < blocks_end) {
                const rest = @min(src.len - at, blocks_end - self.taken);
                const whole = rest / block_bytes * block_bytes;
                if (whole > 0) {
                    self.takeBlocks(store, dst + at, src[at..][0..whole]);
                    self.taken += whole;
                    at += whole;
                    continue;
                }
            }
            const count = @min(src.len - at, block_bytes - self.waiting);
            const kept = self.kept[stripe_bytes + self.waiting ..][0..count];
            @memcpy(kept, src[at..][0..count]);
            if (store != .none) @memcpy(dst + at, kept);
            self.waiting += count;
            self.taken += count;
            at += count;
            if (self.waiting == block_bytes and self.taken <= blocks_end) self.flush();
        }
    }

    fn takeBlocks(
        self: *PiecesChecksum,
        comptime store: stream.Store,
        dst: [*]u8,
        src: []const u8,
    ) void {
        if (store == .none) {
            copying.hashBlocks(&self.long, src);
        } else if (store == .streamed and @intFromPtr(dst) % stream.streamed_align == 0) {
            self.long.copyBlocks(.streamed, dst, src);
        } else {
            self.long.copyBlocks(.plain, dst, src);
        }
        const landed = if (store == .none) src.ptr else @as([*]const u8, dst);
        @memcpy(self.kept[0..stripe_bytes], landed[src.len - stripe_bytes ..][0..stripe_bytes]);
    }

    /// Absorbs the block in `kept`.
    fn flush(self: *PiecesChecksum) void {
        self.long.blocks(self.kept[stripe_bytes..]);
        const last = self.kept[block_bytes..].*;
        self.kept[0..stripe_bytes].* = last;
        self.waiting = 0;
    }

    /// Returns the checksum of the span. All its bytes must have been added.
    pub fn finish(self: *PiecesChecksum) u64 {
        assert(self.taken == self.length);
        const tail = self.kept[stripe_bytes..][0..self.waiting];
        if (self.length == tail.len) return xxh3.hash64(tail);
        return self.long.finishTail64(self.length, tail);
    }
};

fn expectSplit(data: []const u8, dst: []u8, splits: []const usize) !void {
    var hashed: PiecesChecksum = .init(data.len);
    var plain: PiecesChecksum = .init(data.len);
    var streamed: PiecesChecksum = .init(data.len);
    @memset(dst, 0xaa);
    const half = dst.len / 2;
    var at: usize = 0;
    var next: usize = 0;
    while (at < data.len) : (next += 1) {
        const count = @min(splits[next % splits.len], data.len - at);
        hashed.update(data[at..][0..count]);
        plain.copy(.plain, dst.ptr + at, data[at..][0..count]);
        streamed.copy(.streamed, dst.ptr + half + at, data[at..][0..count]);
        at += count;
    }
    stream.fence();
    const wanted = std.hash.XxHash3.hash(0, data);
    try std.testing.expectEqual(wanted, hashed.finish());
    try std.testing.expectEqual(wanted, plain.finish());
    try std.testing.expectEqual(wanted, streamed.finish());
    try std.testing.expectEqualSlices(u8, data, dst[0..data.len]);
    try std.testing.expectEqualSlices(u8, data, dst[half..][0..data.len]);
    for (dst[data.len..half]) |byte| try std.testing.expectEqual(0xaa, byte);
}

test "pieces of any size have the checksum of the whole span and are copied completely" {
    const allocator = std.testing.allocator;
    const data = try allocator.alloc(u8, 20_000);
    defer allocator.free(data);
    const dst = try allocator.alignedAlloc(u8, .@"64", 2 * 20_480);
    defer allocator.free(dst);
    for (data, 0..) |*byte, i| byte.* = @truncate(i *% 37 +% i / 256);
    const lengths = [_]usize{
        0,    1,    63,   64,   65,   240,  241,  1023, 1024, 1025,
        1087, 1088, 1089, 2047, 2048, 2049, 4096, 8191, 8192, 20_000,
    };
    const splits = [_][]const usize{
        &.{20_000}, &.{1},         &.{ 1000, 24 }, &.{1024},      &.{ 1025, 1023, 7 },
        &.{2048},   &.{ 1536, 8 }, &.{ 4096, 64 }, &.{ 63, 961 }, &.{ 5000, 0, 1, 3000 },
    };
    for (lengths) |length| {
        for (splits) |split| try expectSplit(data[0..length], dst, split);
    }
}

test "random pieces have the checksum of the whole span" {
    var random_state = std.Random.DefaultPrng.init(20261123);
    const random = random_state.random();
    var data: [9000]u8 = undefined;
    random.bytes(&data);
    var dst: [20_000]u8 align(64) = undefined;
    for (0..500) |_| {
        var split: [5]usize = undefined;
        const most = random.intRangeAtMost(usize, 1, 3000);
        for (&split) |*count| count.* = random.intRangeAtMost(usize, 1, most);
        try expectSplit(data[0..random.uintAtMost(usize, data.len)], &dst, &split);
    }
}
