//! A stand-in for libcuda.so.1: the calls of the driver that the library uses, without a GPU.
//!
//! Memory of devices cannot be touched by the host, streams are threads, what is asynchronous is
//! so here, and handles work between processes. It is stricter than a driver where that one is
//! believed to be strict, or where its answer is not known: spans of the host that lie in two
//! registrations are refused, and memory that is freed or unmapped under a copy is counted as
//! `misuse`. plan.zig tells how faults are planned. It encodes how its authors read the interface;
//! a real device has the last word.

const std = @import("std");
const gate = @import("gate.zig");
const state = @import("state.zig");

/// Begins anew with what `text` says of devices and faults; null: with what the environment says.
/// A text that begins with `+` adds to the plan there is. -1: nobody understands it, and nothing
/// changed.
export fn standin_configure(text: ?[*:0]const u8) i32 {
    gate.configure(text) catch return -1;
    return 0;
}

/// Writes a line `name count` for each thing it counted; the bytes written.
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
