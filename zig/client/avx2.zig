//! The calls, compiled for processors with AVX2 and AES. The library contains them beside the calls
//! for every x86-64 processor.

const std = @import("std");
const calls = @import("calls.zig");

/// The same as in root.zig.
pub const panic = std.debug.no_panic;

comptime {
    @export(&calls.table, .{ .name = "hearth_client_avx2", .visibility = .hidden });
}
