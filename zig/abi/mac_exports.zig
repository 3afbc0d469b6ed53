//! The exported functions for message authentication codes (MACs). They contain no logic: each
//! converts its arguments, calls a function of mac_calls.zig and maps the error to a status.

const types = @import("mac_types.zig");
const mac_calls = @import("mac_calls.zig");
const status = @import("status.zig");
const code = status.code;
const codeOrCount = status.codeOrCount;

pub const exports = struct {
    /// Copies the caller's memory into the region and writes the MAC to the request; `sum` receives
    /// XXH3-64 of the bytes.
    pub fn hearth_region_mac_in(request: ?*types.MacRequest, sum: ?*u64) callconv(.c) i32 {
        return code(mac_calls.copyIn(request, sum));
    }

    /// Copies from the region to the caller's memory. Returns 1 if the copied bytes match the
    /// request's MAC, else 0.
    pub fn hearth_region_mac_out(request: ?*const types.MacRequest) callconv(.c) i32 {
        return codeOrCount(mac_calls.copyOut(request));
    }

    /// Returns 1 if the bytes in the region match the request's MAC, else 0.
    pub fn hearth_region_mac_check(request: ?*const types.MacRequest) callconv(.c) i32 {
        return codeOrCount(mac_calls.check(request));
    }
};
