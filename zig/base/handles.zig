//! Handles: u64 values made of a slot and a generation. A closed handle never becomes valid again,
//! so a stale, null or twice-closed handle is always detected.

const std = @import("std");
const Error = @import("../abi/status.zig").Error;
const Mutex = @import("mutex.zig").Mutex;

/// Number of low bits of a handle that hold the slot and the kind; the other bits are the
/// generation. A handle exceeds the exact range of a JavaScript number (2^53) only after 2^37
/// generations of one slot.
const slot_bits = 16;

/// A table of at most `capacity` live objects of one kind. `kind` differs per table, so a handle of
/// one kind is stale in all other tables.
pub fn HandleTable(comptime T: type, comptime capacity: u16, comptime kind: u4) type {
    const slots_max: u16 = (1 << (slot_bits - 4)) - 1;
    std.debug.assert(capacity <= slots_max);

    return struct {
        const Self = @This();

        mutex: Mutex = .{},
        objects: [capacity]?*T = @splat(null),
        generations: [capacity]u32 = @splat(0),

        pub fn add(self: *Self, object: *T) Error!u64 {
            self.mutex.lock();
            defer self.mutex.unlock();
            for (&self.objects, &self.generations, 0..) |*place, *generation, slot| {
                if (place.* != null) continue;
                generation.* += 1;
                place.* = object;
                return encode(@intCast(slot), generation.*);
            }
            return error.Full;
        }

        /// Returns the live object of a handle, or `StaleHandle`.
        pub fn get(self: *Self, handle: u64) Error!*T {
            self.mutex.lock();
            defer self.mutex.unlock();
            return self.objects[try self.find(handle)].?;
        }

        /// Invalidates the handle and returns its object, which the caller then owns.
        pub fn remove(self: *Self, handle: u64) Error!*T {
            self.mutex.lock();
            defer self.mutex.unlock();
            const slot = try self.find(handle);
            const object = self.objects[slot].?;
            self.objects[slot] = null;
            return object;
        }

        fn encode(slot: u16, generation: u32) u64 {
            const low = (@as(u64, slot) << 4) | kind;
            return (@as(u64, generation) << slot_bits) | low;
        }

        fn find(self: *Self, handle: u64) Error!usize {
            const slot: usize = @intCast((handle & ((1 << slot_bits) - 1)) >> 4);
            const generation = handle >> slot_bits;
            if (handle & 0xf != kind or slot >= capacity) return error.StaleHandle;
            if (generation != self.generations[slot]) return error.StaleHandle;
            if (self.objects[slot] == null) return error.StaleHandle;
            return slot;
        }
    };
}

test "null, foreign, closed and reused handles are stale" {
    var table: HandleTable(u32, 4, 1) = .{};
    var other: HandleTable(u32, 4, 2) = .{};
    var value: u32 = 7;
    try std.testing.expectError(error.StaleHandle, table.get(0));
    const first = try table.add(&value);
    try std.testing.expectEqual(&value, try table.get(first));
    try std.testing.expectError(error.StaleHandle, other.get(first));
    _ = try table.remove(first);
    try std.testing.expectError(error.StaleHandle, table.remove(first));
    const second = try table.add(&value);
    try std.testing.expect(first != second);
    try std.testing.expectError(error.StaleHandle, table.get(first));
}

test "a full table refuses another object with Full" {
    var table: HandleTable(u32, 2, 3) = .{};
    var value: u32 = 0;
    _ = try table.add(&value);
    _ = try table.add(&value);
    try std.testing.expectError(error.Full, table.add(&value));
}
