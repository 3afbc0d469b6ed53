//! 64-bit hashes of a prompt's token blocks for routing: either a chain of XXH3 over the tokens, as
//! the routers of engines compute it, or the first bytes of block keys.

const std = @import("std");
const short = @import("short.zig");
const assert = std.debug.assert;
const XxHash3 = std.hash.XxHash3;

/// Seed of the hash that combines a block's own hash with the hash of the preceding blocks.
const join_seed = 1337;
const layer_all = 0xffff_ffff;
/// Number of keys derived at once. Limits only the scratch memory, not the number of digests.
const keys_max = 64;

pub const Chain = struct {
    /// Seed for the hash of each block.
    seed: u64,
    /// Sequence hash of the block that precedes the first one; null if the first block starts the
    /// prompt.
    parent: ?u64,
    /// Distance in bytes between the starts of consecutive blocks.
    stride_bytes: usize,
    /// Size of each block in bytes; at least `stride_bytes`.
    block_bytes: usize,

    pub fn count(self: Chain, bytes: usize) usize {
        if (bytes < self.block_bytes) return 0;
        return (bytes - self.block_bytes) / self.stride_bytes + 1;
    }

    /// Writes two hashes for each full block. `local[i]` is XXH3 of block `i` alone. `out[i]`, the
    /// sequence hash, is XXH3 of the preceding block's sequence hash and `local[i]`, or `local[i]`
    /// if no block precedes.
    pub fn run(self: Chain, tokens: []const u8, local: []align(1) u64, out: []align(1) u64) void {
        assert(local.len == out.len and out.len == self.count(tokens.len));
        var before = self.parent;
        for (local, out, 0..) |*own, *sequence, i| {
            const block = tokens[i * self.stride_bytes ..][0..self.block_bytes];
            own.* = XxHash3.hash(self.seed, block);
            sequence.* = if (before) |hash| join(hash, own.*) else own.*;
            before = sequence.*;
        }
    }
};

fn join(before: u64, own: u64) u64 {
    const pair = [2]u64{ before, own };
    return XxHash3.hash(join_seed, std.mem.asBytes(&pair));
}

/// Writes, for each digest, the first eight bytes of its block key (layer "all") as a little-endian
/// number.
pub fn keyHashes(digests: []const [32]u8, out: []align(1) u64) void {
    assert(digests.len == out.len);
    var keys: [keys_max][32]u8 = undefined;
    var at: usize = 0;
    while (at < digests.len) : (at += keys_max) {
        const batch = @min(keys_max, digests.len - at);
        short.blockKeys(digests[at..][0..batch], layer_all, keys[0..batch]);
        for (keys[0..batch], out[at..][0..batch]) |*key, *hash| {
            hash.* = std.mem.readInt(u64, key[0..8], .little);
        }
    }
}

fn expectChain(chain: Chain, tokens: []const u32, local: []const u64, last: u64) !void {
    var own: [4]u64 = undefined;
    var sequence: [4]u64 = undefined;
    const bytes = std.mem.sliceAsBytes(tokens);
    const n = chain.count(bytes.len);
    chain.run(bytes, own[0..n], sequence[0..n]);
    try std.testing.expectEqualSlices(u64, local, own[0..n]);
    try std.testing.expectEqual(last, sequence[n - 1]);
}

test "chains have the values that engines' routers publish" {
    var tokens: [48]u32 = undefined;
    for (&tokens, 0..) |*token, i| token.* = @intCast(i);
    const four: Chain = .{ .seed = 1337, .parent = null, .stride_bytes = 16, .block_bytes = 16 };
    try expectChain(four, tokens[1..13], &.{
        14643705804678351452, 16777012769546811212, 483935686894639516,
    }, 12583592247330656132);
    var rest = four;
    rest.parent = 14643705804678351452;
    try expectChain(rest, tokens[5..13], &.{
        16777012769546811212, 483935686894639516,
    }, 12583592247330656132);
    var sixteen = four;
    sixteen.stride_bytes = 64;
    sixteen.block_bytes = 64;
    try expectChain(sixteen, &tokens, &.{
        15310707395893867146, 15292316782987903195, 5532946206955930018,
    }, 11879827756109914528);
    var window = four;
    window.block_bytes = 20;
    try expectChain(window, tokens[1..10], &.{
        1914873892905420881, 1929047464662796003,
    }, 13136491855314414045);
}

test "key hashes are the first bytes of block keys" {
    var digests: [70][32]u8 = undefined;
    for (&digests, 0..) |*digest, i| digest.* = @splat(@truncate(i *% 11 +% 1));
    var keys: [70][32]u8 = undefined;
    short.blockKeys(&digests, layer_all, &keys);
    var hashes: [70]u64 = undefined;
    keyHashes(&digests, &hashes);
    for (keys, hashes) |key, hash| {
        try std.testing.expectEqual(std.mem.readInt(u64, key[0..8], .little), hash);
    }
}
