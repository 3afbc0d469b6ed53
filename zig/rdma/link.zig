//! A link: one queue pair connected to one queue pair of another host, with its reads and the spans
//! lent to the other side. Functions require the hub's mutex unless their comments say otherwise.

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

/// How long a stopped queue pair may take to flush its READs in flight.
const flush_ns = 2 * std.time.ns_per_s;
/// Bits of a queue pair number and of a packet sequence number.
const number_bits = 24;

pub const Phase = enum {
    free,
    /// The queue pair is being created.
    opening,
    made,
    /// A helper connects it.
    connecting,
    connected,
    /// A helper stops the queue pair.
    failing,
    /// READs in flight are being flushed.
    flushing,
    /// A helper destroys the queue pair.
    destroying,
    /// The queue pair is destroyed; helpers may still have reads and loans of the link.
    gone,
    /// The last event was reported; the owner of the handle has not reaped it.
    ended,
};

/// Whether the address of a port has changed.
pub fn isElsewhere(was: *const types.RdmaPort, now: *const types.RdmaPort) bool {
    if (was.lid != now.lid or was.gid_index != now.gid_index) return true;
    return !std.mem.eql(u8, &was.gid, &now.gid);
}

/// A posted READ. READs complete in the order of posting.
const Piece = struct { read: *Read, bytes: u32 };

/// Iterates over a link's reads or loans; the current one may be removed meanwhile.
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
    /// Distinguishes completions from those of earlier links in the slot.
    generation: u32 = 0,
    phase: Phase = .free,
    has_handle: bool = false,
    request: types.RdmaLinkRequest = undefined,
    port: ?*Port = null,
    /// The port as it was when the link was created, as reported to the other side.
    local: types.RdmaPort = undefined,
    qp: *verbs.Qp = undefined,
    psn: u32 = 0,
    other: types.RdmaAddress = undefined,
    /// Largest number of READs in flight.
    window: u32 = 0,
    pieces: [device_file.window_max]Piece = undefined,
    /// Sequence number of the oldest piece in flight.
    first: u32 = 0,
    in_flight: u32 = 0,
    reads: std.DoublyLinkedList = .{},
    loans: std.DoublyLinkedList = .{},
    fault: types.RdmaFault = .none,
    code: i32 = 0,
    /// The device confirmed that the queue pair has stopped.
    is_stopped: bool = false,
    /// Deadline of a queue pair that is being flushed.
    deadline: u64 = 0,

    /// Creates the queue pair and returns before it is connected; `address` is for the other side.
    /// Without the mutex.
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
        // Distinguishes packets from those of earlier queue pairs with the number; it need not be
        // secret.
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
        // The port may have gone down or changed its address meanwhile.
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

    /// Sets the other side's address. A refusal of the device ends the link.
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

    /// The helper has connected it; `code` is 0 or the errno of the failure.
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

    /// Posts READs while there is room, oldest read first.
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

    /// False if `read` has to wait.
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

    /// A READ of the link has completed.
    pub fn complete(link: *Link, sequence: u16, status: c_int) void {
        if (link.in_flight == 0 or @as(u16, @truncate(link.first)) != sequence) {
            // The state of the READs in flight is unknown.
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

    /// Ends reads whose next piece is in a slice that could not be registered.
    pub fn endReadsInto(link: *Link, slice: usize, errno: i32) void {
        var reads: Each(Read) = .{ .next = link.reads.first };
        while (reads.step()) |read| {
            if (!read.wantsMore()) continue;
            if (read.nextPiece(link.pieceMax()).slice == slice) read.end(.unregistered, errno);
        }
    }

    /// The handle was closed.
    pub fn dropHandle(link: *Link) void {
        link.has_handle = false;
        if (link.phase == .ended) link.phase = .free else link.fail(.cancelled, 0);
    }

    /// Ends the link with everything under way on it. The first reason counts.
    pub fn fail(link: *Link, fault: types.RdmaFault, code: i32) void {
        if (!link.isOpen()) return;
        const is_free = link.phase != .connecting;
        link.phase = .failing;
        link.fault = fault;
        link.code = code;
        // Otherwise the helper that connects the link severs it.
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

    /// The queue pair was stopped.
    pub fn severed(link: *Link) void {
        link.phase = .flushing;
        link.deadline = monotonic.now() + flush_ns;
        const device = link.port.?.device;
        device.flushing += 1;
        // A failed device flushes nothing.
        if (link.in_flight == 0 or device.fatal) link.takeAway() else device.wake();
    }

    /// READs in flight were flushed or will not be: destroying the queue pair drops them.
    pub fn takeAway(link: *Link) void {
        link.port.?.device.flushing -= 1;
        link.phase = .destroying;
        link.hub.give(.{ .destroy = link });
    }

    /// The queue pair is destroyed, so it no longer accesses the region.
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

    /// The live read with a token.
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
