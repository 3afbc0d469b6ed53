//! The structures of libibverbs' header, version 1.14, that the stand-in reads or fills. They are
//! written independently of rdma/verbs.zig, so that a test detects a mistake in either.

const std = @import("std");

pub const Gid = extern union {
    raw: [16]u8,
    /// Gives the union the same alignment as in the header.
    words: [2]u64,
};

pub const GidEntry = extern struct {
    gid: Gid,
    gid_index: u32,
    port_num: u32,
    gid_type: u32,
    ndev_ifindex: u32,
};

pub const DeviceAttr = extern struct {
    fw_ver: [64]u8,
    node_guid: u64,
    sys_image_guid: u64,
    max_mr_size: u64,
    page_size_cap: u64,
    vendor_id: u32,
    vendor_part_id: u32,
    hw_ver: u32,
    max_qp: i32,
    max_qp_wr: i32,
    device_cap_flags: u32,
    max_sge: i32,
    max_sge_rd: i32,
    max_cq: i32,
    max_cqe: i32,
    max_mr: i32,
    max_pd: i32,
    max_qp_rd_atom: i32,
    max_ee_rd_atom: i32,
    max_res_rd_atom: i32,
    max_qp_init_rd_atom: i32,
    max_ee_init_rd_atom: i32,
    atomic_cap: u32,
    max_ee: i32,
    max_rdd: i32,
    max_mw: i32,
    max_raw_ipv6_qp: i32,
    max_raw_ethy_qp: i32,
    max_mcast_grp: i32,
    max_mcast_qp_attach: i32,
    max_total_mcast_qp_attach: i32,
    max_ah: i32,
    max_fmr: i32,
    max_map_per_fmr: i32,
    max_srq: i32,
    max_srq_wr: i32,
    max_srq_sge: i32,
    max_pkeys: u16,
    local_ca_ack_delay: u8,
    phys_port_cnt: u8,
};

pub const PortAttr = extern struct {
    state: u32,
    max_mtu: u32,
    active_mtu: u32,
    gid_tbl_len: i32,
    port_cap_flags: u32,
    max_msg_sz: u32,
    bad_pkey_cntr: u32,
    qkey_viol_cntr: u32,
    pkey_tbl_len: u16,
    lid: u16,
    sm_lid: u16,
    lmc: u8,
    max_vl_num: u8,
    sm_sl: u8,
    subnet_timeout: u8,
    init_type_reply: u8,
    active_width: u8,
    active_speed: u8,
    phys_state: u8,
    link_layer: u8,
    flags: u8,
    /// The exported ibv_query_port does not fill this field and those after it.
    port_cap_flags2: u16,
};

pub const AsyncEvent = extern struct {
    element: extern union { cq: ?*Cq, qp: ?*Qp, port_num: i32, word: u64 },
    event_type: u32,
};

pub const Wc = extern struct {
    wr_id: u64,
    status: u32,
    opcode: u32,
    vendor_err: u32,
    byte_len: u32,
    imm_data: u32,
    qp_num: u32,
    src_qp: u32,
    wc_flags: u32,
    pkey_index: u16,
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
};

pub const Pd = extern struct { context: *Context, handle: u32 };

pub const Mr = extern struct {
    context: *Context,
    pd: *Pd,
    addr: ?*anyopaque,
    length: usize,
    handle: u32,
    lkey: u32,
    rkey: u32,
};

pub const GlobalRoute = extern struct {
    dgid: Gid,
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
};

pub const AhAttr = extern struct {
    grh: GlobalRoute,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
};

pub const QpCap = extern struct {
    max_send_wr: u32,
    max_recv_wr: u32,
    max_send_sge: u32,
    max_recv_sge: u32,
    max_inline_data: u32,
};

pub const QpInitAttr = extern struct {
    qp_context: ?*anyopaque,
    send_cq: ?*Cq,
    recv_cq: ?*Cq,
    srq: ?*anyopaque,
    cap: QpCap,
    qp_type: u32,
    sq_sig_all: i32,
};

pub const QpAttr = extern struct {
    qp_state: u32,
    cur_qp_state: u32,
    path_mtu: u32,
    path_mig_state: u32,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: u32,
    cap: QpCap,
    ah_attr: AhAttr,
    alt_ah_attr: AhAttr,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    rate_limit: u32,
};

pub const Sge = extern struct { addr: u64, length: u32, lkey: u32 };

pub const SendWr = extern struct {
    wr_id: u64,
    next: ?*SendWr,
    sg_list: ?[*]Sge,
    num_sge: i32,
    opcode: u32,
    send_flags: u32,
    imm_data: u32,
    remote_addr: u64,
    rkey: u32,
    /// Space for the rest of the header's unions, for atomics and other requests.
    rest: [19]u32,
};

pub const Qp = extern struct {
    context: *Context,
    qp_context: ?*anyopaque,
    pd: *Pd,
    send_cq: *Cq,
    recv_cq: *Cq,
    srq: ?*anyopaque,
    handle: u32,
    qp_num: u32,
    state: u32,
    qp_type: u32,
    mutex: std.c.pthread_mutex_t,
    cond: std.c.pthread_cond_t,
    events_completed: u32,
};

