//! Queue pairs: reliable connections that send and answer READs. They never accept writes.

const std = @import("std");
const linux = std.os.linux;
const errno_file = @import("../base/errno.zig");
const types = @import("../abi/rdma_types.zig");
const verbs = @import("verbs.zig");
const library = @import("library.zig");
const ports = @import("port.zig");
const Device = @import("device.zig").Device;
const Link = @import("link.zig").Link;
const Error = @import("../abi/status.zig").Error;

/// Hop limit: largest number of routers on the path.
const hops = 64;
/// Code for 0.64 ms. Without effect, because only READs are sent, and they need no receive buffer.
const rnr_timer = 12;
const rnr_retries = 6;

/// Creates an unconnected queue pair.
pub fn make(device: *Device, window: u32, port: u32) Error!*verbs.Qp {
    const symbols = &device.hub.symbols;
    var init: verbs.QpInitAttr = .{
        .send_cq = device.queue,
        .recv_cq = device.queue,
        // Nothing is received, but some devices refuse a receive queue of length 0.
        .cap = .{ .max_send_wr = window, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
    };
    const qp = symbols.ibv_create_qp(device.domain.pd, &init) orelse
        return refused(library.lastErrno());
    errdefer _ = symbols.ibv_destroy_qp(qp);
    var attr: verbs.QpAttr = .{
        .qp_state = verbs.qp_state_init,
        .port_num = @intCast(port),
        .qp_access_flags = verbs.access_remote_read,
    };
    const mask = verbs.mask_state | verbs.mask_pkey_index | verbs.mask_port |
        verbs.mask_access_flags;
    const code = symbols.ibv_modify_qp(qp, &attr, mask);
    if (code != 0) return refused(code);
    return qp;
}

fn refused(code: i32) Error {
    errno_file.keep(code);
    return error.DeviceFailed;
}

/// Returns the packet size: the smaller MTU of both ports. Null if the other port's MTU is invalid.
pub fn mtuOf(link: *const Link, other: *const types.RdmaAddress) ?c_int {
    const theirs = ports.mtuNumber(other.mtu) orelse return null;
    const ours = ports.mtuNumber(link.local.mtu) orelse return null;
    return @min(ours, theirs);
}

/// Connects the queue pair and returns 0 or the errno. The caller must not hold the mutex: finding
/// the path to another host may be slow.
pub fn connect(link: *Link) i32 {
    const symbols = &link.hub.symbols;
    var ready = readyAttr(link);
    const ready_mask = verbs.mask_state | verbs.mask_av | verbs.mask_path_mtu |
        verbs.mask_dest_qpn | verbs.mask_rq_psn | verbs.mask_max_dest_rd_atomic |
        verbs.mask_min_rnr_timer;
    const code = symbols.ibv_modify_qp(link.qp, &ready, ready_mask);
    if (code != 0) return @intCast(@abs(code));
    var sending: verbs.QpAttr = .{
        .qp_state = verbs.qp_state_rts,
        .sq_psn = link.psn,
        .timeout = @intCast(link.request.timeout),
        .retry_cnt = @intCast(link.request.retries),
        .rnr_retry = rnr_retries,
        .max_rd_atomic = @intCast(link.window),
    };
    const sending_mask = verbs.mask_state | verbs.mask_timeout | verbs.mask_retry_cnt |
        verbs.mask_rnr_retry | verbs.mask_sq_psn | verbs.mask_max_rd_atomic;
    return @intCast(@abs(symbols.ibv_modify_qp(link.qp, &sending, sending_mask)));
}

fn readyAttr(link: *const Link) verbs.QpAttr {
    const port = &link.local;
    const other = &link.other;
    // A LID has no meaning in other subnets, so the global address is needed.
    const is_routed = port.link_layer != verbs.link_layer_infiniband or
        !std.mem.eql(u8, port.gid[0..8], other.gid[0..8]);
    return .{
        .qp_state = verbs.qp_state_rtr,
        .path_mtu = mtuOf(link, other).?,
        .dest_qp_num = other.queue_pair,
        .rq_psn = other.psn,
        // Accept as many READs as the other host sends at once.
        .max_dest_rd_atomic = @intCast(@min(port.reads_in, other.reads_out)),
        .min_rnr_timer = rnr_timer,
        .ah_attr = .{
            .grh = .{
                .dgid = other.gid,
                .sgid_index = @intCast(port.gid_index),
                .hop_limit = hops,
                .traffic_class = @intCast(link.request.traffic_class),
            },
            .dlid = @truncate(other.lid),
            .sl = @intCast(link.request.service_level),
            .is_global = @intFromBool(is_routed),
            .port_num = @intCast(port.number),
        },
    };
}

/// Stops the queue pair. Returns whether the device confirms it.
pub fn stop(link: *Link) bool {
    var attr: verbs.QpAttr = .{ .qp_state = verbs.qp_state_err };
    return link.hub.symbols.ibv_modify_qp(link.qp, &attr, verbs.mask_state) == 0;
}

pub const Reading = struct {
    id: u64,
    to: []u8,
    local_key: u32,
    from: u64,
    remote_key: u32,
};

/// Posts a READ and returns 0 or the errno.
pub fn postRead(qp: *verbs.Qp, reading: Reading) c_int {
    var place = [_]verbs.Sge{.{
        .addr = @intFromPtr(reading.to.ptr),
        .length = @intCast(reading.to.len),
        .lkey = reading.local_key,
    }};
    var request: verbs.SendWr = .{
        .wr_id = reading.id,
        .sg_list = &place,
        .num_sge = place.len,
        .opcode = verbs.wr_rdma_read,
        .send_flags = verbs.send_signaled,
        .wr = .{ .remote_addr = reading.from, .rkey = reading.remote_key },
    };
    var bad: ?*verbs.SendWr = null;
    return qp.context.ops.post_send(qp, &request, &bad);
}
