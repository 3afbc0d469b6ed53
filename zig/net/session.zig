//! Sessions and their transfers: what the lanes between two hosts carry together. Everything here
//! is called with the mutex of all lanes held.

const std = @import("std");
const types = @import("../abi/types.zig");
const hash = @import("../hash/root.zig");
const Lane = @import("lane.zig").Lane;
const Lanes = @import("lanes.zig").Lanes;
const Error = @import("../abi/status.zig").Error;
const Fault = types.LaneFault;
const List = std.DoublyLinkedList;

pub const lanes_max = 16;

/// Bytes flow to who dialled.
pub const Role = enum { sender, receiver };

/// One span on its way. A receiver's ends when it is settled; a sender's when the lane it was given
/// to has forgotten it, too.
pub const Transfer = struct {
    session: *Session,
    token: u64,
    number: u32,
    span: []u8,
    /// How much was sealed, or has arrived.
    moved: usize = 0,
    /// The lane whose thread, or whose socket, touches the span now.
    holder: ?*Lane = null,
    /// What it comes to when its holder lets go.
    fault: Fault = .none,
    is_settled: bool = false,
    checksum: hash.RunningChecksum = .{},
    /// Among the session's, until it is settled.
    node: List.Node = .{},
    /// Among those that a lane is to send.
    lane_node: List.Node = .{},

    fn of(node: *List.Node) *Transfer {
        return @alignCast(@fieldParentPtr("node", node));
    }

    pub fn ofLane(node: *List.Node) *Transfer {
        return @alignCast(@fieldParentPtr("lane_node", node));
    }

    /// The holder lets go; true where that ended it.
    pub fn letGo(transfer: *Transfer) bool {
        transfer.holder = null;
        if (transfer.fault != .none and !transfer.is_settled) transfer.settle(transfer.fault, 0);
        return transfer.is_settled;
    }

    /// Nothing touches the span any more: tells so.
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
        if (is_sent) session.unsaid += 1 else session.hub.freeTransfer(transfer);
        session.finish();
    }

    /// Ends it as soon as nothing touches the span.
    pub fn stop(transfer: *Transfer, fault: Fault) void {
        if (transfer.fault == .none) transfer.fault = fault;
        if (transfer.holder) |lane| lane.worker.call() else transfer.settle(transfer.fault, 0);
    }
};

const Phase = enum {
    free,
    /// Not all lanes are up.
    opening,
    open,
    /// Lanes are to be shut.
    ending,
    /// Its last event was reported; its handle may still be there.
    over,
};

pub const Session = struct {
    hub: *Lanes,
    phase: Phase = .free,
    /// Somebody has a handle of it.
    is_named: bool = false,
    role: Role = .sender,
    token: u64 = 0,
    id: [16]u8 = @splat(0),
    secret: [32]u8 = @splat(0),
    cipher: types.LaneCipher = .aegis_128l,
    lane_count: u32 = 0,
    /// When it is to be open, on the monotonic clock in nanoseconds.
    deadline: u64 = 0,
    fault: Fault = .none,
    lanes: [lanes_max]?*Lane = @splat(null),
    lanes_live: u32 = 0,
    /// The lane that was asked first for the last transfer.
    turn: u32 = 0,
    lanes_up: u32 = 0,
    transfers: List = .{},
    /// A sender's that are settled, of which a lane has yet to tell the other side.
    unsaid: u32 = 0,

    pub fn attach(session: *Session, lane: *Lane) void {
        session.lanes[lane.index] = lane;
        session.lanes_live += 1;
    }

    /// A lane has proved that it belongs here.
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

    /// Ends it, for the first reason that is given.
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

    /// A lane is gone.
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

    /// Nobody names it any more.
    pub fn unname(session: *Session) void {
        session.is_named = false;
        session.end(.closed);
        session.forget();
    }

    fn forget(session: *Session) void {
        if (session.phase == .over and !session.is_named) session.phase = .free;
    }

    pub fn find(session: *Session, number: u32) ?*Transfer {
        var next = session.transfers.first;
        while (next) |node| : (next = node.next) {
            const transfer: *Transfer = .of(node);
            if (transfer.number == number) return transfer;
        }
        return null;
    }

    /// Takes a transfer; a sender's goes to the lane that has least to send.
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

    /// Of lanes that have as little, each in its turn.
    fn idlest(session: *Session) *Lane {
        session.turn = (session.turn + 1) % session.lane_count;
        var best = session.lanes[session.turn].?;
        for (session.lanes[0..session.lane_count]) |slot| {
            if (slot.?.queued_bytes < best.queued_bytes) best = slot.?;
        }
        return best;
    }
};
