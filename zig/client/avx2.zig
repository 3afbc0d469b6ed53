//! The calls, compiled for processors with AVX2 and AES. Linked into the library beside the ones
//! for every x86-64 processor.

const std = @import("std");
const calls = @import("calls.zig");

/// As in root.zig.
pub const panic = std.debug.no_panic;

comptime {
    @export(&calls.table, .{ .name = "hearth_client_avx2", .visibility = .hidden });
}
