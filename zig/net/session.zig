//! Sessions and their transfers: the work that the lanes between two hosts share. The caller of
//! every function here holds the mutex of `Lanes`.

const std = @import("std");
const types = @import("../abi/types.zig");
const hash = @import("../hash/root.zig");
const Lane = @import("lane.zig").Lane;
const Lanes = @import("lanes.zig").Lanes;
const Error = @import("../abi/status.zig").Error;
const Fault = types.LaneFault;
const List = std.DoublyLinkedList;

pub const lanes_max = 16;

/// The sender accepts connections and sends payload; the receiver dials.
pub const Role = enum { sender, receiver };

/// The transfer of one span. A receiver's transfer is freed when it completes; a sender's is freed
/// when its lane also no longer refers to it.
pub const Transfer = struct {
    session: *Session,
    token: u64,
    number: u32,
    span: []u8,
    /// Number of bytes sealed (sender) or received (receiver).
    moved: usize = 0,
    /// The lane that reads or writes the span now; null if none does.
    holder: ?*Lane = null,
    /// The fault with which the transfer completes when `holder` releases the span.
    fault: Fault = .none,
    is_settled: bool = false,
    checksum: hash.RunningChecksum = .{},
    /// Node in the session's list, from the start of the transfer to its completion.
    node: List.Node = .{},
    /// Node in the queue of the lane that sends the transfer.
    lane_node: List.Node = .{},

    fn of(node: *List.Node) *Transfer {
        return @alignCast(@fieldParentPtr("node", node));
    }

    pub fn ofLane(node: *List.Node) *Transfer {
        return @alignCast(@fieldParentPtr("lane_node", node));
    }

    /// Marks the span as unused by a lane, and completes the transfer if it was stopped. Returns
    /// true if the transfer has completed.
    pub fn release(transfer: *Transfer) bool {
        transfer.holder = null;
        if (transfer.fault != .none and !transfer.is_settled) transfer.settle(transfer.fault, 0);
        return transfer.is_settled;
    }

    /// Completes the transfer and reports the completion. No lane may use the span.
    pub fn settle(transfer: *Transfer, fault: Fault, checksum: u64) void {
        std.debug.assert(!transfer.is_settled and transfer.holder == null);
        const session = transfer.session;
        transfer.is_settled = true;
        session.transfers.remove(&transfer.node);
        const is_sent = session.role == .sender;
        session.hub.complete(.{
            .token = transfer.token,
            .checksum = checksum,
            .event = @intFromEnum(if (is_sent) types.LaneEvent.sent else .received),
            .fault = @intFromEnum(fault),
        });
        if (is_sent) session.aborts_unsent += 1 else session.hub.freeTransfer(transfer);
        session.finish();
    }

    /// Completes the transfer with `fault`: at once, or when the lane that uses its span releases
    /// it.
    pub fn stop(transfer: *Transfer, fault: Fault) void {
        if (transfer.fault == .none) transfer.fault = fault;
        if (transfer.holder) |lane| lane.worker.call() else transfer.settle(transfer.fault, 0);
    }
};

const Phase = enum {
    free,
    /// Some lanes are not yet connected.
    opening,
    open,
    /// Lanes are being closed.
    ending,
    /// The `ended` event was reported; the session's handle may still be open.
    over,
};

