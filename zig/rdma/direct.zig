//! Tests whether a NIC can write to a GPU's memory. One queue pair reads from another one of the
//! same port, from the region into a dma-buf that the GPU's driver exported. The caller then
//! compares the bytes, because on some hosts the device reports success but the bytes arrive
//! elsewhere.

const std = @import("std");
const monotonic = @import("../base/monotonic.zig");
const types = @import("../abi/rdma_types.zig");
const verbs = @import("verbs.zig");
const library = @import("library.zig");
const ports = @import("port.zig");
const pairs = @import("pair.zig");
const Domain = @import("memory.zig").Domain;
const Symbols = @import("symbols.zig").Symbols;

/// Nanoseconds after which the test fails. A READ inside one port takes microseconds, with retries
/// less than a second.
const patience_ns = 2 * std.time.ns_per_s;
/// Address of the dma-buf in work requests. Its offset in a page must equal the offset of the
/// buffer in a page.
const buffer_address = 1 << 32;
const page_bytes = 4096;
/// Packet timeout exponent: 4.096 us * 2^14 = 67 ms, up to four times.
const timeout = 14;
const retries = 3;

pub const Trial = struct {
    library: ?[*:0]const u8,
    device: [verbs.name_bytes]u8,
    port: u32,
    gid_index: u32,
    /// Memory in the region to read from; its content must not change during the test.
    source: []u8,
    fd: i32,
    /// Offset in the dma-buf to write to.
    offset: u64,
};

/// Runs the test and returns its result. All objects made for the test are destroyed before it
/// returns.
pub fn run(trial: *const Trial) types.RdmaDirect {
    var fault: types.RdmaDirect = .{ .step = @intFromEnum(types.RdmaDirectStep.works), .code = 0 };
    attempt(trial, &fault) catch |err| switch (err) {
        // `fault` contains the failed step.
        error.Stopped => {},
    };
    return fault;
}

const Stopped = error{Stopped};

fn stop(fault: *types.RdmaDirect, step: types.RdmaDirectStep, code: i32) Stopped {
    fault.* = .{ .step = @intFromEnum(step), .code = code };
    return error.Stopped;
}

fn attempt(trial: *const Trial, fault: *types.RdmaDirect) Stopped!void {
    const symbols = library.open(trial.library) catch return stop(fault, .library, 0);
    const register = symbols.ibv_reg_dmabuf_mr orelse return stop(fault, .library, 0);
    const context = try openDevice(&symbols, &trial.device, fault);
    defer _ = symbols.ibv_close_device(context);
    const port = try askPort(&symbols, context, trial, fault);
    const pd = symbols.ibv_alloc_pd(context) orelse
        return stop(fault, .device, library.lastErrno());
    defer _ = symbols.ibv_dealloc_pd(pd);
    const queue = symbols.ibv_create_cq(context, 4, null, null, 0) orelse
        return stop(fault, .device, library.lastErrno());
    defer _ = symbols.ibv_destroy_cq(queue);
    var domain: Domain = .of(&symbols, pd);
    const from = switch (domain.register(trial.source, verbs.access_remote_read)) {
        .errno => |errno| return stop(fault, .memory, errno),
        .mr => |mr| mr,
    };
    defer _ = symbols.ibv_dereg_mr(from);
    const address = buffer_address + trial.offset % page_bytes;
    const write = verbs.access_local_write;
    const bytes = trial.source.len;
    const into = register(pd, trial.offset, bytes, address, trial.fd, write) orelse
        return stop(fault, .dma_buf, library.lastErrno());
    defer _ = symbols.ibv_dereg_mr(into);
    var couple = try Couple.make(&symbols, pd, queue, fault);
    defer couple.end(&symbols);
    try couple.connect(&symbols, &port, fault);
    const code = pairs.postRead(couple.asker, .{
        .id = 1,
        .to = @as([*]u8, @ptrFromInt(address))[0..bytes],
        .local_key = into.lkey,
        .from = @intFromPtr(trial.source.ptr),
        .remote_key = from.rkey,
    });
    if (code != 0) return stop(fault, .pair, code);
    return awaitRead(queue, fault);
}

fn openDevice(
    symbols: *const Symbols,
    name: *const [verbs.name_bytes]u8,
    fault: *types.RdmaDirect,
) Stopped!*verbs.Context {
    var count: c_int = 0;
    const list = symbols.ibv_get_device_list(&count) orelse
        return stop(fault, .device, library.lastErrno());
    defer symbols.ibv_free_device_list(list);
    const wanted = std.mem.sliceTo(name, 0);
    for (list[0..@intCast(count)]) |each| {
        if (!std.mem.eql(u8, std.mem.sliceTo(&each.?.name, 0), wanted)) continue;
        return symbols.ibv_open_device(each.?) orelse stop(fault, .device, library.lastErrno());
    }
    return stop(fault, .device, @intFromEnum(std.os.linux.E.NODEV));
}

