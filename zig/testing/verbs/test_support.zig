//! Helpers for the stand-in's tests. They call its exported functions, as a library's user does.

const std = @import("std");
const layout = @import("layout.zig");
const state = @import("state.zig");
const monotonic = @import("monotonic");
const Access = layout.Access;
const Mask = layout.Mask;
const State = layout.State;

extern fn standin_configure(text: ?[*:0]const u8) i32;
extern fn ibv_get_device_list(count: ?*i32) ?[*]?*layout.Device;
extern fn ibv_free_device_list(list: [*]?*layout.Device) void;
extern fn ibv_open_device(device: *layout.Device) ?*layout.Context;
extern fn ibv_close_device(context: *layout.Context) i32;
extern fn ibv_alloc_pd(context: *layout.Context) ?*layout.Pd;
extern fn ibv_dealloc_pd(pd: *layout.Pd) i32;
extern fn ibv_reg_mr_iova2(*layout.Pd, ?[*]u8, usize, u64, u32) ?*layout.Mr;
extern fn ibv_dereg_mr(mr: *layout.Mr) i32;
extern fn ibv_create_comp_channel(context: *layout.Context) ?*layout.Channel;
extern fn ibv_destroy_comp_channel(channel: *layout.Channel) i32;
extern fn ibv_create_cq(*layout.Context, i32, ?*anyopaque, ?*layout.Channel, i32) ?*layout.Cq;
extern fn ibv_destroy_cq(cq: *layout.Cq) i32;
extern fn ibv_create_qp(pd: *layout.Pd, init: *layout.QpInitAttr) ?*layout.Qp;
extern fn ibv_destroy_qp(qp: *layout.Qp) i32;
extern fn ibv_modify_qp(qp: *layout.Qp, attr: *const layout.QpAttr, mask: i32) i32;
extern fn _ibv_query_gid_ex(*layout.Context, u32, u32, *layout.GidEntry, u32, usize) i32;

pub const configure = standin_configure;
pub const modify = ibv_modify_qp;
pub const deregister = ibv_dereg_mr;

pub const init_mask = Mask.state | Mask.pkey_index | Mask.port | Mask.access;
pub const receive_mask = Mask.state | Mask.path | Mask.path_mtu | Mask.destination |
    Mask.receive_psn | Mask.reads_in | Mask.rnr_timer;
pub const send_mask = Mask.state | Mask.timeout | Mask.retries | Mask.rnr_retries |
    Mask.send_psn | Mask.reads_out;
/// Index of the first global RoCE v2 address in the GID table.
const global_entry = 3;

pub const Card = extern struct {
    gid: layout.Gid,
    address: u64,
    number: u32,
    key: u32,
};

