//! Adds blocks of a holder to the index.

const std = @import("std");
const arena_file = @import("arena.zig");
const chunk_file = @import("chunk.zig");
const holding = @import("holding.zig");
const index_file = @import("index.zig");
const removing = @import("removing.zig");
const assert = std.debug.assert;
const Chunk = chunk_file.Chunk;
const Holder = chunk_file.Holder;
const Index = index_file.Index;
const Place = index_file.Place;

const Hashes = []align(1) const u64;

/// Records that `holder` has the blocks `hashes`, which are consecutive. `parent` is the hash of
/// the block before the first one; null if the first one starts a prompt.
pub fn store(index: *Index, holder: Holder, parent: ?u64, hashes: Hashes) void {
    for (hashes[0..@min(index_file.ahead, hashes.len)]) |hash| {
        index.table.prefetch(index.table.spot(hash));
    }
    var before: ?Place = null;
    var before_first = parent;
    var i: usize = 0;
    while (i < hashes.len) {
        if (index.find(hashes[i])) |place| {
            const count = index.chunk(place.chunk).matching(place.at, hashes[i..]);
            index.pinned = .{ place.chunk, if (before) |last| last.chunk else arena_file.none };
            index.touch(index.chunk(place.chunk));
            holding.hold(index, place.chunk, holder, place.at, place.at + count);
            before = join(index, before, place, count);
            i += count;
        } else {
            if (before == null) before = findParent(index, before_first);
            const first = i;
            before = extend(index, holder, before, before_first, hashes, &i);
            if (i == first) return loseAll(index, holder, hashes[i..]);
        }
        before_first = hashes[i - 1];
    }
}

fn findParent(index: *Index, hash: ?u64) ?Place {
    const place = index.find(hash orelse return null) orelse return null;
    index.touch(index.chunk(place.chunk));
    return place;
}

pub fn loseAll(index: *Index, holder: Holder, hashes: Hashes) void {
    for (hashes) |hash| {
        index.filter.add(hash);
        // The index may already list some of these blocks for other holders.
        const place = index.find(hash) orelse continue;
        const chunk = index.chunk(place.chunk);
        index.beforeChange(place.chunk);
        chunk.unsure = @min(chunk.unsure, @as(u8, @intCast(place.at)));
    }
    index.targets.tear(holder);
    index.forgotten += hashes.len;
}

/// Appends the next hashes that the index does not know behind `before`, as many as fit into one
/// chunk, and increases `i` by their number. Returns the place of the last one; null if memory ran
/// out or the blocks were removed again.
fn extend(
    index: *Index,
    holder: Holder,
    before: ?Place,
    before_first: ?u64,
    hashes: Hashes,
    i: *usize,
) ?Place {
    const wanted = hashes.len - i.*;
    index.pinned = .{ if (before) |last| last.chunk else arena_file.none, arena_file.none };
    const at = behind(index, before, wanted) orelse
        begin(index, before, before_first, wanted) orelse return null;
    index.pinned[1] = at;
    index.beforeChange(at);
    const chunk = index.chunk(at);
    index.touch(chunk);
    const start = chunk.len;
    const room = chunk_file.capacity(index.arena.orderOf(at));
    while (i.* < hashes.len and chunk.len < room) : (i.* += 1) {
        const hash = hashes[i.*];
        if (i.* + index_file.ahead < hashes.len) {
            index.table.prefetch(index.table.spot(hashes[i.* + index_file.ahead]));
        }
        if (chunk.len > start and index.find(hash) != null) break;
        if (!index.tableHasRoom()) break;
        index.table.put(index.table.spot(hash), at);
        if (index.filter.has(hash)) chunk.unsure = @min(chunk.unsure, chunk.len);
        chunk.room()[chunk.len] = hash;
        chunk.len += 1;
        chunk.dead += 1;
    }
    const end = chunk.len;
    if (end > start) holding.hold(index, at, holder, start, end);
    const left = removing.settle(index, at) orelse return null;
    // There was no memory for the holder's entry, so `settle` removed the new blocks.
    if (index.chunk(left).len != end) return null;
    return .{ .chunk = fit(index, left), .at = end - 1 };
}

/// Returns the chunk of `before`, enlarged if possible, if `before` is its last block and one more
/// block fits; else null.
fn behind(index: *Index, before: ?Place, wanted: usize) ?u32 {
    const last = before orelse return null;
    const chunk = index.chunk(last.chunk);
    if (last.at + 1 != chunk.len or chunk.len == chunk_file.len_max) return null;
    const order = chunk_file.orderFor(@min(chunk.len + wanted, chunk_file.len_max));
    if (order <= index.arena.orderOf(last.chunk)) return last.chunk;
    const piece = index.take(order, .chunk) orelse return null;
    return move(index, last.chunk, piece);
}

