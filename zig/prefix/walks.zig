//! Lookups: how many leading blocks of a prompt each target has.
//!
//! A lookup (walk) takes four steps per chunk and after each step prefetches the memory for the
//! next one. For many prompts, the walks take turns, so that one works while the memory of the
//! others loads.

const std = @import("std");
const chunk_file = @import("chunk.zig");
const pages = @import("pages.zig");
const targets_file = @import("targets.zig");
const assert = std.debug.assert;
const Chunk = chunk_file.Chunk;
const Entry = chunk_file.Entry;
const Error = @import("../abi/status.zig").Error;
const Index = @import("index.zig").Index;
const Spot = @import("table.zig").Spot;

/// Number of walks that take turns.
const abreast = 12;
/// With more than this many entries per target that is still counted, the walk searches for each
/// target; otherwise it scans all entries.
const search_factor = 8;
const line_bytes = 64;
/// Number of entries compared at once.
const wide = 8;
const Words = @Vector(wide, u32);

/// Output arrays: the target's number, and the number of its blocks on each tier.
pub const Columns = struct {
    targets: [*]u16,
    tiers: [targets_file.tiers][*]u32,

    pub fn from(self: Columns, at: usize) Columns {
        var tiers = self.tiers;
        for (&tiers) |*column| column.* += at;
        return .{ .targets = self.targets + at, .tiers = tiers };
    }
};

pub const Answer = struct { count: u32, exact: u32 };

/// A target that has all blocks that the walk has passed.
const Alive = packed struct(u32) {
    /// Index of the target in the columns.
    place: u30,
    /// Tier of the target's last counted block. Later blocks are counted only on this tier or a
    /// slower one.
    tier: u2,
};

const Step = enum { ask, reach, compare, tally, done };

