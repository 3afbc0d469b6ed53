//! Finds the GPUs of the host. A separate thread calls the driver, because a kernel module in a bad
//! state can block the caller for ever.

const std = @import("std");
const linux = std.os.linux;
const monotonic = @import("../base/monotonic.zig");
const wakes = @import("../base/wake.zig");
const cuda = @import("driver.zig");
const caller_file = @import("caller.zig");
const identity = @import("identity.zig");
const Identity = identity.Identity;
const Caller = caller_file.Caller;
const Error = @import("../abi/status.zig").Error;

pub const devices_max = 64;

pub const Found = struct {
    identities: [devices_max]Identity = undefined,
    count: usize = 0,
    /// The driver's version number; 0 if unknown.
    version: u32 = 0,
    /// The CUresult that ended the search; 0 if it succeeded.
    code: cuda.Result = 0,
};

const Asking = struct {
    const Phase = enum(u32) { asking, answered, left };

    allocator: std.mem.Allocator,
    driver: cuda.Driver,
    wake_fd: i32,
    found: Found = .{},
    phase: std.atomic.Value(Phase) = .init(.asking),

    fn run(asking: *Asking) void {
        nameThread("hearth-gpu-ask");
        var caller: Caller = .{ .driver = &asking.driver };
        const found = &asking.found;
        found.count = ask(&caller, found) catch |err| none: {
            // All errors of the driver have codes.
            std.debug.assert(err == error.DeviceFailed or err == error.Lost);
            found.code = caller.code;
            break :none 0;
        };
        // Once `phase` is `answered`, the waiting thread may free `asking`; so the descriptor is
        // read before.
        const fd = asking.wake_fd;
        if (asking.phase.swap(.answered, .acq_rel) == .left) return asking.free();
        wakes.ring(fd);
    }

    fn free(asking: *Asking) void {
        _ = linux.close(asking.wake_fd);
        asking.allocator.destroy(asking);
    }

    /// Waits until the search thread has finished. Returns false if `limit_ns` has passed.
    fn wait(asking: *Asking, limit_ns: u64) bool {
        const end = monotonic.now() + limit_ns;
        while (asking.phase.load(.acquire) == .asking) {
            const left_ns = end -| monotonic.now();
            if (left_ns == 0) return asking.phase.swap(.left, .acq_rel) == .answered;
            var polled =
                [_]linux.pollfd{.{ .fd = asking.wake_fd, .events = linux.POLL.IN, .revents = 0 }};
            var limit: linux.timespec = .{
                .sec = @intCast(left_ns / std.time.ns_per_s),
                .nsec = @intCast(left_ns % std.time.ns_per_s),
            };
            _ = linux.ppoll(&polled, 1, &limit, null);
        }
        return true;
    }
};

/// Names the calling thread, so that process listings show which thread hangs.
pub fn nameThread(name: [*:0]const u8) void {
    // prctl cannot fail for a readable name.
    _ = linux.prctl(@intFromEnum(linux.PR.SET_NAME), @intFromPtr(name), 0, 0, 0);
}

/// Finds the GPUs of the host. Sets the code `timeout` if the driver does not return within
/// `limit_ns`.
pub fn find(allocator: std.mem.Allocator, driver: cuda.Driver, limit_ns: u64) Error!Found {
    const asking = try allocator.create(Asking);
    errdefer allocator.destroy(asking);
    asking.* = .{ .allocator = allocator, .driver = driver, .wake_fd = try wakes.create() };
    errdefer _ = linux.close(asking.wake_fd);
    const thread = std.Thread.spawn(.{}, Asking.run, .{asking}) catch return error.OutOfMemory;
    if (!asking.wait(limit_ns)) {
        thread.detach();
        return .{ .code = caller_file.timeout };
    }
    thread.join();
    defer asking.free();
    return asking.found;
}

fn ask(caller: *Caller, found: *Found) Error!usize {
    const driver = caller.driver;
    try caller.check(driver.cuInit(0));
    var version: c_int = 0;
    try caller.check(driver.cuDriverGetVersion(&version));
    found.version = @intCast(@max(0, version));
    var count: c_int = 0;
    try caller.check(driver.cuDeviceGetCount(&count));
    const known = @min(@as(usize, @intCast(@max(0, count))), devices_max);
    for (found.identities[0..known], 0..) |*each, ordinal| {
        each.* = try identity.identify(caller, @intCast(ordinal));
    }
    return known;
}
