//! A stand-in for libcuda.so.1: the driver calls that the library uses, without a GPU.
//!
//! The host cannot access device memory, streams are threads, asynchronous calls are asynchronous,
//! and handles work between processes. The stand-in is stricter than a driver if the driver is
//! believed to be strict or its behaviour is unknown: host spans that cover two registrations are
//! refused, and memory that is freed or unmapped under a copy is counted as `misuse`. plan.zig
//! describes planned faults. The stand-in implements its authors' reading of the interface; a real
//! device decides.

const std = @import("std");
const gate = @import("gate.zig");
const state = @import("state.zig");

/// Resets the stand-in with the devices and faults of `text`, or of the environment if it is null.
/// A text that begins with `+` changes the current plan instead. Returns -1 and changes nothing if
/// the text is invalid.
export fn standin_configure(text: ?[*:0]const u8) i32 {
    gate.configure(text) catch return -1;
    return 0;
}

/// Writes a line `name count` for each counter and returns the number of bytes written.
export fn standin_counters(out: [*]u8, room: u32) i32 {
    state.lock();
    defer state.unlock();
    return @intCast(state.countedLines(out[0..room]));
}

comptime {
    @setEvalBranchQuota(100_000);
    for (@import("lookup.zig").all_sets) |set| {
        for (std.meta.declarations(set)) |each| {
            @export(&@field(set, each.name), .{ .name = each.name });
        }
    }
}

test {
    _ = @import("plan.zig");
    _ = @import("tests.zig");
}
