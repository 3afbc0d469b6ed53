//! Loads the bytes that `saver.zig` wrote, in parts, into an empty index. The bytes are untrusted:
//! their content is validated like other changes, and removed again if the checksum is wrong.

const std = @import("std");
const arena_file = @import("arena.zig");
const chunk_file = @import("chunk.zig");
const saver_file = @import("saver.zig");
const storing = @import("storing.zig");
const targets_file = @import("targets.zig");
const Entry = chunk_file.Entry;
const Error = @import("../abi/status.zig").Error;
const Head = saver_file.Head;
const Index = @import("index.zig").Index;
const Record = saver_file.Record;

const filter_words_max = 1 << 32;
const entries_max = 1 << 25;

const State = enum { head, filter, torn, chunks, sum, complete };

pub const Loader = struct {
    pending: std.ArrayList(u8) = .empty,
    hasher: std.hash.XxHash3 = .init(0),
    state: State = .head,
    head: Head = undefined,

    pub fn create(index: *Index) Error!*Loader {
        const self = index.gpa.create(Loader) catch return error.OutOfMemory;
        self.* = .{};
        return self;
    }

    pub fn destroy(self: *Loader, gpa: std.mem.Allocator) void {
        self.pending.deinit(gpa);
        gpa.destroy(self);
    }

    /// Loads the next bytes. Returns `forged` if a save cannot have produced them.
    pub fn take(self: *Loader, index: *Index, bytes: []const u8) Error!void {
        self.pending.appendSlice(index.gpa, bytes) catch return error.OutOfMemory;
        var used: usize = 0;
        while (try self.step(index, self.pending.items[used..])) |count| used += count;
        const rest = self.pending.items.len - used;
        std.mem.copyForwards(u8, self.pending.items[0..rest], self.pending.items[used..]);
        self.pending.shrinkRetainingCapacity(rest);
    }

    /// Ends the load. Returns `forged` if the saved bytes are incomplete or the checksum is wrong.
    pub fn finish(self: *Loader, index: *Index) Error!void {
        if (self.state != .complete or self.pending.items.len > 0) return error.Forged;
        countChildren(index);
    }

    /// Loads one item of the input and returns the number of bytes used; null if more input is
    /// needed.
    fn step(self: *Loader, index: *Index, bytes: []const u8) Error!?usize {
        const count = switch (self.state) {
            .head => try self.takeHead(bytes),
            .filter => try self.takeFilter(index, bytes),
            .torn => try self.takeTorn(index, bytes),
            .chunks => try self.takeChunk(index, bytes),
            .sum => return self.takeSum(bytes),
            .complete => return if (bytes.len > 0) error.Forged else null,
        } orelse return null;
        self.hasher.update(bytes[0..count]);
        return count;
    }

    fn takeHead(self: *Loader, bytes: []const u8) Error!?usize {
        if (bytes.len < @sizeOf(Head)) return null;
        self.head = std.mem.bytesToValue(Head, bytes[0..@sizeOf(Head)]);
        if (!std.mem.eql(u8, &self.head.magic, &saver_file.magic)) return error.Forged;
        if (self.head.version != saver_file.version) return error.Forged;
        if (self.head.filter_words > filter_words_max) return error.Forged;
        if (self.head.torn > targets_file.count) return error.Forged;
        self.state = .filter;
        return @sizeOf(Head);
    }

    fn takeFilter(self: *Loader, index: *Index, bytes: []const u8) Error!?usize {
        const size: usize = @intCast(self.head.filter_words * 8);
        if (bytes.len < size) return null;
        if (size > 0) index.filter.load(bytes[0..size]);
        self.state = .torn;
        return size;
    }

    fn takeTorn(self: *Loader, index: *Index, bytes: []const u8) Error!?usize {
        const size = @as(usize, self.head.torn) * 2;
        if (bytes.len < size) return null;
        for (std.mem.bytesAsSlice(u16, bytes[0..size])) |target| {
            index.targets.tear(@as(chunk_file.Holder, target) << 2);
        }
        self.state = .chunks;
        return size;
    }

    fn takeChunk(self: *Loader, index: *Index, bytes: []const u8) Error!?usize {
        if (bytes.len < @sizeOf(Record)) return null;
        const record = std.mem.bytesToValue(Record, bytes[0..@sizeOf(Record)]);
        if (record.len == 0) {
            self.state = .sum;
            return @sizeOf(Record);
        }
        if (record.len > chunk_file.len_max or record.entries > entries_max) return error.Forged;
        const keys_end = @sizeOf(Record) + 8 * @as(usize, record.len);
        const end = keys_end + @sizeOf(Entry) * @as(usize, record.entries);
        if (bytes.len < end) return null;
        const keys = std.mem.bytesAsSlice(u64, bytes[@sizeOf(Record)..keys_end]);
        for (std.mem.bytesAsSlice(u32, bytes[keys_end..end])) |word| {
            const entry: Entry = @bitCast(word);
            if (entry.tier() == targets_file.tiers) return error.Forged;
            if (entry.start > entry.last or entry.last >= record.len) return error.Forged;
            const run_parent: ?u64 = if (record.has_parent != 0) record.parent else null;
            const parent = if (entry.start > 0) keys[entry.start - 1] else run_parent;
            const hashes = keys[entry.start .. @as(usize, entry.last) + 1];
            storing.store(index, entry.holder, parent, hashes);
        }
        index.pinned = .{ arena_file.none, arena_file.none };
        if (record.unsure < record.len) doubt(index, keys[record.unsure..]);
        return end;
    }

    fn takeSum(self: *Loader, bytes: []const u8) Error!?usize {
        if (bytes.len < 8) return null;
        if (std.mem.readInt(u64, bytes[0..8], .little) != self.hasher.final()) return error.Forged;
        self.state = .complete;
        return 8;
    }
};

fn doubt(index: *Index, hashes: []align(1) const u64) void {
    for (hashes) |hash| {
        const place = index.find(hash) orelse continue;
        const chunk = index.chunk(place.chunk);
        chunk.unsure = @min(chunk.unsure, @as(u8, @intCast(place.at)));
    }
}

/// Counts the child chunks of each chunk, after the load: chunks arrive in any order, so a parent
/// may have been loaded after its children.
fn countChildren(index: *Index) void {
    var walk = index.arena.walk(0);
    while (walk.nextChunk()) |at| index.chunk(at).children = 0;
    walk = index.arena.walk(0);
    while (walk.nextChunk()) |at| {
        const parent = index.chunk(at).parentHash() orelse continue;
        const place = index.find(parent) orelse continue;
        index.chunk(place.chunk).children +|= 1;
    }
}
