//! Reads the monotonic clock, which deadlines use.

const linux = @import("std").os.linux;

/// Returns nanoseconds since an arbitrary moment in the past.
pub fn now() u64 {
    var time: linux.timespec = undefined;
    // clock_gettime cannot fail for CLOCK_MONOTONIC.
    _ = linux.clock_gettime(.MONOTONIC, &time);
    return @as(u64, @intCast(time.sec)) * 1_000_000_000 + @as(u64, @intCast(time.nsec));
}
