//! Tests of RDMA with a simulated device: no failed allocation during opening leaks an object, and
//! a device that the kernel removes blocks no operation.

const std = @import("std");
const linux = std.os.linux;
const wakes = @import("../base/wake.zig");
const memory = @import("../mem/root.zig");
const types = @import("../abi/rdma_types.zig");
const verbs = @import("verbs.zig");
const Symbols = @import("symbols.zig").Symbols;
const Hub = @import("hub.zig").Hub;
const Link = @import("link.zig").Link;
const Loan = @import("loan.zig").Loan;
const monotonic = @import("../base/monotonic.zig");
const pause = @import("../base/faults.zig").pause;

/// A simulated device with one port. It completes no READ and counts its open objects.
const simulated = struct {
    var open: i32 = 0;
    var device = std.mem.zeroInit(verbs.Device, .{});
    var list = [_:null]?*verbs.Device{&device};
    var context: verbs.Context = undefined;
    var pd: verbs.Pd = undefined;
    var mr: verbs.Mr = undefined;
    var channel: verbs.CompChannel = undefined;
    var queue: verbs.Cq = undefined;
    var pair: verbs.Qp = undefined;
    /// True if the kernel has destroyed all objects, so that every call on them fails.
    var is_gone: std.atomic.Value(bool) = .init(false);
    /// Number of calls that failed because `is_gone` was set.
    var refusals: std.atomic.Value(u32) = .init(0);
    const gid = [_]u8{ 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1 };

    fn devices(count: ?*c_int) callconv(.c) ?[*:null]?*verbs.Device {
        open += 1;
        count.?.* = 1;
        return &list;
    }

    fn freeDevices(_: [*:null]?*verbs.Device) callconv(.c) void {
        open -= 1;
    }

    fn openDevice(found: *verbs.Device) callconv(.c) ?*verbs.Context {
        open += 1;
        context.device = found;
        context.ops.poll_cq = poll;
        context.ops.req_notify_cq = notify;
        context.async_fd = wakes.create() catch return null;
        // Simulates a library without extended contexts.
        context.abi_compat = 0;
        return &context;
    }

    fn closeDevice(of: *verbs.Context) callconv(.c) c_int {
        open -= 1;
        _ = linux.close(of.async_fd);
        return 0;
    }

    fn queryDevice(_: *verbs.Context, out: *verbs.DeviceAttr) callconv(.c) c_int {
        out.max_cqe = 64;
        out.max_qp_rd_atom = 16;
        out.max_qp_init_rd_atom = 1000;
        out.phys_port_cnt = 1;
        return 0;
    }

    fn queryPort(_: *verbs.Context, _: u8, out: *verbs.PortAttr) callconv(.c) c_int {
        out.state = verbs.port_active;
        out.active_mtu = 5;
        out.gid_tbl_len = 1;
        out.max_msg_sz = 1 << 30;
        out.link_layer = verbs.link_layer_ethernet;
        return 0;
    }

    fn queryGid(
        _: *verbs.Context,
        _: u32,
        index: u32,
        out: *verbs.GidEntry,
        _: u32,
        _: usize,
    ) callconv(.c) c_int {
        if (index > 0) return @intFromEnum(linux.E.NODATA);
        out.gid = gid;
        out.gid_type = verbs.gid_type_roce_v2;
        return 0;
    }

    fn allocate(of: *verbs.Context) callconv(.c) ?*verbs.Pd {
        open += 1;
        pd.context = of;
        return &pd;
    }

    fn register(_: *verbs.Pd, _: *anyopaque, _: usize, _: c_int) callconv(.c) ?*verbs.Mr {
        open += 1;
        return &mr;
    }

    fn createChannel(_: *verbs.Context) callconv(.c) ?*verbs.CompChannel {
        open += 1;
        channel.fd = wakes.create() catch return null;
        return &channel;
    }

    fn destroyChannel(of: *verbs.CompChannel) callconv(.c) c_int {
        open -= 1;
        _ = linux.close(of.fd);
        return 0;
    }

    fn createQueue(
        _: *verbs.Context,
        _: c_int,
        _: ?*anyopaque,
        _: ?*verbs.CompChannel,
        _: c_int,
    ) callconv(.c) ?*verbs.Cq {
        open += 1;
        return &queue;
    }

    fn poll(_: *verbs.Cq, _: c_int, _: [*]verbs.Wc) callconv(.c) c_int {
        return 0;
    }

    fn notify(_: *verbs.Cq, _: c_int) callconv(.c) c_int {
        return 0;
    }

    fn createPair(_: *verbs.Pd, _: *verbs.QpInitAttr) callconv(.c) ?*verbs.Qp {
        open += 1;
        pair.context = &context;
        return &pair;
    }

    fn modifyPair(_: *verbs.Qp, _: *verbs.QpAttr, _: c_int) callconv(.c) c_int {
        return refuse();
    }

    fn refuse() c_int {
        if (!is_gone.load(.acquire)) return 0;
        _ = refusals.fetchAdd(1, .acq_rel);
        return @intFromEnum(linux.E.IO);
    }

    /// Reports the failure of the device, and no other event.
    fn nextEvent(of: *verbs.Context, out: *verbs.AsyncEvent) callconv(.c) c_int {
        var count: u64 = 0;
        _ = linux.read(of.async_fd, std.mem.asBytes(&count), 8);
        out.event_type = verbs.event_device_fatal;
        return 0;
    }

    fn acknowledge(_: *verbs.AsyncEvent) callconv(.c) void {}

    /// Returns a function that destroys an object on which no other object depends.
    fn giveUp(comptime T: type) *const fn (*T) callconv(.c) c_int {
        return struct {
            fn call(_: *T) callconv(.c) c_int {
                const is_taken = T == verbs.Qp or T == verbs.Mr;
                if (is_taken and refuse() != 0) return @intFromEnum(linux.E.IO);
                open -= 1;
                return 0;
            }
        }.call;
    }

    fn symbols() Symbols {
        // The code never calls the functions that are not set here.
        var all: Symbols = undefined;
        all.ibv_get_device_list = devices;
        all.ibv_free_device_list = freeDevices;
        all.ibv_open_device = openDevice;
        all.ibv_close_device = closeDevice;
        all.ibv_query_device = queryDevice;
        all.ibv_query_port = queryPort;
        all._ibv_query_gid_ex = queryGid;
        all.ibv_alloc_pd = allocate;
        all.ibv_dealloc_pd = giveUp(verbs.Pd);
        all.ibv_reg_mr = register;
        all.ibv_dereg_mr = giveUp(verbs.Mr);
        all.ibv_create_comp_channel = createChannel;
        all.ibv_destroy_comp_channel = destroyChannel;
        all.ibv_create_cq = createQueue;
        all.ibv_destroy_cq = giveUp(verbs.Cq);
        all.ibv_create_qp = createPair;
        all.ibv_modify_qp = modifyPair;
        all.ibv_destroy_qp = giveUp(verbs.Qp);
        all.ibv_get_async_event = nextEvent;
        all.ibv_ack_async_event = acknowledge;
        all.ibv_reg_mr_iova2 = null;
        all.ibv_reg_dmabuf_mr = null;
        return all;
    }
};

