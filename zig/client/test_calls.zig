//! Tests of the library's functions with the arguments that Python passes.

const std = @import("std");
const root = @import("root.zig");
const calls = @import("calls.zig");
const moves = @import("moves.zig");
const processor = @import("processor.zig");
const testing = std.testing;

const blocks = 5;

/// Engine memory for `blocks` blocks in three regions, and one slot for each block.
const Fixture = struct {
    memory: []align(4096) u8,
    slots: []align(4096) u8,
    regions: [3]moves.Region,
    block_bytes: u64,
    slot_bytes: u64,
    ids: [blocks]u32 = .{ 3, 0, 4, 1, 2 },
    addresses: [blocks]u64,

    fn init(sizes: [3]u64, gap: u64) !Fixture {
        const block_bytes = sizes[0] + sizes[1] + sizes[2];
        const slot_bytes = std.mem.alignForward(u64, block_bytes, 4096);
        const room = blocks * (block_bytes + 3 * gap);
        const memory = try testing.allocator.alignedAlloc(u8, .fromByteUnits(4096), room);
        errdefer testing.allocator.free(memory);
        const all = blocks * slot_bytes;
        const slots = try testing.allocator.alignedAlloc(u8, .fromByteUnits(4096), all);
        for (memory, 0..) |*byte, i| byte.* = @truncate(i *% 73 +% i / 253);
        @memset(slots, 0xee);
        var fixture: Fixture = .{
            .memory = memory,
            .slots = slots,
            .regions = undefined,
            .block_bytes = block_bytes,
            .slot_bytes = slot_bytes,
            .addresses = undefined,
        };
        var at = @intFromPtr(memory.ptr);
        for (&fixture.regions, sizes) |*region, bytes| {
            region.* = .{ .base = at, .stride = bytes + gap, .bytes = bytes };
            at += blocks * (bytes + gap);
        }
        for (&fixture.addresses, 0..) |*address, i| {
            address.* = @intFromPtr(slots.ptr) + i * slot_bytes;
        }
        return fixture;
    }

    fn deinit(self: *Fixture) void {
        testing.allocator.free(self.memory);
        testing.allocator.free(self.slots);
    }

    fn expected(self: *const Fixture, block: u32) ![]u8 {
        const out = try testing.allocator.alloc(u8, self.block_bytes);
        const paged: moves.Paged = .{ .regions = &self.regions, .block = block };
        var at: usize = 0;
        for (0..3) |i| {
            const piece = paged.at(i);
            @memcpy(out[at..][0..piece.len], piece);
            at += piece.len;
        }
        return out;
    }

    fn gather(self: *Fixture, sums: *[blocks]u64) !void {
        const result = root.hearth_client_gather(
            &self.regions,
            3,
            &self.ids,
            blocks,
            &self.addresses,
            sums,
            null,
        );
        try testing.expectEqual(0, result);
    }

    fn scatter(self: *Fixture, sums: *const [blocks]u64) ![blocks]u8 {
        var right: [blocks]u8 = @splat(7);
        const result = root.hearth_client_scatter(
            &self.regions,
            3,
            &self.ids,
            blocks,
            &self.addresses,
            sums,
            &right,
            null,
        );
        try testing.expectEqual(0, result);
        return right;
    }
};

const shapes = [_][3]u64{
    .{ 8, 16, 24 },
    .{ 1024, 1024, 1024 },
    .{ 1000, 24, 4097 },
    .{ 32_768, 32_768, 8 },
    .{ 65_536, 131_072, 1 },
    // The total exceeds the size up to which one call keeps the bytes in the caches.
    .{ 1 << 20, 1 << 19, 1 << 18 },
};

test "a gathered block is complete in its slot and has the checksum of its bytes" {
    for (shapes) |sizes| {
        for ([_]u64{ 0, 16, 40 }) |gap| {
            var fixture = try Fixture.init(sizes, gap);
            defer fixture.deinit();
            var sums: [blocks]u64 = undefined;
            try fixture.gather(&sums);
            for (fixture.ids, 0..) |block, i| {
                const wanted = try fixture.expected(block);
                defer testing.allocator.free(wanted);
                const slot = fixture.slots[i * fixture.slot_bytes ..][0..fixture.slot_bytes];
                try testing.expectEqualSlices(u8, wanted, slot[0..wanted.len]);
                for (slot[wanted.len..]) |byte| try testing.expectEqual(0xee, byte);
                try testing.expectEqual(std.hash.XxHash3.hash(0, wanted), sums[i]);
            }
        }
    }
}

