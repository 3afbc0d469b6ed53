//! Removes blocks of a holder; shrinks, splits or frees the chunks that contained them.

const std = @import("std");
const chunk_file = @import("chunk.zig");
const holding = @import("holding.zig");
const index_file = @import("index.zig");
const storing = @import("storing.zig");
const assert = std.debug.assert;
const Chunk = chunk_file.Chunk;
const Entry = chunk_file.Entry;
const Holder = chunk_file.Holder;
const Index = index_file.Index;
const Place = index_file.Place;

pub fn remove(index: *Index, holder: Holder, hashes: []align(1) const u64) void {
    for (hashes[0..@min(index_file.ahead, hashes.len)]) |hash| {
        index.table.prefetch(index.table.spot(hash));
    }
    var current: ?Place = null;
    var i: usize = 0;
    while (i < hashes.len) {
        const next = i + index_file.ahead;
        if (next < hashes.len) index.table.prefetch(index.table.spot(hashes[next]));
        const place = beside(index, current, hashes[i]) orelse elsewhere: {
            if (current) |last| _ = settle(index, last.chunk);
            current = null;
            break :elsewhere index.find(hashes[i]) orelse {
                i += 1;
                continue;
            };
        };
        const count = index.chunk(place.chunk).matching(place.at, hashes[i..]);
        index.pinned[0] = place.chunk;
        holding.release(index, place.chunk, holder, place.at, place.at + count);
        current = place;
        i += count;
    }
    if (current) |last| _ = settle(index, last.chunk);
}

/// Tests whether `hash` is the block before the current one, because most removals run backwards
/// from the end of a prompt. Returns its place, or null.
fn beside(index: *Index, current: ?Place, hash: u64) ?Place {
    const last = current orelse return null;
    if (last.at == 0 or index.chunk(last.chunk).keys()[last.at - 1] != hash) return null;
    return .{ .chunk = last.chunk, .at = last.at - 1 };
}

/// Removes keys without a holder from the end of a chunk, and splits the chunk if most other keys
/// have none. Returns the chunk's number, which may change; null if it was freed or split.
pub fn settle(index: *Index, at: u32) ?u32 {
    const chunk = index.chunk(at);
    if (chunk.dead == 0 and chunk.len > 0) return at;
    index.beforeChange(at);
    const living = chunk.living(&index.arena);
    const len = 128 - @clz(living);
    for (chunk.keys()[len..]) |hash| index.table.remove(index.table.spot(hash), at);
    chunk.dead -= @intCast(chunk.len - len);
    chunk.len = @intCast(len);
    if (chunk.unsure >= len) chunk.unsure = chunk_file.all_sure;
    if (len == 0) {
        free(index, at);
        return null;
    }
    if (@as(usize, chunk.dead) * 2 <= len) return at;
    part(index, at, living);
    return null;
}

/// Frees a chunk that has no keys.
pub fn free(index: *Index, at: u32) void {
    const chunk = index.chunk(at);
    assert(chunk.len == 0);
    unlinkParent(index, chunk);
    if (chunk.hasList()) index.arena.give(chunk.list[0]);
    index.arena.give(at);
    index.chunks -= 1;
}

fn unlinkParent(index: *Index, chunk: *const Chunk) void {
    const parent = index.find(chunk.parentHash() orelse return) orelse return;
    index.chunk(parent.chunk).children -|= 1;
}

/// Splits a chunk: each run of consecutive blocks with a holder becomes a chunk, and the other keys
/// are removed.
fn part(index: *Index, at: u32, living: u128) void {
    const pinned = index.pinned;
    index.pinned = .{ at, at };
    defer index.pinned = pinned;
    const chunk = index.chunk(at);
    var left = living;
    while (left != 0) {
        const start = @ctz(left);
        const len = @ctz(~(left >> @intCast(start)));
        const end = @as(usize, start) + len;
        left &= ~chunk_file.span(start, end);
        if (!copyStretch(index, at, start, end)) loseStretch(index, at, start, end);
    }
    if (living & 1 == 0) unlinkParent(index, chunk);
    for (chunk.keys(), 0..) |hash, place| {
        if (living >> @intCast(place) & 1 == 0) index.table.remove(index.table.spot(hash), at);
    }
    if (chunk.hasList()) index.arena.give(chunk.list[0]);
    index.arena.give(at);
    index.chunks -= 1;
}

/// Copies the places `[start, end)` to a new chunk. Returns false if memory runs out.
fn copyStretch(index: *Index, from: u32, start: usize, end: usize) bool {
    const source = index.chunk(from);
    var entries: usize = 0;
    for (source.holders(&index.arena)) |entry| {
        entries += @intFromBool(entry.last >= start and entry.start < end);
    }
    const to = index.take(chunk_file.orderFor(end - start), .chunk) orelse return false;
    storing.init(index, to, if (start == 0) source.parentHash() else source.keys()[start - 1]);
    const chunk = index.chunk(to);
    index.pinned[1] = to;
    if (!holding.grow(index, to, entries)) {
        index.arena.give(to);
        index.chunks -= 1;
        return false;
    }
    chunk.len = @intCast(end - start);
    @memcpy(chunk.keys(), source.keys()[start..end]);
    for (chunk.keys()) |hash| index.table.move(index.table.spot(hash), from, to);
    chunk.round = source.round;
    // It is unknown which part contains the parents of the children. A count that is too high only
    // delays eviction.
    chunk.children = source.children;
    if (source.unsure < end) chunk.unsure = @intCast(@max(source.unsure, start) - start);
    for (source.holders(&index.arena)) |entry| {
        if (entry.last < start or entry.start >= end) continue;
        const first = @max(entry.start, start) - start;
        const last = @min(@as(usize, entry.last) + 1, end) - start;
        holding.merge(index, to, entry.holder, first, last);
    }
    return true;
}

fn loseStretch(index: *Index, at: u32, start: usize, end: usize) void {
    const chunk = index.chunk(at);
    const mask = chunk_file.span(start, end);
    for (chunk.holders(&index.arena)) |entry| {
        const cut = entry.mask() & mask;
        if (cut == 0) continue;
        const keys = chunk.keys()[@ctz(cut) .. 128 - @clz(cut)];
        index.targets.remove(entry.holder, keys);
        index.targets.tear(entry.holder);
        index.held -= keys.len;
    }
    for (chunk.keys()[start..end]) |hash| {
        index.filter.add(hash);
        index.table.remove(index.table.spot(hash), at);
    }
    index.blocks -= end - start;
    index.forgotten += end - start;
}

/// Evicts a whole chunk with all its entries.
pub fn forget(index: *Index, at: u32) void {
    index.beforeChange(at);
    const chunk = index.chunk(at);
    var living = chunk.living(&index.arena);
    while (living != 0) {
        const start = @ctz(living);
        const end = @as(usize, start) + @ctz(~(living >> @intCast(start)));
        living &= ~chunk_file.span(start, end);
        loseStretch(index, at, start, end);
    }
    living = chunk.living(&index.arena);
    for (chunk.keys(), 0..) |hash, place| {
        if (living >> @intCast(place) & 1 == 0) index.table.remove(index.table.spot(hash), at);
    }
    chunk.len = 0;
    free(index, at);
}
