//! Computes the BLAKE3 digest of every prefix of a prompt that ends at a block boundary, in one
//! pass.
//!
//! The digest of a prefix is the chaining value of its last (often partial) 1024-byte chunk, folded
//! with the complete subtrees to its left. There is one subtree for each set bit of the chunk's
//! index, from the lowest bit up; the last fold has the root flag. Eight chunks or eight boundaries
//! are computed at once. The work is done in groups of eight chunks: bits 3 and up of the index,
//! and therefore the subtrees to the left of the group, are the same for all boundaries of a group.

const std = @import("std");
const lanes = @import("lanes.zig");
const assert = std.debug.assert;
const Cv = lanes.Cv;
const Job = lanes.Job;
const Lanes = lanes.Lanes;
const flag = lanes.flag;

const group_chunks = lanes.count;
const group_bytes = group_chunks * lanes.chunk_bytes;
/// Levels of the BLAKE3 tree inside one group: 2^3 = 8 chunks.
const group_levels = 3;
/// Largest number of subtrees on the stack: a BLAKE3 input has at most 2^54 chunks.
const stack_levels = 54;
/// Number of boundaries processed together. Limits only the scratch memory, not the number of
/// digests.
const rows_max = 128;

const zero_chunk: [lanes.chunk_bytes]u8 = @splat(0);

/// A prefix whose digest is being computed.
const Row = struct {
    /// The chaining value computed so far.
    value: *const Cv,
    /// Index in the group of the chunk in which the prefix ends.
    chunk: u8,
    /// Tree level from which folds are still missing in `value`.
    level: u8,
};

/// One group of at most eight chunks; the last one may be partial.
const Group = struct {
    /// Index of the group's first chunk in the whole input; a multiple of eight.
    first: u64,
    data: []const u8,
    /// Number of complete chunks in `data`.
    complete: usize,
    /// Chaining values before each 64-byte piece of each chunk, for the pieces that contain a
    /// boundary.
    chain: [lanes.pieces_per_chunk][group_chunks]Cv,
    /// Chaining values of complete subtrees by level; level 0 holds the chunks.
    nodes: [group_levels + 1][group_chunks]Cv,
};

const Hasher = struct {
    key: *const Cv,
    block_bytes: usize,
    /// Bit p is set if a boundary can end in piece p of a chunk.
    pieces: u16,
    /// `left[b]` is the chaining value of the complete subtree of 2^b chunks to the left. Valid if
    /// bit b of the chunk index is set.
    left: [stack_levels]Cv,
    group: Group,
    rows: [rows_max]Row,
    values: [rows_max]Cv,
    padded: [rows_max][lanes.piece_bytes]u8,
    jobs: [rows_max + group_chunks]Job,
};

/// Writes keyed BLAKE3 of `tokens[0 .. (i + 1) * block_bytes]` to `out[i]`, for every `i`.
/// `block_bytes` is a multiple of 4; the function reads `out.len * block_bytes` bytes of `tokens`.
pub fn prefixDigests(
    key: *const [32]u8,
    tokens: []const u8,
    block_bytes: usize,
    out: [][32]u8,
) void {
    assert(block_bytes > 0 and block_bytes % 4 == 0);
    assert(out.len <= tokens.len / block_bytes);
    const data = tokens[0 .. out.len * block_bytes];
    const written = digestAll(key, data, block_bytes, out);
    assert(written == out.len);
}

fn digestAll(key: *const [32]u8, data: []const u8, block_bytes: usize, out: [][32]u8) usize {
    // With runtime safety on, Zig first fills the 40 KiB of scratch memory, which takes a tenth of
    // the whole time.
    @setRuntimeSafety(false);
    const key_words: Cv = @bitCast(key.*);
    var hasher: Hasher = undefined;
    hasher.key = &key_words;
    hasher.block_bytes = block_bytes;
    hasher.pieces = boundaryPieces(block_bytes);
    var next: usize = 0;
    var at: usize = 0;
    while (at < data.len) : (at += group_bytes) {
        loadGroup(&hasher, data, at);
        var build = true;
        while (true) {
            const taken = startRows(&hasher, at, next, out.len);
            foldInside(&hasher, taken, build);
            foldLeft(&hasher, hasher.rows[0..taken], out[next..][0..taken]);
            build = false;
            next += taken;
            if (taken < rows_max) break;
        }
        if (hasher.group.complete == group_chunks) pushGroup(&hasher);
    }
    return next;
}

