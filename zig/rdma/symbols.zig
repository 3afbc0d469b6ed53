//! The functions of libibverbs, looked up by name at run time. An optional function is null if the
//! opened library is too old to have it.

const verbs = @import("verbs.zig");
const Context = verbs.Context;
const Cq = verbs.Cq;
const Mr = verbs.Mr;
const Pd = verbs.Pd;
const Qp = verbs.Qp;

pub const Symbols = struct {
    ibv_get_device_list: *const fn (count: ?*c_int) callconv(.c) ?[*:null]?*verbs.Device,
    ibv_free_device_list: *const fn (list: [*:null]?*verbs.Device) callconv(.c) void,
    ibv_open_device: *const fn (device: *verbs.Device) callconv(.c) ?*Context,
    ibv_close_device: *const fn (context: *Context) callconv(.c) c_int,
    ibv_query_device: *const fn (context: *Context, out: *verbs.DeviceAttr) callconv(.c) c_int,
    /// Fills only the fields of the first version of the struct, not the later ones.
    ibv_query_port: *const fn (*Context, port: u8, out: *verbs.PortAttr) callconv(.c) c_int,
    _ibv_query_gid_ex: *const fn (
        context: *Context,
        port: u32,
        index: u32,
        out: *verbs.GidEntry,
        flags: u32,
        out_bytes: usize,
    ) callconv(.c) c_int,
    ibv_alloc_pd: *const fn (context: *Context) callconv(.c) ?*Pd,
    ibv_dealloc_pd: *const fn (pd: *Pd) callconv(.c) c_int,
    ibv_reg_mr: *const fn (*Pd, address: *anyopaque, usize, access: c_int) callconv(.c) ?*Mr,
    ibv_dereg_mr: *const fn (mr: *Mr) callconv(.c) c_int,
    ibv_create_comp_channel: *const fn (*Context) callconv(.c) ?*verbs.CompChannel,
    ibv_destroy_comp_channel: *const fn (*verbs.CompChannel) callconv(.c) c_int,
    ibv_create_cq: *const fn (
        context: *Context,
        entries: c_int,
        user: ?*anyopaque,
        channel: ?*verbs.CompChannel,
        vector: c_int,
    ) callconv(.c) ?*Cq,
    ibv_destroy_cq: *const fn (cq: *Cq) callconv(.c) c_int,
    ibv_get_cq_event: *const fn (
        channel: *verbs.CompChannel,
        cq: *?*Cq,
        user: *?*anyopaque,
    ) callconv(.c) c_int,
    ibv_ack_cq_events: *const fn (cq: *Cq, count: c_uint) callconv(.c) void,
    ibv_create_qp: *const fn (pd: *Pd, attr: *verbs.QpInitAttr) callconv(.c) ?*Qp,
    ibv_modify_qp: *const fn (qp: *Qp, attr: *verbs.QpAttr, mask: c_int) callconv(.c) c_int,
    ibv_destroy_qp: *const fn (qp: *Qp) callconv(.c) c_int,
    ibv_get_async_event: *const fn (*Context, out: *verbs.AsyncEvent) callconv(.c) c_int,
    ibv_ack_async_event: *const fn (event: *verbs.AsyncEvent) callconv(.c) void,
    /// Registers memory; accepts access flags that a device may ignore.
    ibv_reg_mr_iova2: ?*const fn (
        pd: *Pd,
        address: *anyopaque,
        bytes: usize,
        iova: u64,
        access: c_uint,
    ) callconv(.c) ?*Mr,
    /// Registers memory of another device, given as a dma-buf descriptor.
    ibv_reg_dmabuf_mr: ?*const fn (
        pd: *Pd,
        offset: u64,
        bytes: usize,
        iova: u64,
        fd: c_int,
        access: c_int,
    ) callconv(.c) ?*Mr,
};