test "a scattered block equals the gathered one, and bytes between blocks stay unchanged" {
    for (shapes) |sizes| {
        for ([_]u64{ 0, 16, 40 }) |gap| {
            var fixture = try Fixture.init(sizes, gap);
            defer fixture.deinit();
            var sums: [blocks]u64 = undefined;
            try fixture.gather(&sums);
            const before = try testing.allocator.dupe(u8, fixture.memory);
            defer testing.allocator.free(before);
            for (0..blocks) |block| {
                const paged: moves.Paged = .{ .regions = &fixture.regions, .block = block };
                for (0..3) |i| @memset(paged.at(i), 0);
            }
            const right = try fixture.scatter(&sums);
            try testing.expectEqualSlices(u8, &@as([blocks]u8, @splat(1)), &right);
            try testing.expectEqualSlices(u8, before, fixture.memory);
        }
    }
}

test "a flipped bit in a slot is reported for its block only" {
    for (shapes[1..]) |sizes| {
        var fixture = try Fixture.init(sizes, 0);
        defer fixture.deinit();
        var sums: [blocks]u64 = undefined;
        try fixture.gather(&sums);
        const last = fixture.block_bytes - 1;
        for ([_]u64{ 0, 1, 63, 64, 1023, 1024, last / 2, last - 64, last }) |at| {
            const byte = &fixture.slots[2 * fixture.slot_bytes + at];
            byte.* ^= 0x10;
            const right = try fixture.scatter(&sums);
            try testing.expectEqualSlices(u8, &.{ 1, 1, 0, 1, 1 }, &right);
            byte.* ^= 0x10;
        }
        sums[4] ^= 1;
        const right = try fixture.scatter(&sums);
        try testing.expectEqualSlices(u8, &.{ 1, 1, 1, 1, 0 }, &right);
    }
}

test "gather, verify and scatter treat pieces as one span" {
    var memory: [9000]u8 = undefined;
    var slots: [2 * 8192]u8 align(4096) = undefined;
    for (&memory, 0..) |*byte, i| byte.* = @truncate(i *% 29 +% i / 250);
    const at = @intFromPtr(&memory);
    const pieces = [_]moves.Piece{
        .{ .address = at + 5000, .bytes = 1500 },
        .{ .address = at, .bytes = 3000 },
        .{ .address = 0, .bytes = 0 },
        .{ .address = at + 3001, .bytes = 77 },
    };
    const starts = [_]u32{ 0, 2, 4 };
    const addresses = [_]u64{ @intFromPtr(&slots), @intFromPtr(&slots) + 8192 };
    var sums: [2]u64 = undefined;
    var right: [2]u8 = @splat(7);
    const gather = root.hearth_client_gather_pieces;
    try testing.expectEqual(0, gather(&pieces, &starts, 2, &addresses, &sums, null));
    try testing.expectEqual(std.hash.XxHash3.hash(0, slots[0..4500]), sums[0]);
    try testing.expectEqual(std.hash.XxHash3.hash(0, memory[3001..3078]), sums[1]);
    try testing.expectEqualSlices(u8, memory[5000..6500], slots[0..1500]);
    try testing.expectEqualSlices(u8, memory[0..3000], slots[1500..4500]);
    const verify = root.hearth_client_verify_pieces;
    try testing.expectEqual(0, verify(&pieces, &starts, 2, &sums, &right, null));
    try testing.expectEqualSlices(u8, &.{ 1, 1 }, &right);
    memory[3050] ^= 1;
    try testing.expectEqual(0, verify(&pieces, &starts, 2, &sums, &right, null));
    try testing.expectEqualSlices(u8, &.{ 1, 0 }, &right);
    const scatter = root.hearth_client_scatter_pieces;
    try testing.expectEqual(0, scatter(&pieces, &starts, 2, &addresses, &sums, &right, null));
    try testing.expectEqualSlices(u8, &.{ 1, 1 }, &right);
    try testing.expectEqual(0, verify(&pieces, &starts, 2, &sums, &right, null));
    try testing.expectEqualSlices(u8, &.{ 1, 1 }, &right);
}