fn boundaryPieces(block_bytes: usize) u16 {
    // Block sizes that are powers of two from a piece to a chunk put the boundaries of every chunk
    // into the same pieces.
    if (block_bytes % lanes.chunk_bytes == 0) return 0x8000;
    if (block_bytes % lanes.piece_bytes != 0) return 0xffff;
    if (lanes.chunk_bytes % block_bytes != 0) return 0xffff;
    var pieces: u16 = 0;
    var piece = block_bytes / lanes.piece_bytes - 1;
    while (piece < lanes.pieces_per_chunk) : (piece += block_bytes / lanes.piece_bytes) {
        pieces |= @as(u16, 1) << @intCast(piece);
    }
    return pieces;
}

/// Compresses all pieces of the group's chunks, which start at offset `at` of the input, one chunk
/// per vector lane.
fn loadGroup(hasher: *Hasher, data: []const u8, at: usize) void {
    const group = &hasher.group;
    group.first = at / lanes.chunk_bytes;
    group.data = data[at..@min(at + group_bytes, data.len)];
    group.complete = group.data.len / lanes.chunk_bytes;
    var tail: [lanes.chunk_bytes]u8 = undefined;
    var sources: [group_chunks][*]const u8 = undefined;
    for (&sources, 0..) |*source, chunk| {
        const start = chunk * lanes.chunk_bytes;
        if (chunk < group.complete) {
            source.* = group.data[start..].ptr;
        } else if (start < group.data.len) {
            const rest = group.data[start..];
            @memcpy(tail[0..rest.len], rest);
            @memset(tail[rest.len..], 0);
            source.* = &tail;
        } else {
            source.* = &zero_chunk;
        }
    }
    const pieces = @min(
        lanes.pieces_per_chunk,
        std.math.divCeil(usize, group.data.len, lanes.piece_bytes) catch unreachable,
    );
    compressChunks(hasher, &sources, pieces);
}

fn compressChunks(hasher: *Hasher, sources: *const [group_chunks][*]const u8, pieces: usize) void {
    // `sources` are whole chunks, and `pieces` is at most 16, so runtime safety checks would find
    // nothing.
    @setRuntimeSafety(false);
    const group = &hasher.group;
    var low: [lanes.count]u32 = undefined;
    var high: [lanes.count]u32 = undefined;
    for (0..lanes.count) |lane| {
        low[lane] = @truncate(group.first + lane);
        high[lane] = @truncate((group.first + lane) >> 32);
    }
    var cv: [8]Lanes = undefined;
    inline for (0..8) |w| cv[w] = @splat(hasher.key[w]);
    for (0..pieces) |piece| {
        if ((hasher.pieces >> @intCast(piece)) & 1 != 0) storeRows(&cv, &group.chain[piece]);
        var message: [16]Lanes = undefined;
        inline for (0..lanes.count) |lane| {
            const from = sources[lane] + piece * lanes.piece_bytes;
            message[lane] = lanes.load(@ptrCast(from));
            message[8 + lane] = lanes.load(@ptrCast(from + 32));
        }
        lanes.transpose(message[0..8]);
        lanes.transpose(message[8..16]);
        lanes.compress(
            &cv,
            &message,
            low,
            high,
            @splat(lanes.piece_bytes),
            @splat(flag.keyed | chunkFlags(piece, piece == lanes.pieces_per_chunk - 1)),
        );
    }
    storeRows(&cv, &group.nodes[0]);
}

fn chunkFlags(piece: usize, last: bool) u32 {
    return (if (piece == 0) flag.chunk_start else 0) | (if (last) flag.chunk_end else 0);
}

inline fn storeRows(cv: *const [8]Lanes, into: *[group_chunks]Cv) void {
    var rows = cv.*;
    lanes.transpose(&rows);
    inline for (0..lanes.count) |lane| lanes.store(&into[lane], rows[lane]);
}

