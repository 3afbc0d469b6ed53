//! A buddy allocator on one memory mapping of fixed size. Pieces have 64 bytes times a power of two
//! (the order), 32-bit numbers instead of addresses, and can be walked in order of their addresses.

const std = @import("std");
const pages = @import("pages.zig");
const assert = std.debug.assert;
const Error = @import("../abi/status.zig").Error;

pub const unit_bytes = 64;
/// Largest order: pieces have at most `64 << order_max` bytes, which is 2 MiB.
pub const order_max = 15;
pub const none: u32 = std.math.maxInt(u32);

pub const Kind = enum(u2) { free = 0, chunk = 1, list = 2 };

/// Describes the piece that begins at this unit of 64 bytes.
const Mark = packed struct(u8) {
    order: u6 = 0,
    kind: Kind = .free,
};

const Unit = extern struct { bytes: [unit_bytes]u8 align(unit_bytes) };
/// Links of the free list, stored in a free piece.
const Link = extern struct { next: u32, before: u32 };

pub const Piece = struct { at: u32, order: u6, kind: Kind };

pub const Arena = struct {
    units: []Unit,
    marks: []Mark,
    /// Units from this number on were never allocated.
    top: u32 = 0,
    /// Number of units allocated.
    used: u32 = 0,
    free: [order_max + 1]u32 = @splat(none),

    pub fn init(bytes: u64) Error!Arena {
        const count = bytes / (unit_bytes + @sizeOf(Mark));
        if (count < 1 or count >= none) return error.BadRequest;
        const units = try pages.map(Unit, count);
        errdefer pages.unmap(units);
        return .{ .units = units, .marks = try pages.map(Mark, count) };
    }

    pub fn deinit(self: *Arena) void {
        pages.unmap(self.units);
        pages.unmap(self.marks);
    }

    pub fn reset(self: *Arena) void {
        pages.wipe(self.units);
        pages.wipe(self.marks);
        self.* = .{ .units = self.units, .marks = self.marks };
    }

    pub fn bytesUsed(self: *const Arena) u64 {
        return @as(u64, self.used) * (unit_bytes + @sizeOf(Mark));
    }

    pub inline fn address(self: *const Arena, at: u32) *align(unit_bytes) u8 {
        return &self.units[at].bytes[0];
    }

    pub inline fn orderOf(self: *const Arena, at: u32) u6 {
        return self.marks[at].order;
    }

    /// Allocates a piece and returns its number; null if no piece of that order is available.
    pub fn take(self: *Arena, order: u6, kind: Kind) ?u32 {
        assert(kind != .free);
        var from = order;
        while (from <= order_max and self.free[from] == none) from += 1;
        const at = if (from <= order_max) self.takeFree(from, order) else self.takeNew(order);
        const piece = at orelse return null;
        self.marks[piece] = .{ .order = order, .kind = kind };
        self.used += @as(u32, 1) << @intCast(order);
        return piece;
    }

    /// Splits a free piece of order `from` until it has the order `order`.
    fn takeFree(self: *Arena, from: u6, order: u6) u32 {
        const at = self.free[from];
        self.unlink(at, from);
        var rest = from;
        while (rest > order) {
            rest -= 1;
            self.link(at + (@as(u32, 1) << @intCast(rest)), rest);
        }
        return at;
    }

    /// Allocates a piece from units that were never allocated. Units skipped for alignment go to
    /// the free lists.
    fn takeNew(self: *Arena, order: u6) ?u32 {
        const size = @as(u32, 1) << @intCast(order);
        const at = std.mem.alignForward(u64, self.top, size);
        if (at + size > self.units.len) return null;
        while (self.top < at) {
            const step: u6 = @intCast(@ctz(self.top));
            self.link(self.top, step);
            self.top += @as(u32, 1) << @intCast(step);
        }
        self.top = @intCast(at + size);
        return @intCast(at);
    }

    /// Frees a piece and merges it with free neighbours.
    pub fn give(self: *Arena, at: u32) void {
        const mark = self.marks[at];
        assert(mark.kind != .free);
        self.used -= @as(u32, 1) << @intCast(mark.order);
        var place = at;
        var order = mark.order;
        while (order < order_max) {
            const size = @as(u32, 1) << @intCast(order);
            const buddy = place ^ size;
            if (@as(u64, buddy) + size > self.top) break;
            const other = self.marks[buddy];
            if (other.kind != .free or other.order != order) break;
            self.unlink(buddy, order);
            // The former first unit stays marked as free, for walks in progress.
            self.marks[place] = .{ .order = order };
            place = @min(place, buddy);
            order += 1;
        }
        self.link(place, order);
    }

    fn link(self: *Arena, at: u32, order: u6) void {
        const next = self.free[order];
        self.linkOf(at).* = .{ .next = next, .before = none };
        if (next != none) self.linkOf(next).before = at;
        self.free[order] = at;
        self.marks[at] = .{ .order = order };
    }

    fn unlink(self: *Arena, at: u32, order: u6) void {
        const own = self.linkOf(at).*;
        if (own.next != none) self.linkOf(own.next).before = own.before;
        if (own.before != none) self.linkOf(own.before).next = own.next;
        if (own.before == none) self.free[order] = own.next;
    }

    fn linkOf(self: *Arena, at: u32) *Link {
        return @ptrCast(self.address(at));
    }

    /// Walks all pieces in order, starting at unit `from`, where a piece must begin. Pieces may be
    /// allocated and freed during the walk: a freed piece is returned as free or not at all, and a
    /// new piece may be missed.
    pub fn walk(self: *const Arena, from: u32) Walk {
        return .{ .arena = self, .next_at = from };
    }

    pub const Walk = struct {
        arena: *const Arena,
        next_at: u32,

        pub fn next(self: *Walk) ?Piece {
            const at = self.next_at;
            if (at >= self.arena.top) return null;
            const mark = self.arena.marks[at];
            self.next_at = at + (@as(u32, 1) << @intCast(mark.order));
            return .{ .at = at, .order = mark.order, .kind = mark.kind };
        }

        /// Returns the number of the next piece that contains a chunk; null at the end.
        pub fn nextChunk(self: *Walk) ?u32 {
            while (self.next()) |piece| {
                if (piece.kind == .chunk) return piece.at;
            }
            return null;
        }
    };
};