fn askPort(
    symbols: *const Symbols,
    context: *verbs.Context,
    trial: *const Trial,
    fault: *types.RdmaDirect,
) Stopped!types.RdmaPort {
    var port = std.mem.zeroes(types.RdmaPort);
    port.number = trial.port;
    const asking: ports.Asking = .{
        .symbols = symbols,
        .context = context,
        .gid_index = trial.gid_index,
    };
    asking.ask(&port);
    if (port.state != @intFromEnum(types.RdmaPortState.active)) return stop(fault, .port, 0);
    return port;
}

/// Two queue pairs of one port that are connected to each other.
const Couple = struct {
    asker: *verbs.Qp,
    owner: *verbs.Qp,

    fn make(
        symbols: *const Symbols,
        pd: *verbs.Pd,
        queue: *verbs.Cq,
        fault: *types.RdmaDirect,
    ) Stopped!Couple {
        const asker = try makeOne(symbols, pd, queue, fault);
        errdefer _ = symbols.ibv_destroy_qp(asker);
        return .{ .asker = asker, .owner = try makeOne(symbols, pd, queue, fault) };
    }

    fn makeOne(
        symbols: *const Symbols,
        pd: *verbs.Pd,
        queue: *verbs.Cq,
        fault: *types.RdmaDirect,
    ) Stopped!*verbs.Qp {
        const one = 1;
        var init: verbs.QpInitAttr = .{
            .send_cq = queue,
            .recv_cq = queue,
            .cap = .{
                .max_send_wr = one,
                .max_recv_wr = one,
                .max_send_sge = one,
                .max_recv_sge = one,
            },
        };
        return symbols.ibv_create_qp(pd, &init) orelse stop(fault, .pair, library.lastErrno());
    }

    /// Destroys both queue pairs, so that the device no longer accesses their memory.
    fn end(couple: *Couple, symbols: *const Symbols) void {
        _ = symbols.ibv_destroy_qp(couple.asker);
        _ = symbols.ibv_destroy_qp(couple.owner);
    }

    fn connect(
        couple: *Couple,
        symbols: *const Symbols,
        port: *const types.RdmaPort,
        fault: *types.RdmaDirect,
    ) Stopped!void {
        for ([_][2]*verbs.Qp{
            .{ couple.asker, couple.owner },
            .{ couple.owner, couple.asker },
        }) |ways| {
            const code = connectOne(symbols, port, ways[0], ways[1].qp_num);
            if (code != 0) return stop(fault, .pair, @intCast(@abs(code)));
        }
    }
};

fn connectOne(
    symbols: *const Symbols,
    port: *const types.RdmaPort,
    qp: *verbs.Qp,
    other: u32,
) c_int {
    var attr: verbs.QpAttr = .{
        .qp_state = verbs.qp_state_init,
        .port_num = @intCast(port.number),
        .qp_access_flags = verbs.access_remote_read,
    };
    const init_mask = verbs.mask_state | verbs.mask_pkey_index | verbs.mask_port |
        verbs.mask_access_flags;
    const made = symbols.ibv_modify_qp(qp, &attr, init_mask);
    if (made != 0) return made;
    attr = .{
        .qp_state = verbs.qp_state_rtr,
        .path_mtu = ports.mtuNumber(port.mtu).?,
        .dest_qp_num = other,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = .{
            .grh = .{ .dgid = port.gid, .sgid_index = @intCast(port.gid_index), .hop_limit = 1 },
            .dlid = @truncate(port.lid),
            .is_global = @intFromBool(port.link_layer != verbs.link_layer_infiniband),
            .port_num = @intCast(port.number),
        },
    };
    const ready_mask = verbs.mask_state | verbs.mask_av | verbs.mask_path_mtu |
        verbs.mask_dest_qpn | verbs.mask_rq_psn | verbs.mask_max_dest_rd_atomic |
        verbs.mask_min_rnr_timer;
    const ready = symbols.ibv_modify_qp(qp, &attr, ready_mask);
    if (ready != 0) return ready;
    attr = .{
        .qp_state = verbs.qp_state_rts,
        .timeout = timeout,
        .retry_cnt = retries,
        .max_rd_atomic = 1,
    };
    const send_mask = verbs.mask_state | verbs.mask_timeout | verbs.mask_retry_cnt |
        verbs.mask_rnr_retry | verbs.mask_sq_psn | verbs.mask_max_rd_atomic;
    return symbols.ibv_modify_qp(qp, &attr, send_mask);
}

fn awaitRead(queue: *verbs.Cq, fault: *types.RdmaDirect) Stopped!void {
    const end = monotonic.now() + patience_ns;
    while (monotonic.now() < end) {
        var over: [1]verbs.Wc = undefined;
        const count = queue.context.ops.poll_cq(queue, 1, &over);
        if (count < 0) return stop(fault, .read, 0);
        if (count == 0) {
            std.atomic.spinLoopHint();
            continue;
        }
        return if (over[0].status == verbs.wc_success) {} else stop(fault, .read, over[0].status);
    }
    return stop(fault, .late, 0);
}
