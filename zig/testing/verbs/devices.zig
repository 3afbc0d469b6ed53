//! The verbs stand-in's devices and contexts. Devices are never freed, so their addresses stay
//! valid.

const std = @import("std");
const linux = std.os.linux;
const layout = @import("layout.zig");
const state = @import("state.zig");
const fabrics = @import("fabric.zig");
const plans = @import("plan.zig");
const completions = @import("completions.zig");
const engine = @import("engine.zig");
const events = @import("events.zig");
const queries = @import("queries.zig");

const allocator = std.heap.c_allocator;

pub const Context = struct {
    verbs: layout.VerbsContext,
    era: u32,
    /// Index of the device.
    index: u32,
    fabric: *fabrics.Fabric,
    /// Pipe of asynchronous events, which the simulated NIC writes and the library reads.
    pipe: [2]i32,
    is_fatal: bool = false,
    /// Number of objects that must be destroyed before the context can be closed.
    children: u32 = 0,
    next: ?*Context = null,

    pub fn of(context: *layout.Context) *Context {
        const verbs: *layout.VerbsContext = @fieldParentPtr("context", context);
        return @fieldParentPtr("verbs", verbs);
    }

    pub fn isPortUp(context: *const Context) bool {
        return !context.is_fatal and !state.plan.down[context.index];
    }
};

var devices: [plans.devices_max]layout.Device = undefined;
/// List of all open contexts.
pub var contexts: ?*Context = null;

export fn ibv_get_device_list(count: ?*i32) ?[*]?*layout.Device {
    state.lock.lock();
    defer state.lock.unlock();
    if (state.entered(.ibv_get_device_list)) |code| return refused(code);
    const wanted = state.plan.devices;
    const list = allocator.alloc(?*layout.Device, plans.devices_max + 1) catch return refused(12);
    @memset(list, null);
    for (0..wanted) |at| {
        describe(&devices[at], at) catch return refused(@intFromEnum(linux.E.NOSPC));
        list[at] = &devices[at];
    }
    if (count) |out| out.* = @intCast(wanted);
    return list.ptr;
}

fn refused(code: i32) ?[*]?*layout.Device {
    state.setErrno(code);
    return null;
}

fn describe(device: *layout.Device, at: usize) !void {
    device.* = std.mem.zeroes(layout.Device);
    device.node_type = 1;
    _ = try std.fmt.bufPrint(&device.name, "standin{d}", .{at});
    _ = try std.fmt.bufPrint(&device.dev_name, "uverbs{d}", .{at});
    if (state.plan.numa >= 0) try describePlace(device);
}

/// Creates a folder like the device's in sysfs, with a file that contains its NUMA node.
fn describePlace(device: *layout.Device) !void {
    const node = state.plan.numa;
    var path: [256]u8 = @splat(0);
    const base = "/dev/shm/standin-verbs-{d}-node{d}";
    _ = try std.fmt.bufPrint(&device.ibdev_path, base, .{ linux.getuid(), node });
    // The folder may already exist.
    _ = linux.mkdir(@ptrCast(&device.ibdev_path), 0o700);
    _ = try std.fmt.bufPrint(&path, base ++ "/device", .{ linux.getuid(), node });
    _ = linux.mkdir(@ptrCast(&path), 0o700);
    _ = try std.fmt.bufPrint(&path, base ++ "/device/numa_node", .{ linux.getuid(), node });
    const flags: linux.O = .{ .ACCMODE = .WRONLY, .CREAT = true, .TRUNC = true, .CLOEXEC = true };
    const fd = linux.open(@ptrCast(&path), flags, 0o600);
    if (linux.errno(fd) != .SUCCESS) return error.System;
    defer _ = linux.close(@intCast(fd));
    var text: [16]u8 = undefined;
    const line = try std.fmt.bufPrint(&text, "{d}\n", .{node});
    if (linux.errno(linux.write(@intCast(fd), line.ptr, line.len)) != .SUCCESS) return error.System;
}

