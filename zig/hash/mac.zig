//! The message authentication code (MAC) of a block: AEGIS-128L as a MAC
//! (draft-irtf-cfrg-aegis-aead, 128-bit tag, zero nonce) over the block's digest, layer, length and
//! payload. Zig's standard library has the same function; this one can also hash a copy page by
//! page while the bytes are cached.

const std = @import("std");
const pieces = @import("pieces.zig");
const prefetchNextPage = @import("copy.zig").prefetchNextPage;
const stream = @import("stream.zig");
const Block = std.crypto.core.aes.Block;
const assert = std.debug.assert;

pub const key_bytes = 16;
pub const tag_bytes = 16;
pub const Key = [key_bytes]u8;
pub const Tag = [tag_bytes]u8;

/// Bytes that one update of the AEGIS state absorbs.
const rate = 32;
/// Bytes copied before they are hashed, so few that they are then still in the first-level cache.
const page_bytes = 4096;

const c0: [16]u8 = .{
    0x00, 0x01, 0x01, 0x02, 0x03, 0x05, 0x08, 0x0d, 0x15, 0x22, 0x37, 0x59, 0x90, 0xe9, 0x79, 0x62,
};
const c1: [16]u8 = .{
    0xdb, 0x3d, 0x18, 0x55, 0x6d, 0xc2, 0x2f, 0xf1, 0x20, 0x11, 0x31, 0x42, 0x73, 0xb5, 0x28, 0xdd,
};

const State = [8]Block;
/// One update's input of `rate` bytes, as loaded from and stored to memory.
const Line = @Vector(rate / 8, u64);

inline fn step(state: *State, first: Block, second: Block) void {
    const last = state[7];
    comptime var i: usize = 7;
    inline while (i > 0) : (i -= 1) state[i] = state[i - 1].encrypt(state[i]);
    state[0] = last.encrypt(state[0]).xorBlocks(first);
    state[4] = state[4].xorBlocks(second);
}

/// The identity of a block, which its MAC covers in addition to the payload.
pub const Name = struct {
    digest: [32]u8,
    layer: u32,
    /// Length of the payload in bytes.
    bytes: u64,

    /// Encodes the first 64 bytes of the message: digest, layer as u64, length as u64, and zeros.
    fn encode(name: Name) [2 * rate]u8 {
        var out: [2 * rate]u8 = @splat(0);
        out[0..32].* = name.digest;
        std.mem.writeInt(u64, out[32..40], name.layer, .little);
        std.mem.writeInt(u64, out[40..48], name.bytes, .little);
        return out;
    }
};

