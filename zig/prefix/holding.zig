//! Inserts, merges, splits and removes the entries of a chunk, and updates the totals of the index.

const std = @import("std");
const chunk_file = @import("chunk.zig");
const index_file = @import("index.zig");
const assert = std.debug.assert;
const Chunk = chunk_file.Chunk;
const Entry = chunk_file.Entry;
const Holder = chunk_file.Holder;
const Index = index_file.Index;

const list_order_max = @import("arena.zig").order_max;

/// Indices of the entries of one holder that a change affects.
const Range = struct { from: usize, to: usize };

fn entry(holder: Holder, start: usize, end: usize) Entry {
    return .{ .holder = holder, .start = @intCast(start), .last = @intCast(end - 1) };
}

/// Returns the entries that overlap the places `[start, end)`; with `slack` 1 also adjacent ones.
fn meeting(entries: []const Entry, holder: Holder, start: usize, end: usize, slack: u1) Range {
    var from = chunk_file.firstOf(entries, holder);
    while (from < entries.len and entries[from].holder == holder) : (from += 1) {
        if (@as(usize, entries[from].last) + 1 + slack > start) break;
    }
    var to = from;
    while (to < entries.len and entries[to].holder == holder) : (to += 1) {
        if (entries[to].start + 1 > end + slack) break;
    }
    return .{ .from = from, .to = to };
}

/// Records that `holder` has the blocks at the places `[start, end)`. Without memory for the entry,
/// the blocks count as evicted. The chunk must be pinned.
pub fn hold(index: *Index, at: u32, holder: Holder, start: usize, end: usize) void {
    index.beforeChange(at);
    const chunk = index.chunk(at);
    const range = meeting(chunk.holders(&index.arena), holder, start, end, 1);
    if (range.from == range.to and !grow(index, at, chunk.entries + 1)) {
        return lose(index, at, holder, start, end);
    }
    if (chunk.dead > 0) {
        const revived = @popCount(chunk_file.span(start, end) & ~chunk.living(&index.arena));
        chunk.dead -= @intCast(revived);
        index.blocks += revived;
    }
    var from = start;
    for (chunk.holders(&index.arena)[range.from..range.to]) |old| {
        if (old.start > from) count(index, chunk, holder, from, old.start);
        from = @max(from, @as(usize, old.last) + 1);
    }
    if (from < end) count(index, chunk, holder, from, end);
    merge(index, at, holder, start, end);
}

/// Inserts an entry without updating totals. The entry list must have room.
pub fn merge(index: *Index, at: u32, holder: Holder, start: usize, end: usize) void {
    const entries = index.chunk(at).holders(&index.arena);
    const range = meeting(entries, holder, start, end, 1);
    var joined = entry(holder, start, end);
    for (entries[range.from..range.to]) |old| {
        joined.start = @min(joined.start, old.start);
        joined.last = @max(joined.last, old.last);
    }
    const done = splice(index, at, range, &.{joined});
    assert(done);
}

fn count(index: *Index, chunk: *Chunk, holder: Holder, start: usize, end: usize) void {
    index.targets.add(holder, chunk.keys()[start..end]);
    index.held += end - start;
}

/// Records that `holder` no longer has the blocks at `[start, end)`. Keys that no holder has stay
/// until `settle`.
pub fn release(index: *Index, at: u32, holder: Holder, start: usize, end: usize) void {
    const chunk = index.chunk(at);
    const entries = chunk.holders(&index.arena);
    const range = meeting(entries, holder, start, end, 0);
    if (range.from == range.to) return;
    index.beforeChange(at);
    var gone: u128 = 0;
    for (entries[range.from..range.to]) |old| {
        const from = @max(start, old.start);
        const to = @min(end, @as(usize, old.last) + 1);
        index.targets.remove(holder, chunk.keys()[from..to]);
        index.held -= to - from;
        gone |= chunk_file.span(from, to);
    }
    var rest: [2]Entry = undefined;
    var rests: usize = 0;
    const first = entries[range.from];
    const last = entries[range.to - 1];
    if (first.start < start) {
        rest[rests] = entry(holder, first.start, start);
        rests += 1;
    }
    if (last.last >= end) {
        rest[rests] = entry(holder, end, @as(usize, last.last) + 1);
        rests += 1;
    }
    if (!splice(index, at, range, rest[0..rests])) {
        // Only splitting one entry into two needs memory. If there is none, the second part is
        // evicted.
        const behind = rest[1];
        const end_behind = @as(usize, behind.last) + 1;
        index.targets.remove(holder, chunk.keys()[behind.start..end_behind]);
        index.held -= end_behind - behind.start;
        lose(index, at, holder, behind.start, end_behind);
        gone |= behind.mask();
        const done = splice(index, at, range, rest[0..1]);
        assert(done);
    }
    moveIn(index, chunk);
    bury(index, chunk, gone);
}

