//! The simulated NIC: one thread executes the posted requests, in order for each queue pair. A READ
//! copies from the memory of the process that lent it.

const std = @import("std");
const linux = std.os.linux;
const monotonic = @import("monotonic");
const layout = @import("layout.zig");
const state = @import("state.zig");
const fabrics = @import("fabric.zig");
const memory = @import("memory.zig");
const pairs = @import("pairs.zig");
const events = @import("events.zig");
const completions = @import("completions.zig");
const Access = layout.Access;
const Context = @import("devices.zig").Context;
const Pair = pairs.Pair;
const Status = layout.Status;
const State = layout.State;
const Work = pairs.Work;

const signalled = 2;
/// Interval in nanoseconds at which the thread checks for changes that other processes made to its
/// queue pairs.
const look_ns = 5 * std.time.ns_per_ms;
const retry_ns = std.time.ns_per_ms;

var wake_fd: i32 = -1;
/// Id of the process that started the thread. A forked child has no such thread and starts its own.
var started_in: i32 = 0;

pub fn start() !void {
    if (started_in == linux.getpid()) return;
    const fd = linux.eventfd(0, linux.EFD.CLOEXEC | linux.EFD.NONBLOCK);
    if (linux.errno(fd) != .SUCCESS) return error.System;
    wake_fd = @intCast(fd);
    const thread = try std.Thread.spawn(.{ .stack_size = 2 << 20 }, run, .{});
    thread.detach();
    started_in = linux.getpid();
}

pub fn wake() void {
    if (started_in == 0) return;
    const one: u64 = 1;
    const written = linux.write(wake_fd, @ptrCast(&one), 8);
    std.debug.assert(linux.errno(written) == .SUCCESS or linux.errno(written) == .AGAIN);
}

fn run() void {
    while (true) {
        var word: u64 = 0;
        // The wake-up counter may already be zero; the read then fails.
        _ = linux.read(wake_fd, @ptrCast(&word), 8);
        state.lock.lock();
        const due = stepAll();
        state.lock.unlock();
        var waits = [1]linux.pollfd{.{ .fd = wake_fd, .events = linux.POLL.IN, .revents = 0 }};
        const milliseconds: i32 = if (due) |time| at: {
            const now = monotonic.now();
            const rest = if (time > now) time - now else 0;
            break :at @intCast(std.math.divCeil(u64, rest, std.time.ns_per_ms) catch unreachable);
        } else -1;
        if (milliseconds != 0) _ = linux.poll(&waits, 1, milliseconds);
    }
}

/// Processes all queue pairs. Returns the time at which to continue; null to wait until woken.
fn stepAll() ?u64 {
    var due: ?u64 = null;
    var each = pairs.all;
    while (each) |pair| {
        const at = step(pair);
        if (at) |time| due = @min(due orelse time, time);
        // `step` may have released the lock, so the list may have changed and `pair` may not exist.
        each = if (pairs.find(&pair.qp) == null) pairs.all else pair.next;
    }
    return due;
}

/// Does the next work of the queue pair. Returns the time at which to continue; null to wait until
/// woken.
fn step(pair: *Pair) ?u64 {
    if (pair.is_busy or pair.qp.state < State.ready_to_receive) return null;
    if (@atomicLoad(u32, &pair.entry.is_killed, .acquire) != 0) {
        if (pair.qp.state != State.failed) {
            events.push(pair.context, .{ .qp = &pair.qp }, layout.Event.pair_access);
        }
        fail(pair);
    }
    if (pair.context.is_fatal and pair.qp.state != State.failed) fail(pair);
    publishPort(pair);
    if (pair.qp.state == State.failed) {
        flush(pair);
        return null;
    }
    const look = monotonic.now() + look_ns;
    if (pair.qp.state != State.ready_to_send or pair.executed == pair.posted) return look;
    const work = &pair.works[pair.executed % pair.works.len];
    if (state.plan.hang.hits(work.nth)) return look;
    const ready = work.posted_at + state.plan.delay_ns;
    if (ready > monotonic.now()) return ready;
    return carryOut(pair, work);
}

fn publishPort(pair: *Pair) void {
    const is_up: u32 = @intFromBool(pair.context.isPortUp());
    @atomicStore(u32, &pair.entry.is_port_up, is_up, .release);
}

