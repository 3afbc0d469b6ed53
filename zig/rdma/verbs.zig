//! Declarations of libibverbs' header, written by hand so that a build does not need the header.
//! Names omit the header's `ibv_`; `check:verbs` compares every field and constant with a real
//! header.

const std = @import("std");

pub const library_name = "libibverbs.so.1";
/// If a function has two versions, this version is looked up first.
pub const symbol_version = "IBVERBS_1.1";

pub const name_bytes = 64;
pub const path_bytes = 256;

pub const transport_ib = 0;

pub const link_layer_unspecified = 0;
pub const link_layer_infiniband = 1;
pub const link_layer_ethernet = 2;

pub const gid_type_ib = 0;
pub const gid_type_roce_v1 = 1;
pub const gid_type_roce_v2 = 2;

pub const port_down = 1;
pub const port_active = 4;
pub const port_active_defer = 5;

pub const access_local_write = 1 << 0;
pub const access_remote_write = 1 << 1;
pub const access_remote_read = 1 << 2;
/// Lets the device write in any order. Devices that do not support this flag ignore it.
pub const access_relaxed_ordering = 1 << 20;

pub const qp_type_rc = 2;

pub const qp_state_reset = 0;
pub const qp_state_init = 1;
pub const qp_state_rtr = 2;
pub const qp_state_rts = 3;
pub const qp_state_err = 6;

pub const mask_state = 1 << 0;
pub const mask_access_flags = 1 << 3;
pub const mask_pkey_index = 1 << 4;
pub const mask_port = 1 << 5;
pub const mask_av = 1 << 7;
pub const mask_path_mtu = 1 << 8;
pub const mask_timeout = 1 << 9;
pub const mask_retry_cnt = 1 << 10;
pub const mask_rnr_retry = 1 << 11;
pub const mask_rq_psn = 1 << 12;
pub const mask_max_rd_atomic = 1 << 13;
pub const mask_min_rnr_timer = 1 << 15;
pub const mask_sq_psn = 1 << 16;
pub const mask_max_dest_rd_atomic = 1 << 17;
pub const mask_dest_qpn = 1 << 20;

pub const wr_rdma_read = 4;
pub const send_signaled = 1 << 1;

pub const wc_success = 0;
pub const wc_loc_prot_err = 4;
pub const wc_wr_flush_err = 5;
pub const wc_rem_inv_req_err = 9;
pub const wc_rem_access_err = 10;
pub const wc_rem_op_err = 11;
pub const wc_retry_exc_err = 12;
pub const wc_fatal_err = 19;
pub const wc_general_err = 21;
pub const wc_opcode_rdma_read = 2;

pub const event_cq_err = 0;
pub const event_qp_fatal = 1;
pub const event_qp_req_err = 2;
pub const event_qp_access_err = 3;
pub const event_device_fatal = 8;
pub const event_port_active = 9;
pub const event_port_err = 10;
pub const event_lid_change = 11;
pub const event_client_reregister = 17;
pub const event_gid_change = 18;

/// Value of `abi_compat` if the context is part of a `VerbsContext`.
pub const abi_extended = std.math.maxInt(usize);

pub const Device = extern struct {
    unused_ops: [2]?*const anyopaque,
    node_type: c_int,
    transport_type: c_int,
    /// The kernel's name of the device, such as `mlx5_0`.
    name: [name_bytes]u8,
    /// Name of the device file in /dev/infiniband.
    dev_name: [name_bytes]u8,
    dev_path: [path_bytes]u8,
    /// Path of the device's folder in sysfs.
    ibdev_path: [path_bytes]u8,
};