pub const Mac = struct {
    state: State,
    /// Number of bytes absorbed, including the 64 bytes of the name.
    length: u64 = 0,
    /// Number of bytes in `kept` that are not yet absorbed; less than `rate`.
    waiting: usize = 0,
    kept: [rate]u8 = undefined,

    pub fn init(key: *const Key, name: Name) Mac {
        const secret = Block.fromBytes(key);
        const zero = Block.fromBytes(&@as([16]u8, @splat(0)));
        const first = Block.fromBytes(&c0);
        const second = Block.fromBytes(&c1);
        var mac: Mac = .{ .state = .{
            secret,                   second,                  first,
            second,                   secret,                  secret.xorBlocks(first),
            secret.xorBlocks(second), secret.xorBlocks(first),
        } };
        for (0..10) |_| step(&mac.state, zero, secret);
        mac.update(&name.encode());
        return mac;
    }

    /// Adds the next bytes of the payload.
    pub fn update(self: *Mac, data: []const u8) void {
        self.length += data.len;
        var rest = data;
        if (self.waiting > 0) {
            const count = @min(rate - self.waiting, rest.len);
            @memcpy(self.kept[self.waiting..][0..count], rest[0..count]);
            self.waiting += count;
            rest = rest[count..];
            if (self.waiting < rate) return;
            self.absorb(&self.kept);
            self.waiting = 0;
        }
        const whole = rest.len / rate * rate;
        self.absorb(rest[0..whole]);
        self.waiting = rest.len - whole;
        @memcpy(self.kept[0..self.waiting], rest[whole..]);
    }

    /// Absorbs `data`, whose length is a multiple of `rate`.
    fn absorb(self: *Mac, data: []const u8) void {
        // The slice's length limits the loop; a runtime check would cost time for each line.
        @setRuntimeSafety(false);
        var state = self.state;
        var at: usize = 0;
        while (at < data.len) : (at += rate) {
            const first = Block.fromBytes(data[at..][0..16]);
            step(&state, first, Block.fromBytes(data[at + 16 ..][0..16]));
        }
        self.state = state;
    }

    /// Adds the next bytes of the payload and copies them to `dst`, private memory of this process.
    /// The hashed bytes equal the copied bytes even if another process changes `src` during the
    /// copy.
    pub fn copy(self: *Mac, dst: [*]u8, src: []const u8) void {
        var at = if (self.waiting == 0) 0 else @min(rate - self.waiting, src.len);
        self.copyRest(dst, src[0..at]);
        const whole_end = at + (src.len - at) / rate * rate;
        while (at < whole_end) : (at = @min(at + page_bytes, whole_end)) {
            prefetchNextPage(src, at);
            self.copyWhole(dst + at, src[at..@min(at + page_bytes, whole_end)]);
        }
        self.copyRest(dst + at, src[at..]);
    }

    fn copyRest(self: *Mac, dst: [*]u8, src: []const u8) void {
        @memcpy(dst[0..src.len], src);
        self.update(dst[0..src.len]);
    }

    /// Copies and absorbs a multiple of `rate` bytes. The latency of the AES rounds limits the
    /// loop, so storing the loaded bytes costs no extra time. The loads are volatile, so that each
    /// byte is read only once.
    fn copyWhole(self: *Mac, dst: [*]u8, src: []const u8) void {
        // The slice's length limits the loop; a runtime check would cost time for each line.
        @setRuntimeSafety(false);
        var state = self.state;
        var at: usize = 0;
        while (at < src.len) : (at += rate) {
            const line = @as(*align(1) const volatile Line, @ptrCast(src.ptr + at)).*;
            @as(*align(1) Line, @ptrCast(dst + at)).* = line;
            const halves: [2][16]u8 = @bitCast(@as([4]u64, line));
            step(&state, Block.fromBytes(&halves[0]), Block.fromBytes(&halves[1]));
        }
        self.state = state;
        self.length += src.len;
    }

    /// Adds the next bytes of the payload, from private memory of this process, and copies them to
    /// `dst`; `sum` absorbs them too. With `.streamed`, the caller must then call `stream.fence`.
    pub fn publish(
        self: *Mac,
        comptime store: stream.Store,
        sum: *pieces.PiecesChecksum,
        dst: [*]u8,
        src: []const u8,
    ) void {
        var at: usize = 0;
        while (at < src.len) : (at += page_bytes) {
            prefetchNextPage(src, at);
            const end = @min(at + page_bytes, src.len);
            self.update(src[at..end]);
            sum.copy(store, dst + at, src[at..end]);
        }
    }

    pub fn finish(self: *Mac) Tag {
        const length = self.length;
        if (self.waiting > 0) {
            @memset(self.kept[self.waiting..], 0);
            self.absorb(&self.kept);
        }
        var sizes: [16]u8 = undefined;
        std.mem.writeInt(u64, sizes[0..8], length * 8, .little);
        std.mem.writeInt(u64, sizes[8..16], tag_bytes * 8, .little);
        const end = self.state[2].xorBlocks(Block.fromBytes(&sizes));
        for (0..7) |_| step(&self.state, end, end);
        var tag = self.state[0];
        for (self.state[1..7]) |block| tag = tag.xorBlocks(block);
        return tag.toBytes();
    }

    /// Returns whether the absorbed message has the MAC `tag`. Takes constant time.
    pub fn matches(self: *Mac, tag: *const Tag) bool {
        return std.crypto.timing_safe.eql(Tag, self.finish(), tag.*);
    }
};

/// Returns the MAC of a block's payload.
pub fn tagOf(key: *const Key, name: Name, payload: []const u8) Tag {
    assert(name.bytes == payload.len);
    var mac: Mac = .init(key, name);
    mac.update(payload);
    return mac.finish();
}

/// Copies `src`, private memory of this process, to `dst`. Adds the source bytes to the MAC and
/// returns their checksum.
pub fn publishTagged(mac: *Mac, dst: []u8, src: []const u8) u64 {
    assert(dst.len == src.len);
    var sum: pieces.PiecesChecksum = .init(src.len);
    if (stream.worthIt(dst)) {
        mac.publish(.streamed, &sum, dst.ptr, src);
        stream.fence();
    } else mac.publish(.plain, &sum, dst.ptr, src);
    return sum.finish();
}

const Standard = std.crypto.auth.aegis.Aegis128LMac_128;

