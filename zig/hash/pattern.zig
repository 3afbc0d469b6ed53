//! Test payloads whose every word is a function of a seed and the word's offset. A check recognises
//! bytes of another block, offset or time without a stored copy. Not cryptographic.

const std = @import("std");

const word_bytes = 4;
const lanes = 16;
const Words = @Vector(lanes, u32);
const step_bytes = lanes * word_bytes;

/// The fractional part of the golden ratio times 2^32, made odd: consecutive words get counters
/// that are far apart.
const stride = 0x9e3779b9;

/// State of the pattern of one seed. Word `i` is `mix((i * stride + base))` with a multiplier that
/// also depends on the seed, so no pattern is a shifted copy of another. A pattern repeats after
/// 2^32 words (16 GiB).
const Stream = struct {
    base: u32,
    multiplier: u32,

    fn init(seed: u64) Stream {
        // The last step of SplitMix64 (Steele, Lea, Flood 2014): similar seeds give unrelated
        // patterns.
        var mixed = seed +% 0x9e3779b97f4a7c15;
        mixed = (mixed ^ (mixed >> 30)) *% 0xbf58476d1ce4e5b9;
        mixed = (mixed ^ (mixed >> 27)) *% 0x94d049bb133111eb;
        mixed ^= mixed >> 31;
        return .{ .base = @truncate(mixed), .multiplier = @as(u32, @truncate(mixed >> 32)) | 1 };
    }

    /// Returns the counters of the first vector of words.
    fn start(self: Stream) Words {
        const index = std.simd.iota(u32, lanes);
        return index *% @as(Words, @splat(stride)) +% @as(Words, @splat(self.base));
    }

    inline fn words(self: Stream, counters: Words) Words {
        const multiplier: Words = @splat(self.multiplier);
        const product = (counters ^ (counters >> @splat(15))) *% multiplier;
        return product ^ (product >> @splat(13));
    }
};

const advance: Words = @splat(lanes * stride % (1 << 32));

/// Fills `dst` with the pattern of `seed`, from offset 0 of the pattern.
pub fn patternFill(seed: u64, dst: []u8) void {
    @setRuntimeSafety(false); // `at` stays below `dst.len`
    const stream: Stream = .init(seed);
    var counters = stream.start();
    var at: usize = 0;
    while (at + step_bytes <= dst.len) : (at += step_bytes) {
        const into: *align(1) [lanes]u32 = @ptrCast(dst[at..].ptr);
        into.* = stream.words(counters);
        counters +%= advance;
    }
    const rest: [step_bytes]u8 = @bitCast(stream.words(counters));
    @memcpy(dst[at..], rest[0 .. dst.len - at]);
}

/// Returns the offset of the first byte of `src` that differs from the pattern of `seed`; null if
/// none does.
pub fn patternCheck(seed: u64, src: []const u8) ?usize {
    @setRuntimeSafety(false); // `at` stays below `src.len`
    const stream: Stream = .init(seed);
    var counters = stream.start();
    var at: usize = 0;
    while (at + step_bytes <= src.len) : (at += step_bytes) {
        const expected: [step_bytes]u8 = @bitCast(stream.words(counters));
        const from: *align(1) const [lanes]u32 = @ptrCast(src[at..].ptr);
        const wrong = @as(Words, from.*) ^ @as(Words, @bitCast(expected));
        if (@reduce(.Or, wrong) != 0) {
            return at + firstDifference(src[at..][0..step_bytes], &expected);
        }
        counters +%= advance;
    }
    const expected: [step_bytes]u8 = @bitCast(stream.words(counters));
    const rest = src[at..];
    if (std.mem.eql(u8, rest, expected[0..rest.len])) return null;
    return at + firstDifference(rest, expected[0..rest.len]);
}

fn firstDifference(a: []const u8, b: []const u8) usize {
    return std.mem.indexOfDiff(u8, a, b) orelse unreachable;
}

test "a pattern passes its check, and any changed byte is found" {
    var data: [1000]u8 = undefined;
    for ([_]usize{ 0, 1, 3, 4, 63, 64, 65, 128, 999, 1000 }) |len| {
        patternFill(42, data[0..len]);
        try std.testing.expectEqual(null, patternCheck(42, data[0..len]));
        for (0..len) |i| {
            data[i] +%= 1;
            try std.testing.expectEqual(i, patternCheck(42, data[0..len]));
            data[i] -%= 1;
        }
    }
}

test "a prefix of a pattern passes; a shifted pattern and another seed's fail" {
    var data: [4096]u8 = undefined;
    patternFill(7, &data);
    try std.testing.expectEqual(null, patternCheck(7, data[0..100]));
    for (1..200) |shift| {
        const wrong = patternCheck(7, data[shift..]) orelse return error.TestUnexpectedResult;
        try std.testing.expect(wrong < 16);
    }
    for (0..200) |seed| {
        if (seed == 7) continue;
        const wrong = patternCheck(seed, &data) orelse return error.TestUnexpectedResult;
        try std.testing.expect(wrong < 16);
    }
}

test "the pattern equals the recorded constants" {
    var data: [72]u8 = undefined;
    patternFill(0x0123456789abcdef, &data);
    var expected: [72]u8 = undefined;
    const mixed: u64 = Stream.init(0x0123456789abcdef).base;
    const multiplier = Stream.init(0x0123456789abcdef).multiplier;
    for (0..18) |i| {
        var word: u32 = @truncate(i *% stride +% mixed);
        word = (word ^ (word >> 15)) *% multiplier;
        word ^= word >> 13;
        std.mem.writeInt(u32, expected[4 * i ..][0..4], word, .little);
    }
    try std.testing.expectEqualSlices(u8, &expected, &data);
}
