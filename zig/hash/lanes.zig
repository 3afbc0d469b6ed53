//! BLAKE3's compression function on eight independent inputs at once, one per vector lane. Zig's
//! standard library exports no single compressions, and most compressions for the digests of a
//! prompt's prefixes do not depend on each other.

const std = @import("std");
const assert = std.debug.assert;

pub const count = 8;
pub const Lanes = @Vector(count, u32);
/// A chaining value: eight words, 32 bytes.
pub const Cv = [8]u32;

pub const piece_bytes = 64;
pub const chunk_bytes = 1024;
pub const pieces_per_chunk = chunk_bytes / piece_bytes;

pub const flag = struct {
    pub const chunk_start: u32 = 1;
    pub const chunk_end: u32 = 2;
    pub const parent: u32 = 4;
    pub const root: u32 = 8;
    pub const keyed: u32 = 16;
};

pub const iv: Cv = .{
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
};

/// Order in which each of the seven rounds uses the message words.
const schedule = blk: {
    const permutation = [16]u8{ 2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8 };
    var rounds: [7][16]u8 = undefined;
    for (0..16) |i| rounds[0][i] = i;
    for (1..7) |r| {
        for (0..16) |i| rounds[r][i] = rounds[r - 1][permutation[i]];
    }
    break :blk rounds;
};

comptime {
    // Message words are loaded from memory as little-endian numbers.
    assert(@import("builtin").cpu.arch.endian() == .little);
    assert(@sizeOf(Cv) == 32 and @sizeOf(Lanes) == 32);
}

inline fn quarter(
    v: *[16]Lanes,
    comptime a: usize,
    comptime b: usize,
    comptime c: usize,
    comptime d: usize,
    x: Lanes,
    y: Lanes,
) void {
    v[a] +%= v[b] +% x;
    v[d] = std.math.rotr(Lanes, v[d] ^ v[a], 16);
    v[c] +%= v[d];
    v[b] = std.math.rotr(Lanes, v[b] ^ v[c], 12);
    v[a] +%= v[b] +% y;
    v[d] = std.math.rotr(Lanes, v[d] ^ v[a], 8);
    v[c] +%= v[d];
    v[b] = std.math.rotr(Lanes, v[b] ^ v[c], 7);
}

/// Runs one compression in each vector lane and replaces `cv` by the new chaining values. `cv[w]`
/// and `message[w]` contain word `w` of all lanes.
pub noinline fn compress(
    noalias cv: *[8]Lanes,
    noalias message: *const [16]Lanes,
    counter_low: Lanes,
    counter_high: Lanes,
    len: Lanes,
    flags: Lanes,
) void {
    // The code uses only constant indices and wrapping arithmetic, so runtime safety checks would
    // find nothing.
    @setRuntimeSafety(false);
    var v: [16]Lanes = undefined;
    inline for (0..8) |w| v[w] = cv[w];
    inline for (0..4) |w| v[8 + w] = @splat(iv[w]);
    v[12] = counter_low;
    v[13] = counter_high;
    v[14] = len;
    v[15] = flags;
    inline for (schedule) |s| {
        quarter(&v, 0, 4, 8, 12, message[s[0]], message[s[1]]);
        quarter(&v, 1, 5, 9, 13, message[s[2]], message[s[3]]);
        quarter(&v, 2, 6, 10, 14, message[s[4]], message[s[5]]);
        quarter(&v, 3, 7, 11, 15, message[s[6]], message[s[7]]);
        quarter(&v, 0, 5, 10, 15, message[s[8]], message[s[9]]);
        quarter(&v, 1, 6, 11, 12, message[s[10]], message[s[11]]);
        quarter(&v, 2, 7, 8, 13, message[s[12]], message[s[13]]);
        quarter(&v, 3, 4, 9, 14, message[s[14]], message[s[15]]);
    }
    inline for (0..8) |w| cv[w] = v[w] ^ v[w + 8];
}

