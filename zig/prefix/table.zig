//! A hash table from a block hash to its chunk. A bucket is one cache line with one byte (tag) of
//! each hash and the number of its chunk. A lookup may return wrong candidates; the caller compares
//! the hash with the keys of the chunk.

const std = @import("std");
const pages = @import("pages.zig");
const assert = std.debug.assert;
const Error = @import("../abi/status.zig").Error;

const slots = 12;
/// Largest average number of used slots per bucket. With more, too many hashes go to the next
/// bucket.
const slots_filled = 9;
/// Mask of the lanes of the tag vector that contain tags.
const tag_lanes: u16 = (1 << slots) - 1;

const Bucket = extern struct {
    /// One byte of each hash; 0 means that the slot is empty.
    tags: [slots]u8 align(64),
    /// Number of hashes stored in a later bucket because this one was full.
    passed: u32,
    chunks: [slots]u32,
};

comptime {
    assert(@sizeOf(Bucket) == 64);
}

/// Bucket and tag of a hash. A secret seed prevents clients from filling a single bucket.
pub const Spot = struct {
    bucket: usize,
    tag: u8,
};

pub const Table = struct {
    buckets: []Bucket,
    seed: u64,
    count: usize = 0,

    pub fn init(bytes: u64, seed: u64) Error!Table {
        const count = bytes / @sizeOf(Bucket);
        if (count < 1 or count > std.math.maxInt(u32)) return error.BadRequest;
        return .{ .buckets = try pages.map(Bucket, count), .seed = seed };
    }

    pub fn deinit(self: *Table) void {
        pages.unmap(self.buckets);
    }

    pub fn reset(self: *Table) void {
        pages.wipe(self.buckets);
        self.count = 0;
    }

    pub inline fn isFull(self: *const Table) bool {
        return self.count >= self.buckets.len * slots_filled;
    }

    pub inline fn spot(self: *const Table, hash: u64) Spot {
        const product = @as(u128, hash ^ self.seed) * 0x9e3779b97f4a7c15;
        const mixed: u64 = @truncate(product ^ (product >> 64));
        const high = mixed >> 32;
        const tag: u8 = @truncate(mixed);
        return .{ .bucket = high * self.buckets.len >> 32, .tag = if (tag == 0) 255 else tag };
    }

    pub inline fn prefetch(self: *const Table, at: Spot) void {
        @prefetch(&self.buckets[at.bucket], .{});
    }

    /// Returns an iterator over the chunks that may contain the hash.
    pub inline fn candidates(self: *const Table, at: Spot) Candidates {
        var result: Candidates = .{ .table = self, .spot = at, .bucket = at.bucket, .lanes = 0 };
        result.lanes = result.matching();
        return result;
    }

    pub const Candidates = struct {
        table: *const Table,
        spot: Spot,
        bucket: usize,
        lanes: u16,

        inline fn matching(self: *const Candidates) u16 {
            @setRuntimeSafety(false); // `bucket` is always below the number of buckets
            const tags: @Vector(16, u8) = @as(*const [16]u8, @ptrCast(
                &self.table.buckets[self.bucket],
            )).*;
            const equal: u16 = @bitCast(tags == @as(@Vector(16, u8), @splat(self.spot.tag)));
            return equal & tag_lanes;
        }

        pub inline fn next(self: *Candidates) ?u32 {
            @setRuntimeSafety(false); // as above, and lanes are below 12
            while (true) {
                if (self.lanes != 0) {
                    const lane = @ctz(self.lanes);
                    self.lanes &= self.lanes - 1;
                    return self.table.buckets[self.bucket].chunks[lane];
                }
                if (self.table.buckets[self.bucket].passed == 0) return null;
                self.bucket = self.table.after(self.bucket);
                if (self.bucket == self.spot.bucket) return null;
                self.lanes = self.matching();
            }
        }
    };

    inline fn after(self: *const Table, bucket: usize) usize {
        return if (bucket + 1 == self.buckets.len) 0 else bucket + 1;
    }

    pub fn put(self: *Table, at: Spot, chunk: u32) void {
        assert(!self.isFull());
        var bucket = at.bucket;
        while (true) : (bucket = self.after(bucket)) {
            const place = &self.buckets[bucket];
            const slot = std.mem.indexOfScalar(u8, &place.tags, 0) orelse {
                place.passed += 1;
                continue;
            };
            place.tags[slot] = at.tag;
            place.chunks[slot] = chunk;
            self.count += 1;
            return;
        }
    }

    /// Returns the bucket and slot of an entry with this tag and chunk. Entries of one chunk with
    /// the same tag are interchangeable.
    fn find(self: *Table, at: Spot, chunk: u32) struct { *Bucket, usize } {
        var bucket = at.bucket;
        while (true) : (bucket = self.after(bucket)) {
            const place = &self.buckets[bucket];
            for (place.tags, place.chunks, 0..) |tag, other, slot| {
                if (tag == at.tag and other == chunk) return .{ place, slot };
            }
            assert(place.passed > 0);
        }
    }

    pub fn remove(self: *Table, at: Spot, chunk: u32) void {
        const found, const slot = self.find(at, chunk);
        found.tags[slot] = 0;
        self.count -= 1;
        var bucket = at.bucket;
        while (&self.buckets[bucket] != found) : (bucket = self.after(bucket)) {
            self.buckets[bucket].passed -= 1;
        }
    }

    /// Records that the hash is now in another chunk.
    pub fn move(self: *Table, at: Spot, from: u32, to: u32) void {
        const found, const slot = self.find(at, from);
        found.chunks[slot] = to;
    }
};

fn has(table: *const Table, hash: u64, chunk: u32) bool {
    var candidates = table.candidates(table.spot(hash));
    while (candidates.next()) |found| {
        if (found == chunk) return true;
    }
    return false;
}

test "every entry is found, up to the last slot and after removals" {
    var table = try Table.init(64 * 50, 99);
    defer table.deinit();
    var hash: u64 = 0;
    while (!table.isFull()) : (hash += 1) table.put(table.spot(hash), @intCast(hash));
    try std.testing.expectEqual(50 * slots_filled, hash);
    for (0..hash) |i| try std.testing.expect(has(&table, i, @intCast(i)));
    for (0..hash) |i| {
        if (i % 2 == 0) table.remove(table.spot(i), @intCast(i));
        if (i % 2 == 1) table.move(table.spot(i), @intCast(i), @intCast(i + 1000));
    }
    for (0..hash) |i| {
        try std.testing.expect(!has(&table, i, @intCast(i)));
        try std.testing.expectEqual(i % 2 == 1, has(&table, i, @intCast(i + 1000)));
    }
    for (0..hash) |i| {
        if (i % 2 == 1) table.remove(table.spot(i), @intCast(i + 1000));
    }
    for (table.buckets) |bucket| try std.testing.expectEqual(0, bucket.passed);
    try std.testing.expectEqual(0, table.count);
}
