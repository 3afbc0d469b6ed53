//! A link: a queue pair that is connected to a queue pair of another host, with its reads and the
//! spans that the other host may read (loans). The caller of each function holds the hub's mutex
//! unless its comment says otherwise.

const std = @import("std");
const linux = std.os.linux;
const monotonic = @import("../base/monotonic.zig");
const types = @import("../abi/rdma_types.zig");
const verbs = @import("verbs.zig");
const pair = @import("pair.zig");
const device_file = @import("device.zig");
const hub_file = @import("hub.zig");
const Hub = hub_file.Hub;
const Port = hub_file.Port;
const Read = @import("read.zig").Read;
const Loan = @import("loan.zig").Loan;
const Error = @import("../abi/status.zig").Error;

/// Maximum time in nanoseconds in which a stopped queue pair must flush its READs in flight.
const flush_ns = 2 * std.time.ns_per_s;
/// Number of bits of a queue pair number and of a packet sequence number.
const number_bits = 24;

pub const Phase = enum {
    free,
    /// The queue pair is being created.
    opening,
    made,
    /// A helper thread is connecting the queue pair.
    connecting,
    connected,
    /// A helper thread is stopping the queue pair.
    failing,
    /// READs in flight are being flushed from the stopped queue pair.
    flushing,
    /// A helper thread is destroying the queue pair.
    destroying,
    /// The queue pair is destroyed. Helper threads may still work on reads and loans of the link.
    gone,
    /// The `ended` event was reported, and the link's handle is still open.
    ended,
};

/// Returns whether the address of a port has changed.
pub fn isElsewhere(was: *const types.RdmaPort, now: *const types.RdmaPort) bool {
    if (was.lid != now.lid or was.gid_index != now.gid_index) return true;
    return !std.mem.eql(u8, &was.gid, &now.gid);
}

/// A READ in flight. READs complete in the order in which they were posted.
const Piece = struct { read: *Read, bytes: u32 };

/// Iterates over a link's reads or loans. The caller may remove the current one.
fn Each(comptime T: type) type {
    return struct {
        next: ?*std.DoublyLinkedList.Node,

        fn step(each: *@This()) ?*T {
            const node = each.next orelse return null;
            each.next = node.next;
            return @alignCast(@fieldParentPtr("node", node));
        }
    };
}