test "with a key the MAC decides, whatever the checksum" {
    for (shapes) |sizes| {
        var fixture = try Fixture.init(sizes, 16);
        defer fixture.deinit();
        const key: [16]u8 = @splat(0x77);
        var digests: [blocks][32]u8 = undefined;
        for (&digests, 0..) |*digest, i| digest.* = @splat(@truncate(i));
        var tags: [blocks][16]u8 = @splat(@splat(0));
        const macs: calls.Macs = .{
            .key = @intFromPtr(&key),
            .digests = @intFromPtr(&digests),
            .macs = @intFromPtr(&tags),
            .layer = 0xffff_ffff,
            .reserved = 0,
        };
        const ids = &fixture.ids;
        const slots = &fixture.addresses;
        var sums: [blocks]u64 = undefined;
        const regions = &fixture.regions;
        const gather = root.hearth_client_gather;
        try testing.expectEqual(0, gather(regions, 3, ids, blocks, slots, &sums, &macs));
        for (fixture.ids, 0..) |block, i| {
            const wanted = try fixture.expected(block);
            defer testing.allocator.free(wanted);
            try testing.expectEqual(std.hash.XxHash3.hash(0, wanted), sums[i]);
        }
        var again: [blocks][16]u8 = undefined;
        var in_place = macs;
        in_place.macs = @intFromPtr(&again);
        var pieces: [blocks]moves.Piece = undefined;
        var starts: [blocks + 1]u32 = undefined;
        for (&starts, 0..) |*start, i| start.* = @intCast(i);
        for (&pieces, slots) |*piece, slot| {
            piece.* = .{ .address = slot, .bytes = fixture.block_bytes };
        }
        const mac_pieces = root.hearth_client_mac_pieces;
        try testing.expectEqual(0, mac_pieces(&pieces, &starts, blocks, &in_place));
        try testing.expectEqual(tags, again);
        const before = try testing.allocator.dupe(u8, fixture.memory);
        defer testing.allocator.free(before);
        const scatter = root.hearth_client_scatter;
        var right: [blocks]u8 = @splat(7);
        sums = @splat(1);
        for (0..blocks) |block| {
            const paged: moves.Paged = .{ .regions = regions, .block = block };
            for (0..3) |i| @memset(paged.at(i), 0);
        }
        try testing.expectEqual(0, scatter(regions, 3, ids, blocks, slots, &sums, &right, &macs));
        try testing.expectEqualSlices(u8, &@as([blocks]u8, @splat(1)), &right);
        try testing.expectEqualSlices(u8, before, fixture.memory);
        fixture.slots[fixture.slot_bytes] ^= 1;
        tags[3][15] ^= 1;
        digests[4][0] ^= 1;
        try testing.expectEqual(0, scatter(regions, 3, ids, blocks, slots, &sums, &right, &macs));
        try testing.expectEqualSlices(u8, &.{ 1, 0, 1, 0, 0 }, &right);
    }
}

test "arguments outside their range are refused" {
    var out: [1][32]u8 = undefined;
    const key: [32]u8 = @splat(1);
    const chain = root.hearth_client_chain_digests;
    for ([_]u32{ 0, 3, 6, 68 }) |bytes| {
        try testing.expectEqual(-1, chain(&key, &key, bytes, 1, &out));
    }
    try testing.expectEqual(-1, chain(&key, null, 16, 1, &out));
    try testing.expectEqual(-1, root.hearth_client_prefix_digests(&key, &key, 8, 0, &out));
    try testing.expectEqual(-1, root.hearth_client_gather(null, 0, null, 1, null, null, null));
    const starts = [_]u32{ 1, 0 };
    const pieces = [_]moves.Piece{.{ .address = 1, .bytes = 1 }};
    const sums = [_]u64{0};
    var right = [_]u8{0};
    const verify = root.hearth_client_verify_pieces;
    try testing.expectEqual(-1, verify(&pieces, &starts, 1, &sums, &right, null));
}

test "the processor level is detected" {
    const builtin = @import("builtin");
    if (builtin.cpu.arch != .x86_64) return;
    if (builtin.cpu.has(.x86, .avx2)) try testing.expect(processor.hasAvx2());
}
