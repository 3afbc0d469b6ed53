//! The verbs stand-in's reliable queue pairs: their states before they may send, and the attributes
//! that each change of state requires.

const std = @import("std");
const linux = std.os.linux;
const layout = @import("layout.zig");
const state = @import("state.zig");
const fabrics = @import("fabric.zig");
const queries = @import("queries.zig");
const engine = @import("engine.zig");
const Context = @import("devices.zig").Context;
const Domain = @import("memory.zig").Domain;
const Queue = @import("completions.zig").Queue;
const Mask = layout.Mask;
const State = layout.State;

const allocator = std.heap.c_allocator;
const invalid = @intFromEnum(linux.E.INVAL);
const reliable = 2;
const works_max = 8192;
pub const sges_max = 16;
const acknowledge_ns = 2 * std.time.ns_per_s;

/// A posted READ request.
pub const Work = struct {
    wr_id: u64,
    opcode: u32,
    is_signalled: bool,
    sges: [sges_max]layout.Sge,
    sges_count: usize,
    remote: u64,
    key: u32,
    /// Number of the READ since the start of the plan.
    nth: u64,
    posted_at: u64,
};

pub const Pair = struct {
    qp: layout.Qp,
    era: u32,
    context: *Context,
    entry: *fabrics.Pair,
    attr: layout.QpAttr,
    signals_all: bool,
    sges: u32,
    works: []Work,
    /// Numbers of requests since the creation of the queue pair: `reclaimed` <= `executed` <=
    /// `posted`.
    posted: u64 = 0,
    executed: u64 = 0,
    reclaimed: u64 = 0,
    /// True while the simulated NIC copies for this queue pair, without the lock.
    is_busy: bool = false,
    /// Time at which retries of the current request began; 0 if it is not being retried.
    retries_since: u64 = 0,
    events_reported: u32 = 0,
    next: ?*Pair = null,

    pub fn of(qp: *layout.Qp) *Pair {
        return @fieldParentPtr("qp", qp);
    }

    pub fn setState(pair: *Pair, value: u32) void {
        pair.qp.state = value;
        pair.attr.qp_state = value;
        @atomicStore(u32, &pair.entry.state, value, .release);
    }

    fn waitUntilIdle(pair: *Pair) void {
        while (pair.is_busy) state.pause();
    }
};

/// List of all queue pairs in the order of creation.
pub var all: ?*Pair = null;

pub fn find(qp: ?*layout.Qp) ?*Pair {
    var each = all;
    while (each) |pair| : (each = pair.next) if (&pair.qp == qp) return pair;
    return null;
}

pub fn withNumber(number: u32) ?*Pair {
    var each = all;
    while (each) |pair| : (each = pair.next) if (pair.qp.qp_num == number) return pair;
    return null;
}

export fn ibv_create_qp(pd: *layout.Pd, init: *layout.QpInitAttr) ?*layout.Qp {
    state.lock.lock();
    defer state.lock.unlock();
    if (state.entered(.ibv_create_qp)) |code| return failed(code);
    const cap = &init.cap;
    const send_cq = init.send_cq orelse return failed(invalid);
    const receive_cq = init.recv_cq orelse return failed(invalid);
    const is_too_much = cap.max_send_wr == 0 or cap.max_send_wr > works_max or
        cap.max_send_sge > sges_max or cap.max_recv_wr > works_max;
    if (init.qp_type != reliable or is_too_much) return failed(invalid);
    const pair = make(pd, init) catch return failed(@intFromEnum(linux.E.NOMEM));
    pair.qp.send_cq = send_cq;
    pair.qp.recv_cq = receive_cq;
    Queue.of(send_cq).children += 1;
    Queue.of(receive_cq).children += 1;
    Domain.of(pd).children += 1;
    pair.next = all;
    all = pair;
    state.opened(.qps);
    return &pair.qp;
}

fn failed(code: i32) ?*layout.Qp {
    state.setErrno(code);
    return null;
}

