//! Who holds which blocks of which prompts, within a bound of memory.
//!
//! Blocks lie in chunks: up to 124 hashes of consecutive blocks in one stretch of memory, with
//! entries (holder, from, to) that say who has which of them. A table leads from each hash to its
//! chunk. Where prompts part, another chunk begins; a lookup asks the table only there. Chunks are
//! how it is stored and nothing more: every answer is of single hashes.

const std = @import("std");
const types = @import("../abi/router_types.zig");
const arena_file = @import("arena.zig");
const chunk_file = @import("chunk.zig");
const clearing = @import("clearing.zig");
const forgetting = @import("forgetting.zig");
const removing = @import("removing.zig");
const storing = @import("storing.zig");
const Arena = arena_file.Arena;
const Chunk = chunk_file.Chunk;
const Error = @import("../abi/status.zig").Error;
const Filter = @import("filter.zig").Filter;
const Holder = chunk_file.Holder;
const Reader = @import("reader.zig").Reader;
const Saver = @import("saver.zig").Saver;
const Loader = @import("loader.zig").Loader;
const Table = @import("table.zig").Table;
const Targets = @import("targets.zig").Targets;
const Walks = @import("walks.zig").Walks;

const none = arena_file.none;
/// Too little for anything; the least there is for tests.
const bytes_min = 4096;
const bytes_max = 1 << 37;
/// Parts of a chunk's worth of rounds: recency is known to a sixteenth of all chunks.
const rounds_in_all = 16;
/// Hashes whose table entries are fetched ahead.
pub const ahead = 12;

/// A block.
pub const Place = struct { chunk: u32, at: usize };

pub const ChangeKind = enum(u32) {
    /// `parent` is the block before the first.
    stored = 0,
    /// The first is the first of a prompt.
    stored_first = 1,
    removed = 2,
    /// Tier 3 means all of them.
    cleared = 3,
};

