//! The receiving side of a lane. Sealed (encrypted) records arrive in a scratch buffer and are
//! opened into the transfer's span; unsealed payload arrives directly in the span. Records of
//! cancelled transfers are also opened, then discarded, because the nonce counts every record.

const std = @import("std");
const types = @import("../abi/types.zig");
const records = @import("records.zig");
const sockets = @import("sockets.zig");
const lanes = @import("lane.zig");
const Lane = lanes.Lane;
const Worker = @import("worker.zig").Worker;
const Trouble = lanes.Trouble;
const Transfer = @import("session.zig").Transfer;
const Header = records.Header;

const header_bytes = records.header_bytes;
/// Below this many missing bytes, setting the socket's wake-up threshold (SO_RCVLOWAT) costs more
/// than it saves.
const worth_waiting_bytes = 16 * 1024;

pub const Incoming = struct {
    keys: records.Keys = undefined,
    is_sealed: bool = true,
    /// Holds an incomplete greeting, control record or header.
    small: [lanes.greeting_bytes]u8 = undefined,
    /// Buffer for the sealed record being received, or for payload to discard; empty if unused.
    scratch: []u8 = &.{},
    /// Number of valid bytes in `small` or `scratch`.
    filled: usize = 0,
    /// Where the rest of an unsealed payload goes: the span in the arena, or `scratch` if it is
    /// discarded.
    body: []u8 = &.{},
    /// The transfer that receives the unsealed payload in `body`, and the header of that record.
    transfer: ?*Transfer = null,
    header: Header = .{ .kind = .bye },

    /// Returns the number of bytes missing from the record being received; 0 between records.
    fn missing(in: *const Incoming) usize {
        if (!in.is_sealed) return in.body.len;
        if (in.filled < header_bytes) return 0;
        const header = Header.read(in.scratch[0..header_bytes]) catch return 0;
        return header_bytes + header.length + records.tag_bytes - in.filled;
    }

    pub fn openControl(
        in: *Incoming,
        record: *const [lanes.control_bytes]u8,
        kind: records.Kind,
    ) Trouble!void {
        const header = Header.read(record[0..header_bytes]) catch return error.Forged;
        if (header.kind != kind) return error.Forged;
        in.keys.open(record[0..header_bytes], record[header_bytes..], &.{}) catch
            return error.Forged;
    }

    /// Stops writing to the span of a stopped transfer; the rest of its record goes to `scratch`.
    /// The caller holds the mutex. Returns false if `scratch` cannot be allocated.
    pub fn releaseStopped(in: *Incoming, worker: *Worker) bool {
        const transfer = in.transfer orelse return true;
        if (transfer.fault == .none) return true;
        if (!worker.lend(&in.scratch)) return false;
        in.transfer = null;
        in.body = in.scratch[0..in.body.len];
        _ = transfer.release();
        return true;
    }

    /// Releases the span after the connection has ended. The caller holds the mutex.
    pub fn abandon(in: *Incoming) void {
        const transfer = in.transfer orelse return;
        in.transfer = null;
        in.body = &.{};
        if (transfer.fault == .none) transfer.fault = transfer.session.fault;
        _ = transfer.release();
    }
};

/// Makes one receive call and handles the received bytes. Returns true if more bytes may be
/// available at once.
pub fn read(lane: *Lane) Trouble!bool {
    if (lane.stage == .greeting) return readGreeting(lane);
    if (lane.session.?.role == .sender) return readBye(lane);
    const more = try if (lane.in.is_sealed) readSealed(lane) else readPlain(lane);
    if (!lane.readable) try wakeAt(lane, lane.in.missing());
    return more;
}

/// Sets the number of available bytes at which epoll reports the socket as readable, so that the
/// thread is not woken for each packet.
fn wakeAt(lane: *Lane, bytes: usize) Trouble!void {
    const wanted: u32 = if (bytes < worth_waiting_bytes) 1 else @intCast(bytes);
    if (wanted == lane.wakes_at) return;
    sockets.wakeAt(lane.fd, wanted) catch return error.Broken;
    lane.wakes_at = wanted;
}

