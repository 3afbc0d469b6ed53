//! A first-in, first-out queue of fixed size. The caller must not push to a full queue or pop from
//! an empty one; both are asserted.

const std = @import("std");

pub fn Fifo(comptime T: type) type {
    return struct {
        const Self = @This();
        items: []T,
        head: usize = 0,
        count: usize = 0,

        pub fn push(self: *Self, item: T) void {
            std.debug.assert(self.count < self.items.len);
            self.items[(self.head + self.count) % self.items.len] = item;
            self.count += 1;
        }

        pub fn pop(self: *Self) T {
            std.debug.assert(self.count > 0);
            const item = self.items[self.head];
            self.head = (self.head + 1) % self.items.len;
            self.count -= 1;
            return item;
        }

        /// Removes and returns the newest item.
        pub fn takeBack(self: *Self) T {
            std.debug.assert(self.count > 0);
            self.count -= 1;
            return self.items[(self.head + self.count) % self.items.len];
        }
    };
}

test "items leave in the order of arrival, across the end of the memory" {
    var memory: [3]u8 = undefined;
    var fifo: Fifo(u8) = .{ .items = &memory };
    for (0..10) |round| {
        fifo.push(@intCast(round));
        fifo.push(@intCast(round + 100));
        fifo.push(7);
        try std.testing.expectEqual(7, fifo.takeBack());
        try std.testing.expectEqual(round, fifo.pop());
        try std.testing.expectEqual(round + 100, fifo.pop());
    }
}
