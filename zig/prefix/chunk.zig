//! A chunk: the hashes of up to 124 consecutive blocks, and entries that list which target has
//! which of these blocks on which tier.

const std = @import("std");
const arena_file = @import("arena.zig");
const assert = std.debug.assert;
const Arena = arena_file.Arena;

pub const order_max = 4;
/// Largest number of blocks in a chunk, so that a place (block index in the chunk) fits in 7 bits.
pub const len_max = capacity(order_max);
/// Value of `unsure` if no entries of the chunk were evicted.
pub const all_sure = 255;
pub const inline_entries = 2;
/// Value of `list_order` if the entries are in the head.
pub const no_list = 255;
const lanes = 4;
const Keys = @Vector(lanes, u64);

/// A holder is a target and one of its tiers: the target in the upper 16 bits, the tier in the
/// lower two.
pub const Holder = u18;

/// States that `holder` has the blocks at the places `start` to `last` of the chunk. Compared as
/// numbers, entries sort by target, tier and place.
pub const Entry = packed struct(u32) {
    last: u7,
    start: u7,
    holder: Holder,

    pub inline fn target(self: Entry) u16 {
        return @intCast(self.holder >> 2);
    }

    pub inline fn tier(self: Entry) u2 {
        return @truncate(self.holder);
    }

    pub inline fn has(self: Entry, at: usize) bool {
        return self.start <= at and at <= self.last;
    }

    /// Returns a mask with one bit set for each place of the entry.
    pub inline fn mask(self: Entry) u128 {
        return span(self.start, @as(usize, self.last) + 1);
    }
};

/// Returns a mask with a bit set for each place from `start` up to, but not including, `end`.
pub inline fn span(start: usize, end: usize) u128 {
    assert(start <= end and end <= 127);
    const ones = (@as(u128, 1) << @intCast(end)) - 1;
    return ones & ~((@as(u128, 1) << @intCast(start)) - 1);
}

pub const Flags = packed struct(u8) {
    has_parent: bool = false,
    /// During a save, shows whether the chunk has been saved: it has if this bit equals the index's
    /// `parity`.
    parity: u1 = 0,
    unused: u6 = 0,
};

/// Number of keys after the head in a piece of that order: 4, 12, 28, 60 or 124.
pub fn capacity(order: u6) usize {
    return ((@as(usize, arena_file.unit_bytes) << order) - @sizeOf(Chunk)) / 8;
}

/// Returns the smallest order whose piece has room for `len` keys.
pub fn orderFor(len: usize) u6 {
    assert(len <= len_max);
    var order: u6 = 0;
    while (capacity(order) < len) order += 1;
    return order;
}

/// The head of a chunk; its keys follow in memory.
pub const Chunk = extern struct {
    /// Hash of the block that precedes the first block of the chunk, if `has_parent` is set.
    parent: u64,
    /// The index's round in which the chunk was last stored to or matched.
    round: u32,
    /// Number of entries. Up to two entries are in the head; more are in a separate piece.
    entries: u32,
    list: [inline_entries]u32,
    /// Approximate number of chunks whose parent block is in this chunk.
    children: u16,
    len: u8,
    /// First place at which entries may be missing because they were evicted; `all_sure` if none
    /// are.
    unsure: u8,
    /// Number of keys that no holder has; they are removed later.
    dead: u8,
    flags: Flags,
    /// Order of the separate piece that contains the entries, or `no_list`.
    list_order: u8,
    reserved: u8,

    pub inline fn keys(self: *Chunk) []u64 {
        return self.room()[0..self.len];
    }

    pub inline fn room(self: *Chunk) [*]u64 {
        const bytes: [*]align(8) u8 = @ptrCast(self);
        return @ptrCast(bytes + @sizeOf(Chunk));
    }

    pub inline fn parentHash(self: *const Chunk) ?u64 {
        return if (self.flags.has_parent) self.parent else null;
    }

    pub fn setParent(self: *Chunk, parent: ?u64) void {
        self.parent = parent orelse 0;
        self.flags.has_parent = parent != null;
    }

    pub inline fn holders(self: *Chunk, arena: *const Arena) []Entry {
        return self.entryRoom(arena)[0..self.entries];
    }

    pub inline fn entryRoom(self: *Chunk, arena: *const Arena) [*]Entry {
        if (self.hasList()) return @ptrCast(arena.address(self.list[0]));
        return @ptrCast(&self.list);
    }

    pub inline fn hasList(self: *const Chunk) bool {
        return self.list_order != no_list;
    }

    /// Returns the number of entries that fit in the head or in the current separate piece.
    pub fn entryCapacity(self: *const Chunk) usize {
        if (!self.hasList()) return inline_entries;
        return entriesIn(@intCast(self.list_order));
    }

    /// Returns the place of a hash in the chunk; null if it is not there. Tests the first and last
    /// keys first, because most changes concern them.
    pub inline fn find(self: *Chunk, hash: u64) ?usize {
        @setRuntimeSafety(false); // all indices are below `len`
        const all = self.keys();
        if (all.len == 0) return null;
        if (all[0] == hash) return 0;
        if (all[all.len - 1] == hash) return all.len - 1;
        return std.mem.indexOfScalar(u64, all, hash);
    }

    /// Returns how many keys from `at` on equal the first hashes of `hashes`.
    pub inline fn matching(self: *Chunk, at: usize, hashes: []align(1) const u64) usize {
        @setRuntimeSafety(false); // all indices are below `most`
        const own = self.keys()[at..];
        const most = @min(own.len, hashes.len);
        var i: usize = 0;
        while (i + lanes <= most) : (i += lanes) {
            const ours: Keys = own[i..][0..lanes].*;
            const theirs: Keys = hashes[i..][0..lanes].*;
            const equal: u4 = @bitCast(ours == theirs);
            if (equal != 0xf) return i + @ctz(~equal);
        }
        while (i < most and own[i] == hashes[i]) i += 1;
        return i;
    }

    /// Returns a mask of the places that at least one holder has.
    pub fn living(self: *Chunk, arena: *const Arena) u128 {
        var mask: u128 = 0;
        for (self.holders(arena)) |entry| mask |= entry.mask();
        return mask;
    }

    pub fn isLiving(self: *Chunk, arena: *const Arena, at: usize) bool {
        for (self.holders(arena)) |entry| {
            if (entry.has(at)) return true;
        }
        return false;
    }
};

pub fn entriesIn(list_order: u6) usize {
    return @as(usize, arena_file.unit_bytes / @sizeOf(Entry)) << list_order;
}

/// Returns the index of the first entry whose holder is not lower than `holder`.
pub fn firstOf(entries: []const Entry, holder: Holder) usize {
    var low: usize = 0;
    var high = entries.len;
    while (low < high) {
        const middle = (low + high) / 2;
        if (entries[middle].holder < holder) low = middle + 1 else high = middle;
    }
    return low;
}

comptime {
    assert(@sizeOf(Chunk) == 32 and len_max == 124);
}
