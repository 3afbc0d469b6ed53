//! The functions behind the exports for message authentication codes.

const mac = @import("../hash/root.zig").mac;
const memory = @import("../mem/root.zig");
const types = @import("mac_types.zig");
const calls = @import("calls.zig");
const Error = @import("status.zig").Error;
const required = calls.required;

pub fn copyIn(request: ?*types.MacRequest, sum: ?*u64) Error!void {
    const wanted = try required(request);
    const out = try required(sum);
    const region = try memory.table.get(wanted.region);
    const to = try region.writableSpan(wanted.offset, wanted.bytes);
    const from = try calls.bytesAt(@ptrFromInt(wanted.buffer), wanted.bytes);
    var state = wanted.begin();
    out.* = mac.publishTagged(&state, to, from);
    wanted.mac = state.finish();
}

pub fn copyOut(request: ?*const types.MacRequest) Error!u32 {
    const wanted = try required(request);
    const from = try (try memory.table.get(wanted.region)).span(wanted.offset, wanted.bytes);
    const to = try calls.writableAt(@ptrFromInt(wanted.buffer), wanted.bytes);
    var state = wanted.begin();
    state.copy(to.ptr, from);
    return @intFromBool(state.matches(&wanted.mac));
}

pub fn check(request: ?*const types.MacRequest) Error!u32 {
    const wanted = try required(request);
    const bytes = try (try memory.table.get(wanted.region)).span(wanted.offset, wanted.bytes);
    return @intFromBool(wanted.matches(bytes));
}