/// Starts rows for the next boundaries of the group, at most `rows_max`, and computes the value of
/// the chunk in which each ends. Returns the number of rows.
fn startRows(hasher: *Hasher, at: usize, next: usize, boundaries: usize) usize {
    const group = &hasher.group;
    var taken: usize = 0;
    var jobs: usize = 0;
    var end = (next + 1) * hasher.block_bytes - at;
    while (taken < rows_max and next + taken < boundaries and end <= group.data.len) {
        const chunk = (end - 1) / lanes.chunk_bytes;
        const length = end - chunk * lanes.chunk_bytes;
        const row = &hasher.rows[taken];
        row.* = .{ .value = &hasher.values[taken], .chunk = @intCast(chunk), .level = 0 };
        if (length == lanes.chunk_bytes and group.first + chunk > 0) {
            // The value of a whole chunk is already computed. After the first group no fold inside
            // the group is the root, so the value of the subtree that ends with this chunk can be
            // used too.
            const level: u8 = if (group.first > 0) @ctz(~@as(u8, @intCast(chunk))) else 0;
            row.level = level;
            row.value = &group.nodes[level][chunk >> @intCast(level)];
        } else {
            hasher.jobs[jobs] = lastPiece(hasher, taken, chunk, length);
            jobs += 1;
        }
        taken += 1;
        end += hasher.block_bytes;
    }
    lanes.run(hasher.jobs[0..jobs]);
    return taken;
}

/// Returns the compression of the last piece of a prefix that ends `length` bytes after the start
/// of its chunk.
fn lastPiece(hasher: *Hasher, row: usize, chunk: usize, length: usize) Job {
    const group = &hasher.group;
    const piece = (length - 1) / lanes.piece_bytes;
    const start = chunk * lanes.chunk_bytes + piece * lanes.piece_bytes;
    const len = length - piece * lanes.piece_bytes;
    var bytes = group.data[start..].ptr;
    if (len < lanes.piece_bytes) {
        const padded = &hasher.padded[row];
        @memcpy(padded[0..len], bytes[0..len]);
        @memset(padded[len..], 0);
        bytes = padded;
    }
    const root = if (group.first + chunk == 0) flag.root else 0;
    return .{
        .cv = if (piece == 0) hasher.key else &group.chain[piece][chunk],
        .left = @ptrCast(bytes),
        .right = @ptrCast(bytes + 32),
        .out = &hasher.values[row],
        .counter = group.first + chunk,
        .len = @intCast(len),
        .flags = flag.keyed | chunkFlags(piece, true) | root,
    };
}

/// Folds the rows with the subtrees of their own group, level by level. If `build` is set, also
/// computes these subtrees.
fn foldInside(hasher: *Hasher, taken: usize, build: bool) void {
    const group = &hasher.group;
    for (0..group_levels) |level| {
        const shift: u3 = @intCast(level);
        var jobs: usize = 0;
        if (build) {
            for (0..group.complete >> (shift + 1)) |i| {
                hasher.jobs[jobs] = .{
                    .cv = hasher.key,
                    .left = &group.nodes[level][2 * i],
                    .right = &group.nodes[level][2 * i + 1],
                    .out = &group.nodes[level + 1][i],
                    .flags = flag.keyed | flag.parent,
                };
                jobs += 1;
            }
        }
        for (hasher.rows[0..taken], 0..) |*row, i| {
            const index = row.chunk >> shift;
            if (index & 1 == 0 or level < row.level) continue;
            const root = if (group.first == 0 and index == 1) flag.root else 0;
            hasher.jobs[jobs] = .{
                .cv = hasher.key,
                .left = &group.nodes[level][index - 1],
                .right = row.value,
                .out = &hasher.values[i],
                .flags = flag.keyed | flag.parent | root,
            };
            row.value = &hasher.values[i];
            jobs += 1;
        }
        lanes.run(hasher.jobs[0..jobs]);
    }
}

