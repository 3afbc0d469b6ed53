//! All state of this driver, behind one mutex: plan, devices, counters.

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
    /// How often its primary context is retained; 0: there is none.
    retains: u32 = 0,
    /// Number of its streams, including destroyed ones with work left.
    threads: u32 = 0,
    /// The context was reset: it is unusable until it is retained again.
    is_reset: bool = false,
    /// The code with which it was lost, or 0.
    lost: i32 = 0,
    used_bytes: u64 = 0,
    /// The stream of calls without a stream, from the first such call on.
    default_stream: ?*Stream = null,
};

const Counter = struct { name: []const u8, count: u64 };

var inner: c.pthread_mutex_t = .{};
var changed: c.pthread_cond_t = .{};

pub var plan: Plan = .{};
pub var is_loaded = false;
pub var is_initialized = false;
pub var devices: [devices_max]Device = @splat(.{});
/// Copies started since the plan was set.
pub var copies: u64 = 0;
/// How often `release` was given, for calls that hang.
pub var releases: u64 = 0;
/// Handles are numbers, so that stale ones are detected.
pub var last_handle: usize = 0x10_0000;
var counters: [counters_max]Counter = undefined;
var counters_used: usize = 0;

/// The device whose context is current in this thread.
pub threadlocal var current: ?*Device = null;
pub threadlocal var lost_code: i32 = 0;

pub fn lock() void {
    std.debug.assert(c.pthread_mutex_lock(&inner) == .SUCCESS);
}

pub fn unlock() void {
    std.debug.assert(c.pthread_mutex_unlock(&inner) == .SUCCESS);
}

/// Requires the mutex, which is released meanwhile; wakes may be spurious.
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

/// The first fault of the device wins, also for waiting calls.
pub fn checkLost(device: *const Device) codes.Fault!void {
    if (device.lost == 0) return;
    lost_code = device.lost;
    return error.Lost;
}

/// A call that requires a context has one.
pub fn currentDevice() *Device {
    return current.?;
}

pub fn deviceAt(index: i32) codes.Fault!*Device {
    if (index < 0 or index >= plan.devices) return error.InvalidDevice;
    return &devices[@intCast(index)];
}
