//! The sending side of a lane. Its transfers take turns, one record each, so that a small transfer
//! does not wait for a large one to end.

const std = @import("std");
const hash = @import("../hash/root.zig");
const records = @import("records.zig");
const sockets = @import("sockets.zig");
const lanes = @import("lane.zig");
const Lane = lanes.Lane;
const Worker = @import("worker.zig").Worker;
const Trouble = lanes.Trouble;
const Transfer = @import("session.zig").Transfer;
const Header = records.Header;

pub const Outgoing = struct {
    keys: records.Keys = undefined,
    is_sealed: bool = true,
    /// Holds a greeting, a control record, or the header of a record whose payload is sent from the
    /// arena.
    small: [lanes.greeting_bytes]u8 = undefined,
    /// Buffer for the sealed record being sent; empty if unused.
    scratch: []u8 = &.{},
    /// Bytes still to send: first `first`, then `body`.
    first: []const u8 = &.{},
    body: []const u8 = &.{},
    /// The transfer of the record being sent. Set for every unsealed record, whose payload is in
    /// the arena, but only for the last record of a sealed transfer.
    transfer: ?*Transfer = null,
    is_last: bool = false,

    fn isEmpty(out: *const Outgoing) bool {
        return out.first.len + out.body.len == 0;
    }

    /// Writes a record without payload to `small`, after `at` bytes already there, as the bytes to
    /// send.
    pub fn putControl(out: *Outgoing, header: Header, at: usize, sealed: bool) void {
        const head = out.small[at..][0..records.header_bytes];
        header.write(head);
        var end = at + records.header_bytes;
        if (sealed) {
            out.keys.seal(head, "", out.small[end..][0..records.tag_bytes]);
            end += records.tag_bytes;
        }
        out.first = out.small[0..end];
    }

    /// Stops reading from the span of a stopped transfer: the unsent rest of its record is copied
    /// to `scratch`. The caller holds the mutex. Returns false if `scratch` cannot be allocated.
    pub fn releaseStopped(out: *Outgoing, worker: *Worker) bool {
        const transfer = out.transfer orelse return true;
        if (transfer.holder == null or transfer.fault == .none) return true;
        if (!worker.lend(&out.scratch)) return false;
        // A record that was started must be sent completely; the rest is sent from a copy.
        const copy = out.scratch[0..out.body.len];
        hash.copy(copy, out.body);
        out.body = copy;
        _ = transfer.release();
        return true;
    }

    /// Releases the span and completes the transfer after the connection has ended. The caller
    /// holds the mutex.
    pub fn abandon(out: *Outgoing) void {
        const transfer = out.transfer orelse return;
        out.transfer = null;
        out.body = &.{};
        if (!transfer.release()) transfer.settle(transfer.session.fault, 0);
        transfer.session.hub.freeTransfer(transfer);
    }

    /// Sends the record that announces the end of the lane, if the socket accepts it without
    /// waiting.
    pub fn sendBye(out: *Outgoing, fd: i32) void {
        if (!out.isEmpty()) return;
        out.putControl(.{ .kind = .bye }, 0, out.is_sealed);
        // If the send fails, the other side sees a broken connection.
        _ = sockets.send(fd, out.first, "") catch return;
    }
};

/// Makes one send call. Returns true if more can be sent at once.
pub fn write(lane: *Lane) Trouble!bool {
    const out = &lane.out;
    if (out.isEmpty() and !try prepare(lane)) return false;
    const wanted = out.first.len + out.body.len;
    const taken = sockets.send(lane.fd, out.first, out.body) catch return error.Broken;
    var count = taken orelse 0;
    lane.writable = count == wanted;
    const of_first = @min(count, out.first.len);
    out.first = out.first[of_first..];
    count -= of_first;
    out.body = out.body[count..];
    if (!out.isEmpty()) return false;
    lane.worker.takeBack(&out.scratch);
    if (out.transfer != null) settleRecord(lane);
    return lane.queued.load(.acquire) > 0;
}

/// Handles a record that the kernel has accepted completely: completes its transfer or queues the
/// next record.
fn settleRecord(lane: *Lane) void {
    const out = &lane.out;
    const transfer = out.transfer.?;
    out.transfer = null;
    lane.hub.mutex.lock();
    defer lane.hub.mutex.unlock();
    const is_over = transfer.release();
    if (!out.is_last) return requeue(lane, transfer);
    if (!is_over) transfer.settle(.none, 0);
    lane.hub.freeTransfer(transfer);
}

/// Queues the transfer's next record behind other transfers. The caller holds the mutex.
fn requeue(lane: *Lane, transfer: *Transfer) void {
    lane.queue.append(&transfer.lane_node);
    _ = lane.queued.fetchAdd(1, .release);
}

/// Prepares the next record for sending. Returns false if there is nothing to send.
fn prepare(lane: *Lane) Trouble!bool {
    if (lane.queued.load(.acquire) == 0) return false;
    if (lane.out.is_sealed and !lane.worker.lend(&lane.out.scratch)) return error.Broken;
    const hub = lane.hub;
    hub.mutex.lock();
    const node = lane.queue.popFirst() orelse unreachable;
    _ = lane.queued.fetchSub(1, .release);
    const transfer: *Transfer = .ofLane(node);
    if (transfer.is_settled) {
        const number = transfer.number;
        lane.queued_bytes -= transfer.span.len - transfer.moved;
        hub.freeTransfer(transfer);
        hub.mutex.unlock();
        lane.out.putControl(.{ .kind = .abort, .transfer = number }, 0, lane.out.is_sealed);
        return true;
    }
    const at = transfer.moved;
    const plain = transfer.span[at..][0..@min(records.payload_max, transfer.span.len - at)];
    transfer.moved += plain.len;
    lane.queued_bytes -= plain.len;
    transfer.holder = lane;
    hub.mutex.unlock();
    const header: Header = .{
        .kind = .data,
        .last = at + plain.len == transfer.span.len,
        .length = @intCast(plain.len),
        .transfer = transfer.number,
        .offset = at,
    };
    lane.out.is_last = header.last;
    if (lane.out.is_sealed) sealRecord(lane, transfer, header, plain) else {
        lane.out.putControl(header, 0, false);
        lane.out.body = plain;
        lane.out.transfer = transfer;
    }
    return true;
}

fn sealRecord(lane: *Lane, transfer: *Transfer, header: Header, plain: []const u8) void {
    const out = &lane.out;
    const head = out.scratch[0..records.header_bytes];
    header.write(head);
    const sealed = out.scratch[records.header_bytes..][0 .. plain.len + records.tag_bytes];
    out.keys.seal(head, plain, sealed);
    out.first = out.scratch[0 .. head.len + sealed.len];
    lane.hub.mutex.lock();
    defer lane.hub.mutex.unlock();
    _ = transfer.release();
    // A transfer completes when the kernel has accepted its last record.
    if (header.last) out.transfer = transfer else requeue(lane, transfer);
}