const Walk = struct {
    hashes: []align(1) const u64,
    columns: Columns,
    alive: [*]Alive,
    step: Step,
    at: usize,
    count: u32,
    alive_count: u32,
    exact: usize,
    spot: Spot,
    chunk: u32,
    /// Place at which the walk enters the chunk, and the number of blocks from there that match the
    /// prompt.
    from: usize,
    matched: usize,
    /// Index of the prompt in the batch.
    prompt: usize,

    inline fn start(self: *Walk, hashes: []align(1) const u64, prompt: usize) void {
        self.hashes = hashes;
        self.step = if (hashes.len == 0) .done else .ask;
        self.at = 0;
        self.count = 0;
        self.alive_count = 0;
        self.exact = hashes.len;
        self.prompt = prompt;
    }

    fn answer(self: *const Walk) Answer {
        return .{ .count = self.count, .exact = @intCast(self.exact) };
    }

    inline fn go(self: *Walk, index: *Index) void {
        switch (self.step) {
            .ask => self.ask(index),
            .reach => self.reach(index),
            .compare => self.compare(index),
            .tally => self.tally(index),
            .done => {},
        }
    }

    inline fn ask(self: *Walk, index: *Index) void {
        @setRuntimeSafety(false); // `at` is below the number of hashes
        self.spot = index.table.spot(self.hashes[self.at]);
        index.table.prefetch(self.spot);
        self.step = .reach;
    }

    inline fn reach(self: *Walk, index: *Index) void {
        var candidates = index.table.candidates(self.spot);
        const at = candidates.next() orelse return self.miss(index);
        const head: [*]const u8 = @ptrCast(index.chunk(at));
        @prefetch(head, .{});
        // A longer chunk's next keys, as far as the walk will probably read them.
        if (self.hashes.len - self.at > 4) @prefetch(head + line_bytes, .{});
        if (self.hashes.len - self.at > 12) {
            @prefetch(head + 2 * line_bytes, .{});
            @prefetch(head + 3 * line_bytes, .{});
        }
        self.step = .compare;
    }

    /// Ends the walk: no target has the next block, or the index has evicted it.
    fn miss(self: *Walk, index: *Index) void {
        if (index.filter.has(self.hashes[self.at])) self.exact = @min(self.exact, self.at);
        self.step = .done;
    }

    inline fn compare(self: *Walk, index: *Index) void {
        @setRuntimeSafety(false); // places and lengths are of one chunk
        const hash = self.hashes[self.at];
        var candidates = index.table.candidates(self.spot);
        while (candidates.next()) |at| {
            const chunk = index.chunk(at);
            const from = chunk.find(hash) orelse continue;
            self.chunk = at;
            self.from = from;
            if (chunk.hasList()) {
                const list: [*]const u8 = @ptrCast(chunk.entryRoom(&index.arena));
                const lines = @min(4, chunk.entries / (line_bytes / @sizeOf(Entry)) + 1);
                for (0..lines) |line| @prefetch(list + line * line_bytes, .{});
            }
            self.matched = chunk.matching(from, self.hashes[self.at..]);
            self.step = .tally;
            return;
        }
        self.miss(index);
    }

    inline fn tally(self: *Walk, index: *Index) void {
        @setRuntimeSafety(false); // as above
        const chunk = index.chunk(self.chunk);
        index.touch(chunk);
        if (chunk.unsure < self.from + self.matched) {
            const behind = @max(chunk.unsure, self.from) - self.from;
            self.exact = @min(self.exact, self.at + behind);
        }
        const entries = chunk.holders(&index.arena);
        if (self.at == 0) self.first(entries) else self.further(entries);
        self.at += self.matched;
        self.step = if (self.alive_count == 0 or self.at == self.hashes.len) .done else .ask;
    }

    /// Counts the matching blocks of the prompt's first chunk: each target that has the first block
    /// gets an element in the columns.
    fn first(self: *Walk, entries: []const Entry) void {
        @setRuntimeSafety(false); // there is a place for each target there can be
        const end = self.from + self.matched;
        var i: usize = 0;
        while (i < entries.len) {
            if (i + wide < entries.len and self.firstMany(entries[i..])) {
                i += wide;
                continue;
            }
            const target = entries[i].target();
            var row: Row = .{ .at = self.from };
            while (i < entries.len and entries[i].target() == target) : (i += 1) {
                row.take(entries[i], end);
            }
            if (row.at == self.from) continue;
            const place = self.count;
            self.count += 1;
            self.columns.targets[place] = target;
            inline for (0..targets_file.tiers) |tier| {
                self.columns.tiers[tier][place] = row.sums[tier];
            }
            if (row.at == end) self.keep(place, row.tier);
        }
    }

    /// Like `first`, for the next `wide` entries at once. Requires that each is the only entry of
    /// its target, the usual case, and that it covers all matching blocks; otherwise returns false
    /// without a change.
    inline fn firstMany(self: *Walk, entries: []const Entry) bool {
        @setRuntimeSafety(false); // there is one more entry than are taken
        const words: [*]const u32 = @ptrCast(entries.ptr);
        const own: Words = words[0..wide].*;
        const next: Words = words[1 .. wide + 1].*;
        const targets = own >> @splat(16);
        const from: Words = @splat(@intCast(self.from));
        const end: Words = @splat(@intCast(self.from + self.matched));
        const last = own & @as(Words, @splat(0x7f));
        const begin = own >> @splat(7) & @as(Words, @splat(0x7f));
        if (@reduce(.Or, targets == next >> @splat(16))) return false;
        if (@reduce(.Or, begin > from) or @reduce(.Or, last < from)) return false;
        const to = @min(last + @as(Words, @splat(1)), end);
        const tiers = own >> @splat(14) & @as(Words, @splat(3));
        const place = self.count;
        self.count += wide;
        self.columns.targets[place..][0..wide].* = @as(@Vector(wide, u16), @truncate(targets));
        inline for (0..targets_file.tiers) |tier| {
            const on_it = tiers == @as(Words, @splat(tier));
            const sums = @select(u32, on_it, to - from, @as(Words, @splat(0)));
            self.columns.tiers[tier][place..][0..wide].* = sums;
        }
        var alive: u8 = @bitCast(to == end);
        while (alive != 0) : (alive &= alive - 1) {
            const lane = @ctz(alive);
            self.keep(place + lane, @truncate(words[lane] >> 14));
        }
        return true;
    }

    inline fn keep(self: *Walk, place: u32, tier: u2) void {
        self.alive[self.alive_count] = .{ .place = @intCast(place), .tier = tier };
        self.alive_count += 1;
    }

    /// Counts the matching blocks of a later chunk for each target that has all blocks before it.
    fn further(self: *Walk, entries: []const Entry) void {
        @setRuntimeSafety(false); // as above
        const end = self.from + self.matched;
        const before = self.alive[0..self.alive_count];
        const searches = before.len * search_factor < entries.len;
        self.alive_count = 0;
        var i: usize = 0;
        for (before) |one| {
            const target = self.columns.targets[one.place];
            const least = @as(chunk_file.Holder, target) << 2 | one.tier;
            if (searches) {
                i += chunk_file.firstOf(entries[i..], least);
            } else {
                while (i < entries.len and entries[i].holder < least) i += 1;
            }
            var row: Row = .{ .at = self.from, .tier = one.tier };
            while (i < entries.len and entries[i].target() == target) : (i += 1) {
                row.take(entries[i], end);
            }
            if (row.at == self.from) continue;
            inline for (0..targets_file.tiers) |tier| {
                self.columns.tiers[tier][one.place] += row.sums[tier];
            }
            if (row.at == end) self.keep(one.place, row.tier);
        }
    }
};