/// Returns the number of bytes received; 0 if none are available now.
fn receive(lane: *Lane, first: []u8, second: []u8) Trouble!usize {
    const got = sockets.receive(lane.fd, first, second) catch return error.Broken;
    const count = got orelse 0;
    // A short read means that no more bytes are available now. If the peer has closed, bytes before
    // the end of the stream may remain.
    lane.readable = count == first.len + second.len or (lane.hung_up and count > 0);
    return count;
}

/// Reads the hello record (accepting side) or the welcome record (dialling side), and no bytes
/// after it.
fn readGreeting(lane: *Lane) Trouble!bool {
    const in = &lane.in;
    const is_dialler = lane.session != null;
    const wanted: usize = if (is_dialler) lanes.control_bytes else lanes.greeting_bytes;
    in.filled += receive(lane, in.small[in.filled..wanted], &.{}) catch |trouble| {
        // The accepting side refuses a connection by closing it without sending a byte.
        return if (is_dialler) error.Refused else trouble;
    };
    if (in.filled < wanted) return lane.readable;
    in.filled = 0;
    if (is_dialler) {
        try in.openControl(in.small[0..lanes.control_bytes], .welcome);
        lane.hub.mutex.lock();
        defer lane.hub.mutex.unlock();
        if (!lane.markUp()) return error.Broken;
    } else if (!lane.hub.admit(lane, &in.small)) return error.Refused;
    lane.readable = true;
    return true;
}

/// Reads on a sending lane, where the only valid record is the announced end of the connection.
fn readBye(lane: *Lane) Trouble!bool {
    const in = &lane.in;
    const wanted: usize = if (in.is_sealed) lanes.control_bytes else header_bytes;
    in.filled += try receive(lane, in.small[in.filled..wanted], &.{});
    if (in.filled < wanted) return lane.readable;
    if (in.is_sealed) {
        try in.openControl(in.small[0..lanes.control_bytes], .bye);
        return error.Bye;
    }
    const header = Header.read(in.small[0..header_bytes]) catch return error.Forged;
    return if (header.kind == .bye) error.Bye else error.Forged;
}

fn readSealed(lane: *Lane) Trouble!bool {
    const in = &lane.in;
    if (!lane.worker.lend(&in.scratch)) return error.Broken;
    in.filled += try receive(lane, in.scratch[in.filled..], &.{});
    var at: usize = 0;
    while (in.filled - at >= header_bytes) {
        const head = in.scratch[at..][0..header_bytes];
        const header = Header.read(head) catch return error.Forged;
        const whole = header_bytes + header.length + records.tag_bytes;
        if (in.filled - at < whole) break;
        try takeSealed(lane, header, head, in.scratch[at + header_bytes .. at + whole]);
        at += whole;
    }
    if (at > 0) {
        std.mem.copyForwards(u8, in.scratch, in.scratch[at..in.filled]);
        in.filled -= at;
    }
    if (in.filled == 0) lane.worker.takeBack(&in.scratch);
    return lane.readable;
}

fn takeSealed(
    lane: *Lane,
    header: Header,
    head: *const [header_bytes]u8,
    sealed: []u8,
) Trouble!void {
    const text = sealed[0..header.length];
    if (header.kind != .data) {
        lane.in.keys.open(head, sealed, text) catch return error.Forged;
        return takeControl(lane, header);
    }
    // The header is not yet authenticated. It only selects the memory for the payload, which is
    // discarded if authentication fails.
    const transfer = hold(lane, header);
    const target = if (transfer) |held| held.span[held.moved..][0..header.length] else text;
    const opened = lane.in.keys.open(head, sealed, target);
    if (transfer) |held| {
        if (opened) |_| arrive(lane, held, header) else |_| drop(lane, held);
    }
    opened catch return error.Forged;
    if (transfer == null) try explain(lane, header);
}

