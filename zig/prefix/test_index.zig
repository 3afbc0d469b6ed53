//! Compares the index with a simple model, under plausible and contradictory changes.

const std = @import("std");
const types = @import("../abi/router_types.zig");
const chunk_file = @import("chunk.zig");
const verifying = @import("verifying.zig");
const walks = @import("walks.zig");
const Index = @import("index.zig").Index;
const Loader = @import("loader.zig").Loader;
const Saver = @import("saver.zig").Saver;
const testing = std.testing;

const targets = 20;
const tiers = 3;
const hash_count = 400;

/// The model: which holder has which block, without chunks or eviction.
const Model = struct {
    held: [hash_count][targets][tiers]bool = @splat(@splat(@splat(false))),

    fn leading(self: *const Model, path: []const u64, from: usize, target: u16, tier: u2) u32 {
        var at = from;
        while (at < path.len and self.held[path[at]][target][tier]) at += 1;
        return @intCast(at - from);
    }
};

const Out = struct {
    targets: [1 << 16]u16,
    tiers: [tiers][1 << 16]u32,

    fn columns(self: *Out) walks.Columns {
        return .{
            .targets = &self.targets,
            .tiers = .{ &self.tiers[0], &self.tiers[1], &self.tiers[2] },
        };
    }
};

const Bench = struct {
    index: *Index,
    model: Model = .{},
    random: std.Random,
    out: *Out,

    /// Fills `room` with the hashes of a prompt. Most prompts follow the tree `child -> child / 3`,
    /// so that prompts share prefixes and diverge.
    fn path(self: *Bench, room: []u64) []u64 {
        var at = 1 + self.random.uintLessThan(u64, hash_count - 1);
        var len: usize = 0;
        if (self.random.uintLessThan(u8, 3) == 0) {
            // Consecutive hashes, enough for several chunks.
            const from = self.random.uintLessThan(u64, hash_count - 1);
            len = self.random.uintLessThan(usize, @min(room.len, hash_count - from)) + 1;
            for (room[0..len], from..) |*hash, i| hash.* = i;
            return room[0..len];
        }
        while (at > 0) : (at /= 3) {
            room[len] = at;
            len += 1;
        }
        std.mem.reverse(u64, room[0..len]);
        return room[0..len];
    }

    fn step(self: *Bench) !void {
        var room: [300]u64 = undefined;
        const whole = self.path(&room);
        const from = self.random.uintLessThan(usize, whole.len);
        const hashes = whole[from..];
        const target = self.random.uintLessThan(u16, targets);
        const tier = self.random.uintLessThan(u2, tiers);
        var change: types.PrefixChange = .{
            .parent = if (from > 0) whole[from - 1] else self.random.uintLessThan(u64, hash_count),
            .target = target,
            .tier = tier,
            .kind = if (from > 0) 0 else self.random.uintLessThan(u32, 2),
            .count = @intCast(hashes.len),
        };
        switch (self.random.uintLessThan(u8, 100)) {
            0...54 => for (hashes) |hash| {
                self.model.held[hash][target][tier] = true;
            },
            55...97 => {
                change.kind = 2;
                if (self.random.boolean()) std.mem.reverse(u64, hashes);
                const some = hashes[0..self.random.intRangeAtMost(usize, 1, hashes.len)];
                change.count = @intCast(some.len);
                for (some) |hash| self.model.held[hash][target][tier] = false;
            },
            else => {
                change.kind = 3;
                change.count = 0;
                change.tier = self.random.uintLessThan(u32, 4);
                for (&self.model.held) |*held| {
                    for (0..tiers) |each| {
                        if (change.tier == 3 or change.tier == each) held[target][each] = false;
                    }
                }
            },
        }
        try self.index.apply(&.{change}, hashes[0..change.count]);
    }

    /// Looks up a prompt. Within the first `exact` blocks the counts must equal the model's.
    fn look(self: *Bench) !void {
        var room: [300]u64 = undefined;
        const hashes = self.path(&room);
        const answer = self.index.walks.one(self.index, hashes, self.out.columns());
        try testing.expect(answer.exact <= hashes.len);
        var place: usize = 0;
        for (0..targets) |each| {
            const target: u16 = @intCast(each);
            var expected: [tiers]u32 = undefined;
            var at: u32 = 0;
            for (&expected, 0..) |*sum, tier| {
                sum.* = self.model.leading(hashes, at, target, @intCast(tier));
                at += sum.*;
            }
            var got: [tiers]u32 = @splat(0);
            if (place < answer.count and self.out.targets[place] == target) {
                for (&got, self.out.tiers) |*sum, column| sum.* = column[place];
                place += 1;
            }
            try expectWithin(expected, got, answer.exact);
        }
        try testing.expectEqual(answer.count, place);
    }
};