pub const Session = struct {
    hub: *Lanes,
    phase: Phase = .free,
    /// True until the session's handle is closed.
    has_handle: bool = false,
    role: Role = .sender,
    token: u64 = 0,
    id: [16]u8 = @splat(0),
    secret: [32]u8 = @splat(0),
    cipher: types.LaneCipher = .aegis_128l,
    lane_count: u32 = 0,
    /// Time at which a session that has not opened ends, in nanoseconds of the monotonic clock.
    deadline: u64 = 0,
    fault: Fault = .none,
    lanes: [lanes_max]?*Lane = @splat(null),
    lanes_live: u32 = 0,
    /// Index of the lane at which the search for the last transfer's lane started.
    turn: u32 = 0,
    lanes_up: u32 = 0,
    transfers: List = .{},
    /// Number of a sender's completed transfers that are not yet freed; some still need an abort
    /// record.
    aborts_unsent: u32 = 0,

    pub fn attach(session: *Session, lane: *Lane) void {
        session.lanes[lane.index] = lane;
        session.lanes_live += 1;
    }

    /// Counts a lane that is ready; opens the session when all are.
    pub fn laneUp(session: *Session) void {
        session.lanes_up += 1;
        if (session.lanes_up < session.lane_count) return;
        session.phase = .open;
        session.hub.opening -= 1;
        std.crypto.secureZero(u8, &session.secret);
        session.report(.opened, .none);
    }

    fn report(session: *Session, event: types.LaneEvent, fault: Fault) void {
        session.hub.complete(.{
            .token = session.token,
            .checksum = 0,
            .event = @intFromEnum(event),
            .fault = @intFromEnum(fault),
        });
    }

    /// Ends the session: stops all transfers and closes all lanes. Only the first call has an
    /// effect, so the first fault is reported.
    pub fn end(session: *Session, fault: Fault) void {
        switch (session.phase) {
            .opening => session.hub.opening -= 1,
            .open => {},
            .free, .ending, .over => return,
        }
        session.phase = .ending;
        session.fault = fault;
        std.crypto.secureZero(u8, &session.secret);
        var next = session.transfers.first;
        while (next) |node| {
            next = node.next;
            const transfer: *Transfer = .of(node);
            transfer.stop(fault);
        }
        for (session.lanes) |slot| if (slot) |lane| {
            lane.is_closing.store(true, .release);
            lane.worker.call();
        };
        session.finish();
    }

    /// Removes a closed lane, and reports the end of the session if this was the last one.
    pub fn laneGone(session: *Session, lane: *Lane) void {
        session.lanes[lane.index] = null;
        session.lanes_live -= 1;
        session.finish();
    }

    fn finish(session: *Session) void {
        if (session.phase != .ending or session.lanes_live > 0) return;
        if (session.transfers.first != null) return;
        session.phase = .over;
        session.report(.ended, session.fault);
        session.forget();
    }

    /// Ends the session because its handle was closed.
    pub fn dropHandle(session: *Session) void {
        session.has_handle = false;
        session.end(.closed);
        session.forget();
    }

    fn forget(session: *Session) void {
        if (session.phase == .over and !session.has_handle) session.phase = .free;
    }

    pub fn find(session: *Session, number: u32) ?*Transfer {
        var next = session.transfers.first;
        while (next) |node| : (next = node.next) {
            const transfer: *Transfer = .of(node);
            if (transfer.number == number) return transfer;
        }
        return null;
    }

    /// Begins a transfer. A sender's transfer is queued on the lane with the fewest queued bytes.
    pub fn begin(session: *Session, request: types.LaneTransfer) Error!void {
        if (session.phase != .open) return error.Closed;
        if (session.find(request.number) != null) return error.Exists;
        if (request.bytes == 0) return error.BadRequest;
        const region = session.hub.region;
        const span = switch (session.role) {
            .sender => try region.span(request.offset, request.bytes),
            .receiver => try region.writableSpan(request.offset, request.bytes),
        };
        const transfer = try session.hub.takeTransfer();
        transfer.* = .{
            .session = session,
            .token = request.token,
            .number = request.number,
            .span = span,
        };
        session.transfers.append(&transfer.node);
        if (session.role == .sender) session.idlest().enqueue(transfer);
    }

    /// Returns the lane with the fewest queued bytes; lanes with equal numbers take turns.
    fn idlest(session: *Session) *Lane {
        session.turn = (session.turn + 1) % session.lane_count;
        var best = session.lanes[session.turn].?;
        for (session.lanes[0..session.lane_count]) |slot| {
            if (slot.?.queued_bytes < best.queued_bytes) best = slot.?;
        }
        return best;
    }
};
