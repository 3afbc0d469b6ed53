//! The exported functions of the library without their C signatures. The build compiles this file
//! once for each processor level; root.zig chooses a level at run time.

const std = @import("std");
const hash = @import("hash");
const mac = hash.mac;
const moves = @import("moves.zig");

/// Key derivation context. Part of the stored format: a different text changes every namespace key.
const namespace_context = "hearth 2026-08 namespace key v1";

/// Key derivation contexts for MACs. Part of the stored format; `src/identity/namespace-secret.ts`
/// has the same texts.
const mac_key_context = "hearth 2026-11 block mac key v1";
const mac_id_context = "hearth 2026-11 block mac key id v1";

const ok = 0;
/// Returned if an argument is missing or out of range.
const bad_argument = -1;

const Bytes = ?[*]const u8;
const Regions = ?[*]const moves.Region;
const Pieces = ?[*]const moves.Piece;
const Numbers = ?[*]const u32;
const Words = ?[*]const u64;

/// Keys, digests and MACs of the blocks of one call. The fields are addresses; Python packs the
/// same layout.
pub const Macs = extern struct {
    /// Address of the 16-byte MAC key.
    key: u64,
    /// Address of the blocks' digests, 32 bytes each.
    digests: u64,
    /// Address of the blocks' MACs, 16 bytes each. A gather writes them; the other calls compare
    /// them.
    macs: u64,
    layer: u32,
    reserved: u32,

    fn begin(self: *const Macs, i: usize, bytes: u64) mac.Mac {
        const digests: [*]const [32]u8 = @ptrFromInt(self.digests);
        const name: mac.Name = .{ .digest = digests[i], .layer = self.layer, .bytes = bytes };
        return .init(@ptrFromInt(self.key), name);
    }

    fn at(self: *const Macs, i: usize) *mac.Tag {
        return &@as([*]mac.Tag, @ptrFromInt(self.macs))[i];
    }
};

comptime {
    std.debug.assert(@sizeOf(Macs) == 32);
}

/// Null: the call uses only checksums, no MACs.
const Keyed = ?*const Macs;

