//! A lane: one TCP connection of a session and its progress. Only the lane's thread reads and
//! writes the socket; fields that other threads may touch are marked.

const std = @import("std");
const linux = std.os.linux;
const faults = @import("../base/faults.zig");
const types = @import("../abi/types.zig");
const records = @import("records.zig");
const sockets = @import("sockets.zig");
const outgoing = @import("outgoing.zig");
const incoming = @import("incoming.zig");
const sessions = @import("session.zig");
const Lanes = @import("lanes.zig").Lanes;
const Worker = @import("worker.zig").Worker;
const Error = @import("../abi/status.zig").Error;
const Session = sessions.Session;
const Transfer = sessions.Transfer;
const Fault = types.LaneFault;
const List = std.DoublyLinkedList;

const magic = "HEARTHL1";
const preamble_bytes = magic.len + 16 + 4 + 4;
/// A record without payload.
pub const control_bytes = records.header_bytes + records.tag_bytes;
/// Size of the first message from the dialling side.
pub const greeting_bytes = preamble_bytes + control_bytes;
/// How long a connection may stay open without authentication.
const stranger_ns = 5 * std.time.ns_per_s;

/// The reasons that end a lane, and with it its session.
pub const Trouble = error{ Broken, Forged, Bye, Refused, Unreachable };

pub fn faultOf(trouble: Trouble) Fault {
    return switch (trouble) {
        error.Broken => .broken,
        error.Forged => .forged,
        error.Bye => .closed,
        error.Refused => .refused,
        error.Unreachable => .@"unreachable",
    };
}

const Stage = enum {
    connecting,
    /// The dialling side waits for the welcome, the listening side for the hello.
    greeting,
    up,
};

/// The unencrypted bytes before the hello.
pub const Preamble = struct {
    session: [16]u8,
    lane: u32,
    cipher: u32,

    fn write(preamble: Preamble, to: *[preamble_bytes]u8) void {
        to[0..8].* = magic.*;
        to[8..24].* = preamble.session;
        std.mem.writeInt(u32, to[24..28], preamble.lane, .little);
        std.mem.writeInt(u32, to[28..32], preamble.cipher, .little);
    }

    pub fn read(from: *const [preamble_bytes]u8) ?Preamble {
        if (!std.mem.eql(u8, from[0..8], magic)) return null;
        return .{
            .session = from[8..24].*,
            .lane = std.mem.readInt(u32, from[24..28], .little),
            .cipher = std.mem.readInt(u32, from[28..32], .little),
        };
    }
};