fn requestOf(region: u64) types.RdmaRequest {
    return .{
        .region = region,
        .library = 0,
        .window_bytes = 4096,
        .window_spans = 4,
        .links = 2,
        .reads = 4,
        .devices_bytes = 0,
        .devices = 0,
        .gid_index = std.math.maxInt(u32),
        .reserved = 0,
    };
}

fn openAndClose(allocator: std.mem.Allocator, region: u64) !void {
    defer std.debug.assert(simulated.open == 0);
    const opened = try Hub.createWith(allocator, requestOf(region), simulated.symbols());
    const hub = opened.ready;
    const port = try hub.port(0);
    try std.testing.expectEqual(@intFromEnum(types.RdmaPortState.active), port.state);
    try std.testing.expectEqual(simulated.gid, port.gid);
    // The device offers more READs than a window allows; the port is limited to the window.
    try std.testing.expectEqual(32, port.reads_out);
    try std.testing.expectEqual(16, port.reads_in);
    try std.testing.expectError(error.OutOfRange, hub.port(1));
    try hub.close();
}

test "opening with any failed allocation leaks no object" {
    const handle = try memory.table.add(try .create(.{
        .bytes = 1 << 20,
        .huge_pages = 0,
        .lock_memory = 0,
    }));
    const allocator = std.testing.allocator;
    try std.testing.checkAllAllocationFailures(allocator, openAndClose, .{handle});
    // Closing succeeds only if RDMA no longer uses the region.
    try memory.table.close(handle);
}

/// Reaps events until `event` arrives.
fn awaitEvent(hub: *Hub, event: types.RdmaEvent) !void {
    const end = monotonic.now() + 5 * std.time.ns_per_s;
    while (monotonic.now() < end) {
        var done: [1]types.RdmaDone = undefined;
        if (hub.reap(&done) == 0) pause(1) else if (done[0].event == @intFromEnum(event)) return;
    }
    return error.TestUnexpectedResult;
}

test "objects that the kernel destroyed are given up when the device reports its failure" {
    const handle = try memory.table.add(try .create(.{
        .bytes = 1 << 20,
        .huge_pages = 0,
        .lock_memory = 0,
    }));
    const allocator = std.testing.allocator;
    const opened = try Hub.createWith(allocator, requestOf(handle), simulated.symbols());
    const hub = opened.ready;
    var address: types.RdmaAddress = undefined;
    var request = std.mem.zeroInit(types.RdmaLinkRequest, .{ .timeout = 14, .retries = 6 });
    request.piece_bytes = 4096;
    const link = try Link.create(hub, request, &address);
    hub.mutex.lock();
    try Loan.begin(link, std.mem.zeroInit(types.RdmaSpan, .{ .bytes = 4096 }));
    hub.mutex.unlock();
    try awaitEvent(hub, .lent);
    simulated.is_gone.store(true, .release);
    // The link has two objects: its queue pair and its loan's registration.
    simulated.open -= 2;
    hub.mutex.lock();
    link.dropHandle();
    hub.mutex.unlock();
    // Wait until calls to stop and destroy objects have failed several times, before the failure
    // event arrives.
    while (simulated.refusals.load(.acquire) < 5) pause(1);
    wakes.ring(simulated.context.async_fd);
    try awaitEvent(hub, .ended);
    try hub.close();
    simulated.is_gone.store(false, .release);
    try std.testing.expectEqual(0, simulated.open);
    try memory.table.close(handle);
}
