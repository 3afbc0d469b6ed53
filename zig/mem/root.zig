//! Shared memory: the arena, and mapped views of the arenas of other processes.

const std = @import("std");
const handles = @import("../base/handles.zig");
const sync = @import("../base/mutex.zig");
const types = @import("../abi/types.zig");
const status = @import("../abi/status.zig");
const System = @import("../base/system.zig").System;
const Error = status.Error;

pub const Region = @import("region.zig").RegionOf(System);

const allocator = std.heap.c_allocator;
const regions_max = 1024;

/// Table of all regions of this process, by handle.
pub const table = struct {
    var live: handles.HandleTable(Region, regions_max, 1) = .{};
    /// Serialises `acquire` with closing a region, so that a region in use cannot close.
    var closing: sync.Mutex = .{};

    pub fn add(region: Region) Error!u64 {
        const kept = try allocator.create(Region);
        errdefer allocator.destroy(kept);
        kept.* = region;
        return live.add(kept);
    }

    pub fn get(handle: u64) Error!*Region {
        return live.get(handle);
    }

    /// Like `get`, and prevents the region from closing until `release`.
    pub fn acquire(handle: u64) Error!*Region {
        closing.lock();
        defer closing.unlock();
        const region = try live.get(handle);
        _ = region.in_flight.fetchAdd(1, .acquire);
        return region;
    }

    pub fn release(region: *Region) void {
        _ = region.in_flight.fetchSub(1, .release);
    }

    pub fn close(handle: u64) Error!void {
        closing.lock();
        defer closing.unlock();
        const region = try live.get(handle);
        if (region.in_flight.load(.acquire) != 0) return error.Busy;
        _ = try live.remove(handle);
        region.destroy();
        allocator.destroy(region);
    }
};

test {
    _ = @import("../testing/failing_system.zig");
}