/// One end of a connection: a device, a completion queue and a queue pair.
pub const Side = struct {
    context: *layout.Context,
    pd: *layout.Pd,
    channel: *layout.Channel,
    cq: *layout.Cq,
    qp: *layout.Qp,
    gid: layout.Gid,
    memory: []u8,
    mr: *layout.Mr,

    pub fn make(memory: []u8, rights: u32) !Side {
        const list = ibv_get_device_list(null) orelse return error.NoList;
        defer ibv_free_device_list(list);
        const context = ibv_open_device(list[0].?) orelse return error.NotOpened;
        var entry: layout.GidEntry = undefined;
        const bytes = @sizeOf(layout.GidEntry);
        if (_ibv_query_gid_ex(context, 1, global_entry, &entry, 0, bytes) != 0) {
            return error.NoAddress;
        }
        const pd = ibv_alloc_pd(context).?;
        const channel = ibv_create_comp_channel(context).?;
        const cq = ibv_create_cq(context, 16, null, channel, 0).?;
        var init = std.mem.zeroes(layout.QpInitAttr);
        init.send_cq = cq;
        init.recv_cq = cq;
        init.qp_type = 2;
        init.cap = .{
            .max_send_wr = 4,
            .max_recv_wr = 0,
            .max_send_sge = 1,
            .max_recv_sge = 0,
            .max_inline_data = 0,
        };
        const iova = @intFromPtr(memory.ptr);
        return .{
            .context = context,
            .pd = pd,
            .channel = channel,
            .cq = cq,
            .qp = ibv_create_qp(pd, &init) orelse return error.NoPair,
            .gid = entry.gid,
            .memory = memory,
            .mr = ibv_reg_mr_iova2(pd, memory.ptr, memory.len, iova, rights) orelse
                return error.NotRegistered,
        };
    }

    pub fn end(side: *Side) !void {
        try std.testing.expectEqual(0, ibv_destroy_qp(side.qp));
        try std.testing.expectEqual(0, ibv_dereg_mr(side.mr));
        try std.testing.expectEqual(0, ibv_destroy_cq(side.cq));
        try std.testing.expectEqual(0, ibv_destroy_comp_channel(side.channel));
        try std.testing.expectEqual(0, ibv_dealloc_pd(side.pd));
        try std.testing.expectEqual(0, ibv_close_device(side.context));
    }

    /// Returns the data that the other side needs to connect.
    pub fn card(side: *const Side) Card {
        return .{
            .gid = side.gid,
            .address = @intFromPtr(side.memory.ptr),
            .number = side.qp.qp_num,
            .key = side.mr.rkey,
        };
    }

    pub fn attributesFor(side: *const Side, other: Card) layout.QpAttr {
        var attr = std.mem.zeroes(layout.QpAttr);
        attr.port_num = 1;
        attr.qp_access_flags = Access.remote_read;
        attr.path_mtu = 5;
        attr.dest_qp_num = other.number;
        attr.rq_psn = other.number & 0xfff;
        attr.sq_psn = side.qp.qp_num & 0xfff;
        attr.max_rd_atomic = 16;
        attr.max_dest_rd_atomic = 16;
        attr.timeout = 14;
        attr.retry_cnt = 6;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = 1;
        attr.ah_attr.grh.dgid = other.gid;
        attr.ah_attr.grh.sgid_index = global_entry;
        return attr;
    }

    pub fn connect(side: *Side, other: Card) !void {
        var attr = side.attributesFor(other);
        attr.qp_state = State.init;
        try std.testing.expectEqual(0, ibv_modify_qp(side.qp, &attr, init_mask));
        attr.qp_state = State.ready_to_receive;
        try std.testing.expectEqual(0, ibv_modify_qp(side.qp, &attr, receive_mask));
        attr.qp_state = State.ready_to_send;
        try std.testing.expectEqual(0, ibv_modify_qp(side.qp, &attr, send_mask));
    }

    /// Posts a READ of the whole buffer and returns the result code of the call.
    pub fn read(side: *Side, id: u64, address: u64, key: u32) i32 {
        var sge: [1]layout.Sge = .{.{
            .addr = @intFromPtr(side.memory.ptr),
            .length = @intCast(side.memory.len),
            .lkey = side.mr.lkey,
        }};
        var request = std.mem.zeroInit(layout.SendWr, .{
            .wr_id = id,
            .num_sge = 1,
            .opcode = layout.Opcode.read,
            .send_flags = 2,
            .remote_addr = address,
            .rkey = key,
        });
        request.sg_list = &sge;
        var bad: ?*layout.SendWr = null;
        return side.context.ops.post_send(side.qp, &request, &bad);
    }

    /// Returns the next completion, which must arrive within five seconds.
    pub fn next(side: *Side) !layout.Wc {
        const deadline = monotonic.now() + 5 * std.time.ns_per_s;
        while (monotonic.now() < deadline) {
            if (side.poll()) |wc| return wc;
            try std.Thread.yield();
        }
        return error.NothingCame;
    }

    pub fn poll(side: *Side) ?layout.Wc {
        var wc: [1]layout.Wc = undefined;
        return if (side.context.ops.poll_cq(side.cq, 1, &wc) == 1) wc[0] else null;
    }
};

/// Two connected ends that read each other's memory.
pub const Couple = struct {
    asker: Side,
    owner: Side,

    pub fn make(plan: [*:0]const u8, into: []u8, from: []u8) !Couple {
        try std.testing.expectEqual(0, configure(plan));
        var couple: Couple = .{
            .asker = try .make(into, Access.local_write | Access.relaxed_ordering),
            .owner = try .make(from, Access.remote_read),
        };
        try couple.asker.connect(couple.owner.card());
        try couple.owner.connect(couple.asker.card());
        return couple;
    }

    pub fn read(couple: *Couple, id: u64) i32 {
        const address = @intFromPtr(couple.owner.memory.ptr);
        return couple.asker.read(id, address, couple.owner.mr.rkey);
    }

    /// Destroys all objects and checks with the counters that none is left.
    pub fn end(couple: *Couple) !void {
        try couple.asker.end();
        try couple.owner.end();
        for ([_][]const u8{ "contexts", "pds", "mrs", "cqs", "qps", "channels" }) |kind| {
            try expectCount("open.", kind, 0);
        }
    }
};

pub fn expectCount(prefix: []const u8, name: []const u8, count: u64) !void {
    var room: [8192]u8 = undefined;
    const text = room[0..state.writeCounters(&room)];
    var line: [64]u8 = undefined;
    const wanted = try std.fmt.bufPrint(&line, "{s}{s} {d}\n", .{ prefix, name, count });
    if (std.mem.indexOf(u8, text, wanted) == null) {
        std.debug.print("not {s} in:\n{s}", .{ wanted, text });
        return error.WrongCount;
    }
}