pub const Index = struct {
    gpa: std.mem.Allocator,
    arena: Arena,
    table: Table,
    targets: Targets,
    filter: Filter,
    walks: Walks,
    /// Blocks that somebody holds, pairs of a block and a holder, blocks forgotten.
    blocks: u64 = 0,
    held: u64 = 0,
    forgotten: u64 = 0,
    chunks: u32 = 0,
    round: u32 = 0,
    /// Chunks used in this round.
    used: u32 = 0,
    /// Not to be forgotten now.
    pinned: [2]u32 = .{ none, none },
    /// Counts changes, so that a reader notices them.
    version: u64 = 0,
    reader: ?*Reader = null,
    saver: ?*Saver = null,
    loader: ?*Loader = null,
    /// What new chunks are marked with.
    parity: u1 = 0,

    pub fn create(gpa: std.mem.Allocator, request: types.PrefixRequest) Error!*Index {
        const bytes = request.bytes;
        if (bytes < bytes_min or bytes > bytes_max) return error.BadRequest;
        const self = gpa.create(Index) catch return error.OutOfMemory;
        errdefer gpa.destroy(self);
        const for_filter = bytes / 32;
        const for_table = bytes / 8 * 3;
        var arena = try Arena.init(bytes - for_filter - for_table);
        errdefer arena.deinit();
        var table = try Table.init(for_table, request.seed);
        errdefer table.deinit();
        var targets = try Targets.init();
        errdefer targets.deinit();
        var filter = try Filter.init(for_filter, ~request.seed);
        errdefer filter.deinit();
        self.* = .{
            .gpa = gpa,
            .arena = arena,
            .table = table,
            .targets = targets,
            .filter = filter,
            .walks = try Walks.init(),
        };
        return self;
    }

    pub fn destroy(self: *Index) void {
        if (self.reader) |reader| reader.destroy(self.gpa);
        if (self.saver) |saver| saver.destroy(self.gpa);
        if (self.loader) |loader| loader.destroy(self.gpa);
        self.arena.deinit();
        self.table.deinit();
        self.targets.deinit();
        self.filter.deinit();
        self.walks.deinit();
        self.gpa.destroy(self);
    }

    /// Empty again.
    pub fn reset(self: *Index) void {
        self.arena.reset();
        self.table.reset();
        self.targets.reset();
        self.filter.reset();
        self.blocks = 0;
        self.held = 0;
        self.chunks = 0;
        self.version += 1;
    }

    pub fn stats(self: *const Index, handle: u64) types.PrefixInfo {
        const table_bytes = self.table.buckets.len * arena_file.unit_bytes;
        return .{
            .handle = handle,
            .blocks = self.blocks,
            .held = self.held,
            .chunks = self.chunks,
            .bytes = self.arena.bytesUsed() + table_bytes + self.filter.bytesUsed(),
            .forgotten = self.forgotten,
        };
    }

    pub inline fn chunk(self: *const Index, at: u32) *Chunk {
        return @ptrCast(self.arena.address(at));
    }

    pub inline fn find(self: *const Index, hash: u64) ?Place {
        var candidates = self.table.candidates(self.table.spot(hash));
        while (candidates.next()) |at| {
            if (self.chunk(at).find(hash)) |place| return .{ .chunk = at, .at = place };
        }
        return null;
    }

    /// It was stored to or matched now.
    pub inline fn touch(self: *Index, it: *Chunk) void {
        if (it.round == self.round) return;
        it.round = self.round;
        self.used += 1;
        if (self.used * rounds_in_all < self.chunks) return;
        self.used = 0;
        self.round +%= 1;
    }

    /// A piece of the arena, for which others are forgotten where it must be.
    pub fn take(self: *Index, order: u6, kind: arena_file.Kind) ?u32 {
        // What is too large a part of all memory would take everything else with it.
        if (@as(u64, 4) << order > self.arena.units.len) return null;
        while (true) {
            if (self.arena.take(order, kind)) |piece| return piece;
            if (!forgetting.forgetSome(self)) return null;
        }
    }

    /// Whether the table has room for one more, made where it must be.
    pub fn tableHasRoom(self: *Index) bool {
        while (self.table.isFull()) {
            if (!forgetting.forgetSome(self)) return false;
        }
        return true;
    }

    pub fn isPinned(self: *const Index, at: u32) bool {
        return self.pinned[0] == at or self.pinned[1] == at;
    }

    /// A chunk that is to be saved is saved as it is now.
    pub inline fn beforeChange(self: *Index, at: u32) void {
        if (self.saver) |saver| saver.keep(self, at);
    }

    /// Carries changes out in order. All of them are looked at first: nothing is done where one
    /// is not possible.
    pub fn apply(
        self: *Index,
        changes: []align(1) const types.PrefixChange,
        hashes: []align(1) const u64,
    ) Error!void {
        if (self.loader != null) return error.Busy;
        try check(changes, hashes.len);
        self.version += 1;
        var at: usize = 0;
        for (changes) |change| {
            const own = hashes[at..][0..change.count];
            self.fetch(hashes[at..], change.count);
            at += change.count;
            self.carryOut(change, own);
        }
        self.pinned = .{ none, none };
    }

    /// Fetches what the changes after one of `count` hashes will look at, while that is made.
    fn fetch(self: *const Index, hashes: []align(1) const u64, count: u32) void {
        for (0..@min(count, ahead)) |i| {
            if (i + ahead >= hashes.len) break;
            self.table.prefetch(self.table.spot(hashes[i + ahead]));
            var candidates = self.table.candidates(self.table.spot(hashes[i + ahead / 2]));
            @prefetch(self.chunk(candidates.next() orelse continue), .{ .rw = .write });
        }
    }

    fn carryOut(self: *Index, change: types.PrefixChange, hashes: []align(1) const u64) void {
        const target: u16 = @intCast(change.target);
        const holder = @as(Holder, target) << 2 | @as(Holder, @intCast(change.tier));
        switch (@as(ChangeKind, @enumFromInt(change.kind))) {
            .stored => storing.store(self, holder, change.parent, hashes),
            .stored_first => storing.store(self, holder, null, hashes),
            .removed => removing.remove(self, holder, hashes),
            .cleared => clearing.clear(self, target, if (change.tier == 3) null else holder),
        }
    }
};

fn check(changes: []align(1) const types.PrefixChange, hashes: usize) Error!void {
    var sum: u64 = 0;
    for (changes) |change| {
        const kind = std.enums.fromInt(ChangeKind, change.kind) orelse return error.BadRequest;
        if (change.target > std.math.maxInt(u16)) return error.BadRequest;
        if (change.tier > @as(u32, if (kind == .cleared) 3 else 2)) return error.BadRequest;
        if (kind == .cleared and change.count != 0) return error.BadRequest;
        sum += change.count;
    }
    if (sum != hashes) return error.BadRequest;
}

test {
    _ = @import("arena.zig");
    _ = @import("filter.zig");
    _ = @import("table.zig");
    _ = @import("test_index.zig");
}
