//! A lane: one TCP connection of a session. Only the thread of the lane's worker reads and writes
//! the socket; fields that other threads may use are marked.

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
/// Size in bytes of a sealed record without payload.
pub const control_bytes = records.header_bytes + records.tag_bytes;
/// Size in bytes of the first message from the dialling side: preamble and hello record.
pub const greeting_bytes = preamble_bytes + control_bytes;
/// Maximum time in nanoseconds that an accepted connection may stay unauthenticated.
const stranger_ns = 5 * std.time.ns_per_s;

/// Reasons for which a lane, and therefore its session, ends.
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
    /// Waiting for the other side's record: the welcome on the dialling side, the hello on the
    /// accepting side.
    greeting,
    up,
};

/// The unencrypted bytes that the dialling side sends before its hello record.
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
    /// The worker whose thread uses the lane. Changes only while the lane is in no worker's list;
    /// other threads read it with the mutex held.
    worker: *Worker,
    /// The worker that must take over the lane after the greeting; null if none.
    next_worker: ?*Worker = null,
    fd: i32,
    index: u32 = 0,
    stage: Stage,
    session: ?*Session = null,
    /// For an accepted connection without a session: time in nanoseconds (monotonic clock) at which
    /// it is closed.
    deadline: u64 = 0,
    readable: bool = true,
    writable: bool = true,
    /// Number of available bytes at which epoll reports the socket as readable (SO_RCVLOWAT).
    wakes_at: u32 = 1,
    /// The other side has closed its sending direction; bytes already in the receive buffer may
    /// remain.
    hung_up: bool = false,
    out: outgoing.Outgoing = .{},
    in: incoming.Incoming = .{},
    node: List.Node = .{},
    /// The session has ended, and the worker must close the lane.
    is_closing: std.atomic.Value(bool) = .init(false),
    /// The mutex protects `queue` and `queued_bytes`.
    queue: List = .{},
    queued_bytes: u64 = 0,
    /// Number of transfers in `queue`; also read without the mutex.
    queued: std.atomic.Value(u32) = .init(0),

    fn allocate(hub: *Lanes) Error!*Lane {
        try faults.gate(.@"lanes.memory");
        return hub.allocator.create(Lane);
    }

    /// Creates a lane for an accepted connection, which belongs to no session before its greeting.
    /// Returns null if memory runs out.
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

    /// Creates a lane for a connection that is being dialled. Returns null if memory runs out.
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

    /// Derives the lane's keys and returns whether the hello record proves that the other side
    /// knows the session's secret. The caller holds the mutex.
    pub fn prove(lane: *Lane, session: *Session, index: u32, hello: *const [control_bytes]u8) bool {
        lane.index = index;
        lane.makeKeys(session, .to_dialler, .from_dialler);
        lane.in.openControl(hello, .hello) catch return false;
        return true;
    }

    /// Marks the lane as ready after both sides have proved that they know the secret. The caller
    /// holds the mutex. Returns false if the session has already ended.
    pub fn markUp(lane: *Lane) bool {
        const session = lane.session.?;
        if (session.phase != .opening) return false;
        lane.stage = .up;
        session.laneUp();
        return true;
    }

    /// Queues a transfer for sending and wakes the lane's worker. The caller holds the mutex.
    pub fn enqueue(lane: *Lane, transfer: *Transfer) void {
        lane.queue.append(&transfer.lane_node);
        lane.queued_bytes += transfer.span.len;
        _ = lane.queued.fetchAdd(1, .release);
        lane.worker.call();
    }

    /// Makes at most one receive and one send call. Returns true if more calls are possible at
    /// once.
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

    /// Releases the spans of transfers that were stopped while this lane used them. The caller
    /// holds the mutex.
    pub fn releaseStopped(lane: *Lane) void {
        const is_free = lane.out.releaseStopped(lane.worker) and
            lane.in.releaseStopped(lane.worker);
        // The rest of the record has no memory, so the connection cannot continue.
        if (!is_free) lane.session.?.end(.broken);
    }

    /// Closes the connection, wipes its keys, informs the session and frees the lane. Called on the
    /// thread of the lane's worker.
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
        // If a forked child has inherited the descriptor, close(2) alone does not remove it from
        // epoll.
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
