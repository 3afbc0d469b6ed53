//! libhearth_client: functions that the Python client calls through ctypes, which releases the GIL
//! during the call. The library needs no other library. Addresses belong to the calling process,
//! which guarantees that they are valid. Any number of threads may call at the same time.
//!
//! `python/hearth_client/native.py` declares the same signatures. Changing a signature requires a
//! new `abi` number.

const builtin = @import("builtin");
const std = @import("std");
const calls = @import("calls.zig");
const moves = @import("moves.zig");
const processor = @import("processor.zig");

const abi = 2;

/// A failed assertion traps, because printing a message would need a C library.
pub const panic = std.debug.no_panic;

/// True if the library also contains the functions compiled for AVX2. Tests compile as one module
/// without them.
const has_levels = builtin.cpu.arch == .x86_64 and !builtin.is_test;

const levels = struct {
    extern const hearth_client_avx2: calls.Table;
};

const Level = enum(u8) { unknown, base, avx2 };
var level: std.atomic.Value(Level) = .init(.unknown);

fn active() *const calls.Table {
    if (!has_levels) return &calls.table;
    if (level.load(.monotonic) == .unknown) {
        level.store(if (processor.hasAvx2()) .avx2 else .base, .monotonic);
    }
    return if (level.load(.monotonic) == .avx2) &levels.hearth_client_avx2 else &calls.table;
}

/// Returns the version of this interface.
pub export fn hearth_client_abi() u32 {
    return abi;
}

/// Writes XXH3-64 of the data, seed 0.
pub export fn hearth_client_xxh3(data: ?[*]const u8, bytes: u64, out: *u64) void {
    out.* = active().xxh3(data, bytes);
}

/// Writes XXH3-128 of the data, seed 0, in canonical (big-endian) form.
pub export fn hearth_client_xxh3_128(data: ?[*]const u8, bytes: u64, out: *[16]u8) void {
    std.mem.writeInt(u128, out, calls.xxh3Wide(data, bytes), .big);
}

/// Writes keyed BLAKE3 of each of `count` items of `item_bytes` (4 to 64, a multiple of 4).
pub export fn hearth_client_chain_digests(
    key: ?[*]const u8,
    items: ?[*]const u8,
    item_bytes: u32,
    count: u32,
    out: ?[*][32]u8,
) i32 {
    return active().chain_digests(key, items, item_bytes, count, out);
}

/// Writes keyed BLAKE3 of each prefix of a prompt that ends with a full block, and returns the
/// number of these prefixes. Tokens are u32.
pub export fn hearth_client_prefix_digests(
    key: ?[*]const u8,
    tokens: ?[*]const u8,
    token_count: u64,
    block_tokens: u32,
    out: ?[*][32]u8,
) i32 {
    return active().prefix_digests(key, tokens, token_count, block_tokens, out);
}

/// Derives the key of a namespace from its encoded manifest.
pub export fn hearth_client_namespace_key(manifest: ?[*]const u8, bytes: u32, out: *[32]u8) i32 {
    if (manifest == null) return -1;
    calls.namespaceKey(manifest, bytes, out);
    return 0;
}

/// Derives the MAC key and the key id of a namespace, 16 bytes each, from its secret.
pub export fn hearth_client_mac_key(secret: ?[*]const u8, bytes: u32, out: *[32]u8) i32 {
    if (secret == null) return -1;
    calls.macKey(secret, bytes, out);
    return 0;
}

/// Copies blocks of paged engine memory to slots and writes their checksums; with `keyed` also
/// writes their MACs.
pub export fn hearth_client_gather(
    regions: ?[*]const moves.Region,
    region_count: u32,
    block_ids: ?[*]const u32,
    count: u32,
    slots: ?[*]const u64,
    checksums: ?[*]u64,
    keyed: ?*const calls.Macs,
) i32 {
    return active().gather(regions, region_count, block_ids, count, slots, checksums, keyed);
}

/// Copies slots to blocks of paged engine memory. `out[i]` is 1 if the copied bytes of block i
/// match `checksums[i]` or, with `keyed`, the block's MAC; else 0.
pub export fn hearth_client_scatter(
    regions: ?[*]const moves.Region,
    region_count: u32,
    block_ids: ?[*]const u32,
    count: u32,
    slots: ?[*]const u64,
    checksums: ?[*]const u64,
    out: ?[*]u8,
    keyed: ?*const calls.Macs,
) i32 {
    return active().scatter(regions, region_count, block_ids, count, slots, checksums, out, keyed);
}

/// Like `hearth_client_gather`, for blocks given as lists of pieces: block i has the pieces from
/// `starts[i]` up to, but not including, `starts[i + 1]`.
pub export fn hearth_client_gather_pieces(
    pieces: ?[*]const moves.Piece,
    starts: ?[*]const u32,
    count: u32,
    slots: ?[*]const u64,
    checksums: ?[*]u64,
    keyed: ?*const calls.Macs,
) i32 {
    return active().gather_pieces(pieces, starts, count, slots, checksums, keyed);
}

/// Like `hearth_client_scatter`, for blocks given as lists of pieces.
pub export fn hearth_client_scatter_pieces(
    pieces: ?[*]const moves.Piece,
    starts: ?[*]const u32,
    count: u32,
    slots: ?[*]const u64,
    checksums: ?[*]const u64,
    out: ?[*]u8,
    keyed: ?*const calls.Macs,
) i32 {
    return active().scatter_pieces(pieces, starts, count, slots, checksums, out, keyed);
}

/// Checks blocks in engine memory: `out[i]` is 1 if the pieces of block i match `checksums[i]` or,
/// with `keyed`, the block's MAC; else 0.
pub export fn hearth_client_verify_pieces(
    pieces: ?[*]const moves.Piece,
    starts: ?[*]const u32,
    count: u32,
    checksums: ?[*]const u64,
    out: ?[*]u8,
    keyed: ?*const calls.Macs,
) i32 {
    return active().verify_pieces(pieces, starts, count, checksums, out, keyed);
}

/// Writes the MACs of blocks given as lists of pieces.
pub export fn hearth_client_mac_pieces(
    pieces: ?[*]const moves.Piece,
    starts: ?[*]const u32,
    count: u32,
    keyed: ?*const calls.Macs,
) i32 {
    return active().mac_pieces(pieces, starts, count, keyed);
}

test {
    _ = @import("test_calls.zig");
}