fn make(pd: *layout.Pd, init: *layout.QpInitAttr) !*Pair {
    try engine.start();
    const context = Context.of(pd.context);
    const pair = try allocator.create(Pair);
    errdefer allocator.destroy(pair);
    const works = try allocator.alloc(Work, init.cap.max_send_wr);
    errdefer allocator.free(works);
    const entry = context.fabric.addPair() orelse return error.Full;
    entry.domain = pd.handle;
    pair.* = .{
        .qp = std.mem.zeroInit(layout.Qp, .{
            .context = pd.context,
            .qp_context = init.qp_context,
            .pd = pd,
            .send_cq = init.send_cq.?,
            .recv_cq = init.recv_cq.?,
            .handle = entry.number,
            .qp_num = entry.number,
            .qp_type = reliable,
        }),
        .era = state.era,
        .context = context,
        .entry = entry,
        .attr = std.mem.zeroes(layout.QpAttr),
        .signals_all = init.sq_sig_all != 0,
        .sges = init.cap.max_send_sge,
        .works = works,
    };
    pair.attr.cap = init.cap;
    return pair;
}

export fn ibv_destroy_qp(qp: *layout.Qp) i32 {
    state.lock.lock();
    defer state.lock.unlock();
    if (state.entered(.ibv_destroy_qp)) |code| return code;
    const pair = Pair.of(qp);
    if (!state.waitUntilEqual(&pair.events_reported, &qp.events_completed, acknowledge_ns)) {
        return @intFromEnum(linux.E.BUSY);
    }
    var link = &all;
    while (link.* != pair) link = &link.*.?.next;
    link.* = pair.next;
    pair.waitUntilIdle();
    @atomicStore(i32, &pair.entry.owner, 0, .release);
    Queue.of(qp.send_cq).children -= 1;
    Queue.of(qp.recv_cq).children -= 1;
    Domain.of(qp.pd).children -= 1;
    state.closed(.qps, pair.era);
    allocator.free(pair.works);
    allocator.destroy(pair);
    return 0;
}

export fn ibv_query_qp(
    qp: *layout.Qp,
    out: *layout.QpAttr,
    mask: i32,
    init: *layout.QpInitAttr,
) i32 {
    state.lock.lock();
    defer state.lock.unlock();
    if (state.entered(.ibv_query_qp)) |code| return code;
    _ = mask;
    const pair = Pair.of(qp);
    out.* = pair.attr;
    init.* = std.mem.zeroes(layout.QpInitAttr);
    init.cap = pair.attr.cap;
    init.qp_type = reliable;
    init.send_cq = qp.send_cq;
    init.recv_cq = qp.recv_cq;
    return 0;
}

export fn ibv_modify_qp(qp: *layout.Qp, attr: *const layout.QpAttr, mask: i32) i32 {
    state.lock.lock();
    defer state.lock.unlock();
    if (state.entered(.ibv_modify_qp)) |code| return code;
    const pair = Pair.of(qp);
    const given: u32 = @bitCast(mask);
    if (pair.context.is_fatal) return @intFromEnum(linux.E.IO);
    const target = if (given & Mask.state != 0) attr.qp_state else qp.state;
    if (target == State.failed or target == State.reset) {
        if (given != Mask.state) return invalid;
        return leave(pair, target);
    }
    const step = stepOf(qp.state, target) orelse return invalid;
    const demanded = step.demanded | Mask.state;
    if (given & step.demanded != step.demanded) return invalid;
    if (given & ~(demanded | step.allowed | Mask.current_state) != 0) return invalid;
    if (!isValid(pair, attr, given)) return invalid;
    take(pair, attr, given);
    publish(pair);
    pair.setState(target);
    engine.wake();
    return 0;
}

fn leave(pair: *Pair, target: u32) i32 {
    pair.setState(target);
    if (target == State.reset) {
        // Posted requests are discarded without completions.
        pair.waitUntilIdle();
        pair.posted = 0;
        pair.executed = 0;
        pair.reclaimed = 0;
        pair.retries_since = 0;
    }
    engine.wake();
    return 0;
}

const Step = struct { demanded: u32, allowed: u32 };

/// The transitions between states that the InfiniBand architecture allows, as far as Hearth uses
/// them. Returns null for any other.
fn stepOf(from: u32, to: u32) ?Step {
    if (from == State.reset and to == State.init) return .{
        .demanded = Mask.pkey_index | Mask.port | Mask.access,
        .allowed = 0,
    };
    if (from == State.init and to == State.init) return .{
        .demanded = 0,
        .allowed = Mask.pkey_index | Mask.port | Mask.access,
    };
    if (from == State.init and to == State.ready_to_receive) return .{
        .demanded = Mask.path | Mask.path_mtu | Mask.destination | Mask.receive_psn |
            Mask.reads_in | Mask.rnr_timer,
        .allowed = Mask.other_path | Mask.access | Mask.pkey_index,
    };
    if (from == State.ready_to_receive and to == State.ready_to_send) return .{
        .demanded = Mask.timeout | Mask.retries | Mask.rnr_retries | Mask.send_psn |
            Mask.reads_out,
        .allowed = Mask.other_path | Mask.access | Mask.rnr_timer | Mask.migration,
    };
    if (from == State.ready_to_send and to == State.ready_to_send) return .{
        .demanded = 0,
        .allowed = Mask.access | Mask.other_path | Mask.rnr_timer | Mask.migration,
    };
    return null;
}

