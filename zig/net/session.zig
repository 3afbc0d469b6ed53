//! Sessions and their transfers: the work that the lanes between two hosts share. All functions
//! here require the mutex of all lanes.

const std = @import("std");
const types = @import("../abi/types.zig");
const hash = @import("../hash/root.zig");
const Lane = @import("lane.zig").Lane;
const Lanes = @import("lanes.zig").Lanes;
const Error = @import("../abi/status.zig").Error;
const Fault = types.LaneFault;
const List = std.DoublyLinkedList;

pub const lanes_max = 16;

/// The sender accepts connections; bytes flow to the dialling side.
pub const Role = enum { sender, receiver };

/// One span in transfer. A receiver's transfer ends when it is settled; a sender's also needs its
/// lane to have forgotten it.
pub const Transfer = struct {
    session: *Session,
    token: u64,
    number: u32,
    span: []u8,
    /// Bytes sealed or received.
    moved: usize = 0,
    /// The lane whose thread or socket uses the span now.
    holder: ?*Lane = null,
    /// The fault to settle with when the holder releases the span.
    fault: Fault = .none,
    is_settled: bool = false,
    checksum: hash.RunningChecksum = .{},
    /// In the session's list until it is settled.
    node: List.Node = .{},
    /// In the list of transfers that a lane sends.
    lane_node: List.Node = .{},

    fn of(node: *List.Node) *Transfer {
        return @alignCast(@fieldParentPtr("node", node));
    }

    pub fn ofLane(node: *List.Node) *Transfer {
        return @alignCast(@fieldParentPtr("lane_node", node));
    }

    /// The holder releases the span; true if the transfer ended with it.
    pub fn release(transfer: *Transfer) bool {
        transfer.holder = null;
        if (transfer.fault != .none and !transfer.is_settled) transfer.settle(transfer.fault, 0);
        return transfer.is_settled;
    }

    /// The span is no longer used: reports the completion.
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

    /// Ends the transfer as soon as its span is no longer used.
    pub fn stop(transfer: *Transfer, fault: Fault) void {
        if (transfer.fault == .none) transfer.fault = fault;
        if (transfer.holder) |lane| lane.worker.call() else transfer.settle(transfer.fault, 0);
    }
};

const Phase = enum {
    free,
    /// Not all lanes are connected.
    opening,
    open,
    /// Lanes are being shut.
    ending,
    /// The last event was reported; the handle may still exist.
    over,
};

pub const Session = struct {
    hub: *Lanes,
    phase: Phase = .free,
    /// A handle refers to the session.
    has_handle: bool = false,
    role: Role = .sender,
    token: u64 = 0,
    id: [16]u8 = @splat(0),
    secret: [32]u8 = @splat(0),
    cipher: types.LaneCipher = .aegis_128l,
    lane_count: u32 = 0,
    /// Deadline for opening, on the monotonic clock in nanoseconds.
    deadline: u64 = 0,
    fault: Fault = .none,
    lanes: [lanes_max]?*Lane = @splat(null),
    lanes_live: u32 = 0,
    /// The lane that was considered first for the last transfer.
    turn: u32 = 0,
    lanes_up: u32 = 0,
    transfers: List = .{},
    /// Settled transfers of a sender whose abort records are not sent yet.
    aborts_unsent: u32 = 0,

    pub fn attach(session: *Session, lane: *Lane) void {
        session.lanes[lane.index] = lane;
        session.lanes_live += 1;
    }

    /// A lane has proved that it belongs to the session.
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

    /// Ends the session; the first reason counts.
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

    /// A lane has closed.
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

    /// The handle of the session was closed.
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

    /// Begins a transfer; a sender's goes to the lane with the least to send.
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

    /// Chooses among equally idle lanes in turn.
    fn idlest(session: *Session) *Lane {
        session.turn = (session.turn + 1) % session.lane_count;
        var best = session.lanes[session.turn].?;
        for (session.lanes[0..session.lane_count]) |slot| {
            if (slot.?.queued_bytes < best.queued_bytes) best = slot.?;
        }
        return best;
    }
};
