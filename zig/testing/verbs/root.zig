//! A stand-in for libibverbs.so.1: reliable queue pairs that read each other's memory, without a
//! NIC. The processes of one user can connect to each other. plan.zig describes devices and faults.

const std = @import("std");
const state = @import("state.zig");
const devices = @import("devices.zig");

comptime {
    _ = devices;
    _ = @import("completions.zig");
    _ = @import("engine.zig");
    _ = @import("events.zig");
    _ = @import("memory.zig");
    _ = @import("pairs.zig");
    _ = @import("queries.zig");
}

/// Resets the stand-in with the devices and faults of `text`, or of the environment if it is null.
/// Open objects continue to work but are no longer counted. A text that begins with `+` is added to
/// the current plan instead.
export fn standin_configure(text: ?[*:0]const u8) i32 {
    state.lock.lock();
    defer state.lock.unlock();
    const said: ?[]const u8 = if (text) |words| std.mem.span(words) else null;
    configure(said) catch return -1;
    return 0;
}

fn configure(text: ?[]const u8) error{BadPlan}!void {
    const added = text orelse return state.begin(null);
    if (!std.mem.startsWith(u8, added, "+")) return state.begin(added);
    const before = state.plan;
    var next = before;
    try next.parse(added[1..]);
    state.plan = next;
    devices.follow(&before);
}

/// Writes a line `name count` for each counter and returns the number of bytes written.
export fn standin_counters(out: [*]u8, room: u32) i32 {
    state.lock.lock();
    defer state.lock.unlock();
    return @intCast(state.writeCounters(out[0..room]));
}

export fn ibv_wc_status_str(status: u32) [*:0]const u8 {
    return switch (status) {
        0 => "success",
        1 => "local length error",
        4 => "local protection error",
        5 => "Work Request Flushed Error",
        9 => "remote invalid request error",
        10 => "remote access error",
        12 => "transport retry counter exceeded",
        else => "unknown",
    };
}

test {
    _ = @import("plan.zig");
    _ = @import("test_layout.zig");
    _ = @import("test_pairs.zig");
    _ = @import("test_processes.zig");
}
