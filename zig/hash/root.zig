//! All hashes of Hearth: block identity (BLAKE3), payload checksums (XXH3-64), block hashes of
//! engines (XXH3-128), message authentication codes (AEGIS-128L), and test patterns. Little-endian
//! hosts only.

const std = @import("std");
const chain = @import("chain.zig");
const prefix = @import("prefix.zig");
const short = @import("short.zig");
const xxh3 = @import("xxh3.zig");
const copying = @import("copy.zig");
const pattern = @import("pattern.zig");
const pieces = @import("pieces.zig");
const running = @import("running.zig");
const Blake3 = std.crypto.hash.Blake3;

pub const Chain = chain.Chain;
pub const keyHashes = chain.keyHashes;
pub const prefixDigests = prefix.prefixDigests;
pub const blockKeys = short.blockKeys;
pub const chainDigests = short.chainDigests;

pub const checksum = copying.checksum;
pub const copy = copying.copy;
pub const copyChecksum = copying.copyChecksum;
pub const publishChecksum = copying.publishChecksum;
pub const RunningChecksum = running.RunningChecksum;
pub const PiecesChecksum = pieces.PiecesChecksum;
pub const mac = @import("mac.zig");
pub const fence = @import("stream.zig").fence;
pub const Store = @import("stream.zig").Store;

pub const patternFill = pattern.patternFill;
pub const patternCheck = pattern.patternCheck;

/// Returns XXH3-128 with seed 0. The canonical bytes are this number in big-endian order.
pub const xxh3Wide = xxh3.hash128;

/// Writes BLAKE3-256 of `data`.
pub fn hash(data: []const u8, out: *[32]u8) void {
    Blake3.hash(data, out, .{});
}

/// Writes keyed BLAKE3-256 of `data`.
pub fn keyed(key: *const [32]u8, data: []const u8, out: *[32]u8) void {
    Blake3.hash(data, out, .{ .key = key.* });
}

/// Derives a 32-byte key from `material` for the purpose `context`, with BLAKE3 in key derivation
/// mode.
pub fn deriveKey(context: []const u8, material: []const u8, out: *[32]u8) void {
    var hasher = Blake3.initKdf(context, .{});
    hasher.update(material);
    hasher.final(out);
}

test {
    _ = chain;
    _ = prefix;
    _ = short;
    _ = xxh3;
    _ = copying;
    _ = mac;
    _ = pattern;
    _ = pieces;
    _ = running;
}