/// Fails unless the counts equal the model's for the first `exact` blocks and never exceed them.
fn expectWithin(expected: [tiers]u32, got: [tiers]u32, exact: u32) !void {
    var left = exact;
    var sum_expected: u32 = 0;
    var sum_got: u32 = 0;
    for (expected, got) |right, ours| {
        try testing.expectEqual(@min(right, left), @min(ours, left));
        left -= @min(right, left);
        sum_expected += right;
        sum_got += ours;
    }
    try testing.expect(sum_got <= sum_expected);
}

fn randomWalk(bytes: u64, steps: usize, seed: u64) !*Index {
    var prng: std.Random.DefaultPrng = .init(seed);
    const index = try Index.create(testing.allocator, .{ .bytes = bytes, .seed = seed });
    errdefer index.destroy();
    const out = try testing.allocator.create(Out);
    defer testing.allocator.destroy(out);
    var bench: Bench = .{ .index = index, .random = prng.random(), .out = out };
    for (0..steps) |i| {
        try bench.step();
        try bench.look();
        if (i % 64 == 0) try verifying.verify(index);
    }
    if (index.forgotten == 0) {
        var held: u64 = 0;
        for (bench.model.held) |block| {
            for (block) |target| {
                for (target) |has| held += @intFromBool(has);
            }
        }
        try testing.expectEqual(held, index.held);
    }
    return index;
}

test "a long random walk gives the answers of the model" {
    for (0..4) |seed| {
        const index = try randomWalk(1 << 20, 12_000, seed);
        defer index.destroy();
        try testing.expectEqual(0, index.forgotten);
    }
}

test "with too little memory the index answers less and states up to where it is exact" {
    for ([_]u64{ 4096, 6000, 8192, 12_000, 16_384 }) |bytes| {
        const index = try randomWalk(bytes, 8_000, bytes);
        defer index.destroy();
        try testing.expect(index.forgotten > 0);
        try testing.expect(index.stats(0).bytes <= bytes);
    }
}

test "the index remembers that entries for lack of room are incomplete" {
    const index = try Index.create(testing.allocator, .{ .bytes = 4096, .seed = 1 });
    defer index.destroy();
    const out = try testing.allocator.create(Out);
    defer testing.allocator.destroy(out);
    const hashes = [_]u64{ 1, 2 };
    var change: types.PrefixChange = .{
        .parent = 0,
        .target = 0,
        .tier = 0,
        .kind = 1,
        .count = 2,
    };
    while (index.forgotten == 0) : (change.target += 1) try index.apply(&.{change}, &hashes);
    try testing.expect(index.held > 100);
    const last = change.target - 1;
    try testing.expectEqual(0, index.walks.one(index, &hashes, out.columns()).exact);
    change.kind = 3;
    change.tier = 3;
    change.count = 0;
    for (0..last) |target| {
        change.target = @intCast(target);
        try index.apply(&.{change}, &.{});
    }
    try testing.expectEqual(0, index.held);
    // A holder keeps its blocks when another holder adds the same blocks.
    change = .{ .parent = 0, .target = 0, .tier = 0, .kind = 1, .count = 2 };
    try index.apply(&.{change}, &hashes);
    try testing.expectEqual(0, index.walks.one(index, &hashes, out.columns()).exact);
    try verifying.verify(index);
    change = .{ .parent = 0, .target = last, .tier = 3, .kind = 3, .count = 0 };
    try index.apply(&.{change}, &.{});
    const other = [_]u64{3};
    try testing.expectEqual(1, index.walks.one(index, &other, out.columns()).exact);
}