pub const Link = struct {
    hub: *Hub,
    slot: u16,
    /// Incremented when the slot is reused, so that completions of earlier links are recognised.
    generation: u32 = 0,
    phase: Phase = .free,
    has_handle: bool = false,
    request: types.RdmaLinkRequest = undefined,
    port: ?*Port = null,
    /// The port at the creation of the link, as reported to the other host.
    local: types.RdmaPort = undefined,
    qp: *verbs.Qp = undefined,
    psn: u32 = 0,
    other: types.RdmaAddress = undefined,
    /// Largest number of READs in flight on this link.
    window: u32 = 0,
    pieces: [device_file.window_max]Piece = undefined,
    /// Sequence number of the oldest READ in flight.
    first: u32 = 0,
    in_flight: u32 = 0,
    reads: std.DoublyLinkedList = .{},
    loans: std.DoublyLinkedList = .{},
    fault: types.RdmaFault = .none,
    code: i32 = 0,
    /// The device has confirmed that the queue pair is stopped.
    is_stopped: bool = false,
    /// Time at which flushing the queue pair ends, in nanoseconds of the monotonic clock.
    deadline: u64 = 0,

    /// Creates an unconnected queue pair and its link. `address` receives the data that the other
    /// host needs to connect. The caller must not hold the mutex.
    pub fn create(
        hub: *Hub,
        request: types.RdmaLinkRequest,
        address: *types.RdmaAddress,
    ) Error!*Link {
        if (!isSound(&request)) return error.BadRequest;
        const link = try take(hub, request);
        errdefer link.putBack();
        const port = link.port.?;
        const local = &link.local;
        const window = @min(local.reads_out, device_file.window_max);
        link.qp = try pair.make(port.device, window, local.number);
        var random: [4]u8 = undefined;
        // A random start distinguishes packets from those of earlier queue pairs with the same
        // number. It need not be secret.
        if (linux.getrandom(&random, random.len, 0) != random.len) random = @splat(7);
        link.psn = std.mem.readInt(u32, &random, .little) >> (32 - number_bits);
        address.* = .{
            .gid = local.gid,
            .queue_pair = link.qp.qp_num,
            .psn = link.psn,
            .lid = local.lid,
            .mtu = local.mtu,
            .reads_out = local.reads_out,
            .reads_in = local.reads_in,
        };
        hub.mutex.lock();
        defer hub.mutex.unlock();
        link.phase = .made;
        // The port may have gone down or changed its address during the creation.
        if (!isActive(port) or isElsewhere(local, &port.now)) link.fail(.port, 0);
        return link;
    }

    fn isSound(request: *const types.RdmaLinkRequest) bool {
        if (request.timeout < 1 or request.timeout > 31) return false;
        if (request.retries < 1 or request.retries > 6) return false;
        if (request.traffic_class > 255 or request.service_level > 15) return false;
        return request.piece_bytes > 0 and request.piece_bytes % 4096 == 0;
    }

    fn isActive(port: *const Port) bool {
        return port.now.state == @intFromEnum(types.RdmaPortState.active);
    }

    fn take(hub: *Hub, request: types.RdmaLinkRequest) Error!*Link {
        hub.mutex.lock();
        defer hub.mutex.unlock();
        if (request.port >= hub.ports.len) return error.OutOfRange;
        const port = &hub.ports[request.port];
        if (!isActive(port)) return error.DeviceFailed;
        if (hub.links_unreaped == hub.links.len) return error.Full;
        for (hub.links) |*link| {
            if (link.phase != .free) continue;
            link.* = .{
                .hub = hub,
                .slot = link.slot,
                .generation = link.generation +% 1,
                .phase = .opening,
                .has_handle = true,
                .request = request,
                .port = port,
                .local = port.now,
            };
            hub.links_unreaped += 1;
            return link;
        }
        return error.Full;
    }

    fn putBack(link: *Link) void {
        link.hub.mutex.lock();
        defer link.hub.mutex.unlock();
        link.hub.links_unreaped -= 1;
        link.phase = .free;
    }

    /// Starts to connect to the other host's queue pair; a helper thread does the work. If the
    /// device refuses, the link ends.
    pub fn connect(link: *Link, other: types.RdmaAddress) Error!void {
        if (pair.mtuOf(link, &other) == null) return error.BadRequest;
        if (other.queue_pair >> number_bits != 0 or other.psn >> number_bits != 0) {
            return error.BadRequest;
        }
        if (other.reads_out == 0 or other.reads_in == 0) return error.BadRequest;
        switch (link.phase) {
            .made => {},
            .connecting, .connected => return error.Exists,
            else => return error.Closed,
        }
        link.other = other;
        link.window = @min(link.local.reads_out, other.reads_in, device_file.window_max);
        link.phase = .connecting;
        link.hub.give(.{ .connect = link });
    }

    /// Continues after a helper thread has connected the queue pair. `code` is 0, or the errno of
    /// the failure.
    pub fn connected(link: *Link, code: i32) void {
        if (link.phase == .failing) return link.hub.give(.{ .sever = link });
        link.phase = .connected;
        if (code != 0) return link.fail(.broken, -code);
        var loans: Each(Loan) = .{ .next = link.loans.first };
        while (loans.step()) |loan| {
            if (loan.state == .held) loan.tellLent();
        }
        link.pump();
    }

    pub fn isOpen(link: *const Link) bool {
        return switch (link.phase) {
            .made, .connecting, .connected => true,
            else => false,
        };
    }

    /// Posts READs while the window has room, oldest read first.
    pub fn pump(link: *Link) void {
        var reads: Each(Read) = .{ .next = link.reads.first };
        while (reads.step()) |read| {
            if (link.phase != .connected) return;
            while (read.wantsMore()) {
                if (link.in_flight == link.window) return;
                if (!link.postOne(read)) break;
            }
        }
    }

    /// Posts the next READ of `read`. Returns false if `read` has to wait or the link failed.
    fn postOne(link: *Link, read: *Read) bool {
        const device = link.port.?.device;
        if (device.in_flight.load(.monotonic) >= device.room) {
            device.starved = true;
            return false;
        }
        const piece = read.nextPiece(link.pieceMax());
        const key = link.hub.sliceKey(device, piece.slice) orelse return false;
        const sequence = link.first +% link.in_flight;
        const tag = @as(u64, link.generation) << 32 | @as(u64, link.slot) << 16;
        const errno = pair.postRead(link.qp, .{
            .id = tag | (sequence & 0xffff),
            .to = piece.to,
            .local_key = key,
            .from = piece.from,
            .remote_key = read.key,
        });
        if (errno != 0) {
            link.fail(.broken, verbs.wc_general_err);
            return false;
        }
        const bytes: u32 = @intCast(piece.to.len);
        link.pieces[sequence % device_file.window_max] = .{ .read = read, .bytes = bytes };
        link.in_flight += 1;
        _ = device.in_flight.fetchAdd(1, .monotonic);
        read.posted += bytes;
        read.in_flight += 1;
        return true;
    }

    fn pieceMax(link: *const Link) u64 {
        return @min(link.request.piece_bytes, link.local.message_bytes_max);
    }

    /// Processes the completion of a READ.
    pub fn complete(link: *Link, sequence: u16, status: c_int) void {
        if (link.in_flight == 0 or @as(u16, @truncate(link.first)) != sequence) {
            // Completions must arrive in order; the state of the other READs is now unknown.
            return link.fail(.broken, verbs.wc_general_err);
        }
        const piece = link.pieces[link.first % device_file.window_max];
        link.first +%= 1;
        link.in_flight -= 1;
        _ = link.port.?.device.in_flight.fetchSub(1, .monotonic);
        const read = piece.read;
        read.in_flight -= 1;
        if (status == verbs.wc_success) read.arrived += piece.bytes;
        if (status != verbs.wc_success and link.isOpen()) {
            link.fail(.broken, status);
        } else {
            read.check();
        }
        if (link.phase == .flushing and link.in_flight == 0) link.takeAway();
        link.pump();
    }

    /// Ends the reads whose next READ goes to a slice that could not be registered.
    pub fn endReadsInto(link: *Link, slice: usize, errno: i32) void {
        var reads: Each(Read) = .{ .next = link.reads.first };
        while (reads.step()) |read| {
            if (!read.wantsMore()) continue;
            if (read.nextPiece(link.pieceMax()).slice == slice) read.end(.unregistered, errno);
        }
    }

    /// Ends the link because its handle was closed.
    pub fn dropHandle(link: *Link) void {
        link.has_handle = false;
        if (link.phase == .ended) link.phase = .free else link.fail(.cancelled, 0);
    }

    /// Ends the link, its reads and its loans. Only the first call has an effect, so the first
    /// fault is reported.
    pub fn fail(link: *Link, fault: types.RdmaFault, code: i32) void {
        if (!link.isOpen()) return;
        const is_free = link.phase != .connecting;
        link.phase = .failing;
        link.fault = fault;
        link.code = code;
        // If a helper thread is connecting the link, the link is stopped when that thread has
        // finished.
        if (is_free) link.hub.give(.{ .sever = link });
        var reads: Each(Read) = .{ .next = link.reads.first };
        while (reads.step()) |read| {
            read.end(fault, code);
        }
        var loans: Each(Loan) = .{ .next = link.loans.first };
        while (loans.step()) |loan| {
            loan.takeBack(fault);
        }
    }

    /// Continues after the queue pair was stopped: waits for its READs in flight to be flushed.
    pub fn severed(link: *Link) void {
        link.phase = .flushing;
        link.deadline = monotonic.now() + flush_ns;
        const device = link.port.?.device;
        device.flushing += 1;
        // A failed device flushes nothing.
        if (link.in_flight == 0 or device.fatal) link.takeAway() else device.wake();
    }

    /// Starts to destroy the queue pair, which drops READs that were not flushed.
    pub fn takeAway(link: *Link) void {
        link.port.?.device.flushing -= 1;
        link.phase = .destroying;
        link.hub.give(.{ .destroy = link });
    }

    /// Continues after the queue pair was destroyed: no READ accesses the region any more.
    pub fn destroyed(link: *Link) void {
        const device = link.port.?.device;
        link.phase = .gone;
        _ = device.in_flight.fetchSub(link.in_flight, .monotonic);
        link.in_flight = 0;
        var reads: Each(Read) = .{ .next = link.reads.first };
        while (reads.step()) |read| {
            read.in_flight = 0;
            read.check();
        }
        link.endIfDone();
    }

    pub fn endIfDone(link: *Link) void {
        if (link.phase != .gone) return;
        if (link.reads.first != null or link.loans.first != null) return;
        link.phase = if (link.has_handle) .ended else .free;
        link.hub.report(.{
            .token = link.request.token,
            .result = 0,
            .key = 0,
            .event = @intFromEnum(types.RdmaEvent.ended),
            .fault = @intFromEnum(link.fault),
            .code = link.code,
        });
    }

    /// Returns the unfinished read with this token; null if there is none.
    pub fn findRead(link: *Link, token: u64) ?*Read {
        var reads: Each(Read) = .{ .next = link.reads.first };
        while (reads.step()) |read| {
            if (read.token == token) return read;
        }
        return null;
    }

    pub fn findLoan(link: *Link, token: u64) ?*Loan {
        var loans: Each(Loan) = .{ .next = link.loans.first };
        while (loans.step()) |loan| {
            if (loan.token == token) return loan;
        }
        return null;
    }
};