/// Executes one request. Returns the time at which to continue.
fn carryOut(pair: *Pair, work: *Work) ?u64 {
    const plan = &state.plan;
    if (plan.port_down.hits(work.nth) or plan.fatal_at.hits(work.nth)) {
        const before = plan.*;
        if (plan.fatal_at.hits(work.nth)) plan.fatal = true else plan.down = @splat(true);
        plan.port_down = .{};
        plan.fatal_at = .{};
        @import("devices.zig").follow(&before);
        return 0;
    }
    const flips = plan.flip.hits(work.nth);
    const copied = work.*;
    pair.is_busy = true;
    state.lock.unlock();
    const outcome: Outcome = if (plan.read_fails.hits(work.nth))
        .{ .failed = plan.read_status }
    else
        execute(pair, &copied, flips);
    state.lock.lock();
    pair.is_busy = false;
    switch (outcome) {
        .done => |bytes| {
            pair.retries_since = 0;
            state.reads_done += 1;
            state.bytes_read += bytes;
            complete(pair, &copied, Status.success, @intCast(bytes));
            return 0;
        },
        .unreachable_for_now => return retry(pair, &copied),
        .failed => |status| {
            if (pair.qp.state == State.failed) return 0;
            complete(pair, &copied, status, 0);
            fail(pair);
            return 0;
        },
    }
}

/// Schedules another attempt to reach the other side, or fails the request if the retry time of the
/// pair's attributes has passed.
fn retry(pair: *Pair, work: *const Work) u64 {
    const now = monotonic.now();
    if (pair.qp.state == State.failed) return 0;
    if (pair.retries_since == 0) pair.retries_since = now;
    const attr = &pair.attr;
    // With a retry count of 7, soft-RoCE retries for ever; with a timeout of 0, every device does.
    if (attr.timeout == 0 or attr.retry_cnt == 7) return now + look_ns;
    const once = @as(u64, 4096) << @intCast(attr.timeout);
    const timeout = @min(once * (attr.retry_cnt + 1), state.plan.retry_ns);
    if (now - pair.retries_since < timeout) return now + retry_ns;
    complete(pair, work, Status.retries_exceeded, 0);
    fail(pair);
    return 0;
}

fn complete(pair: *Pair, work: *const Work, status: u32, bytes: u32) void {
    pair.executed += 1;
    if (status == Status.success and !work.is_signalled) return;
    const is_good = status == Status.success;
    const opcode: u32 = if (work.opcode == layout.Opcode.read) 2 else 1;
    completions.Queue.of(pair.qp.send_cq).append(.{
        .wc = std.mem.zeroInit(layout.Wc, .{
            .wr_id = work.wr_id,
            .status = status,
            // After an error these fields are undefined; an unusual value reveals callers that read
            // them.
            .opcode = if (is_good) opcode else 0xdead,
            .byte_len = if (is_good) bytes else 0xdeadbeef,
            .vendor_err = if (is_good) 0 else 0x80 + status,
            .qp_num = pair.qp.qp_num,
        }),
        .pair = pair.qp.qp_num,
        .reclaims = pair.executed,
    });
}

fn fail(pair: *Pair) void {
    if (pair.qp.state != State.failed) pair.setState(State.failed);
    flush(pair);
}

fn flush(pair: *Pair) void {
    while (pair.executed < pair.posted) {
        const work = pair.works[pair.executed % pair.works.len];
        complete(pair, &work, Status.flushed, 0);
    }
}

const Outcome = union(enum) { done: u64, unreachable_for_now, failed: u32 };

/// Executes a request without the state's lock. The memory cannot be deregistered meanwhile.
fn execute(pair: *Pair, work: *const Work, flips: bool) Outcome {
    const fabric = pair.context.fabric;
    fabric.lock.lock();
    defer fabric.lock.unlock();
    var bytes: u64 = 0;
    const rights: u32 = if (work.opcode == layout.Opcode.read) Access.local_write else 0;
    var pieces: [pairs.sges_max][]u8 = undefined;
    for (work.sges[0..work.sges_count], 0..) |sge, at| {
        const local = spanOf(fabric, sge.lkey, pair.qp.pd.handle, sge.addr, sge.length, rights);
        const base = local orelse return .{ .failed = Status.local_protection };
        pieces[at] = @as([*]u8, @ptrFromInt(base))[0..sge.length];
        bytes += sge.length;
    }
    if (bytes > state.plan.message_bytes) return .{ .failed = Status.local_length };
    const other = otherSide(pair, fabric) orelse return .unreachable_for_now;
    if (pair.attr.max_rd_atomic > other.reads_in) return refuse(other, Status.remote_invalid);
    const wanted: u32 = if (work.opcode == layout.Opcode.read)
        Access.remote_read
    else
        Access.remote_write;
    if (other.rights & wanted == 0) return refuse(other, Status.remote_access);
    // Hearth never writes to another host, so any other request is refused.
    if (work.opcode != layout.Opcode.read) return refuse(other, Status.remote_access);
    const lent = fabric.memoryOf(work.key) orelse return refuse(other, Status.remote_access);
    fabric.hold(lent);
    defer fabric.release(lent);
    const from = spanOf(fabric, work.key, other.domain, work.remote, bytes, wanted) orelse
        return refuse(other, Status.remote_access);
    return read(pieces[0..work.sges_count], other, from, flips);
}