pub const ContextOps = extern struct {
    unused_query_device: ?*const anyopaque,
    unused_query_port: ?*const anyopaque,
    unused_objects: [5]?*const anyopaque,
    alloc_mw: ?*const anyopaque,
    bind_mw: ?*const anyopaque,
    dealloc_mw: ?*const anyopaque,
    unused_create_cq: ?*const anyopaque,
    poll_cq: *const fn (cq: *Cq, count: c_int, out: [*]Wc) callconv(.c) c_int,
    req_notify_cq: *const fn (cq: *Cq, solicited_only: c_int) callconv(.c) c_int,
    unused_queues: [7]?*const anyopaque,
    post_srq_recv: ?*const anyopaque,
    unused_pairs: [4]?*const anyopaque,
    post_send: *const fn (qp: *Qp, request: *SendWr, bad: *?*SendWr) callconv(.c) c_int,
    post_recv: ?*const anyopaque,
    unused_others: [5]?*const anyopaque,
};

pub const Context = extern struct {
    device: *Device,
    ops: ContextOps,
    cmd_fd: c_int,
    async_fd: c_int,
    num_comp_vectors: c_int,
    mutex: std.c.pthread_mutex_t,
    /// `abi_extended` if the context is part of a `VerbsContext`; any other value if it is not.
    abi_compat: usize,
};

pub const QueryPort = *const fn (
    context: *Context,
    port: u8,
    out: *PortAttr,
    out_bytes: usize,
) callconv(.c) c_int;

/// The struct that contains a context. Later versions add fields at its start; `sz` is its size.
pub const VerbsContext = extern struct {
    query_port: ?QueryPort,
    unused_calls: [38]usize,
    sz: usize,
    context: Context,

    pub fn of(context: *Context) ?*VerbsContext {
        if (context.abi_compat != abi_extended) return null;
        const around: *VerbsContext = @alignCast(@fieldParentPtr("context", context));
        return if (around.sz < @sizeOf(VerbsContext)) null else around;
    }
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
    max_qp: c_int,
    max_qp_wr: c_int,
    device_cap_flags: c_uint,
    max_sge: c_int,
    max_sge_rd: c_int,
    max_cq: c_int,
    max_cqe: c_int,
    max_mr: c_int,
    max_pd: c_int,
    /// `max_qp_rd_atom`: READs that a queue pair answers at once. `max_qp_init_rd_atom`: READs that
    /// it may send at once.
    max_qp_rd_atom: c_int,
    max_ee_rd_atom: c_int,
    max_res_rd_atom: c_int,
    max_qp_init_rd_atom: c_int,
    max_ee_init_rd_atom: c_int,
    atomic_cap: c_int,
    max_ee: c_int,
    max_rdd: c_int,
    max_mw: c_int,
    max_raw_ipv6_qp: c_int,
    max_raw_ethy_qp: c_int,
    max_mcast_grp: c_int,
    max_mcast_qp_attach: c_int,
    max_total_mcast_qp_attach: c_int,
    max_ah: c_int,
    max_fmr: c_int,
    max_map_per_fmr: c_int,
    max_srq: c_int,
    max_srq_wr: c_int,
    max_srq_sge: c_int,
    max_pkeys: u16,
    local_ca_ack_delay: u8,
    phys_port_cnt: u8,
};

pub const PortAttr = extern struct {
    state: c_int,
    /// Code of the largest MTU: 1 to 5 mean 256 to 4096 bytes.
    max_mtu: c_int,
    active_mtu: c_int,
    gid_tbl_len: c_int,
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
    port_cap_flags2: u16,
};

pub const GidEntry = extern struct {
    gid: [16]u8 align(8),
    gid_index: u32,
    port_num: u32,
    gid_type: u32,
    ndev_ifindex: u32,
};

pub const AsyncEvent = extern struct {
    /// The queue pair, completion queue or port number that the event concerns.
    element: extern union { qp: ?*Qp, cq: ?*Cq, port_num: c_int },
    event_type: c_int,
};

pub const Pd = extern struct {
    context: *Context,
    handle: u32,
};