fn isValid(pair: *const Pair, attr: *const layout.QpAttr, given: u32) bool {
    const plan = &state.plan;
    if (given & Mask.pkey_index != 0 and attr.pkey_index != 0) return false;
    if (given & Mask.port != 0 and (attr.port_num == 0 or attr.port_num > plan.ports)) return false;
    if (given & Mask.path_mtu != 0 and (attr.path_mtu < 1 or attr.path_mtu > 5)) return false;
    if (given & Mask.reads_in != 0 and attr.max_dest_rd_atomic > plan.reads) return false;
    if (given & Mask.reads_out != 0 and attr.max_rd_atomic > plan.reads) return false;
    if (given & Mask.timeout != 0 and attr.timeout > 31) return false;
    if (given & Mask.retries != 0 and attr.retry_cnt > 7) return false;
    if (given & Mask.rnr_retries != 0 and attr.rnr_retry > 7) return false;
    return given & Mask.path == 0 or isPath(pair, &attr.ah_attr);
}

/// Returns whether the path is valid for the port. Ethernet requires a global address and a
/// nonempty entry in the local address table.
fn isPath(pair: *const Pair, path: *const layout.AhAttr) bool {
    if (path.port_num != pair.attr.port_num) return false;
    if (!state.plan.infiniband) {
        if (path.is_global == 0) return false;
        const own = queries.gidOf(pair.context.index, path.port_num, path.grh.sgid_index);
        return own != null and path.grh.dgid.words[1] != 0;
    }
    if (path.is_global != 0) {
        const own = queries.gidOf(pair.context.index, path.port_num, path.grh.sgid_index);
        return own != null;
    }
    return path.dlid != 0;
}

fn take(pair: *Pair, attr: *const layout.QpAttr, given: u32) void {
    const own = &pair.attr;
    if (given & Mask.pkey_index != 0) own.pkey_index = attr.pkey_index;
    if (given & Mask.port != 0) own.port_num = attr.port_num;
    if (given & Mask.access != 0) own.qp_access_flags = attr.qp_access_flags;
    if (given & Mask.path != 0) own.ah_attr = attr.ah_attr;
    if (given & Mask.path_mtu != 0) own.path_mtu = attr.path_mtu;
    if (given & Mask.destination != 0) own.dest_qp_num = attr.dest_qp_num & 0xffffff;
    if (given & Mask.receive_psn != 0) own.rq_psn = attr.rq_psn & 0xffffff;
    if (given & Mask.send_psn != 0) own.sq_psn = attr.sq_psn & 0xffffff;
    if (given & Mask.reads_in != 0) own.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    if (given & Mask.reads_out != 0) own.max_rd_atomic = attr.max_rd_atomic;
    if (given & Mask.timeout != 0) own.timeout = attr.timeout;
    if (given & Mask.retries != 0) own.retry_cnt = attr.retry_cnt;
    if (given & Mask.rnr_retries != 0) own.rnr_retry = attr.rnr_retry;
    if (given & Mask.rnr_timer != 0) own.min_rnr_timer = attr.min_rnr_timer;
}

/// Writes the fields that the other side needs to the fabric.
fn publish(pair: *Pair) void {
    const own = &pair.attr;
    const index = pair.context.index;
    const gid = queries.gidOf(index, own.port_num, own.ah_attr.grh.sgid_index);
    pair.entry.destination = own.dest_qp_num;
    pair.entry.receive_psn = own.rq_psn;
    pair.entry.send_psn = own.sq_psn;
    pair.entry.mtu = own.path_mtu;
    pair.entry.rights = own.qp_access_flags;
    pair.entry.reads_in = own.max_dest_rd_atomic;
    pair.entry.lid = queries.lidOf(index, own.port_num);
    if (gid) |found| pair.entry.gid = found.gid.raw;
}