fn changeOf(kind: u32, parent: u64, count: u32) types.PrefixChange {
    return .{ .parent = parent, .target = 1, .tier = 0, .kind = kind, .count = count };
}

test "an inexact place stays inexact after chunks are merged and split" {
    const index = try Index.create(testing.allocator, .{ .bytes = 1 << 16, .seed = 1 });
    defer index.destroy();
    const out = try testing.allocator.create(Out);
    defer testing.allocator.destroy(out);
    index.filter.add(11);
    const path = [_]u64{ 10, 11, 12 };
    try index.apply(&.{changeOf(0, 10, 2)}, path[1..]);
    try index.apply(&.{changeOf(1, 0, 1)}, path[0..1]);
    try testing.expectEqual(2, index.chunks);
    try index.apply(&.{changeOf(1, 0, 3)}, &path);
    try testing.expectEqual(1, index.chunks);
    try testing.expectEqual(1, index.walks.one(index, &path, out.columns()).exact);
    try verifying.verify(index);

    index.filter.add(23);
    const long = [_]u64{ 20, 21, 22, 23, 24, 25, 26, 27, 28, 29 };
    try index.apply(&.{changeOf(1, 0, long.len)}, &long);
    try testing.expectEqual(3, index.walks.one(index, &long, out.columns()).exact);
    try index.apply(&.{ changeOf(2, 0, 3), changeOf(2, 0, 5) }, long[0..3] ++ long[4..9]);
    try testing.expectEqual(3, index.chunks);
    try testing.expectEqual(0, index.walks.one(index, long[3..4], out.columns()).exact);
    try testing.expectEqual(0, index.walks.one(index, long[9..], out.columns()).exact);
    try verifying.verify(index);
}

test "contradicting changes leave the index consistent" {
    var prng: std.Random.DefaultPrng = .init(11);
    const random = prng.random();
    for ([_]u64{ 8192, 1 << 20 }) |bytes| {
        const index = try Index.create(testing.allocator, .{ .bytes = bytes, .seed = 3 });
        defer index.destroy();
        for (0..20_000) |i| {
            var hashes: [9]u64 = undefined;
            for (&hashes) |*hash| hash.* = random.uintLessThan(u64, 30);
            const kind = random.uintLessThan(u32, 3);
            const change: types.PrefixChange = .{
                .parent = random.uintLessThan(u64, 30),
                .target = random.uintLessThan(u32, 1 << 16),
                .tier = random.uintLessThan(u32, 3),
                .kind = if (kind == 2 and i % 8 > 0) 0 else kind,
                .count = hashes.len,
            };
            try index.apply(&.{change}, &hashes);
            if (i % 512 == 0) try verifying.verify(index);
        }
    }
}

test "a save under changes contains the state of its beginning" {
    const index = try randomWalk(1 << 20, 2_000, 77);
    defer index.destroy();
    const held = index.held;
    const mix = index.targets.sums[4].mix;
    index.saver = try Saver.create(index);
    const again = try Index.create(testing.allocator, .{ .bytes = 1 << 20, .seed = 5 });
    defer again.destroy();
    again.loader = try Loader.create(again);
    var prng: std.Random.DefaultPrng = .init(1);
    const out = try testing.allocator.create(Out);
    defer testing.allocator.destroy(out);
    var bench: Bench = .{ .index = index, .random = prng.random(), .out = out };
    var page: [700]u8 = undefined;
    while (true) {
        const count = try index.saver.?.next(index, &page);
        if (count == 0) break;
        try again.loader.?.take(again, page[0..count]);
        for (0..20) |_| try bench.step();
    }
    try again.loader.?.finish(again);
    try testing.expectEqual(held, again.held);
    try testing.expectEqual(mix, again.targets.sums[4].mix);
    again.loader.?.destroy(testing.allocator);
    again.loader = null;
    try verifying.verify(again);
}
