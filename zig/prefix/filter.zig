//! A Bloom filter of the hashes of evicted blocks. It may report a hash that was not evicted, but
//! never misses an evicted one. All bits of a hash are in one cache line.

const std = @import("std");
const pages = @import("pages.zig");
const Error = @import("../abi/status.zig").Error;

const line_words = 8;
const line_bytes = line_words * 8;
const bits_of_each = 5;

pub const Filter = struct {
    words: []u64,
    lines: u64,
    seed: u64,
    isEmpty: bool = true,

    pub fn init(bytes: u64, seed: u64) Error!Filter {
        const lines = @max(1, bytes / line_bytes);
        const words = try pages.map(u64, lines * line_words);
        return .{ .words = words, .lines = lines, .seed = seed };
    }

    pub fn deinit(self: *Filter) void {
        pages.unmap(self.words);
    }

    pub fn reset(self: *Filter) void {
        if (self.isEmpty) return;
        pages.wipe(self.words);
        self.isEmpty = true;
    }

    pub fn bytesUsed(self: *const Filter) u64 {
        return if (self.isEmpty) 0 else self.words.len * 8;
    }

    /// Loads the words of a saved filter. If its size or seed differs, the filter afterwards
    /// reports every hash as evicted.
    pub fn load(self: *Filter, saved: []const u8) void {
        const own = std.mem.sliceAsBytes(self.words);
        if (own.len == saved.len) @memcpy(own, saved) else @memset(own, 0xff);
        self.isEmpty = false;
    }

    pub fn add(self: *Filter, hash: u64) void {
        const line, var bits = self.place(hash);
        for (0..bits_of_each) |_| {
            line[bits >> 6 & 7] |= @as(u64, 1) << @truncate(bits);
            bits >>= 9;
        }
        self.isEmpty = false;
    }

    pub fn has(self: *const Filter, hash: u64) bool {
        if (self.isEmpty) return false;
        const line, var bits = self.place(hash);
        for (0..bits_of_each) |_| {
            if (line[bits >> 6 & 7] & @as(u64, 1) << @truncate(bits) == 0) return false;
            bits >>= 9;
        }
        return true;
    }

    fn place(self: *const Filter, hash: u64) struct { *[line_words]u64, u64 } {
        const wide = @as(u128, hash ^ self.seed) * 0xd6e8feb86659fd93;
        const mixed: u64 = @truncate(wide ^ (wide >> 64));
        const again = @as(u128, mixed) * 0xa0761d6478bd642f;
        const line = @as(u128, mixed) * self.lines >> 64;
        const from: usize = @intCast(line * line_words);
        return .{ self.words[from..][0..line_words], @truncate(again ^ (again >> 64)) };
    }
};

test "every added hash is found, and few others are" {
    var filter = try Filter.init(64 * 1024, 5);
    defer filter.deinit();
    try std.testing.expect(!filter.has(1));
    for (0..20_000) |i| filter.add(i);
    for (0..20_000) |i| try std.testing.expect(filter.has(i));
    var wrong: usize = 0;
    for (20_000..120_000) |i| wrong += @intFromBool(filter.has(i));
    try std.testing.expect(wrong < 5_000);
    filter.reset();
    try std.testing.expect(!filter.has(7));
}