pub const Channel = extern struct { context: *Context, fd: i32, refcnt: i32 };

pub const Cq = extern struct {
    context: *Context,
    channel: ?*Channel,
    cq_context: ?*anyopaque,
    handle: u32,
    cqe: i32,
    mutex: std.c.pthread_mutex_t,
    cond: std.c.pthread_cond_t,
    comp_events_completed: u32,
    async_events_completed: u32,
};

pub const Device = extern struct {
    ops: [2]?*anyopaque,
    node_type: u32,
    transport_type: u32,
    name: [64]u8,
    dev_name: [64]u8,
    dev_path: [256]u8,
    ibdev_path: [256]u8,
};

const Slot = ?*const anyopaque;

pub const ContextOps = extern struct {
    before_poll: [11]Slot = @splat(null),
    poll_cq: *const fn (*Cq, i32, [*]Wc) callconv(.c) i32,
    req_notify_cq: *const fn (*Cq, i32) callconv(.c) i32,
    before_send: [12]Slot = @splat(null),
    post_send: *const fn (*Qp, ?*SendWr, *?*SendWr) callconv(.c) i32,
    post_recv: *const fn (*Qp, ?*anyopaque, *?*anyopaque) callconv(.c) i32,
    last: [5]Slot = @splat(null),
};

pub const Context = extern struct {
    device: *Device,
    ops: ContextOps,
    cmd_fd: i32,
    async_fd: i32,
    num_comp_vectors: i32,
    mutex: std.c.pthread_mutex_t,
    abi_compat: usize,
};

/// The struct that contains a context. Later library versions added fields at its start.
pub const VerbsContext = extern struct {
    query_port: *const fn (*Context, u8, *PortAttr, usize) callconv(.c) i32,
    others: [37]Slot = @splat(null),
    placeholder: u64 = 0,
    /// Size of the whole struct in bytes.
    sz: usize,
    context: Context,
};

pub const State = struct {
    pub const reset = 0;
    pub const init = 1;
    pub const ready_to_receive = 2;
    pub const ready_to_send = 3;
    pub const failed = 6;
};

pub const Mask = struct {
    pub const state = 1 << 0;
    pub const current_state = 1 << 1;
    pub const access = 1 << 3;
    pub const pkey_index = 1 << 4;
    pub const port = 1 << 5;
    pub const path = 1 << 7;
    pub const path_mtu = 1 << 8;
    pub const timeout = 1 << 9;
    pub const retries = 1 << 10;
    pub const rnr_retries = 1 << 11;
    pub const receive_psn = 1 << 12;
    pub const reads_out = 1 << 13;
    pub const other_path = 1 << 14;
    pub const rnr_timer = 1 << 15;
    pub const send_psn = 1 << 16;
    pub const reads_in = 1 << 17;
    pub const migration = 1 << 18;
    pub const destination = 1 << 20;
};

pub const Access = struct {
    pub const local_write = 1;
    pub const remote_write = 2;
    pub const remote_read = 4;
    pub const zero_based = 1 << 5;
    pub const relaxed_ordering = 1 << 20;
    /// Access flags that a kernel may ignore.
    pub const optional = 0x3ff << 20;
};

pub const Status = struct {
    pub const success = 0;
    pub const local_length = 1;
    pub const local_protection = 4;
    pub const flushed = 5;
    pub const remote_invalid = 9;
    pub const remote_access = 10;
    pub const retries_exceeded = 12;
};

pub const Opcode = struct {
    pub const write = 0;
    pub const read = 4;
};

pub const Event = struct {
    pub const cq_error = 0;
    pub const pair_access = 3;
    pub const device_fatal = 8;
    pub const port_active = 9;
    pub const port_error = 10;
    pub const gid_change = 18;
};

comptime {
    // Expected sizes are those of the header on 64-bit Linux.
    std.debug.assert(@sizeOf(DeviceAttr) == 232);
    std.debug.assert(@sizeOf(PortAttr) == 52);
    std.debug.assert(@sizeOf(Wc) == 48);
    std.debug.assert(@sizeOf(QpAttr) == 144);
    std.debug.assert(@sizeOf(SendWr) == 128);
    std.debug.assert(@sizeOf(Device) == 664);
    std.debug.assert(@sizeOf(ContextOps) == 256);
    std.debug.assert(@sizeOf(Qp) == 160);
    std.debug.assert(@sizeOf(Cq) == 128);
    std.debug.assert(@sizeOf(Context) == 328);
    std.debug.assert(@sizeOf(VerbsContext) == 648);
    std.debug.assert(@sizeOf(QpInitAttr) == 64);
    std.debug.assert(@offsetOf(SendWr, "rkey") == 48);
    std.debug.assert(@offsetOf(ContextOps, "poll_cq") == 88);
    std.debug.assert(@offsetOf(ContextOps, "post_send") == 200);
    std.debug.assert(@offsetOf(Context, "async_fd") == 268);
    std.debug.assert(@offsetOf(VerbsContext, "context") == 320);
    std.debug.assert(@offsetOf(QpAttr, "timeout") == 130);
}