fn read(pieces: []const []u8, other: *const fabrics.Pair, from: u64, flips: bool) Outcome {
    var done: u64 = 0;
    for (pieces) |into| {
        // The other process may have ended, or its memory may be unmapped.
        if (!memory.copy(other.owner, into, from + done)) return .unreachable_for_now;
        if (flips and done == 0 and into.len > 0) into[into.len / 2] ^= 1;
        done += into.len;
    }
    return .{ .done = done };
}

/// Refuses a request; both queue pairs then fail.
fn refuse(other: *fabrics.Pair, status: u32) Outcome {
    @atomicStore(u32, &other.is_killed, 1, .release);
    return .{ .failed = status };
}

/// Returns the address of the span in the owner's memory; null if the key does not permit the
/// access.
fn spanOf(
    fabric: *fabrics.Fabric,
    key: u32,
    domain: u32,
    address: u64,
    bytes: u64,
    rights: u32,
) ?u64 {
    const entry = fabric.memoryOf(key) orelse return null;
    if (entry.domain != domain or entry.rights & rights != rights) return null;
    if (address < entry.address or address - entry.address > entry.bytes) return null;
    if (bytes > entry.bytes - (address - entry.address)) return null;
    return entry.base + (address - entry.address);
}

/// Returns the connected queue pair; null if packets would not reach it.
fn otherSide(pair: *Pair, fabric: *fabrics.Fabric) ?*fabrics.Pair {
    const attr = &pair.attr;
    if (!pair.context.isPortUp()) return null;
    const other = fabric.pairOf(attr.dest_qp_num) orelse return null;
    const now = @atomicLoad(u32, &other.state, .acquire);
    const is_ready = now == State.ready_to_receive or now == State.ready_to_send;
    if (!is_ready or @atomicLoad(u32, &other.is_port_up, .acquire) == 0) return null;
    if (other.destination != pair.qp.qp_num or other.mtu != attr.path_mtu) return null;
    if (other.receive_psn != attr.sq_psn) return null;
    if (attr.ah_attr.is_global != 0) {
        if (!std.mem.eql(u8, &other.gid, &attr.ah_attr.grh.dgid.raw)) return null;
    } else if (other.lid != attr.ah_attr.dlid) return null;
    return other;
}

pub fn post(qp: *layout.Qp, first: ?*layout.SendWr, bad: *?*layout.SendWr) callconv(.c) i32 {
    state.lock.lock();
    defer state.lock.unlock();
    defer wake();
    const pair = Pair.of(qp);
    var each = first;
    while (each) |request| : (each = request.next) {
        const code = state.entered(.ibv_post_send) orelse take(pair, request);
        if (code == 0) continue;
        bad.* = request;
        return code;
    }
    return 0;
}

fn take(pair: *Pair, request: *const layout.SendWr) i32 {
    const invalid = @intFromEnum(linux.E.INVAL);
    if (pair.qp.state < State.ready_to_send) return invalid;
    const is_known = request.opcode == layout.Opcode.read or
        request.opcode == layout.Opcode.write;
    const count: u32 = @bitCast(request.num_sge);
    if (!is_known or count > pair.sges) return invalid;
    if (pair.posted - pair.reclaimed == pair.works.len) return @intFromEnum(linux.E.NOMEM);
    const work = &pair.works[pair.posted % pair.works.len];
    state.reads_begun += @intFromBool(request.opcode == layout.Opcode.read);
    work.* = .{
        .wr_id = request.wr_id,
        .opcode = request.opcode,
        .is_signalled = pair.signals_all or request.send_flags & signalled != 0,
        .sges = undefined,
        .sges_count = count,
        .remote = request.remote_addr,
        .key = request.rkey,
        .nth = state.reads_begun,
        .posted_at = monotonic.now(),
    };
    if (count > 0) @memcpy(work.sges[0..count], request.sg_list.?[0..count]);
    pair.posted += 1;
    return 0;
}

/// The stand-in has no sends, so it accepts no receive requests.
pub fn postReceive(qp: *layout.Qp, first: ?*anyopaque, bad: *?*anyopaque) callconv(.c) i32 {
    state.lock.lock();
    defer state.lock.unlock();
    _ = state.entered(.ibv_post_recv);
    _ = qp;
    bad.* = first;
    return @intFromEnum(linux.E.INVAL);
}
