//! BLAKE3 of many short inputs, eight at a time. Each input fits one compression.

const std = @import("std");
const lanes = @import("lanes.zig");
const assert = std.debug.assert;
const Cv = lanes.Cv;
const Lanes = lanes.Lanes;
const flag = lanes.flag;

const whole = flag.chunk_start | flag.chunk_end | flag.root;

/// Writes the block key of each digest: `BLAKE3(digest ‖ layer u32 LE)`.
pub fn blockKeys(digests: []const [32]u8, layer: u32, out: [][32]u8) void {
    assert(digests.len == out.len);
    var at: usize = 0;
    while (at < digests.len) : (at += lanes.count) {
        var message: [16]Lanes = @splat(@splat(0));
        const batch = @min(lanes.count, digests.len - at);
        for (0..batch) |lane| message[lane] = lanes.load(@ptrCast(&digests[at + lane]));
        lanes.transpose(message[0..8]);
        message[8] = @splat(layer);
        finish(&lanes.iv, &message, 36, whole, out[at..][0..batch]);
    }
}

/// Writes keyed BLAKE3 of each of the adjacent items of equal size: 4 to 64 bytes, a multiple of 4.
pub fn chainDigests(
    key: *const [32]u8,
    items: []const u8,
    item_bytes: usize,
    out: [][32]u8,
) void {
    assert(item_bytes >= 4 and item_bytes <= lanes.piece_bytes and item_bytes % 4 == 0);
    assert(items.len == out.len * item_bytes);
    const key_words: Cv = @bitCast(key.*);
    var at: usize = 0;
    while (at < out.len) : (at += lanes.count) {
        var rows: [lanes.count][lanes.piece_bytes]u8 = @splat(@splat(0));
        const batch = @min(lanes.count, out.len - at);
        for (0..batch) |lane| {
            const item = items[(at + lane) * item_bytes ..][0..item_bytes];
            @memcpy(rows[lane][0..item_bytes], item);
        }
        var message: [16]Lanes = undefined;
        for (&rows, 0..) |*row, lane| {
            message[lane] = lanes.load(@ptrCast(row[0..32]));
            message[8 + lane] = lanes.load(@ptrCast(row[32..64]));
        }
        lanes.transpose(message[0..8]);
        lanes.transpose(message[8..16]);
        const flags = whole | flag.keyed;
        finish(&key_words, &message, @intCast(item_bytes), flags, out[at..][0..batch]);
    }
}

fn finish(key: *const Cv, message: *const [16]Lanes, len: u32, flags: u32, out: [][32]u8) void {
    var cv: [8]Lanes = undefined;
    for (&cv, key) |*lane, word| lane.* = @splat(word);
    lanes.compress(&cv, message, @splat(0), @splat(0), @splat(len), @splat(flags));
    lanes.transpose(&cv);
    for (out, 0..) |*digest, lane| lanes.store(@ptrCast(digest), cv[lane]);
}

const Blake3 = std.crypto.hash.Blake3;

test "block keys equal the standard library's for any number of digests" {
    var digests: [37][32]u8 = undefined;
    for (&digests, 0..) |*digest, i| digest.* = @splat(@truncate(i *% 7 +% 3));
    for ([_]usize{ 0, 1, 7, 8, 9, 37 }) |n| {
        for ([_]u32{ 0, 1, 79, 0xffff_ffff }) |layer| {
            var got: [37][32]u8 = undefined;
            blockKeys(digests[0..n], layer, got[0..n]);
            for (digests[0..n], got[0..n]) |digest, block_key| {
                var input: [36]u8 = undefined;
                input[0..32].* = digest;
                std.mem.writeInt(u32, input[32..36], layer, .little);
                var expected: [32]u8 = undefined;
                Blake3.hash(&input, &expected, .{});
                try std.testing.expectEqualSlices(u8, &expected, &block_key);
            }
        }
    }
}

test "chain digests equal the standard library's for every item size" {
    const key: [32]u8 = "whats the Elvish word for friend".*;
    var items: [19 * 64]u8 = undefined;
    for (&items, 0..) |*byte, i| byte.* = @truncate(i % 251);
    var item_bytes: usize = 4;
    while (item_bytes <= 64) : (item_bytes += 4) {
        var got: [19][32]u8 = undefined;
        chainDigests(&key, items[0 .. 19 * item_bytes], item_bytes, &got);
        for (got, 0..) |digest, i| {
            var expected: [32]u8 = undefined;
            Blake3.hash(items[i * item_bytes ..][0..item_bytes], &expected, .{ .key = key });
            try std.testing.expectEqualSlices(u8, &expected, &digest);
        }
    }
}
