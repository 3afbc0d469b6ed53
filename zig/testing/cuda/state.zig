//! State of the CUDA stand-in, protected by one mutex: plan, devices, and counters.

const std = @import("std");
const c = std.c;
const codes = @import("codes.zig");
const Plan = @import("plan.zig").Plan;
const devices_max = @import("plan.zig").devices_max;
const Stream = @import("stream.zig").Stream;

pub const allocator = std.heap.c_allocator;
const counters_max = 160;

pub const Device = struct {
    index: u32 = 0,
    /// Number of times that the primary context is retained; 0 without a context.
    retains: u32 = 0,
    /// Number of the device's streams, including destroyed ones with work left.
    threads: u32 = 0,
    /// True after a reset of the context, which is then unusable until it is retained again.
    is_reset: bool = false,
    /// The result code with which the device was lost; 0 if it works.
    lost: i32 = 0,
    used_bytes: u64 = 0,
    /// The stream for calls that name no stream; created by the first such call.
    default_stream: ?*Stream = null,
};

const Counter = struct { name: []const u8, count: u64 };

var inner: c.pthread_mutex_t = .{};
var changed: c.pthread_cond_t = .{};

pub var plan: Plan = .{};
pub var is_loaded = false;
pub var is_initialized = false;
pub var devices: [devices_max]Device = @splat(.{});
/// Number of copies started since the plan was set.
pub var copies: u64 = 0;
/// Number of times that a plan said `release`, which ends calls that hang.
pub var releases: u64 = 0;
/// The last handle that was issued. Handles are numbers and not addresses, so that stale handles
/// are detected.
pub var last_handle: usize = 0x10_0000;
var counters: [counters_max]Counter = undefined;
var counters_used: usize = 0;

/// The device whose context is current on this thread.
pub threadlocal var current: ?*Device = null;
pub threadlocal var lost_code: i32 = 0;

pub fn lock() void {
    std.debug.assert(c.pthread_mutex_lock(&inner) == .SUCCESS);
}

pub fn unlock() void {
    std.debug.assert(c.pthread_mutex_unlock(&inner) == .SUCCESS);
}

/// Waits for a change of the state. The caller holds the mutex, which is released during the wait.
/// May return without a change.
pub fn wait() void {
    std.debug.assert(c.pthread_cond_wait(&changed, &inner) == .SUCCESS);
}

pub fn wake() void {
    std.debug.assert(c.pthread_cond_broadcast(&changed) == .SUCCESS);
}

pub fn count(name: []const u8, by: i64) void {
    const counter = for (counters[0..counters_used]) |*each| {
        if (std.mem.eql(u8, each.name, name)) break each;
    } else blk: {
        std.debug.assert(counters_used < counters_max);
        counters[counters_used] = .{ .name = name, .count = 0 };
        counters_used += 1;
        break :blk &counters[counters_used - 1];
    };
    counter.count = @intCast(@as(i64, @intCast(counter.count)) + by);
}

pub fn countedLines(out: []u8) usize {
    var used: usize = 0;
    for (counters[0..counters_used]) |counter| {
        const room = out[used..];
        const line = std.fmt.bufPrint(room, "{s} {d}\n", .{ counter.name, counter.count }) catch {
            return used;
        };
        used += line.len;
    }
    return used;
}

pub fn forgetCounts() void {
    counters_used = 0;
}

pub fn newHandle() usize {
    last_handle += 16;
    return last_handle;
}

/// Marks the device as lost and wakes all waiting calls.
pub fn lose(device: *Device, code: i32) void {
    if (device.lost == 0) device.lost = code;
    wake();
}

/// Returns `Lost` if the device is lost. Its first fault stays, also for calls that waited.
pub fn checkLost(device: *const Device) codes.Fault!void {
    if (device.lost == 0) return;
    lost_code = device.lost;
    return error.Lost;
}

/// Returns the device of the current context, which must exist.
pub fn currentDevice() *Device {
    return current.?;
}

pub fn deviceAt(index: i32) codes.Fault!*Device {
    if (index < 0 or index >= plan.devices) return error.InvalidDevice;
    return &devices[@intCast(index)];
}
