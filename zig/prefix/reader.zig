//! Dumps the content of the index in runs of consecutive blocks, parents before children.

const std = @import("std");
const arena_file = @import("arena.zig");
const chunk_file = @import("chunk.zig");
const Run = @import("../abi/router_types.zig").PrefixRun;
const Error = @import("../abi/status.zig").Error;
const Index = @import("index.zig").Index;

pub const run_bytes_max = @sizeOf(Run) + 8 * chunk_file.len_max;

pub const Reader = struct {
    /// Chunks in the order of the dump: each follows the chunk that contains its parent.
    order: std.ArrayList(u32),
    target: ?u16,
    version: u64,
    at: usize = 0,
    entry: usize = 0,

    /// Starts a dump of the blocks of one target, or of all targets (null).
    pub fn create(index: *Index, target: ?u16) Error!*Reader {
        const gpa = index.gpa;
        const self = gpa.create(Reader) catch return error.OutOfMemory;
        self.* = .{ .order = .empty, .target = target, .version = index.version };
        errdefer self.destroy(gpa);
        self.arrange(index) catch return error.OutOfMemory;
        return self;
    }

    pub fn destroy(self: *Reader, gpa: std.mem.Allocator) void {
        self.order.deinit(gpa);
        gpa.destroy(self);
    }

    fn arrange(self: *Reader, index: *Index) error{OutOfMemory}!void {
        const gpa = index.gpa;
        try self.order.ensureTotalCapacity(gpa, index.chunks);
        var seen: std.DynamicBitSetUnmanaged = try .initEmpty(gpa, index.arena.top);
        defer seen.deinit(gpa);
        var walk = index.arena.walk(0);
        while (walk.nextChunk()) |first| {
            if (!self.wants(index, first)) continue;
            const from = self.order.items.len;
            var at = first;
            // Contradictory parents can form a cycle. The search then ends where it entered the
            // cycle.
            while (!seen.isSet(at)) {
                seen.set(at);
                try self.order.append(gpa, at);
                const parent = index.chunk(at).parentHash() orelse break;
                at = (index.find(parent) orelse break).chunk;
            }
            std.mem.reverse(u32, self.order.items[from..]);
        }
    }

    fn wants(self: *const Reader, index: *const Index, at: u32) bool {
        const target = self.target orelse return true;
        for (index.chunk(at).holders(&index.arena)) |entry| {
            if (entry.target() == target) return true;
        }
        return false;
    }

    /// Fills `out` with whole runs and returns the number of bytes, 0 at the end. `busy`: the index
    /// has changed since `create`.
    pub fn next(self: *Reader, index: *Index, out: []u8) Error!u32 {
        if (index.version != self.version) return error.Busy;
        if (out.len < run_bytes_max) return error.BadRequest;
        var filled: usize = 0;
        while (self.at < self.order.items.len) : (self.at += 1) {
            const chunk = index.chunk(self.order.items[self.at]);
            const entries = chunk.holders(&index.arena);
            while (self.entry < entries.len) : (self.entry += 1) {
                const entry = entries[self.entry];
                if (self.target) |target| if (entry.target() != target) continue;
                if (out.len - filled < run_bytes_max) return @intCast(filled);
                const keys = chunk.keys();
                const hashes = keys[entry.start .. @as(usize, entry.last) + 1];
                const parent = if (entry.start > 0) keys[entry.start - 1] else chunk.parentHash();
                const run: Run = .{
                    .parent = parent orelse 0,
                    .target = entry.target(),
                    .tier = entry.tier(),
                    .has_parent = @intFromBool(parent != null),
                    .count = @intCast(hashes.len),
                };
                @memcpy(out[filled..][0..@sizeOf(Run)], std.mem.asBytes(&run));
                filled += @sizeOf(Run);
                const bytes = std.mem.sliceAsBytes(hashes);
                @memcpy(out[filled..][0..bytes.len], bytes);
                filled += bytes.len;
            }
            self.entry = 0;
        }
        return @intCast(filled);
    }
};