/// Transposes an 8 by 8 matrix of words: word `w` of row `r` moves to lane `r` of vector `w`.
/// Applied twice, it restores the input.
pub inline fn transpose(rows: *[8]Lanes) void {
    const low32 = [8]i32{ 0, ~@as(i32, 0), 1, ~@as(i32, 1), 4, ~@as(i32, 4), 5, ~@as(i32, 5) };
    const high32 = [8]i32{ 2, ~@as(i32, 2), 3, ~@as(i32, 3), 6, ~@as(i32, 6), 7, ~@as(i32, 7) };
    const low64 = [8]i32{ 0, 1, ~@as(i32, 0), ~@as(i32, 1), 4, 5, ~@as(i32, 4), ~@as(i32, 5) };
    const high64 = [8]i32{ 2, 3, ~@as(i32, 2), ~@as(i32, 3), 6, 7, ~@as(i32, 6), ~@as(i32, 7) };
    const low128 = [8]i32{ 0, 1, 2, 3, ~@as(i32, 0), ~@as(i32, 1), ~@as(i32, 2), ~@as(i32, 3) };
    const high128 = [8]i32{ 4, 5, 6, 7, ~@as(i32, 4), ~@as(i32, 5), ~@as(i32, 6), ~@as(i32, 7) };
    var pairs: [8]Lanes = undefined;
    inline for (0..4) |i| {
        pairs[2 * i] = @shuffle(u32, rows[2 * i], rows[2 * i + 1], low32);
        pairs[2 * i + 1] = @shuffle(u32, rows[2 * i], rows[2 * i + 1], high32);
    }
    var fours: [8]Lanes = undefined;
    inline for (.{ 0, 4 }) |i| {
        fours[i] = @shuffle(u32, pairs[i], pairs[i + 2], low64);
        fours[i + 1] = @shuffle(u32, pairs[i], pairs[i + 2], high64);
        fours[i + 2] = @shuffle(u32, pairs[i + 1], pairs[i + 3], low64);
        fours[i + 3] = @shuffle(u32, pairs[i + 1], pairs[i + 3], high64);
    }
    inline for (0..4) |i| {
        rows[i] = @shuffle(u32, fours[i], fours[i + 4], low128);
        rows[i + 4] = @shuffle(u32, fours[i], fours[i + 4], high128);
    }
}

pub inline fn load(from: *align(1) const Cv) Lanes {
    return @as(*align(1) const Lanes, @ptrCast(from)).*;
}

pub inline fn store(into: *align(1) Cv, row: Lanes) void {
    @as(*align(1) Lanes, @ptrCast(into)).* = row;
}

/// One compression. Its message consists of two halves of 32 bytes, which need not be adjacent.
pub const Job = struct {
    cv: *const Cv,
    left: *align(1) const Cv,
    right: *align(1) const Cv,
    out: *Cv,
    counter: u64 = 0,
    len: u32 = piece_bytes,
    flags: u32,
};

/// Runs independent compressions, eight at a time.
pub fn run(jobs: []const Job) void {
    @setRuntimeSafety(false); // indices are bounded by `batch` below
    var rest = jobs;
    while (rest.len > 0) {
        const batch = @min(rest.len, count);
        var cv: [8]Lanes = undefined;
        var message: [16]Lanes = undefined;
        var low: [count]u32 = undefined;
        var high: [count]u32 = undefined;
        var len: [count]u32 = undefined;
        var flags: [count]u32 = undefined;
        inline for (0..count) |lane| {
            // Unused lanes repeat the last job; their results are ignored.
            const job = &rest[@min(lane, batch - 1)];
            cv[lane] = load(job.cv);
            message[lane] = load(job.left);
            message[8 + lane] = load(job.right);
            low[lane] = @truncate(job.counter);
            high[lane] = @truncate(job.counter >> 32);
            len[lane] = job.len;
            flags[lane] = job.flags;
        }
        transpose(&cv);
        transpose(message[0..8]);
        transpose(message[8..16]);
        compress(&cv, &message, low, high, len, flags);
        transpose(&cv);
        for (0..batch) |lane| store(rest[lane].out, cv[lane]);
        rest = rest[batch..];
    }
}
