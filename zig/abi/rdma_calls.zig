//! The functions behind the RDMA exports: each checks its request and calls rdma/hub.zig.

const std = @import("std");
const handles = @import("../base/handles.zig");
const types = @import("rdma_types.zig");
const calls = @import("calls.zig");
const hub_file = @import("../rdma/hub.zig");
const direct = @import("../rdma/direct.zig");
const memory = @import("../mem/root.zig");
const Hub = hub_file.Hub;
const Link = @import("../rdma/link.zig").Link;
const Loan = @import("../rdma/loan.zig").Loan;
const Read = @import("../rdma/read.zig").Read;
const Error = @import("status.zig").Error;
const required = calls.required;

const hubs_max = 64;
const links_max = 4000;
var hubs: handles.HandleTable(Hub, hubs_max, 9) = .{};
var links: handles.HandleTable(Link, links_max, 10) = .{};

pub fn create(request: ?*const types.RdmaRequest, info: ?*types.RdmaInfo) Error!void {
    const out = try required(info);
    const opened = try Hub.create(std.heap.c_allocator, (try required(request)).*);
    const hub = switch (opened) {
        .none => |why| {
            out.* = .{
                .handle = 0,
                .event_fd = -1,
                .state = @intFromEnum(why.state),
                .ports = 0,
                .errno = why.errno,
            };
            return;
        },
        .ready => |hub| hub,
    };
    errdefer hub.close() catch |err| std.debug.assert(err == error.Busy);
    out.* = .{
        .handle = try hubs.add(hub),
        .event_fd = hub.event_fd,
        .state = @intFromEnum(types.RdmaState.ready),
        .ports = @intCast(hub.ports.len),
        .errno = 0,
    };
}

pub fn port(handle: u64, index: u32, out: ?*types.RdmaPort) Error!void {
    const hub = try hubs.get(handle);
    (try required(out)).* = try hub.port(index);
}

pub fn reap(handle: u64, done: ?[*]types.RdmaDone, count: u32) Error!u32 {
    return (try hubs.get(handle)).reap((try required(done))[0..count]);
}

pub fn tryDirect(
    request: ?*const types.RdmaDirectRequest,
    out: ?*types.RdmaDirect,
) Error!void {
    const wanted = (try required(request)).*;
    const answer = try required(out);
    if (wanted.bytes == 0 or wanted.bytes > std.math.maxInt(i32)) return error.BadRequest;
    const region = try memory.table.acquire(wanted.region);
    defer memory.table.release(region);
    answer.* = direct.run(&.{
        .library = if (wanted.library == 0) null else @ptrFromInt(wanted.library),
        .device = wanted.device,
        .port = wanted.port,
        .gid_index = wanted.gid_index,
        .source = try region.span(wanted.offset, wanted.bytes),
        .fd = wanted.fd,
        .offset = wanted.buffer_offset,
    });
}

pub fn close(handle: u64) Error!void {
    try (try hubs.get(handle)).close();
    _ = try hubs.remove(handle);
}

pub fn linkCreate(
    handle: u64,
    request: ?*const types.RdmaLinkRequest,
    out: ?*u64,
    address: ?*types.RdmaAddress,
) Error!void {
    const hub = try hubs.get(handle);
    const wanted = try required(request);
    const place = try required(out);
    const link = try Link.create(hub, wanted.*, try required(address));
    place.* = links.add(link) catch |err| {
        hub.mutex.lock();
        defer hub.mutex.unlock();
        link.dropHandle();
        return err;
    };
}

pub fn linkConnect(handle: u64, address: ?*const types.RdmaAddress) Error!void {
    const link = try links.get(handle);
    const wanted = try required(address);
    link.hub.mutex.lock();
    defer link.hub.mutex.unlock();
    return link.connect(wanted.*);
}

pub fn lend(handle: u64, span: ?*const types.RdmaSpan) Error!void {
    const link = try links.get(handle);
    const wanted = try required(span);
    link.hub.mutex.lock();
    defer link.hub.mutex.unlock();
    return Loan.begin(link, wanted.*);
}

pub fn giveBack(handle: u64, token: u64) Error!void {
    const link = try links.get(handle);
    link.hub.mutex.lock();
    defer link.hub.mutex.unlock();
    if (link.findLoan(token)) |loan| loan.takeBack(.cancelled);
}

pub fn read(handle: u64, span: ?*const types.RdmaSpan) Error!void {
    const link = try links.get(handle);
    const wanted = try required(span);
    link.hub.mutex.lock();
    defer link.hub.mutex.unlock();
    return Read.begin(link, wanted.*);
}

pub fn cancel(handle: u64, token: u64) Error!void {
    const link = try links.get(handle);
    link.hub.mutex.lock();
    defer link.hub.mutex.unlock();
    const found = link.findRead(token) orelse return;
    found.end(.cancelled, 0);
    link.pump();
}

pub fn arrived(handle: u64, token: u64, out: ?*u64) Error!void {
    const link = try links.get(handle);
    const bytes = try required(out);
    link.hub.mutex.lock();
    defer link.hub.mutex.unlock();
    bytes.* = if (link.findRead(token)) |found| found.arrived else 0;
}

pub fn linkEnd(handle: u64) Error!void {
    const link = try links.remove(handle);
    link.hub.mutex.lock();
    defer link.hub.mutex.unlock();
    link.dropHandle();
}
