//! The monotonic clock, for deadlines.

const linux = @import("std").os.linux;

/// Nanoseconds since an arbitrary moment in the past.
pub fn now() u64 {
    var time: linux.timespec = undefined;
    // clock_gettime cannot fail for this clock.
    _ = linux.clock_gettime(.MONOTONIC, &time);
    return @as(u64, @intCast(time.sec)) * 1_000_000_000 + @as(u64, @intCast(time.nsec));
}
