//! The calls of the library behind their C signatures. This file is compiled once for each level of
//! the processor; root.zig chooses.

const std = @import("std");
const hash = @import("hash");
const moves = @import("moves.zig");

/// Part of the format: another text makes other namespaces of the same manifests.
const namespace_context = "hearth 2026-08 namespace key v1";

const ok = 0;
/// An argument is missing, or is outside its range.
const bad_argument = -1;

const Bytes = ?[*]const u8;
const Regions = ?[*]const moves.Region;
const Pieces = ?[*]const moves.Piece;
const Numbers = ?[*]const u32;
const Words = ?[*]const u64;

/// One level's calls; `checksums` and `out` are written, everything else is read.
pub const Table = extern struct {
    xxh3: *const fn (Bytes, u64) callconv(.c) u64 = xxh3,
    chain_digests: *const fn (Bytes, Bytes, u32, u32, ?[*][32]u8) callconv(.c) i32 = chainDigests,
    prefix_digests: *const fn (Bytes, Bytes, u64, u32, ?[*][32]u8) callconv(.c) i32 =
        prefixDigests,
    gather: *const fn (Regions, u32, Numbers, u32, Words, ?[*]u64) callconv(.c) i32 = gather,
    scatter: *const fn (Regions, u32, Numbers, u32, Words, Words, ?[*]u8) callconv(.c) i32 =
        scatter,
    gather_pieces: *const fn (Pieces, Numbers, u32, Words, ?[*]u64) callconv(.c) i32 = gatherPieces,
    scatter_pieces: *const fn (Pieces, Numbers, u32, Words, Words, ?[*]u8) callconv(.c) i32 =
        scatterPieces,
    verify_pieces: *const fn (Pieces, Numbers, u32, Words, ?[*]u8) callconv(.c) i32 = verifyPieces,
};

pub const table: Table = .{};

fn bytesAt(data: Bytes, len: u64) []const u8 {
    if (len == 0) return &.{};
    return data.?[0..len];
}

fn xxh3(data: Bytes, len: u64) callconv(.c) u64 {
    return hash.checksum(bytesAt(data, len));
}

pub fn xxh3Wide(data: Bytes, len: u64) u128 {
    return hash.xxh3Wide(bytesAt(data, len));
}

pub fn namespaceKey(manifest: Bytes, len: u32, out: *[32]u8) void {
    hash.deriveKey(namespace_context, bytesAt(manifest, len), out);
}

fn chainDigests(
    key: Bytes,
    items: Bytes,
    item_bytes: u32,
    count: u32,
    out: ?[*][32]u8,
) callconv(.c) i32 {
    if (item_bytes < 4 or item_bytes > 64 or item_bytes % 4 != 0) return bad_argument;
    if (count == 0) return ok;
    const from = items orelse return bad_argument;
    const to = out orelse return bad_argument;
    const secret = key orelse return bad_argument;
    const all = from[0 .. @as(u64, item_bytes) * count];
    hash.chainDigests(secret[0..32], all, item_bytes, to[0..count]);
    return ok;
}

fn prefixDigests(
    key: Bytes,
    tokens: Bytes,
    token_count: u64,
    block_tokens: u32,
    out: ?[*][32]u8,
) callconv(.c) i32 {
    if (block_tokens == 0 or block_tokens > 65_536) return bad_argument;
    const count = std.math.cast(u31, token_count / block_tokens) orelse return bad_argument;
    if (count == 0) return ok;
    const from = tokens orelse return bad_argument;
    const to = out orelse return bad_argument;
    const secret = key orelse return bad_argument;
    const block_bytes = @as(usize, block_tokens) * 4;
    hash.prefixDigests(secret[0..32], from[0 .. count * block_bytes], block_bytes, to[0..count]);
    return count;
}

