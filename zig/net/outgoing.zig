//! The sending side of a lane: records of its transfers, one of each in turn, so that a small
//! transfer does not wait for a large one to end.

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
    /// Memory for a greeting, a control record, or the header of payload from the arena.
    small: [lanes.greeting_bytes]u8 = undefined,
    /// Memory for a sealed record, while one is being sent.
    scratch: []u8 = &.{},
    /// The bytes that the kernel takes next, and those after them.
    first: []const u8 = &.{},
    body: []const u8 = &.{},
    /// The transfer of the current record: set until the record is sent if its payload comes from
    /// the arena, otherwise for the last record only.
    transfer: ?*Transfer = null,
    is_last: bool = false,

    fn isEmpty(out: *const Outgoing) bool {
        return out.first.len + out.body.len == 0;
    }

    /// Puts a record without payload after the `at` bytes already in `small`.
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

    /// Releases the spans of stopped transfers from the record being sent. Requires the mutex;
    /// false without memory for a copy.
    pub fn releaseStopped(out: *Outgoing, worker: *Worker) bool {
        const transfer = out.transfer orelse return true;
        if (transfer.holder == null or transfer.fault == .none) return true;
        if (!worker.lend(&out.scratch)) return false;
        // A started record must be sent completely: from a copy.
        const copy = out.scratch[0..out.body.len];
        hash.copy(copy, out.body);
        out.body = copy;
        _ = transfer.release();
        return true;
    }

    /// The connection has ended. Requires the mutex.
    pub fn abandon(out: *Outgoing) void {
        const transfer = out.transfer orelse return;
        out.transfer = null;
        out.body = &.{};
        if (!transfer.release()) transfer.settle(transfer.session.fault, 0);
        transfer.session.hub.freeTransfer(transfer);
    }

    /// Announces the end of the lane if the socket accepts it at once.
    pub fn sendBye(out: *Outgoing, fd: i32) void {
        if (!out.isEmpty()) return;
        out.putControl(.{ .kind = .bye }, 0, out.is_sealed);
        // If the send fails, the other side reports a broken connection.
        _ = sockets.send(fd, out.first, "") catch return;
    }
};

/// Makes one send call; true if another can follow at once.
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

/// The kernel has the whole record.
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

/// Requires the mutex.
fn requeue(lane: *Lane, transfer: *Transfer) void {
    lane.queue.append(&transfer.lane_node);
    _ = lane.queued.fetchAdd(1, .release);
}

/// Prepares the next record; false if there is nothing to send.
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
    // The last record is reported when the kernel has it.
    if (header.last) out.transfer = transfer else requeue(lane, transfer);
}
