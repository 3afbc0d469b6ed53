//! Opens the RDMA devices, or determines why none can be used.

const std = @import("std");
const linux = std.os.linux;
const types = @import("../abi/rdma_types.zig");
const verbs = @import("verbs.zig");
const library = @import("library.zig");
const port_file = @import("port.zig");
const hub_file = @import("hub.zig");
const device_file = @import("device.zig");
const Device = device_file.Device;
const Hub = hub_file.Hub;
const Port = hub_file.Port;
const Error = @import("../abi/status.zig").Error;

const enomem = @intFromEnum(linux.E.NOMEM);
/// RLIM_INFINITY.
const unlimited = std.math.maxInt(u64);

pub const Outcome = struct { state: types.RdmaState, errno: i32 = 0 };

/// Opens the requested devices. If at least one is usable, failures of the others are ignored.
pub fn open(hub: *Hub, request: *const types.RdmaRequest) Error!Outcome {
    var count: c_int = 0;
    const list = hub.symbols.ibv_get_device_list(&count) orelse {
        const errno = library.lastErrno();
        // A kernel without RDMA support (ENOSYS) has no devices.
        const enosys = @intFromEnum(linux.E.NOSYS);
        return .{ .state = if (errno == enosys) .no_device else stateOf(errno), .errno = errno };
    };
    defer hub.symbols.ibv_free_device_list(list);
    const found = list[0..@intCast(count)];
    const devices = try hub.allocator.alloc(Device, found.len);
    var opened: usize = 0;
    // The allocator must receive the same length that was allocated.
    errdefer hub.allocator.free(devices);
    errdefer for (devices[0..opened]) |*device| device.close();
    var outcome: Outcome = .{ .state = .no_device };
    for (found) |each| {
        if (!isWanted(request, &each.?.name)) continue;
        const device = &devices[opened];
        outcome = try openOne(device, hub, each.?, request.links);
        if (outcome.state == .ready) opened += 1;
    }
    const kept = try hub.allocator.alloc(Device, opened);
    errdefer hub.allocator.free(kept);
    @memcpy(kept, devices[0..opened]);
    try makePorts(hub, kept);
    hub.allocator.free(devices);
    hub.devices = kept;
    return if (opened > 0) .{ .state = .ready } else outcome;
}

fn openOne(device: *Device, hub: *Hub, found: *verbs.Device, links: u32) Error!Outcome {
    var errno: i32 = 0;
    device.open(hub, found, links, &errno) catch |err| switch (err) {
        error.OutOfMemory => return error.OutOfMemory,
        error.Refused => {
            // Queues need locked memory too: under a limit, ENOMEM means that the limit is too
            // small.
            const is_limit = errno == enomem and device_file.lockedBytesMax() != unlimited;
            return .{ .state = if (is_limit) .memlock else stateOf(errno), .errno = errno };
        },
    };
    errno = device.probe();
    if (errno == 0) return .{ .state = .ready };
    device.close();
    return .{ .state = if (errno == enomem) .memlock else stateOf(errno), .errno = errno };
}

fn stateOf(errno: i32) types.RdmaState {
    return switch (@as(linux.E, @enumFromInt(errno))) {
        .PERM, .ACCES => .not_permitted,
        else => .failed,
    };
}

/// Returns whether the request names this device. The names follow each other; an empty name ends
/// the list. A request without names wants all devices.
fn isWanted(request: *const types.RdmaRequest, name: *const [verbs.name_bytes]u8) bool {
    if (request.devices == 0) return true;
    const names = @as([*]const u8, @ptrFromInt(request.devices))[0..request.devices_bytes];
    var each = std.mem.splitScalar(u8, names, 0);
    while (each.next()) |wanted| {
        if (wanted.len > 0 and std.mem.eql(u8, wanted, std.mem.sliceTo(name, 0))) return true;
    }
    return false;
}

fn makePorts(hub: *Hub, devices: []Device) Error!void {
    var count: usize = 0;
    for (devices) |*device| count += device.port_count;
    hub.ports = try hub.allocator.alloc(Port, count);
    var index: usize = 0;
    for (devices) |*device| {
        for (0..device.port_count) |number| {
            hub.ports[index] = .{ .device = device, .now = portOf(hub, device, number + 1) };
            index += 1;
        }
    }
}

fn portOf(hub: *Hub, device: *Device, number: usize) types.RdmaPort {
    var port = std.mem.zeroes(types.RdmaPort);
    port.device = device.name;
    port.number = @intCast(number);
    port.numa_node = device.numa_node;
    port.reads_out = device.reads_out;
    port.reads_in = device.reads_in;
    port.has_relaxed_ordering = @intFromBool(device.domain.has_relaxed_ordering);
    port.has_dma_buf = @intFromBool(device.has_dma_buf);
    const asking: port_file.Asking = .{
        .symbols = &hub.symbols,
        .context = device.context,
        .gid_index = hub.gid_index,
    };
    asking.ask(&port);
    return port;
}
