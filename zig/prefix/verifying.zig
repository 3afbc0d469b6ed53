//! Checks, in tests, that the redundant data of the index is consistent.

const std = @import("std");
const arena_file = @import("arena.zig");
const chunk_file = @import("chunk.zig");
const targets_file = @import("targets.zig");
const Index = @import("index.zig").Index;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;

pub fn verify(index: *Index) !void {
    const sums = try index.gpa.alloc(targets_file.Sum, index.targets.sums.len);
    defer index.gpa.free(sums);
    @memset(sums, .{ .blocks = 0, .mix = 0 });
    var blocks: u64 = 0;
    var chunks: u32 = 0;
    var keys: u64 = 0;
    var units: u64 = 0;
    var walk = index.arena.walk(0);
    while (walk.nextChunk()) |at| {
        const chunk = index.chunk(at);
        chunks += 1;
        units += @as(u64, 1) << index.arena.orderOf(at);
        if (chunk.hasList()) units += @as(u64, 1) << @intCast(chunk.list_order);
        keys += chunk.len;
        try expect(chunk.len > 0 and chunk.len <= chunk_file.capacity(index.arena.orderOf(at)));
        const living = chunk.living(&index.arena);
        try expectEqual(chunk.len - @popCount(living), chunk.dead);
        blocks += @popCount(living);
        for (chunk.keys()) |hash| try expectEqual(at, index.find(hash).?.chunk);
        var before: ?chunk_file.Entry = null;
        for (chunk.holders(&index.arena)) |entry| {
            try expect(entry.start <= entry.last and entry.last < chunk.len);
            if (before) |last| {
                try expect(@as(u32, @bitCast(last)) < @as(u32, @bitCast(entry)));
                if (last.holder == entry.holder) try expect(last.last + 1 < entry.start);
            }
            before = entry;
            const sum = &sums[entry.holder];
            sum.blocks += @as(u64, entry.last) + 1 - entry.start;
        }
    }
    try expectEqual(index.chunks, chunks);
    try expectEqual(index.blocks, blocks);
    try expectEqual(index.table.count, keys);
    try expectEqual(index.arena.used, units);
    var held: u64 = 0;
    for (sums, index.targets.sums) |sum, kept| {
        held += sum.blocks;
        try expectEqual(sum.blocks, kept.blocks);
        if (kept.blocks == 0) try expectEqual(0, kept.mix);
    }
    try expectEqual(index.held, held);
}