fn gather(
    regions: Regions,
    region_count: u32,
    block_ids: Numbers,
    count: u32,
    slots: Words,
    checksums: ?[*]u64,
) callconv(.c) i32 {
    if (count == 0) return ok;
    const spans = (regions orelse return bad_argument)[0..region_count];
    const ids = block_ids orelse return bad_argument;
    const to = slots orelse return bad_argument;
    const sums = checksums orelse return bad_argument;
    for (0..count) |i| {
        sums[i] = moves.gather(moves.Paged{ .regions = spans, .block = ids[i] }, to[i]);
    }
    moves.fence();
    return ok;
}

fn scatter(
    regions: Regions,
    region_count: u32,
    block_ids: Numbers,
    count: u32,
    slots: Words,
    checksums: Words,
    out: ?[*]u8,
) callconv(.c) i32 {
    if (count == 0) return ok;
    const spans = (regions orelse return bad_argument)[0..region_count];
    const ids = block_ids orelse return bad_argument;
    const from = slots orelse return bad_argument;
    const sums = checksums orelse return bad_argument;
    const right = out orelse return bad_argument;
    const first: moves.Paged = .{ .regions = spans, .block = ids[0] };
    const streamed = moves.scatterStreams(count * moves.lengthOf(first));
    for (0..count) |i| {
        const block: moves.Paged = .{ .regions = spans, .block = ids[i] };
        right[i] = @intFromBool(moves.scatter(streamed, block, from[i]) == sums[i]);
    }
    moves.fence();
    return ok;
}

/// The pieces of each block: piece `starts[i]` is the first of block i.
const Blocks = struct {
    pieces: [*]const moves.Piece,
    starts: []const u32,

    fn from(pieces: Pieces, starts: Numbers, count: u32) ?Blocks {
        const bounds = (starts orelse return null)[0 .. @as(usize, count) + 1];
        for (bounds[0..count], bounds[1..]) |before, after| if (before > after) return null;
        return .{ .pieces = pieces orelse return null, .starts = bounds };
    }

    fn at(self: Blocks, i: usize) moves.Listed {
        return .{ .pieces = self.pieces[self.starts[i]..self.starts[i + 1]] };
    }

    fn length(self: Blocks) u64 {
        const all = self.pieces[self.starts[0]..self.starts[self.starts.len - 1]];
        return moves.lengthOf(moves.Listed{ .pieces = all });
    }
};

fn gatherPieces(
    pieces: Pieces,
    starts: Numbers,
    count: u32,
    slots: Words,
    checksums: ?[*]u64,
) callconv(.c) i32 {
    if (count == 0) return ok;
    const blocks = Blocks.from(pieces, starts, count) orelse return bad_argument;
    const to = slots orelse return bad_argument;
    const sums = checksums orelse return bad_argument;
    for (0..count) |i| sums[i] = moves.gather(blocks.at(i), to[i]);
    moves.fence();
    return ok;
}

fn scatterPieces(
    pieces: Pieces,
    starts: Numbers,
    count: u32,
    slots: Words,
    checksums: Words,
    out: ?[*]u8,
) callconv(.c) i32 {
    if (count == 0) return ok;
    const blocks = Blocks.from(pieces, starts, count) orelse return bad_argument;
    const from = slots orelse return bad_argument;
    const sums = checksums orelse return bad_argument;
    const right = out orelse return bad_argument;
    const streamed = moves.scatterStreams(blocks.length());
    for (0..count) |i| {
        right[i] = @intFromBool(moves.scatter(streamed, blocks.at(i), from[i]) == sums[i]);
    }
    moves.fence();
    return ok;
}

fn verifyPieces(
    pieces: Pieces,
    starts: Numbers,
    count: u32,
    checksums: Words,
    out: ?[*]u8,
) callconv(.c) i32 {
    if (count == 0) return ok;
    const blocks = Blocks.from(pieces, starts, count) orelse return bad_argument;
    const sums = checksums orelse return bad_argument;
    const right = out orelse return bad_argument;
    for (0..count) |i| right[i] = @intFromBool(moves.verify(blocks.at(i)) == sums[i]);
    return ok;
}
