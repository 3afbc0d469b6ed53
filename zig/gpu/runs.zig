//! Groups pieces into copies for the driver: merges adjacent pieces, and splits copies where the
//! registration of the region's memory changes.

const std = @import("std");
const types = @import("../abi/gpu_types.zig");
const Slices = @import("slices.zig").Slices;
const Slice = @import("slices.zig").Slice;

/// One copy, inside one registration or entirely in unregistered memory.
pub const Run = struct {
    region_offset: u64,
    memory_offset: u64,
    bytes: u64,
    is_registered: bool,
};

pub const Runs = struct {
    pieces: []const types.GpuPiece,
    slices: *Slices,
    /// The part of the merged pieces for which no copy was returned yet.
    rest: types.GpuPiece = .{ .region_offset = 0, .memory_offset = 0, .bytes = 0 },

    pub fn next(runs: *Runs) ?Run {
        while (runs.rest.bytes == 0) {
            if (runs.pieces.len == 0) return null;
            runs.rest = runs.pieces[0];
            runs.pieces = runs.pieces[1..];
        }
        runs.join();
        const extent = runs.slices.extentAt(runs.rest.region_offset);
        const bytes = @min(runs.rest.bytes, extent.end - runs.rest.region_offset);
        const run: Run = .{
            .region_offset = runs.rest.region_offset,
            .memory_offset = runs.rest.memory_offset,
            .bytes = bytes,
            .is_registered = extent.is_registered,
        };
        runs.rest.region_offset += bytes;
        runs.rest.memory_offset += bytes;
        runs.rest.bytes -= bytes;
        return run;
    }

    /// Merges the following pieces that are adjacent both in the region and in GPU memory.
    fn join(runs: *Runs) void {
        while (runs.pieces.len > 0) {
            const piece = runs.pieces[0];
            if (piece.region_offset != runs.rest.region_offset + runs.rest.bytes) return;
            if (piece.memory_offset != runs.rest.memory_offset + runs.rest.bytes) return;
            runs.rest.bytes += piece.bytes;
            runs.pieces = runs.pieces[1..];
        }
    }
};

const testing = std.testing;

fn pieceOf(region_offset: u64, memory_offset: u64, bytes: u64) types.GpuPiece {
    return .{ .region_offset = region_offset, .memory_offset = memory_offset, .bytes = bytes };
}

fn expectRuns(runs: *Runs, wanted: []const Run) !void {
    for (wanted) |run| try testing.expectEqual(run, runs.next().?);
    try testing.expectEqual(null, runs.next());
}

test "pieces adjacent on both sides become one copy" {
    var memory: [1]Slice = .{.{ .offset = 0, .bytes = 1 << 20, .owner = 0 }};
    var slices: Slices = .{ .items = &memory, .count = 1 };
    const pieces = [_]types.GpuPiece{
        pieceOf(0, 4096, 100), pieceOf(100, 4196, 0), pieceOf(100, 4196, 50), pieceOf(150, 0, 10),
        pieceOf(300, 10, 10),
    };
    var runs: Runs = .{ .pieces = &pieces, .slices = &slices };
    try expectRuns(&runs, &.{
        .{ .region_offset = 0, .memory_offset = 4096, .bytes = 150, .is_registered = true },
        .{ .region_offset = 150, .memory_offset = 0, .bytes = 10, .is_registered = true },
        .{ .region_offset = 300, .memory_offset = 10, .bytes = 10, .is_registered = true },
    });
}

test "a copy ends where the registration does" {
    var memory: [2]Slice = .{
        .{ .offset = 4096, .bytes = 4096, .owner = 0 },
        .{ .offset = 8192, .bytes = 4096, .owner = 0 },
    };
    var slices: Slices = .{ .items = &memory, .count = 2 };
    var runs: Runs = .{ .pieces = &.{pieceOf(0, 0, 16384)}, .slices = &slices };
    try expectRuns(&runs, &.{
        .{ .region_offset = 0, .memory_offset = 0, .bytes = 4096, .is_registered = false },
        .{ .region_offset = 4096, .memory_offset = 4096, .bytes = 4096, .is_registered = true },
        .{ .region_offset = 8192, .memory_offset = 8192, .bytes = 4096, .is_registered = true },
        .{ .region_offset = 12288, .memory_offset = 12288, .bytes = 4096, .is_registered = false },
    });
}
