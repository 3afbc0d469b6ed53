//! Computes XXH3-64 of a span that is filled from start to end. Each part is hashed when it
//! arrives, while it is in the cache.

const std = @import("std");
const xxh3 = @import("xxh3.zig");
const copying = @import("copy.zig");
const assert = std.debug.assert;

/// Spans up to this many bytes are hashed in one step at the end, because an earlier start gains
/// nothing.
const whole_max = 4096;

pub const RunningChecksum = struct {
    long: xxh3.Long = .{},
    /// Number of bytes hashed so far.
    at: usize = 0,

    /// Hashes what has arrived: the first `filled` bytes of `span` are valid.
    pub fn advance(self: *RunningChecksum, span: []const u8, filled: usize) void {
        if (span.len <= whole_max) return;
        const end = @min(filled, span.len - 1) / xxh3.block_bytes * xxh3.block_bytes;
        assert(end >= self.at);
        self.long.blocks(span[self.at..end]);
        self.at = end;
    }

    /// Hashes the rest and returns the checksum. All of `span` must be valid.
    pub fn finish(self: *RunningChecksum, span: []const u8) u64 {
        if (span.len <= whole_max) return copying.checksum(span);
        self.advance(span, span.len);
        return self.long.finish64(span);
    }
};

test "the checksum of a growing span equals the checksum of the whole" {
    var bytes: [20_000]u8 = undefined;
    for (&bytes, 0..) |*byte, i| byte.* = @truncate(i *% 37 +% i / 256);
    for ([_]usize{ 1, 240, 1024, 4096, 4097, 5120, 8192, 19_999, 20_000 }) |length| {
        const span = bytes[0..length];
        for ([_]usize{ 1, 700, 1024, 3000, 20_000 }) |piece| {
            var running: RunningChecksum = .{};
            var filled: usize = 0;
            while (filled < length) {
                filled = @min(filled + piece, length);
                running.advance(span, filled);
            }
            try std.testing.expectEqual(copying.checksum(span), running.finish(span));
        }
    }
}