/// Creates an empty chunk with room for `wanted` blocks, or a smaller one if memory is short. Null
/// if there is none.
fn begin(index: *Index, before: ?Place, parent: ?u64, wanted: usize) ?u32 {
    const order = chunk_file.orderFor(@min(wanted, chunk_file.len_max));
    const at = index.take(order, .chunk) orelse index.take(0, .chunk) orelse return null;
    init(index, at, parent);
    if (before) |last| index.chunk(last.chunk).children +|= 1;
    return at;
}

pub fn init(index: *Index, at: u32, parent: ?u64) void {
    const chunk = index.chunk(at);
    chunk.* = .{
        .parent = 0,
        // The previous round, so that the first use of the chunk counts in the current round.
        .round = index.round -% 1,
        .entries = 0,
        .list = .{ 0, 0 },
        .children = 0,
        .len = 0,
        .unsure = chunk_file.all_sure,
        .dead = 0,
        .flags = .{ .parity = index.parity },
        .list_order = chunk_file.no_list,
        .reserved = 0,
    };
    chunk.setParent(parent);
    index.chunks += 1;
}

/// Moves a chunk to another piece, larger or smaller, and returns its new number.
fn move(index: *Index, from: u32, to: u32) u32 {
    index.beforeChange(from);
    const old = index.chunk(from);
    const new = index.chunk(to);
    assert(old.len <= chunk_file.capacity(index.arena.orderOf(to)));
    new.* = old.*;
    @memcpy(new.room()[0..old.len], old.keys());
    for (old.keys()) |hash| index.table.prefetch(index.table.spot(hash));
    for (old.keys()) |hash| index.table.move(index.table.spot(hash), from, to);
    index.arena.give(from);
    for (&index.pinned) |*pinned| {
        if (pinned.* == from) pinned.* = to;
    }
    return to;
}

/// Moves a chunk to a smaller piece if the blocks fit and one can be allocated. Returns its number.
fn fit(index: *Index, at: u32) u32 {
    const order = chunk_file.orderFor(index.chunk(at).len);
    if (order >= index.arena.orderOf(at)) return at;
    return move(index, at, index.arena.take(order, .chunk) orelse return at);
}

/// Merges the chunk that begins with `place` into the chunk that ends with `before`, if the first
/// chunk continues the second and both fit into one. Returns the new place of the last of the
/// `count` blocks from `place` on.
fn join(index: *Index, before: ?Place, place: Place, count: usize) Place {
    const unjoined: Place = .{ .chunk = place.chunk, .at = place.at + count - 1 };
    const last = before orelse return unjoined;
    if (place.at != 0 or last.chunk == place.chunk) return unjoined;
    const second = index.chunk(place.chunk);
    const first_len = index.chunk(last.chunk).len;
    if (last.at + 1 != first_len or first_len + second.len > chunk_file.len_max) return unjoined;
    if (second.parentHash() != index.chunk(last.chunk).keys()[last.at]) return unjoined;
    // Both chunks are pinned, so making room evicts neither.
    const entries = index.chunk(last.chunk).entries + second.entries;
    if (!holding.grow(index, last.chunk, entries)) return unjoined;
    var to = last.chunk;
    const order = chunk_file.orderFor(first_len + second.len);
    if (order > index.arena.orderOf(to)) {
        to = move(index, to, index.take(order, .chunk) orelse return unjoined);
    }
    absorb(index, to, place.chunk);
    return .{ .chunk = to, .at = first_len + count - 1 };
}

/// Appends the blocks and entries of `second` to `first`, which has room for them, and frees
/// `second`.
fn absorb(index: *Index, first: u32, second: u32) void {
    index.beforeChange(first);
    index.beforeChange(second);
    const to = index.chunk(first);
    const from = index.chunk(second);
    const shift = to.len;
    @memcpy(to.room()[shift..][0..from.len], from.keys());
    to.len += from.len;
    to.dead += from.dead;
    if (from.unsure != chunk_file.all_sure) to.unsure = @min(to.unsure, shift + from.unsure);
    to.children = (to.children -| 1) +| from.children;
    to.round = index.round;
    for (from.holders(&index.arena)) |entry| {
        const start = @as(usize, shift) + entry.start;
        holding.merge(index, first, entry.holder, start, @as(usize, shift) + entry.last + 1);
    }
    for (from.keys()) |hash| index.table.move(index.table.spot(hash), second, first);
    if (from.hasList()) index.arena.give(from.list[0]);
    index.arena.give(second);
    index.chunks -= 1;
}