pub const Mr = extern struct {
    context: *Context,
    pd: *Pd,
    addr: ?*anyopaque,
    length: usize,
    handle: u32,
    lkey: u32,
    rkey: u32,
};

pub const CompChannel = extern struct {
    context: *Context,
    fd: c_int,
    refcnt: c_int,
};

pub const Cq = extern struct {
    context: *Context,
    channel: ?*CompChannel,
    cq_context: ?*anyopaque,
    handle: u32,
    cqe: c_int,
    mutex: std.c.pthread_mutex_t,
    cond: std.c.pthread_cond_t,
    comp_events_completed: u32,
    async_events_completed: u32,
};

pub const QpCap = extern struct {
    max_send_wr: u32 = 0,
    max_recv_wr: u32 = 0,
    max_send_sge: u32 = 0,
    max_recv_sge: u32 = 0,
    max_inline_data: u32 = 0,
};

pub const QpInitAttr = extern struct {
    qp_context: ?*anyopaque = null,
    send_cq: *Cq,
    recv_cq: *Cq,
    srq: ?*anyopaque = null,
    cap: QpCap,
    qp_type: c_int = qp_type_rc,
    sq_sig_all: c_int = 0,
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
    state: c_int,
    qp_type: c_int,
    mutex: std.c.pthread_mutex_t,
    cond: std.c.pthread_cond_t,
    events_completed: u32,
};

pub const GlobalRoute = extern struct {
    dgid: [16]u8 align(8) = @splat(0),
    flow_label: u32 = 0,
    sgid_index: u8 = 0,
    hop_limit: u8 = 0,
    traffic_class: u8 = 0,
};

pub const AhAttr = extern struct {
    grh: GlobalRoute = .{},
    dlid: u16 = 0,
    sl: u8 = 0,
    src_path_bits: u8 = 0,
    static_rate: u8 = 0,
    is_global: u8 = 0,
    port_num: u8 = 0,
};

pub const QpAttr = extern struct {
    qp_state: c_int = 0,
    cur_qp_state: c_int = 0,
    path_mtu: c_int = 0,
    path_mig_state: c_int = 0,
    qkey: u32 = 0,
    rq_psn: u32 = 0,
    sq_psn: u32 = 0,
    dest_qp_num: u32 = 0,
    qp_access_flags: c_uint = 0,
    cap: QpCap = .{},
    ah_attr: AhAttr = .{},
    alt_ah_attr: AhAttr = .{},
    pkey_index: u16 = 0,
    alt_pkey_index: u16 = 0,
    en_sqd_async_notify: u8 = 0,
    sq_draining: u8 = 0,
    max_rd_atomic: u8 = 0,
    max_dest_rd_atomic: u8 = 0,
    min_rnr_timer: u8 = 0,
    port_num: u8 = 0,
    timeout: u8 = 0,
    retry_cnt: u8 = 0,
    rnr_retry: u8 = 0,
    alt_port_num: u8 = 0,
    alt_timeout: u8 = 0,
    rate_limit: u32 = 0,
};

pub const Sge = extern struct {
    addr: u64,
    length: u32,
    lkey: u32,
};

pub const SendWr = extern struct {
    wr_id: u64,
    next: ?*SendWr = null,
    sg_list: [*]Sge,
    num_sge: c_int,
    opcode: c_int,
    send_flags: c_uint,
    unused_data: u32 = 0,
    /// The header's union of request kinds. READs use the member `rdma`.
    wr: extern struct {
        remote_addr: u64,
        rkey: u32,
        unused_rest: [2]u64 = @splat(0),
    },
    unused_domain: u32 = 0,
    unused_window: [6]u64 = @splat(0),
};

pub const Wc = extern struct {
    wr_id: u64,
    status: c_int,
    opcode: c_int,
    vendor_err: u32,
    byte_len: u32,
    unused_data: u32,
    qp_num: u32,
    src_qp: u32,
    wc_flags: c_uint,
    pkey_index: u16,
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
};