/// Counts the leading blocks of a chunk that one target has. `take` receives its entries in order
/// of tier and place.
const Row = struct {
    at: usize,
    tier: u2 = 0,
    sums: [targets_file.tiers]u32 = @splat(0),

    inline fn take(self: *Row, entry: Entry, end: usize) void {
        @setRuntimeSafety(false); // tiers are below 3
        if (!entry.has(self.at) or self.at == end) return;
        const to = @min(@as(usize, entry.last) + 1, end);
        self.tier = entry.tier();
        self.sums[self.tier] += @intCast(to - self.at);
        self.at = to;
    }
};

/// Output arrays for the answers to many prompts.
pub const Batch = struct {
    columns: Columns,
    /// Length of the columns in elements.
    room: usize,
    starts: [*]u32,
    counts: [*]u32,
    exact: [*]u32,
};

pub const Walks = struct {
    alive: []Alive,
    targets: []u16,
    tiers: []u32,

    pub fn init() Error!Walks {
        const alive = try pages.map(Alive, abreast * targets_file.count);
        errdefer pages.unmap(alive);
        const targets = try pages.map(u16, abreast * targets_file.count);
        errdefer pages.unmap(targets);
        const tiers = try pages.map(u32, abreast * targets_file.count * targets_file.tiers);
        return .{ .alive = alive, .targets = targets, .tiers = tiers };
    }

    pub fn deinit(self: *Walks) void {
        pages.unmap(self.alive);
        pages.unmap(self.targets);
        pages.unmap(self.tiers);
    }

    fn columns(self: *Walks, lane: usize) Columns {
        const all = targets_file.count;
        var tiers: [targets_file.tiers][*]u32 = undefined;
        for (&tiers, 0..) |*column, tier| {
            column.* = self.tiers[(lane * targets_file.tiers + tier) * all ..].ptr;
        }
        return .{ .targets = self.targets[lane * all ..].ptr, .tiers = tiers };
    }

    /// Looks up one prompt. `out` has room for every target.
    pub fn one(self: *Walks, index: *Index, hashes: []align(1) const u64, out: Columns) Answer {
        var walk: Walk = undefined;
        walk.columns = out;
        walk.alive = self.alive.ptr;
        walk.start(hashes, 0);
        while (walk.step != .done) {
            walk.ask(index);
            walk.reach(index);
            if (walk.step == .compare) walk.compare(index);
            if (walk.step == .tally) walk.tally(index);
        }
        return walk.answer();
    }

    /// Looks up many prompts. The hashes of prompt `i` end before `ends[i]`; `hashes` ends with the
    /// last prompt. Returns how many elements of the columns were filled; null if the columns are
    /// too short.
    pub fn many(
        self: *Walks,
        index: *Index,
        hashes: []align(1) const u64,
        ends: []align(1) const u32,
        out: Batch,
    ) ?usize {
        var turns: [abreast]Walk = undefined;
        var active: usize = 0;
        var next: usize = 0;
        var filled: usize = 0;
        for (&turns, 0..) |*walk, lane| {
            walk.columns = self.columns(lane);
            walk.alive = self.alive[lane * targets_file.count ..].ptr;
            walk.step = .done;
            if (next == ends.len) continue;
            walk.start(promptAt(hashes, ends, next), next);
            next += 1;
            active += 1;
        }
        const lanes = active;
        while (active > 0) {
            for (turns[0..lanes]) |*walk| {
                if (walk.prompt == std.math.maxInt(usize)) continue;
                walk.go(index);
                if (walk.step != .done) continue;
                if (!give(walk, out, &filled)) return null;
                if (next < ends.len) {
                    walk.start(promptAt(hashes, ends, next), next);
                    next += 1;
                } else {
                    walk.prompt = std.math.maxInt(usize);
                    active -= 1;
                }
            }
        }
        return filled;
    }
};

fn promptAt(
    hashes: []align(1) const u64,
    ends: []align(1) const u32,
    prompt: usize,
) []align(1) const u64 {
    return hashes[if (prompt == 0) 0 else ends[prompt - 1]..ends[prompt]];
}

fn give(walk: *const Walk, out: Batch, filled: *usize) bool {
    const count = walk.count;
    if (filled.* + count > out.room) return false;
    const to = out.columns.from(filled.*);
    @memcpy(to.targets[0..count], walk.columns.targets[0..count]);
    for (to.tiers, walk.columns.tiers) |column, own| @memcpy(column[0..count], own[0..count]);
    out.starts[walk.prompt] = @intCast(filled.*);
    out.counts[walk.prompt] = count;
    out.exact[walk.prompt] = @intCast(walk.exact);
    filled.* += count;
    return true;
}
