//! The parts of the region that are registered with the CUDA driver. A copy must not cross from one
//! registration into another, and a copy from unregistered memory blocks.

const std = @import("std");
const sync = @import("../base/mutex.zig");
const Error = @import("../abi/status.zig").Error;

/// Largest size of one registration in bytes, because the driver call cannot be interrupted.
pub const slice_bytes_max = 1 << 30;

pub const Slice = struct {
    offset: u64,
    bytes: u64,
    /// Index of the device in whose context the slice was registered; the registration ends with
    /// this context.
    owner: u32,
    /// False if another part of the process had registered the memory, which must then not be
    /// unregistered here.
    is_ours: bool = true,
    /// False once the owner's context is destroyed: the memory is then unregistered.
    is_live: bool = true,

    fn end(slice: Slice) u64 {
        return slice.offset + slice.bytes;
    }
};

/// A range of the region that starts at a given offset and is entirely registered or entirely
/// unregistered.
pub const Extent = struct {
    is_registered: bool,
    end: u64,
};

pub const Slices = struct {
    mutex: sync.Mutex = .{},
    /// Slices in order of their offsets, without overlap.
    items: []Slice,
    count: usize = 0,

    pub fn extentAt(slices: *Slices, offset: u64) Extent {
        slices.mutex.lock();
        defer slices.mutex.unlock();
        const index = slices.firstEndingAfter(offset);
        if (index == slices.count) {
            return .{ .is_registered = false, .end = std.math.maxInt(u64) };
        }
        const slice = slices.items[index];
        if (slice.offset > offset) return .{ .is_registered = false, .end = slice.offset };
        return .{ .is_registered = slice.is_live, .end = slice.end() };
    }

    /// Returns the range from `offset` that one registration may cover, at most up to `end`.
    pub fn reachAt(slices: *Slices, offset: u64, end: u64) Extent {
        const extent = slices.extentAt(offset);
        const grid = std.mem.alignForward(u64, offset + 1, slice_bytes_max);
        const reach = if (extent.is_registered) extent.end else @min(extent.end, grid);
        return .{ .is_registered = extent.is_registered, .end = @min(reach, end) };
    }

    pub fn hasRoom(slices: *Slices) bool {
        slices.mutex.lock();
        defer slices.mutex.unlock();
        return slices.count < slices.items.len;
    }

    /// Adds a slice. Returns false if it overlaps an existing one, or `Full`.
    pub fn add(slices: *Slices, slice: Slice) Error!bool {
        slices.mutex.lock();
        defer slices.mutex.unlock();
        if (slices.count == slices.items.len) return error.Full;
        const index = slices.firstEndingAfter(slice.offset);
        const is_last = index == slices.count;
        if (!is_last and slices.items[index].offset < slice.end()) return false;
        const after = slices.items[index..slices.count];
        std.mem.copyBackwards(Slice, slices.items[index + 1 ..][0..after.len], after);
        slices.items[index] = slice;
        slices.count += 1;
        return true;
    }

    pub fn hasOf(slices: *Slices, owner: u32) bool {
        slices.mutex.lock();
        defer slices.mutex.unlock();
        return for (slices.items[0..slices.count]) |slice| {
            if (slice.owner == owner) break true;
        } else false;
    }

    /// Marks the slices of `owner` as unregistered after its context was destroyed.
    pub fn expire(slices: *Slices, owner: u32) void {
        slices.mutex.lock();
        defer slices.mutex.unlock();
        for (slices.items[0..slices.count]) |*slice| {
            if (slice.owner == owner) slice.is_live = false;
        }
    }

    /// Removes and returns one slice that the device `owner` registered; null if it has none.
    pub fn takeOf(slices: *Slices, owner: u32) ?Slice {
        slices.mutex.lock();
        defer slices.mutex.unlock();
        var index = slices.count;
        while (index > 0) {
            index -= 1;
            const slice = slices.items[index];
            if (slice.owner != owner) continue;
            const after = slices.items[index + 1 .. slices.count];
            std.mem.copyForwards(Slice, slices.items[index..][0..after.len], after);
            slices.count -= 1;
            return slice;
        }
        return null;
    }

    fn firstEndingAfter(slices: *const Slices, offset: u64) usize {
        var low: usize = 0;
        var high = slices.count;
        while (low < high) {
            const middle = low + (high - low) / 2;
            if (slices.items[middle].end() > offset) high = middle else low = middle + 1;
        }
        return low;
    }
};

const testing = std.testing;

test "extents follow registrations made in any order" {
    var memory: [4]Slice = undefined;
    var slices: Slices = .{ .items = &memory };
    try testing.expect(!slices.extentAt(0).is_registered);
    try testing.expect(try slices.add(.{ .offset = 8192, .bytes = 4096, .owner = 1 }));
    try testing.expect(try slices.add(.{ .offset = 0, .bytes = 4096, .owner = 0 }));
    try testing.expect(!try slices.add(.{ .offset = 4096, .bytes = 8192, .owner = 0 }));
    try testing.expect(!try slices.add(.{ .offset = 0, .bytes = 4096, .owner = 1 }));
    try testing.expectEqual(Extent{ .is_registered = true, .end = 4096 }, slices.extentAt(4095));
    try testing.expectEqual(Extent{ .is_registered = false, .end = 8192 }, slices.extentAt(4096));
    try testing.expectEqual(Extent{ .is_registered = true, .end = 12288 }, slices.extentAt(8192));
    try testing.expectEqual(std.math.maxInt(u64), slices.extentAt(12288).end);
    slices.expire(0);
    try testing.expectEqual(Extent{ .is_registered = false, .end = 4096 }, slices.extentAt(0));
    try testing.expect(slices.hasOf(0) and slices.hasOf(1) and !slices.hasOf(2));
    try testing.expectEqual(8192, slices.takeOf(1).?.offset);
    try testing.expectEqual(null, slices.takeOf(1));
    try testing.expectEqual(std.math.maxInt(u64), slices.extentAt(4096).end);
}

test "a registration ends at the grid, at an existing one, or at its own end" {
    var memory: [2]Slice = undefined;
    var slices: Slices = .{ .items = &memory };
    const gib = slice_bytes_max;
    try testing.expectEqual(gib, slices.reachAt(0, 4 * gib).end);
    try testing.expectEqual(2 * gib, slices.reachAt(gib, 4 * gib).end);
    try testing.expectEqual(5000, slices.reachAt(4096, 5000).end);
    _ = try slices.add(.{ .offset = 8192, .bytes = 4096, .owner = 0 });
    try testing.expectEqual(8192, slices.reachAt(0, gib).end);
    const inside: Extent = .{ .is_registered = true, .end = 9000 };
    try testing.expectEqual(inside, slices.reachAt(8192, 9000));
    _ = try slices.add(.{ .offset = 4096, .bytes = 4096, .owner = 0 });
    try testing.expect(!slices.hasRoom());
    try testing.expectError(error.Full, slices.add(.{ .offset = 0, .bytes = 4096, .owner = 0 }));
}