export fn ibv_free_device_list(list: [*]?*layout.Device) void {
    state.lock.lock();
    defer state.lock.unlock();
    _ = state.entered(.ibv_free_device_list);
    allocator.free(@as([]?*layout.Device, list[0 .. plans.devices_max + 1]));
}

export fn ibv_get_device_name(device: *layout.Device) [*]const u8 {
    return &device.name;
}

export fn ibv_get_device_guid(device: *layout.Device) u64 {
    return queries.guidOf(indexOf(device));
}

fn indexOf(device: *layout.Device) u32 {
    const offset = @intFromPtr(device) - @intFromPtr(&devices);
    return @intCast(offset / @sizeOf(layout.Device));
}

export fn ibv_open_device(device: *layout.Device) ?*layout.Context {
    state.lock.lock();
    defer state.lock.unlock();
    if (state.entered(.ibv_open_device)) |code| {
        state.setErrno(code);
        return null;
    }
    const context = open(device) catch {
        state.setErrno(@intFromEnum(linux.E.MFILE));
        return null;
    };
    return &context.verbs.context;
}

fn open(device: *layout.Device) !*Context {
    const folder = std.mem.sliceTo(&state.plan.dir, 0);
    const fabric = try fabrics.at(folder);
    const context = try allocator.create(Context);
    errdefer allocator.destroy(context);
    var pipe: [2]i32 = undefined;
    if (linux.errno(linux.pipe2(&pipe, .{ .CLOEXEC = true })) != .SUCCESS) return error.System;
    // Lets any process of this user read lent memory, as other hosts on the fabric can.
    const set_ptracer = 0x59616d61;
    _ = linux.prctl(set_ptracer, std.math.maxInt(usize), 0, 0, 0);
    context.* = .{
        .verbs = .{
            .query_port = queries.queryPort,
            .sz = @sizeOf(layout.VerbsContext),
            .context = .{
                .device = device,
                .ops = .{
                    .poll_cq = completions.poll,
                    .req_notify_cq = completions.arm,
                    .post_send = engine.post,
                    .post_recv = engine.postReceive,
                },
                .cmd_fd = -1,
                .async_fd = pipe[0],
                .num_comp_vectors = 1,
                .mutex = .{},
                .abi_compat = std.math.maxInt(usize),
            },
        },
        .era = state.era,
        .index = indexOf(device),
        .fabric = fabric,
        .pipe = pipe,
        .is_fatal = state.plan.fatal,
        .next = contexts,
    };
    contexts = context;
    state.opened(.contexts);
    return context;
}

/// Closes a context. Fails unless all its objects are destroyed; the real library would leak them.
export fn ibv_close_device(opened: *layout.Context) i32 {
    state.lock.lock();
    defer state.lock.unlock();
    if (state.entered(.ibv_close_device)) |code| return code;
    const context = Context.of(opened);
    if (context.children > 0) return @intFromEnum(linux.E.BUSY);
    var link = &contexts;
    while (link.*) |other| : (link = &other.next) {
        if (other != context) continue;
        link.* = context.next;
        break;
    }
    for (context.pipe) |fd| _ = linux.close(fd);
    state.closed(.contexts, context.era);
    allocator.destroy(context);
    return 0;
}

/// Applies a changed plan: ports report that they went up or down, and failed devices report their
/// failure.
pub fn follow(before: *const plans.Plan) void {
    var each = contexts;
    while (each) |context| : (each = context.next) {
        if (state.plan.fatal and !context.is_fatal) {
            context.is_fatal = true;
            events.push(context, .{ .port_num = 0 }, layout.Event.device_fatal);
        }
        const is_down = state.plan.down[context.index];
        if (is_down != before.down[context.index]) {
            const event: u32 = if (is_down)
                layout.Event.port_error
            else
                layout.Event.port_active;
            for (0..state.plan.ports) |at| {
                events.push(context, .{ .port_num = @intCast(at + 1) }, event);
            }
        }
        const has_other_gid = !std.mem.eql(u8, &state.plan.gid, &before.gid) or
            state.plan.has_gid != before.has_gid;
        if (has_other_gid) events.push(context, .{ .port_num = 1 }, layout.Event.gid_change);
    }
    engine.wake();
}