test "pieces never overlap, and all memory returns" {
    var arena = try Arena.init(4096 * (unit_bytes + 1));
    defer arena.deinit();
    var prng: std.Random.DefaultPrng = .init(7);
    const random = prng.random();
    var held: std.ArrayList(Piece) = .empty;
    defer held.deinit(std.testing.allocator);
    var owner: [4096]bool = @splat(false);
    for (0..20_000) |_| {
        const order = random.uintLessThan(u6, 7);
        if (random.boolean()) {
            const at = arena.take(order, .chunk) orelse continue;
            for (owner[at..][0 .. @as(u32, 1) << @intCast(order)]) |*unit| {
                try std.testing.expect(!unit.*);
                unit.* = true;
            }
            try held.append(std.testing.allocator, .{ .at = at, .order = order, .kind = .chunk });
        } else if (held.items.len > 0) {
            const piece = held.swapRemove(random.uintLessThan(usize, held.items.len));
            const size = @as(u32, 1) << @intCast(piece.order);
            @memset(owner[piece.at..][0..size], false);
            arena.give(piece.at);
        }
    }
    var walk = arena.walk(0);
    var chunks: usize = 0;
    while (walk.nextChunk()) |_| chunks += 1;
    try std.testing.expectEqual(held.items.len, chunks);
    for (held.items) |piece| arena.give(piece.at);
    try std.testing.expectEqual(0, arena.used);
    var units: usize = 0;
    while (arena.take(0, .list)) |_| units += 1;
    try std.testing.expectEqual(4096, units);
}