/// Folds the rows with the subtrees to the left of the group, which all rows share, and writes
/// their digests.
fn foldLeft(hasher: *const Hasher, rows: []const Row, out: [][32]u8) void {
    // `batch` limits the indices and the input's length limits the levels, so runtime safety checks
    // would find nothing.
    @setRuntimeSafety(false);
    var at: usize = 0;
    while (at < rows.len) : (at += lanes.count) {
        const batch = @min(lanes.count, rows.len - at);
        var cv: [8]Lanes = undefined;
        inline for (0..lanes.count) |lane| {
            cv[lane] = lanes.load(rows[at + @min(lane, batch - 1)].value);
        }
        lanes.transpose(&cv);
        var bits = hasher.group.first;
        while (bits != 0) {
            const left = &hasher.left[@ctz(bits)];
            bits &= bits - 1;
            var message: [16]Lanes = undefined;
            inline for (0..8) |w| message[w] = @splat(left[w]);
            inline for (0..8) |w| message[8 + w] = cv[w];
            inline for (0..8) |w| cv[w] = @splat(hasher.key[w]);
            const root = if (bits == 0) flag.root else 0;
            lanes.compress(
                &cv,
                &message,
                @splat(0),
                @splat(0),
                @splat(lanes.piece_bytes),
                @splat(flag.keyed | flag.parent | root),
            );
        }
        lanes.transpose(&cv);
        for (0..batch) |lane| lanes.store(@ptrCast(&out[at + lane]), cv[lane]);
    }
}

/// Adds the whole group to the subtrees on the left; pairs merge as carries do in a binary counter.
fn pushGroup(hasher: *Hasher) void {
    var value = hasher.group.nodes[group_levels][0];
    var level: usize = group_levels;
    while ((hasher.group.first >> @intCast(level)) & 1 != 0) : (level += 1) {
        const left = hasher.left[level];
        lanes.run(&.{.{
            .cv = hasher.key,
            .left = &left,
            .right = &value,
            .out = &value,
            .flags = flag.keyed | flag.parent,
        }});
    }
    hasher.left[level] = value;
}

const Blake3 = std.crypto.hash.Blake3;

fn expectPrefixes(data: []const u8, block_bytes: usize) !void {
    const allocator = std.testing.allocator;
    const key: [32]u8 = "whats the Elvish word for friend".*;
    const got = try allocator.alloc([32]u8, data.len / block_bytes);
    defer allocator.free(got);
    @memset(got, @splat(0xaa));
    prefixDigests(&key, data, block_bytes, got);
    var running = Blake3.init(.{ .key = key });
    for (got, 0..) |digest, i| {
        running.update(data[i * block_bytes ..][0..block_bytes]);
        var expected: [32]u8 = undefined;
        running.final(&expected);
        try std.testing.expectEqualSlices(u8, &expected, &digest);
    }
}

test "every prefix digest equals the standard library's at usual block sizes" {
    const data = try std.testing.allocator.alloc(u8, 150_000);
    defer std.testing.allocator.free(data);
    for (data, 0..) |*byte, i| byte.* = @truncate(i % 251);
    for ([_]usize{ 64, 128, 256, 512, 1024, 2048, 4096, 16384 }) |block_bytes| {
        try expectPrefixes(data, block_bytes);
        try expectPrefixes(data[0..60_000], block_bytes);
    }
    for ([_]usize{ 8192, 8192 * 2, 8192 * 8, 1024, 1023, 1028, 256, 252, 4, 0 }) |len| {
        for ([_]usize{ 4, 64, 256, 1024, 8192 }) |block| try expectPrefixes(data[0..len], block);
    }
}

test "every prefix digest equals the standard library's at any block size" {
    var random_state = std.Random.DefaultPrng.init(20260801);
    const random = random_state.random();
    const data = try std.testing.allocator.alloc(u8, 100_000);
    defer std.testing.allocator.free(data);
    random.bytes(data);
    for ([_]usize{ 4, 8, 12, 60, 68, 192, 320, 1020, 1028, 1536, 3000 }) |block_bytes| {
        try expectPrefixes(data[0..40_000], block_bytes);
    }
    for (0..60) |_| {
        const block_bytes = 4 * random.intRangeAtMost(usize, 1, 700);
        try expectPrefixes(data[0..random.intRangeAtMost(usize, 0, data.len)], block_bytes);
    }
}

test "a tail shorter than a block is not read" {
    var data: [300]u8 = @splat(7);
    var out: [1][32]u8 = undefined;
    const key: [32]u8 = @splat(1);
    prefixDigests(&key, &data, 256, &out);
    var expected: [32]u8 = undefined;
    Blake3.hash(data[0..256], &expected, .{ .key = key });
    try std.testing.expectEqualSlices(u8, &expected, &out[0]);
}
