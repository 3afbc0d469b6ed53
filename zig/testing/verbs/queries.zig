//! The verbs stand-in's queries of devices, ports and address tables.

const std = @import("std");
const linux = std.os.linux;
const layout = @import("layout.zig");
const state = @import("state.zig");
const Context = @import("devices.zig").Context;

const invalid = @intFromEnum(linux.E.INVAL);
const no_data = @intFromEnum(linux.E.NODATA);
const io_error = @intFromEnum(linux.E.IO);

pub const table_entries = 16;
/// Code of the width of a 100 Gbit/s port: four lanes of 25.
const width_4x = 2;
const speed_edr = 32;
const mtu_4096 = 5;

pub fn guidOf(index: u32) u64 {
    return std.mem.nativeToBig(u64, 0x5354414e44490000 + @as(u64, index));
}

/// Returns the LID of a port; each port of each device has a different one.
pub fn lidOf(index: u32, port: u32) u16 {
    return if (state.plan.infiniband) @intCast(1 + index * 2 + port - 1) else 0;
}

/// Returns an entry of the port's GID table; null if it is empty.
pub fn gidOf(index: u32, port: u32, entry: u32) ?struct { gid: layout.Gid, kind: u32 } {
    var gid: layout.Gid = .{ .raw = @splat(0) };
    const is_link_local = state.plan.infiniband or entry < 2;
    if (state.plan.infiniband and entry > 0) return null;
    if (entry > 3 or (!is_link_local and !state.plan.has_gid)) return null;
    if (is_link_local) {
        gid.raw[0] = 0xfe;
        gid.raw[1] = 0x80;
        gid.words[1] = guidOf(index * 2 + port);
    } else {
        gid.raw[10] = 0xff;
        gid.raw[11] = 0xff;
        @memcpy(gid.raw[12..16], &state.plan.gid);
        gid.raw[15] +%= @intCast(index * 2 + port - 1);
    }
    if (state.plan.infiniband) return .{ .gid = gid, .kind = 0 };
    return .{ .gid = gid, .kind = if (entry % 2 == 1) 2 else 1 };
}

export fn ibv_query_device(opened: *layout.Context, out: *layout.DeviceAttr) i32 {
    state.lock.lock();
    defer state.lock.unlock();
    if (state.entered(.ibv_query_device)) |code| return code;
    const context = Context.of(opened);
    if (context.is_fatal) return io_error;
    out.* = std.mem.zeroes(layout.DeviceAttr);
    @memcpy(out.fw_ver[0..3], "1.0");
    out.node_guid = guidOf(context.index);
    out.sys_image_guid = out.node_guid;
    out.max_mr_size = std.math.maxInt(u64);
    out.page_size_cap = 0xfffff000;
    out.max_qp = 4096;
    out.max_qp_wr = 8192;
    out.max_sge = 16;
    out.max_sge_rd = 16;
    out.max_cq = 4096;
    out.max_cqe = 65535;
    out.max_mr = 32768;
    out.max_pd = 4096;
    out.max_qp_rd_atom = state.plan.reads;
    out.max_qp_init_rd_atom = state.plan.reads;
    out.max_res_rd_atom = 4096 * @as(i32, state.plan.reads);
    out.max_pkeys = 1;
    out.local_ca_ack_delay = 15;
    out.phys_port_cnt = @intCast(state.plan.ports);
    return 0;
}

pub fn queryPort(
    opened: *layout.Context,
    number: u8,
    out: *layout.PortAttr,
    bytes: usize,
) callconv(.c) i32 {
    state.lock.lock();
    defer state.lock.unlock();
    if (state.entered(.ibv_query_port)) |code| return code;
    var port = std.mem.zeroes(layout.PortAttr);
    const code = describePort(Context.of(opened), number, &port);
    if (code != 0) return code;
    const room = @min(bytes, @sizeOf(layout.PortAttr));
    @memcpy(std.mem.asBytes(out)[0..room], std.mem.asBytes(&port)[0..room]);
    return 0;
}

/// Fills the fields of the struct's first version and leaves the others unchanged, as the library's
/// original function does.
export fn ibv_query_port(opened: *layout.Context, number: u8, out: *layout.PortAttr) i32 {
    return queryPort(opened, number, out, @offsetOf(layout.PortAttr, "port_cap_flags2"));
}

fn describePort(context: *Context, number: u8, port: *layout.PortAttr) i32 {
    if (number == 0 or number > state.plan.ports) return invalid;
    if (context.is_fatal) return io_error;
    const is_up = context.isPortUp();
    port.state = if (is_up) 4 else 1;
    port.max_mtu = mtu_4096;
    port.active_mtu = mtu_4096;
    port.gid_tbl_len = table_entries;
    port.max_msg_sz = state.plan.message_bytes;
    port.pkey_tbl_len = 1;
    port.lid = lidOf(context.index, number);
    port.active_width = width_4x;
    port.active_speed = speed_edr;
    port.phys_state = if (is_up) 5 else 3;
    port.link_layer = if (state.plan.infiniband) 1 else 2;
    return 0;
}

export fn ibv_query_gid(opened: *layout.Context, port: u8, entry: i32, out: *layout.Gid) i32 {
    var whole: layout.GidEntry = undefined;
    const index: u32 = @intCast(@max(0, entry));
    const code = _ibv_query_gid_ex(opened, port, index, &whole, 0, @sizeOf(layout.GidEntry));
    if (code != 0 and code != no_data) {
        state.setErrno(code);
        return -1;
    }
    // The address of an empty entry is all zeros.
    out.* = if (code == 0) whole.gid else .{ .raw = @splat(0) };
    return 0;
}

export fn _ibv_query_gid_ex(
    opened: *layout.Context,
    port: u32,
    entry: u32,
    out: *layout.GidEntry,
    flags: u32,
    bytes: usize,
) i32 {
    state.lock.lock();
    defer state.lock.unlock();
    if (state.entered(.ibv_query_gid_ex)) |code| return code;
    if (bytes < @sizeOf(layout.GidEntry) or flags != 0) return invalid;
    if (port == 0 or port > state.plan.ports or entry >= table_entries) return invalid;
    const context = Context.of(opened);
    if (context.is_fatal) return io_error;
    const found = gidOf(context.index, port, entry) orelse return no_data;
    out.* = .{
        .gid = found.gid,
        .gid_index = entry,
        .port_num = port,
        .gid_type = found.kind,
        .ndev_ifindex = 0,
    };
    return 0;
}

export fn _ibv_query_gid_table(
    opened: *layout.Context,
    out: [*]layout.GidEntry,
    room: usize,
    flags: u32,
    bytes: usize,
) isize {
    var count: usize = 0;
    for (0..state.plan.ports) |at| for (0..table_entries) |entry| {
        if (count == room) return -@as(isize, invalid);
        const port: u32 = @intCast(at + 1);
        const code = _ibv_query_gid_ex(opened, port, @intCast(entry), &out[count], flags, bytes);
        if (code == 0) count += 1 else if (code != no_data) return -@as(isize, code);
    };
    return @intCast(count);
}

export fn ibv_query_pkey(opened: *layout.Context, port: u8, index: i32, out: *u16) i32 {
    state.lock.lock();
    defer state.lock.unlock();
    if (state.entered(.ibv_query_pkey) != null or index != 0 or port == 0) return -1;
    _ = opened;
    out.* = 0xffff;
    return 0;
}

export fn ibv_port_state_str(port: u32) [*:0]const u8 {
    return if (port == 4) "active" else "down";
}

export fn ibv_fork_init() i32 {
    return 0;
}