/// Functions compiled for one processor level.
pub const Table = extern struct {
    xxh3: *const fn (Bytes, u64) callconv(.c) u64 = xxh3,
    chain_digests: *const fn (Bytes, Bytes, u32, u32, ?[*][32]u8) callconv(.c) i32 = chainDigests,
    prefix_digests: *const fn (Bytes, Bytes, u64, u32, ?[*][32]u8) callconv(.c) i32 =
        prefixDigests,
    gather: *const fn (Regions, u32, Numbers, u32, Words, ?[*]u64, Keyed) callconv(.c) i32 =
        gather,
    scatter: *const fn (Regions, u32, Numbers, u32, Words, Words, ?[*]u8, Keyed) callconv(.c) i32 =
        scatter,
    gather_pieces: *const fn (Pieces, Numbers, u32, Words, ?[*]u64, Keyed) callconv(.c) i32 =
        gatherPieces,
    scatter_pieces: *const fn (Pieces, Numbers, u32, Words, Words, ?[*]u8, Keyed) callconv(.c) i32 =
        scatterPieces,
    verify_pieces: *const fn (Pieces, Numbers, u32, Words, ?[*]u8, Keyed) callconv(.c) i32 =
        verifyPieces,
    mac_pieces: *const fn (Pieces, Numbers, u32, Keyed) callconv(.c) i32 = macPieces,
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

/// Derives the MAC key and the key id of a namespace, 16 bytes each, from its secret.
pub fn macKey(secret: Bytes, len: u32, out: *[32]u8) void {
    var derived: [32]u8 = undefined;
    hash.deriveKey(mac_key_context, bytesAt(secret, len), &derived);
    out[0..16].* = derived[0..16].*;
    hash.deriveKey(mac_id_context, bytesAt(secret, len), &derived);
    out[16..32].* = derived[0..16].*;
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

/// Blocks of one call that are in paged engine memory.
const PagedBlocks = struct {
    regions: []const moves.Region,
    ids: [*]const u32,

    fn from(regions: Regions, region_count: u32, block_ids: Numbers) ?PagedBlocks {
        return .{
            .regions = (regions orelse return null)[0..region_count],
            .ids = block_ids orelse return null,
        };
    }

    fn at(self: PagedBlocks, i: usize) moves.Paged {
        return .{ .regions = self.regions, .block = self.ids[i] };
    }
};

/// Blocks of one call as lists of pieces: `starts[i]` is the index of the first piece of block i.
const ListedBlocks = struct {
    pieces: [*]const moves.Piece,
    starts: []const u32,

    fn from(pieces: Pieces, starts: Numbers, count: u32) ?ListedBlocks {
        const bounds = (starts orelse return null)[0 .. @as(usize, count) + 1];
        for (bounds[0..count], bounds[1..]) |before, after| if (before > after) return null;
        return .{ .pieces = pieces orelse return null, .starts = bounds };
    }

    fn at(self: ListedBlocks, i: usize) moves.Listed {
        return .{ .pieces = self.pieces[self.starts[i]..self.starts[i + 1]] };
    }

    fn length(self: ListedBlocks) u64 {
        const all = self.pieces[self.starts[0]..self.starts[self.starts.len - 1]];
        return moves.lengthOf(moves.Listed{ .pieces = all });
    }
};

fn gatherAll(blocks: anytype, count: u32, slots: Words, checksums: ?[*]u64, keyed: Keyed) i32 {
    const to = slots orelse return bad_argument;
    const sums = checksums orelse return bad_argument;
    for (0..count) |i| {
        const block = blocks.at(i);
        if (keyed) |macs| {
            var state = macs.begin(i, moves.lengthOf(block));
            sums[i] = moves.gatherWithMac(block, to[i], &state);
            macs.at(i).* = state.finish();
        } else sums[i] = moves.gather(block, to[i]);
    }
    moves.fence();
    return ok;
}

fn scatterAll(
    blocks: anytype,
    bytes: u64,
    count: u32,
    slots: Words,
    checksums: Words,
    out: ?[*]u8,
    keyed: Keyed,
) i32 {
    const from = slots orelse return bad_argument;
    const sums = checksums orelse return bad_argument;
    const right = out orelse return bad_argument;
    const streamed = moves.scatterStreams(bytes);
    for (0..count) |i| {
        const block = blocks.at(i);
        if (keyed) |macs| {
            var state = macs.begin(i, moves.lengthOf(block));
            moves.scatterWithMac(block, from[i], &state);
            right[i] = @intFromBool(state.matches(macs.at(i)));
        } else right[i] = @intFromBool(moves.scatter(streamed, block, from[i]) == sums[i]);
    }
    moves.fence();
    return ok;
}

fn gather(
    regions: Regions,
    region_count: u32,
    block_ids: Numbers,
    count: u32,
    slots: Words,
    checksums: ?[*]u64,
    keyed: Keyed,
) callconv(.c) i32 {
    if (count == 0) return ok;
    const blocks = PagedBlocks.from(regions, region_count, block_ids) orelse return bad_argument;
    return gatherAll(blocks, count, slots, checksums, keyed);
}

fn scatter(
    regions: Regions,
    region_count: u32,
    block_ids: Numbers,
    count: u32,
    slots: Words,
    checksums: Words,
    out: ?[*]u8,
    keyed: Keyed,
) callconv(.c) i32 {
    if (count == 0) return ok;
    const blocks = PagedBlocks.from(regions, region_count, block_ids) orelse return bad_argument;
    const bytes = count * moves.lengthOf(blocks.at(0));
    return scatterAll(blocks, bytes, count, slots, checksums, out, keyed);
}

fn gatherPieces(
    pieces: Pieces,
    starts: Numbers,
    count: u32,
    slots: Words,
    checksums: ?[*]u64,
    keyed: Keyed,
) callconv(.c) i32 {
    if (count == 0) return ok;
    const blocks = ListedBlocks.from(pieces, starts, count) orelse return bad_argument;
    return gatherAll(blocks, count, slots, checksums, keyed);
}

fn scatterPieces(
    pieces: Pieces,
    starts: Numbers,
    count: u32,
    slots: Words,
    checksums: Words,
    out: ?[*]u8,
    keyed: Keyed,
) callconv(.c) i32 {
    if (count == 0) return ok;
    const blocks = ListedBlocks.from(pieces, starts, count) orelse return bad_argument;
    return scatterAll(blocks, blocks.length(), count, slots, checksums, out, keyed);
}

fn verifyPieces(
    pieces: Pieces,
    starts: Numbers,
    count: u32,
    checksums: Words,
    out: ?[*]u8,
    keyed: Keyed,
) callconv(.c) i32 {
    if (count == 0) return ok;
    const blocks = ListedBlocks.from(pieces, starts, count) orelse return bad_argument;
    const sums = checksums orelse return bad_argument;
    const right = out orelse return bad_argument;
    for (0..count) |i| {
        const block = blocks.at(i);
        if (keyed) |macs| {
            var state = macs.begin(i, moves.lengthOf(block));
            moves.verifyWithMac(block, &state);
            right[i] = @intFromBool(state.matches(macs.at(i)));
        } else right[i] = @intFromBool(moves.verify(block) == sums[i]);
    }
    return ok;
}

fn macPieces(pieces: Pieces, starts: Numbers, count: u32, keyed: Keyed) callconv(.c) i32 {
    if (count == 0) return ok;
    const blocks = ListedBlocks.from(pieces, starts, count) orelse return bad_argument;
    const macs = keyed orelse return bad_argument;
    for (0..count) |i| {
        const block = blocks.at(i);
        var state = macs.begin(i, moves.lengthOf(block));
        moves.verifyWithMac(block, &state);
        macs.at(i).* = state.finish();
    }
    return ok;
}
