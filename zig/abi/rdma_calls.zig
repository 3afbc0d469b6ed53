//! What stands behind the RDMA exports.

const types = @import("rdma_types.zig");
const calls = @import("calls.zig");
const Error = @import("status.zig").Error;
const required = calls.required;

pub fn create(request: ?*const types.RdmaRequest, info: ?*types.RdmaInfo) Error!void {
    _ = try required(request);
    (try required(info)).* = .{
        .handle = 0,
        .event_fd = -1,
        .state = @intFromEnum(types.RdmaState.no_library),
        .ports = 0,
        .errno = 0,
    };
}

pub fn port(handle: u64, index: u32, out: ?*types.RdmaPort) Error!void {
    _ = .{ handle, index };
    _ = try required(out);
    return error.StaleHandle;
}

pub fn reap(handle: u64, done: ?[*]types.RdmaDone, count: u32) Error!u32 {
    _ = .{ handle, count };
    _ = try required(done);
    return error.StaleHandle;
}

pub fn close(handle: u64) Error!void {
    _ = handle;
    return error.StaleHandle;
}

pub fn linkCreate(
    handle: u64,
    request: ?*const types.RdmaLinkRequest,
    out: ?*u64,
    address: ?*types.RdmaAddress,
) Error!void {
    _ = handle;
    _ = try required(request);
    _ = try required(out);
    _ = try required(address);
    return error.StaleHandle;
}

pub fn linkConnect(link: u64, address: ?*const types.RdmaAddress) Error!void {
    _ = link;
    _ = try required(address);
    return error.StaleHandle;
}

pub fn lend(link: u64, span: ?*const types.RdmaSpan) Error!void {
    _ = link;
    _ = try required(span);
    return error.StaleHandle;
}

pub fn giveBack(link: u64, token: u64) Error!void {
    _ = .{ link, token };
    return error.StaleHandle;
}

pub fn read(link: u64, span: ?*const types.RdmaSpan) Error!void {
    _ = link;
    _ = try required(span);
    return error.StaleHandle;
}

pub fn cancel(link: u64, token: u64) Error!void {
    _ = .{ link, token };
    return error.StaleHandle;
}

pub fn arrived(link: u64, token: u64, out: ?*u64) Error!void {
    _ = .{ link, token };
    _ = try required(out);
    return error.StaleHandle;
}

pub fn linkEnd(link: u64) Error!void {
    _ = link;
    return error.StaleHandle;
}
