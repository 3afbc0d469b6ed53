//! Copies between engine memory and slots of the arena, with checksums.
//!
//! A block consists of pieces of engine memory; its slot holds them one after another. Each byte is
//! hashed while it is in a register for the copy: memory is read once, and the checksum covers
//! exactly the copied bytes.

const std = @import("std");
const hash = @import("hash");
const populate = @import("populate.zig");

/// Engine memory that contains one piece of each block: the piece of block b has `bytes` bytes at
/// `base + b * stride`. Python packs the same layout.
pub const Region = extern struct {
    base: u64,
    stride: u64,
    bytes: u64,
};

/// A span of engine memory. Python packs the same layout.
pub const Piece = extern struct {
    address: u64,
    bytes: u64,
};

comptime {
    std.debug.assert(@sizeOf(Region) == 24 and @sizeOf(Piece) == 16);
}

/// Slots of at least this many bytes are written with stores that bypass the caches: the engine
/// does not read them soon, and ordinary stores would first load the cache lines.
const streamed_min = 64 * 1024;
/// A call that writes at least this many bytes of engine memory bypasses the caches. Smaller writes
/// may still be cached when the engine reads them.
const scatter_streamed_min = 8 * 1024 * 1024;

/// Number of bytes of the next piece that are prefetched while one piece is copied.
const piece_ahead_bytes = 1024;

/// The pieces of one block in paged engine memory.
pub const Paged = struct {
    regions: []const Region,
    block: u64,

    pub fn count(self: Paged) usize {
        return self.regions.len;
    }

    pub fn at(self: Paged, index: usize) []u8 {
        const region = self.regions[index];
        const address = region.base + self.block * region.stride;
        return @as([*]u8, @ptrFromInt(address))[0..region.bytes];
    }
};

/// The pieces of one block as a list.
pub const Listed = struct {
    pieces: []const Piece,

    pub fn count(self: Listed) usize {
        return self.pieces.len;
    }

    pub fn at(self: Listed, index: usize) []u8 {
        const piece = self.pieces[index];
        if (piece.bytes == 0) return &.{};
        return @as([*]u8, @ptrFromInt(piece.address))[0..piece.bytes];
    }
};

pub fn lengthOf(block: anytype) u64 {
    var length: u64 = 0;
    for (0..block.count()) |i| length += block.at(i).len;
    return length;
}

/// Copies a block to its slot and returns the checksum. Call `fence` before another process may
/// read the bytes.
pub fn gather(block: anytype, slot: u64) u64 {
    const length = lengthOf(block);
    populate.forWriting(slot, length);
    if (length >= streamed_min) return gatherWith(.streamed, block, length, slot);
    return gatherWith(.plain, block, length, slot);
}

fn gatherWith(comptime store: hash.Store, block: anytype, length: u64, slot: u64) u64 {
    var checksum: hash.PiecesChecksum = .init(length);
    var to: [*]u8 = @ptrFromInt(slot);
    for (0..block.count()) |i| {
        if (i + 1 < block.count()) prefetch(block.at(i + 1));
        const piece = block.at(i);
        checksum.copy(store, to, piece);
        to += piece.len;
    }
    return checksum.finish();
}

/// Prefetches the first cache lines of a piece, because the hardware prefetcher starts again at
/// each piece.
fn prefetch(piece: []const u8) void {
    const bytes = @min(piece.len, piece_ahead_bytes);
    var at: usize = 0;
    while (at < bytes) : (at += 64) @prefetch(piece.ptr + at, .{ .locality = 0 });
}

/// Returns whether a scatter of this many bytes bypasses the caches.
pub fn scatterStreams(bytes: u64) bool {
    return bytes >= scatter_streamed_min;
}

/// Copies a slot to a block and returns the checksum of the copied bytes, which differs from the
/// stored checksum if the slot was damaged or changed during the copy. Call `fence` before another
/// thread may read the bytes.
pub fn scatter(streamed: bool, block: anytype, slot: u64) u64 {
    const length = lengthOf(block);
    populate.forReading(slot, length);
    if (streamed) return scatterWith(.streamed, block, length, slot);
    return scatterWith(.plain, block, length, slot);
}

fn scatterWith(comptime store: hash.Store, block: anytype, length: u64, slot: u64) u64 {
    var checksum: hash.PiecesChecksum = .init(length);
    var from: [*]const u8 = @ptrFromInt(slot);
    for (0..block.count()) |i| {
        const piece = block.at(i);
        checksum.copy(store, piece.ptr, from[0..piece.len]);
        from += piece.len;
    }
    return checksum.finish();
}

/// Returns the checksum of a block.
pub fn verify(block: anytype) u64 {
    var checksum: hash.PiecesChecksum = .init(lengthOf(block));
    for (0..block.count()) |i| checksum.update(block.at(i));
    return checksum.finish();
}

/// Like `gather`, and adds the block's bytes to `mac`.
pub fn gatherWithMac(block: anytype, slot: u64, mac: *hash.mac.Mac) u64 {
    const length = lengthOf(block);
    populate.forWriting(slot, length);
    if (length >= streamed_min) return gatherTagged(.streamed, block, length, slot, mac);
    return gatherTagged(.plain, block, length, slot, mac);
}

fn gatherTagged(
    comptime store: hash.Store,
    block: anytype,
    length: u64,
    slot: u64,
    mac: *hash.mac.Mac,
) u64 {
    var checksum: hash.PiecesChecksum = .init(length);
    var to: [*]u8 = @ptrFromInt(slot);
    for (0..block.count()) |i| {
        if (i + 1 < block.count()) prefetch(block.at(i + 1));
        const piece = block.at(i);
        mac.publish(store, &checksum, to, piece);
        to += piece.len;
    }
    return checksum.finish();
}

/// Copies a slot to a block and adds the copied bytes to `mac`.
pub fn scatterWithMac(block: anytype, slot: u64, mac: *hash.mac.Mac) void {
    populate.forReading(slot, lengthOf(block));
    var from: [*]const u8 = @ptrFromInt(slot);
    for (0..block.count()) |i| {
        const piece = block.at(i);
        mac.copy(piece.ptr, from[0..piece.len]);
        from += piece.len;
    }
}

/// Adds the bytes of a block to `mac`, which the caller compares with the expected MAC.
pub fn verifyWithMac(block: anytype, mac: *hash.mac.Mac) void {
    for (0..block.count()) |i| mac.update(block.at(i));
}

/// Makes all bytes written past the caches visible before later writes of this thread.
pub const fence = hash.fence;
