//! The prefix index: which target has which blocks of which prompts, within a memory limit.
//!
//! Blocks are stored in chunks: up to 124 hashes of consecutive blocks in one span of memory, with
//! entries (holder, from, to) that name the targets of each block. A hash table maps each block
//! hash to its chunk. Where prompts diverge, a new chunk begins, so a lookup uses the table only
//! there. Chunks affect no answer: every answer concerns single blocks.

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
/// Smallest memory limit in bytes that tests use; too small for practical use.
const bytes_min = 4096;
const bytes_max = 1 << 37;
/// A round, the unit of chunk age, ends when a sixteenth of all chunks has been used in it.
const rounds_in_all = 16;
/// Number of hashes ahead of the current one whose table entries are prefetched.
pub const ahead = 12;

/// Position of a block: its chunk, and its index in the chunk.
pub const Place = struct { chunk: u32, at: usize };

pub const ChangeKind = enum(u32) {
    /// The blocks follow the block with the hash `parent`.
    stored = 0,
    /// The first block is the first one of a prompt.
    stored_first = 1,
    removed = 2,
    /// All blocks of the target on the tier are removed. Tier 3 means all tiers.
    cleared = 3,
};

pub const Index = struct {
    gpa: std.mem.Allocator,
    arena: Arena,
    table: Table,
    targets: Targets,
    filter: Filter,
    walks: Walks,
    /// `blocks`: number of blocks with a holder. `held`: pairs of a block and a holder.
    /// `forgotten`: evicted blocks.
    blocks: u64 = 0,
    held: u64 = 0,
    forgotten: u64 = 0,
    chunks: u32 = 0,
    round: u32 = 0,
    /// Number of chunks used in the current round.
    used: u32 = 0,
    /// Chunks that must not be evicted during the current change.
    pinned: [2]u32 = .{ none, none },
    /// Incremented at each change, so that a reader detects changes.
    version: u64 = 0,
    reader: ?*Reader = null,
    saver: ?*Saver = null,
    loader: ?*Loader = null,
    /// The save parity of new chunks.
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

    /// Removes everything from the index.
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

    /// Marks the chunk as used in the current round, and ends the round if enough chunks were used.
    pub inline fn touch(self: *Index, it: *Chunk) void {
        if (it.round == self.round) return;
        it.round = self.round;
        self.used += 1;
        if (self.used * rounds_in_all < self.chunks) return;
        self.used = 0;
        self.round +%= 1;
    }

    /// Allocates a piece of the arena, evicting chunks if necessary. Returns null if that fails.
    pub fn take(self: *Index, order: u6, kind: arena_file.Kind) ?u32 {
        // A piece that is a large part of the whole memory would cause almost everything to be
        // evicted.
        if (@as(u64, 4) << order > self.arena.units.len) return null;
        while (true) {
            if (self.arena.take(order, kind)) |piece| return piece;
            if (!forgetting.forgetSome(self)) return null;
        }
    }

    /// Returns whether the table has room for one more hash. Evicts chunks if necessary.
    pub fn tableHasRoom(self: *Index) bool {
        while (self.table.isFull()) {
            if (!forgetting.forgetSome(self)) return false;
        }
        return true;
    }

    pub fn isPinned(self: *const Index, at: u32) bool {
        return self.pinned[0] == at or self.pinned[1] == at;
    }

    /// Saves the chunk before a change if a save is in progress and has not saved it yet.
    pub inline fn beforeChange(self: *Index, at: u32) void {
        if (self.saver) |saver| saver.keep(self, at);
    }

    /// Applies changes in order. All changes are validated first: if one is invalid, none is
    /// applied.
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

    /// Prefetches memory for the changes that follow the current change of `count` hashes.
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