fn standardTag(key: *const Key, name: Name, payload: []const u8) Tag {
    var mac: Standard = .init(key);
    mac.update(&name.encode());
    mac.update(payload);
    var out: Tag = undefined;
    mac.final(&out);
    return out;
}

const lengths = [_]usize{
    1, 15, 16, 31, 32, 33, 63, 64, 240, 241, 1024, 4095, 4096, 4097, 65_535, 65_536, 70_001,
};

test "the MAC equals the standard library's over name and payload" {
    const allocator = std.testing.allocator;
    const data = try allocator.alloc(u8, 70_001);
    defer allocator.free(data);
    for (data, 0..) |*byte, i| byte.* = @truncate(i *% 41 +% i / 255);
    const key: Key = .{ 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 };
    for (lengths) |length| {
        const payload = data[0..length];
        const name: Name = .{ .digest = @splat(7), .layer = 0xffff_ffff, .bytes = length };
        const wanted = standardTag(&key, name, payload);
        try std.testing.expectEqual(wanted, tagOf(&key, name, payload));
        for ([_]usize{ 1, 7, 32, 100, 4096, 5000 }) |split| {
            var mac: Mac = .init(&key, name);
            var at: usize = 0;
            while (at < length) : (at += split) mac.update(payload[at..@min(at + split, length)]);
            try std.testing.expect(mac.matches(&wanted));
        }
    }
}

test "copies in both directions are complete and have the MAC and checksum of their bytes" {
    const allocator = std.testing.allocator;
    const data = try allocator.alloc(u8, 70_001);
    defer allocator.free(data);
    const dst = try allocator.alignedAlloc(u8, .@"64", 70_001);
    defer allocator.free(dst);
    for (data, 0..) |*byte, i| byte.* = @truncate(i *% 29 +% i / 251);
    const key: Key = @splat(0x5a);
    for (lengths) |length| {
        const payload = data[0..length];
        const name: Name = .{ .digest = @splat(9), .layer = 3, .bytes = length };
        const wanted = standardTag(&key, name, payload);
        var out: Mac = .init(&key, name);
        @memset(dst, 0xaa);
        out.copy(dst.ptr, payload);
        try std.testing.expectEqual(wanted, out.finish());
        try std.testing.expectEqualSlices(u8, payload, dst[0..length]);
        for ([_]usize{ 1, 7, 31, 33, 100, 4096, 5000 }) |split| {
            var split_out: Mac = .init(&key, name);
            @memset(dst, 0xaa);
            var at: usize = 0;
            while (at < length) : (at += split) {
                split_out.copy(dst.ptr + at, payload[at..@min(at + split, length)]);
            }
            try std.testing.expectEqual(wanted, split_out.finish());
            try std.testing.expectEqualSlices(u8, payload, dst[0..length]);
            for (dst[length..]) |byte| try std.testing.expectEqual(0xaa, byte);
        }
        var in: Mac = .init(&key, name);
        @memset(dst, 0x55);
        const sum = publishTagged(&in, dst[0..length], payload);
        try std.testing.expectEqual(std.hash.XxHash3.hash(0, payload), sum);
        try std.testing.expectEqual(wanted, in.finish());
        try std.testing.expectEqualSlices(u8, payload, dst[0..length]);
        for (dst[length..]) |byte| try std.testing.expectEqual(0x55, byte);
    }
}

test "another key, digest, layer, length or any flipped bit gives another MAC" {
    const key: Key = @splat(1);
    const name: Name = .{ .digest = @splat(2), .layer = 3, .bytes = 100 };
    var payload: [101]u8 = @splat(4);
    const tag = tagOf(&key, name, payload[0..100]);
    var other = name;
    other.layer = 4;
    try std.testing.expect(!std.mem.eql(u8, &tag, &tagOf(&key, other, payload[0..100])));
    other = name;
    other.digest[31] ^= 1;
    try std.testing.expect(!std.mem.eql(u8, &tag, &tagOf(&key, other, payload[0..100])));
    other = name;
    other.bytes = 101;
    payload[100] = 0;
    try std.testing.expect(!std.mem.eql(u8, &tag, &tagOf(&key, other, &payload)));
    const second: Key = @splat(3);
    try std.testing.expect(!std.mem.eql(u8, &tag, &tagOf(&second, name, payload[0..100])));
    for (0..800) |bit| {
        const mask = @as(u8, 1) << @intCast(bit % 8);
        payload[bit / 8] ^= mask;
        try std.testing.expect(!std.mem.eql(u8, &tag, &tagOf(&key, name, payload[0..100])));
        payload[bit / 8] ^= mask;
    }
}
