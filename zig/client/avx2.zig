//! The library's functions compiled for processors with AVX2 and AES. The library also contains
//! them compiled for every x86-64 processor.

const std = @import("std");
const calls = @import("calls.zig");

/// A failed assertion traps, as in root.zig.
pub const panic = std.debug.no_panic;

comptime {
    @export(&calls.table, .{ .name = "hearth_client_avx2", .visibility = .hidden });
}
