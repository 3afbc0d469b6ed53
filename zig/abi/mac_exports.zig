//! The exported functions for message authentication codes. They hold no logic: each casts, calls
//! and maps the error.

const types = @import("mac_types.zig");
const mac_calls = @import("mac_calls.zig");
const status = @import("status.zig");
const code = status.code;
const codeOrCount = status.codeOrCount;

pub const exports = struct {
    /// Copies into the region and fills the request's MAC; `sum` receives XXH3-64 of the bytes.
    pub fn hearth_region_mac_in(request: ?*types.MacRequest, sum: ?*u64) callconv(.c) i32 {
        return code(mac_calls.copyIn(request, sum));
    }

    /// Copies out of the region. Returns 1 if the copied bytes match the request's MAC, else 0.
    pub fn hearth_region_mac_out(request: ?*const types.MacRequest) callconv(.c) i32 {
        return codeOrCount(mac_calls.copyOut(request));
    }

    /// Returns 1 if the region's bytes match the request's MAC, else 0.
    pub fn hearth_region_mac_check(request: ?*const types.MacRequest) callconv(.c) i32 {
        return codeOrCount(mac_calls.check(request));
    }
};
