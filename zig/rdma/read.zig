//! A read of a span from another host, in pieces of one READ each. The checksum of the arrived
//! bytes is computed while later pieces are in flight. The caller of each function holds the hub's
//! mutex unless its comment says otherwise.

const std = @import("std");
const types = @import("../abi/rdma_types.zig");
const memory = @import("memory.zig");
const RunningChecksum = @import("../hash/root.zig").RunningChecksum;
const Link = @import("link.zig").Link;
const Error = @import("../abi/status.zig").Error;

/// Number of arrived bytes for which a helper thread starts to hash.
const hash_step = 256 * 1024;

pub const Piece = struct {
    to: []u8,
    from: u64,
    /// Index of the slice that contains `to`.
    slice: usize,
};

pub const Read = struct {
    node: std.DoublyLinkedList.Node = .{},
    link: *Link,
    token: u64,
    /// The span of the region to read into, and its offset there.
    span: []u8,
    offset: u64,
    /// The address of the bytes, as the other host reported it.
    remote: u64,
    key: u32,
    posted: u64 = 0,
    /// Number of bytes that have arrived, from the start of the span: pieces complete in order.
    arrived: u64 = 0,
    hashed: u64 = 0,
    in_flight: u32 = 0,
    fault: types.RdmaFault = .none,
    code: i32 = 0,
    /// True while a helper thread hashes arrived bytes.
    is_hashing: bool = false,
    sum: RunningChecksum = .{},

    pub fn begin(link: *Link, wanted: types.RdmaSpan) Error!void {
        const hub = link.hub;
        if (wanted.bytes == 0) return error.BadRequest;
        const span = try hub.region.writableSpan(wanted.offset, wanted.bytes);
        if (!link.isOpen()) return error.Closed;
        if (hub.reads_unreaped == hub.reads.len) return error.Full;
        hub.reads_unreaped += 1;
        const read = hub.free_reads.pop();
        read.* = .{
            .link = link,
            .token = wanted.token,
            .span = span,
            .offset = wanted.offset,
            .remote = wanted.address,
            .key = wanted.key,
        };
        link.reads.append(&read.node);
        link.pump();
    }

    pub fn wantsMore(read: *const Read) bool {
        return read.fault == .none and read.posted < read.span.len;
    }

    /// Returns the next piece to post, of at most `piece_max` bytes. A piece never spans two
    /// slices.
    pub fn nextPiece(read: *const Read, piece_max: u64) Piece {
        const slice = memory.sliceAt(read.offset + read.posted);
        const bytes = @min(read.span.len - read.posted, piece_max, slice.left);
        return .{
            .to = read.span[@intCast(read.posted)..][0..@intCast(bytes)],
            .from = read.remote +% read.posted,
            .slice = slice.index,
        };
    }

    /// Ends the read with `fault`: no further piece is posted. A read whose bytes have all arrived
    /// still succeeds.
    pub fn end(read: *Read, fault: types.RdmaFault, code: i32) void {
        if (read.fault == .none and read.arrived < read.span.len) {
            read.fault = fault;
            read.code = code;
        }
        read.check();
    }

    /// Completes the read, or starts to hash arrived bytes, if either is due.
    pub fn check(read: *Read) void {
        if (read.is_hashing) return;
        if (read.fault != .none) {
            if (read.in_flight == 0) read.settle(0);
            return;
        }
        const is_whole = read.arrived == read.span.len;
        if (!is_whole and read.arrived - read.hashed < hash_step) return;
        read.is_hashing = true;
        read.link.hub.give(.{ .hash = read });
    }

    /// Hashes arrived bytes on a helper thread, without the mutex: no other thread uses the first
    /// `filled` bytes. Returns the checksum if these are all bytes.
    pub fn hash(read: *Read, filled: u64) u64 {
        if (filled == read.span.len) return read.sum.finish(read.span);
        read.sum.advance(read.span, @intCast(filled));
        return 0;
    }

    /// Continues after a helper thread has hashed the first `filled` bytes.
    pub fn hashedUpTo(read: *Read, filled: u64, sum: u64) void {
        read.is_hashing = false;
        read.hashed = filled;
        const is_whole = filled == read.span.len and read.fault == .none;
        if (is_whole) read.settle(sum) else read.check();
    }

    fn settle(read: *Read, sum: u64) void {
        const link = read.link;
        link.reads.remove(&read.node);
        link.hub.report(.{
            .token = read.token,
            .result = sum,
            .key = 0,
            .event = @intFromEnum(types.RdmaEvent.read),
            .fault = @intFromEnum(read.fault),
            .code = read.code,
        });
        link.hub.free_reads.push(read);
        link.endIfDone();
    }
};

test "pieces end at slices and at the largest message" {
    var bytes: [8]u8 = undefined;
    var read: Read = .{
        .link = undefined,
        .token = 0,
        .span = &bytes,
        .offset = memory.slice_bytes - 6,
        .remote = 100,
        .key = 0,
    };
    const lengths = [_]usize{ 4, 2, 2 };
    const slices = [_]usize{ 0, 0, 1 };
    for (lengths, slices) |length, slice| {
        const piece = read.nextPiece(4);
        try std.testing.expectEqual(length, piece.to.len);
        try std.testing.expectEqual(slice, piece.slice);
        try std.testing.expectEqual(100 + read.posted, piece.from);
        read.posted += piece.to.len;
    }
    try std.testing.expect(!read.wantsMore());
}
