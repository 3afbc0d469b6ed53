//! The functions behind the exports for lanes, sessions and records.

const std = @import("std");
const handles = @import("../base/handles.zig");
const types = @import("types.zig");
const calls = @import("calls.zig");
const records = @import("../net/records.zig");
const Lanes = @import("../net/lanes.zig").Lanes;
const Session = @import("../net/session.zig").Session;
const Error = @import("status.zig").Error;
const required = calls.required;
const bytesAt = calls.bytesAt;
const writableAt = calls.writableAt;

const lanes_max = 64;
const sessions_max = 4000;
var all_lanes: handles.HandleTable(Lanes, lanes_max, 4) = .{};
var sessions: handles.HandleTable(Session, sessions_max, 5) = .{};

pub fn create(request: ?*const types.LanesRequest, info: ?*types.LanesInfo) Error!void {
    const out = try required(info);
    const lanes = try Lanes.create(std.heap.c_allocator, (try required(request)).*);
    errdefer lanes.close() catch |err| std.debug.assert(err == error.Busy);
    const handle = try all_lanes.add(lanes);
    out.* = .{ .handle = handle, .event_fd = lanes.event_fd, .reserved = 0 };
}

pub fn listen(handle: u64, address: ?*const types.LaneAddress) Error!u32 {
    return (try all_lanes.get(handle)).listen((try required(address)).*);
}

pub fn expect(handle: u64, session: ?*const types.LaneSession, out: ?*u64) Error!void {
    const lanes = try all_lanes.get(handle);
    const place = try required(out);
    place.* = try name(try lanes.expect((try required(session)).*));
}

pub fn dial(
    handle: u64,
    session: ?*const types.LaneSession,
    address: ?*const types.LaneAddress,
    out: ?*u64,
) Error!void {
    const lanes = try all_lanes.get(handle);
    const place = try required(out);
    place.* = try name(try lanes.dial((try required(session)).*, (try required(address)).*));
}

fn name(session: *Session) Error!u64 {
    return sessions.add(session) catch |err| {
        session.hub.mutex.lock();
        defer session.hub.mutex.unlock();
        session.dropHandle();
        return err;
    };
}

pub fn reap(handle: u64, done: ?[*]types.LaneDone, count: u32) Error!u32 {
    return (try all_lanes.get(handle)).reap((try required(done))[0..count]);
}

pub fn close(handle: u64) Error!void {
    try (try all_lanes.get(handle)).close();
    _ = try all_lanes.remove(handle);
}

pub fn begin(handle: u64, transfer: ?*const types.LaneTransfer) Error!void {
    const session = try sessions.get(handle);
    const wanted = try required(transfer);
    session.hub.mutex.lock();
    defer session.hub.mutex.unlock();
    return session.begin(wanted.*);
}

pub fn cancel(handle: u64, number: u32) Error!void {
    const session = try sessions.get(handle);
    session.hub.mutex.lock();
    defer session.hub.mutex.unlock();
    if (session.find(number)) |transfer| transfer.stop(.cancelled);
}

pub fn arrived(handle: u64, number: u32, out: ?*u64) Error!void {
    const session = try sessions.get(handle);
    const bytes = try required(out);
    session.hub.mutex.lock();
    defer session.hub.mutex.unlock();
    bytes.* = if (session.find(number)) |transfer| transfer.moved else 0;
}

pub fn end(handle: u64) Error!void {
    const session = try sessions.remove(handle);
    session.hub.mutex.lock();
    defer session.hub.mutex.unlock();
    session.dropHandle();
}

fn keysOf(place: ?*const types.RecordPlace) Error!records.Keys {
    const wanted = try required(place);
    const where: records.Place = .{
        .session = wanted.id,
        .lane = wanted.lane,
        .direction = std.enums.fromInt(records.Direction, wanted.direction) orelse
            return error.BadRequest,
        .cipher = std.enums.fromInt(types.LaneCipher, wanted.cipher) orelse
            return error.BadRequest,
    };
    return .init(&wanted.secret, where, wanted.rekey_bytes);
}

pub fn seal(
    place: ?*const types.RecordPlace,
    plain: ?[*]const u8,
    length: u32,
    out: ?[*]u8,
    room: u32,
) Error!u32 {
    var keys = try keysOf(place);
    defer keys.wipe();
    return records.sealAll(&keys, try bytesAt(plain, length), try writableAt(out, room));
}

pub fn open(
    place: ?*const types.RecordPlace,
    sealed: ?[*]const u8,
    length: u32,
    out: ?[*]u8,
    room: u32,
) Error!u32 {
    var keys = try keysOf(place);
    defer keys.wipe();
    return records.openAll(&keys, try bytesAt(sealed, length), try writableAt(out, room));
}
