//! Saves the state that the index had when the save started, in parts, while changes continue: each
//! chunk is saved before its first change.
//!
//! The bytes: `Head`, the words of the filter, the targets with evicted entries (u16), a `Record`
//! with keys and entries for each chunk, a `Record` of length 0, and XXH3-64 of all of these.

const std = @import("std");
const arena_file = @import("arena.zig");
const chunk_file = @import("chunk.zig");
const targets_file = @import("targets.zig");
const Error = @import("../abi/status.zig").Error;
const Index = @import("index.zig").Index;

pub const magic = "HEARTHPX".*;
pub const version = 1;

pub const Head = extern struct {
    magic: [8]u8,
    version: u32,
    torn: u32,
    filter_words: u64,
};

pub const Record = extern struct {
    parent: u64,
    entries: u32,
    len: u8,
    unsure: u8,
    has_parent: u8,
    reserved: u8,
};

pub const Saver = struct {
    gpa: std.mem.Allocator,
    walk: arena_file.Arena.Walk,
    pending: std.ArrayList(u8) = .empty,
    /// Number of bytes of `pending` already returned.
    given: usize = 0,
    hasher: std.hash.XxHash3 = .init(0),
    is_complete: bool = false,
    /// True if a chunk could not be saved before its change because memory ran out; the save then
    /// fails.
    has_failed: bool = false,

    pub fn create(index: *Index) Error!*Saver {
        const self = index.gpa.create(Saver) catch return error.OutOfMemory;
        self.* = .{ .gpa = index.gpa, .walk = index.arena.walk(0) };
        errdefer self.destroy(index.gpa);
        self.begin(index) catch return error.OutOfMemory;
        index.parity ^= 1;
        return self;
    }

    pub fn destroy(self: *Saver, gpa: std.mem.Allocator) void {
        self.pending.deinit(gpa);
        gpa.destroy(self);
    }

    fn begin(self: *Saver, index: *const Index) error{OutOfMemory}!void {
        const words = if (index.filter.isEmpty) &.{} else index.filter.words;
        const head: Head = .{
            .magic = magic,
            .version = version,
            .torn = index.targets.torn_count,
            .filter_words = words.len,
        };
        try self.write(std.mem.asBytes(&head));
        try self.write(std.mem.sliceAsBytes(words));
        for (index.targets.torn, 0..) |torn, target| {
            if (torn) try self.write(std.mem.asBytes(&@as(u16, @intCast(target))));
        }
    }

    fn write(self: *Saver, bytes: []const u8) error{OutOfMemory}!void {
        try self.pending.appendSlice(self.gpa, bytes);
        self.hasher.update(bytes);
    }

    /// Saves a chunk unless it is already saved.
    pub fn keep(self: *Saver, index: *const Index, at: u32) void {
        const chunk = index.chunk(at);
        if (chunk.flags.parity == index.parity) return;
        chunk.flags.parity = index.parity;
        self.record(index, chunk) catch {
            self.has_failed = true;
        };
    }

    fn record(
        self: *Saver,
        index: *const Index,
        chunk: *chunk_file.Chunk,
    ) error{OutOfMemory}!void {
        const entries = chunk.holders(&index.arena);
        if (self.has_failed or entries.len == 0) return;
        const head: Record = .{
            .parent = chunk.parent,
            .entries = chunk.entries,
            .len = chunk.len,
            .unsure = chunk.unsure,
            .has_parent = @intFromBool(chunk.flags.has_parent),
            .reserved = 0,
        };
        try self.write(std.mem.asBytes(&head));
        try self.write(std.mem.sliceAsBytes(chunk.keys()));
        try self.write(std.mem.sliceAsBytes(entries));
    }

    /// Fills `out` with the next saved bytes and returns their number, 0 at the end.
    pub fn next(self: *Saver, index: *Index, out: []u8) Error!u32 {
        while (!self.is_complete and !self.has_failed and self.waiting() < out.len) {
            const at = self.walk.nextChunk() orelse {
                self.end() catch return error.OutOfMemory;
                break;
            };
            self.keep(index, at);
        }
        if (self.has_failed) return error.OutOfMemory;
        const count = @min(out.len, self.waiting());
        @memcpy(out[0..count], self.pending.items[self.given..][0..count]);
        self.given += count;
        const rest = self.waiting();
        if (rest <= self.given) {
            @memcpy(self.pending.items[0..rest], self.pending.items[self.given..]);
            self.pending.shrinkRetainingCapacity(rest);
            self.given = 0;
        }
        return @intCast(count);
    }

    fn waiting(self: *const Saver) usize {
        return self.pending.items.len - self.given;
    }

    fn end(self: *Saver) error{OutOfMemory}!void {
        try self.write(std.mem.asBytes(&std.mem.zeroes(Record)));
        const sum = self.hasher.final();
        try self.pending.appendSlice(self.gpa, std.mem.asBytes(&sum));
        self.is_complete = true;
    }

    /// Ends the save, complete or not: gives all chunks the same parity again.
    pub fn finish(index: *Index) void {
        var walk = index.arena.walk(0);
        while (walk.nextChunk()) |at| index.chunk(at).flags.parity = index.parity;
    }
};