/// Returns the transfer that expects exactly these bytes and marks its span as in use by this lane
/// until `release`; null if there is none.
fn hold(lane: *Lane, header: Header) ?*Transfer {
    lane.hub.mutex.lock();
    defer lane.hub.mutex.unlock();
    const transfer = lane.session.?.find(header.transfer) orelse return null;
    if (transfer.holder != null or header.offset != transfer.moved) return null;
    if (header.length > transfer.span.len - transfer.moved) return null;
    transfer.holder = lane;
    return transfer;
}

/// Accounts for a record whose payload is now in the span, and completes the transfer if it was the
/// last one.
fn arrive(lane: *Lane, transfer: *Transfer, header: Header) void {
    const filled = transfer.moved + header.length;
    const is_whole = filled == transfer.span.len;
    var checksum: u64 = 0;
    if (is_whole) {
        checksum = transfer.checksum.finish(transfer.span);
    } else transfer.checksum.advance(transfer.span, filled);
    lane.hub.mutex.lock();
    defer lane.hub.mutex.unlock();
    transfer.moved = filled;
    if (transfer.release()) return;
    if (is_whole) return transfer.settle(.none, checksum);
    // The sender marked this record as its last before the announced length: sender and receiver
    // disagree about the transfer.
    if (header.last) transfer.settle(.broken, 0);
}

/// Fails the transfer as forged, because its span contains bytes that failed authentication.
fn drop(lane: *Lane, transfer: *Transfer) void {
    lane.hub.mutex.lock();
    defer lane.hub.mutex.unlock();
    if (transfer.fault == .none) transfer.fault = .forged;
    _ = transfer.release();
}

/// Handles an authentic record for which `hold` found no transfer. The record is ignored if its
/// transfer was cancelled; an unexpected offset ends the lane, and excess bytes fail the transfer.
fn explain(lane: *Lane, header: Header) Trouble!void {
    lane.hub.mutex.lock();
    defer lane.hub.mutex.unlock();
    const transfer = lane.session.?.find(header.transfer) orelse return;
    if (transfer.holder != null or header.offset != transfer.moved) return error.Forged;
    transfer.settle(.too_long, 0);
}

fn takeControl(lane: *Lane, header: Header) Trouble!void {
    switch (header.kind) {
        .bye => return error.Bye,
        .abort => {},
        .hello, .welcome, .data => return error.Forged,
    }
    lane.hub.mutex.lock();
    defer lane.hub.mutex.unlock();
    const transfer = lane.session.?.find(header.transfer) orelse return;
    if (transfer.holder != null) return error.Forged;
    transfer.settle(.cancelled, 0);
}

/// Receives payload into its span and the next record's header in one call.
fn readPlain(lane: *Lane) Trouble!bool {
    const in = &lane.in;
    var count = try receive(lane, in.body, in.small[in.filled..header_bytes]);
    const of_body = @min(count, in.body.len);
    in.body = in.body[of_body..];
    count -= of_body;
    in.filled += count;
    if (in.body.len > 0) return lane.readable;
    lane.worker.takeBack(&in.scratch);
    if (in.transfer) |transfer| {
        in.transfer = null;
        arrive(lane, transfer, in.header);
    }
    if (in.filled < header_bytes) return lane.readable;
    in.filled = 0;
    in.header = Header.read(in.small[0..header_bytes]) catch return error.Forged;
    if (in.header.kind != .data) {
        try takeControl(lane, in.header);
        return lane.readable;
    }
    in.transfer = hold(lane, in.header);
    if (in.transfer) |held| {
        in.body = held.span[held.moved..][0..in.header.length];
    } else {
        try explain(lane, in.header);
        if (!lane.worker.lend(&in.scratch)) return error.Broken;
        in.body = in.scratch[0..in.header.length];
    }
    return lane.readable;
}
