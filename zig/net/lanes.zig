//! Lanes: TCP connections that carry payload from one host's arena to another's. The event loop
//! begins and ends sessions and transfers, a few threads own the connections, and one eventfd
//! reports completions. The numbers of sessions and transfers are limited, and the completion queue
//! has room for all their completions.

const std = @import("std");
const linux = std.os.linux;
const faults = @import("../base/faults.zig");
const sync = @import("../base/mutex.zig");
const wakes = @import("../base/wake.zig");
const monotonic = @import("../base/monotonic.zig");
const types = @import("../abi/types.zig");
const regions = @import("../mem/root.zig").table;
const Region = @import("../mem/root.zig").Region;
const sockets = @import("sockets.zig");
const lane_file = @import("lane.zig");
const session_file = @import("session.zig");
const Fifo = @import("../base/fifo.zig").Fifo;
const Lane = lane_file.Lane;
const Session = session_file.Session;
const Transfer = session_file.Transfer;
const Worker = @import("worker.zig").Worker;
const Error = @import("../abi/status.zig").Error;

const threads_max = 16;
const sessions_max = 1024;
const transfers_max = 1024;
const socket_bytes_max = 1 << 30;
/// Completions of one session: opened and ended.
const events_per_session = 2;

pub const Lanes = struct {
    allocator: std.mem.Allocator,
    region: *Region,
    rekey_bytes: u64,
    socket_bytes: u32,
    event_fd: i32,
    workers: []Worker,
    mutex: sync.Mutex = .{},
    sessions: []Session = &.{},
    transfers: []Transfer = &.{},
    free_transfers: Fifo(*Transfer) = .{ .items = &.{} },
    done: Fifo(types.LaneDone) = .{ .items = &.{} },
    /// True from the write to the eventfd until all completions are reaped.
    woken: bool = false,
    /// Number of sessions whose `ended` completion has not been reaped.
    sessions_unreaped: u32 = 0,
    transfers_unreaped: u32 = 0,
    /// Number of sessions that wait for their lanes to connect.
    opening: u32 = 0,
    stopping: bool = false,

    pub fn create(allocator: std.mem.Allocator, request: types.LanesRequest) Error!*Lanes {
        if (request.threads == 0 or request.threads > threads_max) return error.BadRequest;
        if (request.socket_bytes > socket_bytes_max) return error.BadRequest;
        try faults.gate(.@"lanes.memory");
        const region = try regions.acquire(request.region);
        errdefer regions.release(region);
        const lanes = try allocator.create(Lanes);
        errdefer allocator.destroy(lanes);
        const workers = try allocator.alloc(Worker, request.threads);
        errdefer allocator.free(workers);
        lanes.* = .{
            .allocator = allocator,
            .region = region,
            .rekey_bytes = request.rekey_bytes,
            .socket_bytes = request.socket_bytes,
            .event_fd = -1,
            .workers = workers[0..0],
        };
        errdefer lanes.freeTables();
        try lanes.makeTables();
        try faults.gate(.@"lanes.eventfd");
        lanes.event_fd = try wakes.create();
        errdefer _ = linux.close(lanes.event_fd);
        errdefer lanes.stopWorkers();
        for (workers) |*worker| {
            worker.* = try .create(lanes);
            lanes.workers = workers[0 .. lanes.workers.len + 1];
        }
        for (workers) |*worker| try worker.start();
        return lanes;
    }

    fn makeTables(lanes: *Lanes) Error!void {
        const allocator = lanes.allocator;
        lanes.sessions = try allocator.alloc(Session, sessions_max);
        for (lanes.sessions) |*session| session.* = .{ .hub = lanes };
        // Twice the limit: a sending lane may still refer to a completed transfer while a new
        // transfer begins.
        lanes.transfers = try allocator.alloc(Transfer, 2 * transfers_max);
        lanes.free_transfers.items = try allocator.alloc(*Transfer, 2 * transfers_max);
        for (lanes.transfers) |*transfer| lanes.free_transfers.push(transfer);
        const completions = transfers_max + events_per_session * sessions_max;
        lanes.done.items = try allocator.alloc(types.LaneDone, completions);
    }

    fn freeTables(lanes: *Lanes) void {
        lanes.allocator.free(lanes.sessions);
        lanes.allocator.free(lanes.transfers);
        lanes.allocator.free(lanes.free_transfers.items);
        lanes.allocator.free(lanes.done.items);
    }

    fn stopWorkers(lanes: *Lanes) void {
        lanes.mutex.lock();
        lanes.stopping = true;
        for (lanes.workers) |*worker| worker.call();
        lanes.mutex.unlock();
        for (lanes.workers) |*worker| if (worker.thread) |thread| thread.join();
        for (lanes.workers) |*worker| worker.destroy();
    }

    /// Stops the threads and frees everything. Returns `Busy` while a session exists.
    pub fn close(lanes: *Lanes) Error!void {
        {
            lanes.mutex.lock();
            defer lanes.mutex.unlock();
            for (lanes.sessions) |*session| if (session.phase != .free) return error.Busy;
        }
        const allocator = lanes.allocator;
        const workers = lanes.workers;
        lanes.stopWorkers();
        _ = linux.close(lanes.event_fd);
        lanes.freeTables();
        regions.release(lanes.region);
        allocator.free(workers);
        allocator.destroy(lanes);
    }

    /// Starts to accept lane connections and returns the port.
    pub fn listen(lanes: *Lanes, request: types.LaneAddress) Error!u32 {
        const address = try sockets.Address.parse(&request.host, request.port);
        const listener = try sockets.listen(&address, lanes.socket_bytes);
        errdefer _ = linux.close(listener.fd);
        lanes.mutex.lock();
        defer lanes.mutex.unlock();
        try lanes.workers[0].addListener(listener.fd);
        return listener.port;
    }

    /// Begins a session whose lanes the other side dials.
    pub fn expect(lanes: *Lanes, request: types.LaneSession) Error!*Session {
        lanes.mutex.lock();
        defer lanes.mutex.unlock();
        return lanes.begin(request, .sender);
    }

    /// Begins a session whose lanes this side dials.
    pub fn dial(lanes: *Lanes, request: types.LaneSession, to: types.LaneAddress) Error!*Session {
        const address = try sockets.Address.parse(&to.host, to.port);
        lanes.mutex.lock();
        defer lanes.mutex.unlock();
        const session = try lanes.begin(request, .receiver);
        for (0..session.lane_count) |index| lanes.dialLane(session, &address, index) catch {
            session.end(.@"unreachable");
            break;
        };
        std.crypto.secureZero(u8, &session.secret);
        return session;
    }

    fn dialLane(
        lanes: *Lanes,
        session: *Session,
        address: *const sockets.Address,
        index: usize,
    ) Error!void {
        const fd = try sockets.connect(address, lanes.socket_bytes);
        const worker = lanes.workerOf(session, index);
        const lane = Lane.dialled(session, worker, fd, @intCast(index)) orelse {
            _ = linux.close(fd);
            return error.OutOfMemory;
        };
        session.attach(lane);
        worker.give(lane);
    }

    fn begin(lanes: *Lanes, request: types.LaneSession, role: session_file.Role) Error!*Session {
        if (request.lanes == 0 or request.lanes > session_file.lanes_max) return error.BadRequest;
        const cipher = std.enums.fromInt(types.LaneCipher, request.cipher) orelse
            return error.BadRequest;
        if (lanes.sessions_unreaped == sessions_max) return error.Full;
        const free = for (lanes.sessions) |*session| {
            if (session.phase == .free) break session;
        } else return error.Full;
        if (role == .sender and lanes.findExpected(&request.id) != null) return error.Exists;
        free.* = .{
            .hub = lanes,
            .phase = .opening,
            .has_handle = true,
            .role = role,
            .token = request.token,
            .id = request.id,
            .secret = request.secret,
            .cipher = cipher,
            .lane_count = request.lanes,
            .deadline = monotonic.now() + @as(u64, request.timeout_ms) * std.time.ns_per_ms,
        };
        lanes.sessions_unreaped += 1;
        lanes.opening += 1;
        lanes.workers[0].call();
        return free;
    }

    fn findExpected(lanes: *Lanes, id: *const [16]u8) ?*Session {
        for (lanes.sessions) |*session| {
            if (session.phase != .opening or session.role != .sender) continue;
            if (std.mem.eql(u8, &session.id, id)) return session;
        }
        return null;
    }

    /// Returns the worker for one lane of a session, so that the lanes of a session are on
    /// different threads.
    fn workerOf(lanes: *Lanes, session: *const Session, index: usize) *Worker {
        const slot = (@intFromPtr(session) - @intFromPtr(lanes.sessions.ptr)) / @sizeOf(Session);
        return &lanes.workers[(slot + index) % lanes.workers.len];
    }

    /// Returns whether the greeting of an accepted connection matches a lane that a session
    /// expects. If it does, the connection becomes that lane.
    pub fn admit(lanes: *Lanes, lane: *Lane, greeting: *const [lane_file.greeting_bytes]u8) bool {
        const hello_at = greeting.len - lane_file.control_bytes;
        const preamble = lane_file.Preamble.read(greeting[0..hello_at]) orelse return false;
        lanes.mutex.lock();
        defer lanes.mutex.unlock();
        const session = lanes.findExpected(&preamble.session) orelse return false;
        if (preamble.cipher != @intFromEnum(session.cipher)) return false;
        if (preamble.lane >= session.lane_count) return false;
        if (session.lanes[preamble.lane] != null) return false;
        if (!lane.prove(session, preamble.lane, greeting[hello_at..])) return false;
        session.attach(lane);
        lane.session = session;
        lane.next_worker = lanes.workerOf(session, lane.index);
        lane.out.putControl(.{ .kind = .welcome }, 0, true);
        if (!lane.markUp()) session.end(.broken);
        return true;
    }

    /// Ends the sessions that did not open before their deadline. The caller holds the mutex.
    pub fn expire(lanes: *Lanes, now: u64) void {
        for (lanes.sessions) |*session| {
            if (session.phase == .opening and now > session.deadline) session.end(.expired);
        }
    }

    pub fn hasOpening(lanes: *Lanes) bool {
        lanes.mutex.lock();
        defer lanes.mutex.unlock();
        return lanes.opening > 0;
    }

    /// Takes a free transfer, or returns `Full`. The caller holds the mutex.
    pub fn takeTransfer(lanes: *Lanes) Error!*Transfer {
        if (lanes.transfers_unreaped == transfers_max) return error.Full;
        if (lanes.free_transfers.count == 0) {
            lanes.endMostUnsent();
            return error.Full;
        }
        lanes.transfers_unreaped += 1;
        return lanes.free_transfers.pop();
    }

    /// Ends the session with the most completed transfers whose abort records are not yet sent: a
    /// peer that does not read must not occupy the transfers of all sessions.
    fn endMostUnsent(lanes: *Lanes) void {
        var most: ?*Session = null;
        for (lanes.sessions) |*session| {
            if (session.aborts_unsent == 0) continue;
            // This session is already ending and frees its transfers soon.
            if (session.phase != .open) return;
            if (most == null or session.aborts_unsent > most.?.aborts_unsent) most = session;
        }
        if (most) |session| session.end(.full);
    }

    /// Returns a completed transfer to the free list. The caller holds the mutex.
    pub fn freeTransfer(lanes: *Lanes, transfer: *Transfer) void {
        std.debug.assert(transfer.is_settled);
        if (transfer.session.role == .sender) transfer.session.aborts_unsent -= 1;
        lanes.free_transfers.push(transfer);
    }

    /// Adds a completion and wakes the reader unless it was already woken. The caller holds the
    /// mutex.
    pub fn complete(lanes: *Lanes, done: types.LaneDone) void {
        lanes.done.push(done);
        if (lanes.woken) return;
        lanes.woken = true;
        wakes.ring(lanes.event_fd);
    }

    /// Moves up to `out.len` completions to `out` and returns their number. Never waits.
    pub fn reap(lanes: *Lanes, out: []types.LaneDone) u32 {
        lanes.mutex.lock();
        defer lanes.mutex.unlock();
        const count = @min(out.len, lanes.done.count);
        for (out[0..count]) |*done| {
            done.* = lanes.done.pop();
            switch (@as(types.LaneEvent, @enumFromInt(done.event))) {
                .opened => {},
                .ended => lanes.sessions_unreaped -= 1,
                .sent, .received => lanes.transfers_unreaped -= 1,
            }
        }
        if (lanes.done.count == 0) lanes.woken = false;
        return @intCast(count);
    }
};