/// Counts the places of `gone` that no holder has any more as dead.
pub fn bury(index: *Index, chunk: *Chunk, gone: u128) void {
    const dead: u8 = if (@popCount(gone) == 1)
        @intFromBool(!chunk.isLiving(&index.arena, @ctz(gone)))
    else
        @popCount(gone & ~chunk.living(&index.arena));
    chunk.dead += dead;
    index.blocks -= dead;
}

/// Records the eviction of entries: `holder` may have these blocks, but the index does not list
/// them.
pub fn lose(index: *Index, at: u32, holder: Holder, start: usize, end: usize) void {
    const chunk = index.chunk(at);
    chunk.unsure = @min(chunk.unsure, @as(u8, @intCast(start)));
    for (chunk.keys()[start..end]) |hash| index.filter.add(hash);
    index.targets.tear(holder);
    index.forgotten += end - start;
}

/// Makes room for `wanted` entries. Returns false if memory runs out.
pub fn grow(index: *Index, at: u32, wanted: usize) bool {
    const chunk = index.chunk(at);
    if (wanted <= chunk.entryCapacity()) return true;
    var order: u6 = 0;
    while (chunk_file.entriesIn(order) < wanted) order += 1;
    if (order > list_order_max) return false;
    const list = index.take(order, .list) orelse return false;
    const room: [*]Entry = @ptrCast(index.arena.address(list));
    @memcpy(room[0..chunk.entries], chunk.holders(&index.arena));
    if (chunk.hasList()) index.arena.give(chunk.list[0]);
    chunk.list[0] = list;
    chunk.list_order = @intCast(order);
    return true;
}

/// Replaces the entries of `range` by `added`. Returns false and changes nothing if they do not
/// fit.
fn splice(index: *Index, at: u32, range: Range, added: []const Entry) bool {
    const chunk = index.chunk(at);
    const before = chunk.entries;
    const after: u32 = @intCast(before - (range.to - range.from) + added.len);
    if (!grow(index, at, after)) return false;
    const room = chunk.entryRoom(&index.arena);
    const tail = before - range.to;
    const to = range.from + added.len;
    if (to < range.to) {
        std.mem.copyForwards(Entry, room[to..][0..tail], room[range.to..][0..tail]);
    } else if (to > range.to) {
        std.mem.copyBackwards(Entry, room[to..][0..tail], room[range.to..][0..tail]);
    }
    @memcpy(room[range.from..to], added);
    chunk.entries = after;
    return true;
}

/// Moves the entries from the separate piece back into the head if they fit there.
fn moveIn(index: *Index, chunk: *Chunk) void {
    if (!chunk.hasList() or chunk.entries > chunk_file.inline_entries) return;
    const list = chunk.list[0];
    var kept: [chunk_file.inline_entries]Entry = undefined;
    @memcpy(kept[0..chunk.entries], chunk.holders(&index.arena));
    index.arena.give(list);
    chunk.list_order = chunk_file.no_list;
    @memcpy(chunk.holders(&index.arena), kept[0..chunk.entries]);
}

/// Removes all entries of the holders from `first` to `last`, inclusive.
pub fn releaseAll(index: *Index, at: u32, first: Holder, last: Holder) void {
    const chunk = index.chunk(at);
    const entries = chunk.holders(&index.arena);
    const from = chunk_file.firstOf(entries, first);
    var to = from;
    var gone: u128 = 0;
    while (to < entries.len and entries[to].holder <= last) : (to += 1) {
        const keys = chunk.keys()[entries[to].start .. @as(usize, entries[to].last) + 1];
        gone |= entries[to].mask();
        index.targets.remove(entries[to].holder, keys);
        index.held -= keys.len;
    }
    if (from == to) return;
    index.beforeChange(at);
    const done = splice(index, at, .{ .from = from, .to = to }, &.{});
    assert(done);
    moveIn(index, chunk);
    bury(index, chunk, gone);
}