pub const Lane = struct {
    hub: *Lanes,
    /// Changes only while the lane is in no worker's list. Other threads read it with the mutex
    /// held.
    worker: *Worker,
    /// The worker to which the lane's thread must hand it over.
    next_worker: ?*Worker = null,
    fd: i32,
    index: u32 = 0,
    stage: Stage,
    session: ?*Session = null,
    /// For a connection without a session: when it must have one, in nanoseconds.
    deadline: u64 = 0,
    readable: bool = true,
    writable: bool = true,
    /// Number of available bytes at which the thread is woken.
    wakes_at: u32 = 1,
    /// The other side sends no more than the bytes already received.
    hung_up: bool = false,
    out: outgoing.Outgoing = .{},
    in: incoming.Incoming = .{},
    node: List.Node = .{},
    /// The session has ended.
    is_closing: std.atomic.Value(bool) = .init(false),
    /// The following fields require the mutex.
    queue: List = .{},
    queued_bytes: u64 = 0,
    /// Length of the queue; read without the mutex.
    queued: std.atomic.Value(u32) = .init(0),

    fn allocate(hub: *Lanes) Error!*Lane {
        try faults.gate(.@"lanes.memory");
        return hub.allocator.create(Lane);
    }

    /// A lane for an accepted connection that belongs to no session yet.
    pub fn stranger(hub: *Lanes, worker: *Worker, fd: i32, now: u64) ?*Lane {
        const lane = allocate(hub) catch return null;
        lane.* = .{
            .hub = hub,
            .worker = worker,
            .fd = fd,
            .stage = .greeting,
            .deadline = now + stranger_ns,
        };
        return lane;
    }

    /// A lane for a connection that is being made to the session's other side.
    pub fn dialled(session: *Session, worker: *Worker, fd: i32, index: u32) ?*Lane {
        const lane = allocate(session.hub) catch return null;
        lane.* = .{
            .hub = session.hub,
            .worker = worker,
            .fd = fd,
            .stage = .connecting,
            .index = index,
            .session = session,
            .writable = false,
        };
        lane.makeKeys(session, .from_dialler, .to_dialler);
        return lane;
    }

    fn makeKeys(
        lane: *Lane,
        session: *const Session,
        out: records.Direction,
        in: records.Direction,
    ) void {
        var place: records.Place = .{
            .session = session.id,
            .lane = lane.index,
            .direction = out,
            .cipher = session.cipher,
        };
        lane.out.keys = .init(&session.secret, place, lane.hub.rekey_bytes);
        place.direction = in;
        lane.in.keys = .init(&session.secret, place, lane.hub.rekey_bytes);
        lane.out.is_sealed = session.cipher != .none;
        lane.in.is_sealed = session.cipher != .none;
    }

    /// Whether the greeting proves knowledge of the secret; the lane then belongs to the session.
    /// Requires the mutex.
    pub fn prove(lane: *Lane, session: *Session, index: u32, hello: *const [control_bytes]u8) bool {
        lane.index = index;
        lane.makeKeys(session, .to_dialler, .from_dialler);
        lane.in.openControl(hello, .hello) catch return false;
        return true;
    }

    /// Both sides have proved that they know the secret. Requires the mutex; false if the session
    /// has ended meanwhile.
    pub fn markUp(lane: *Lane) bool {
        const session = lane.session.?;
        if (session.phase != .opening) return false;
        lane.stage = .up;
        session.laneUp();
        return true;
    }

    /// Queues a transfer for sending. Requires the mutex.
    pub fn enqueue(lane: *Lane, transfer: *Transfer) void {
        lane.queue.append(&transfer.lane_node);
        lane.queued_bytes += transfer.span.len;
        _ = lane.queued.fetchAdd(1, .release);
        lane.worker.call();
    }

    /// Does the work that is possible now; true if more remains.
    pub fn turn(lane: *Lane) Trouble!bool {
        if (lane.stage == .connecting) {
            if (!lane.writable) return false;
            if (!sockets.isConnected(lane.fd)) return error.Unreachable;
            lane.greet();
        }
        const more_in = lane.readable and try incoming.read(lane);
        const more_out = lane.writable and try outgoing.write(lane);
        return more_in or more_out;
    }

    fn greet(lane: *Lane) void {
        const session = lane.session.?;
        const preamble: Preamble = .{
            .session = session.id,
            .lane = lane.index,
            .cipher = @intFromEnum(session.cipher),
        };
        preamble.write(lane.out.small[0..preamble_bytes]);
        lane.out.putControl(.{ .kind = .hello }, preamble_bytes, true);
        lane.stage = .greeting;
    }

    /// Releases the spans of transfers that must end. Requires the mutex.
    pub fn releaseStopped(lane: *Lane) void {
        const is_free = lane.out.releaseStopped(lane.worker) and
            lane.in.releaseStopped(lane.worker);
        // Without memory for the rest of the record the connection cannot continue.
        if (!is_free) lane.session.?.end(.broken);
    }

    /// Closes the connection, wipes the keys and notifies the session. Called by the lane's thread.
    pub fn shut(lane: *Lane) void {
        const hub = lane.hub;
        hub.mutex.lock();
        const session = lane.session;
        const is_farewell = lane.stage == .up and session.?.fault == .closed;
        if (session != null) {
            lane.out.abandon();
            lane.in.abandon();
            while (lane.queue.popFirst()) |node| {
                hub.freeTransfer(.ofLane(node));
            }
        }
        hub.mutex.unlock();
        if (is_farewell) lane.out.sendBye(lane.fd);
        // close(2) alone does not remove the descriptor from epoll if a child that was just forked
        // has it too.
        _ = linux.epoll_ctl(lane.worker.epoll_fd, linux.EPOLL.CTL_DEL, lane.fd, null);
        _ = linux.close(lane.fd);
        lane.out.keys.wipe();
        lane.in.keys.wipe();
        lane.worker.takeBack(&lane.out.scratch);
        lane.worker.takeBack(&lane.in.scratch);
        hub.mutex.lock();
        if (session) |open| open.laneGone(lane);
        hub.mutex.unlock();
        hub.allocator.destroy(lane);
    }
};
