//! One RDMA device: its context, its protection domain (only one, because all hosts of the cluster
//! trust each other), and the completion queue of all its queue pairs.

const std = @import("std");
const linux = std.os.linux;
const monotonic = @import("../base/monotonic.zig");
const pause = @import("../base/faults.zig").pause;
const wakes = @import("../base/wake.zig");
const verbs = @import("verbs.zig");
const library = @import("library.zig");
const memory = @import("memory.zig");
const Symbols = @import("symbols.zig").Symbols;
const Hub = @import("hub.zig").Hub;

/// Largest number of READs in flight per queue pair; more gain nothing on any known device.
pub const window_max = 32;
/// Largest completion queue of a device. If the READs of all links do not fit, the links take
/// turns.
const completions_max = 16_384;
/// Maximum time, in nanoseconds, for which destroying a device object is retried. The next constant
/// is the interval in milliseconds.
const patience_ns = 10 * std.time.ns_per_s;
const ask_again_ms = 10;
const eio = @intFromEnum(linux.E.IO);

pub const Device = struct {
    hub: *Hub,
    name: [verbs.name_bytes]u8,
    numa_node: i32,
    context: *verbs.Context,
    domain: memory.Domain,
    has_dma_buf: bool,
    channel: *verbs.CompChannel,
    queue: *verbs.Cq,
    /// Number of READs of all links whose completions fit into the queue.
    room: u32,
    reads_out: u32,
    reads_in: u32,
    port_count: u8,
    slices: []memory.Slice = &.{},
    wake_fd: i32,
    thread: ?std.Thread = null,
    /// Number of READs posted whose completions were not collected.
    in_flight: std.atomic.Value(u32) = .init(0),
    /// True if a link could not post a READ because the completion queue was full.
    starved: bool = false,
    /// Number of links whose queue pairs are being flushed; the thread checks their deadlines.
    flushing: u32 = 0,
    /// True if the device has failed. It stays unusable in this process.
    fatal: bool = false,

    pub const OpenError = error{
        /// The device or library failed; `errno` contains the reason.
        Refused,
        OutOfMemory,
    };

    pub fn open(
        device: *Device,
        hub: *Hub,
        found: *verbs.Device,
        links: u32,
        errno: *i32,
    ) OpenError!void {
        const symbols = &hub.symbols;
        const context = symbols.ibv_open_device(found) orelse return refused(errno);
        errdefer _ = symbols.ibv_close_device(context);
        var attr = std.mem.zeroes(verbs.DeviceAttr);
        if (symbols.ibv_query_device(context, &attr) != 0) return refused(errno);
        const pd = symbols.ibv_alloc_pd(context) orelse return refused(errno);
        errdefer _ = symbols.ibv_dealloc_pd(pd);
        const channel = symbols.ibv_create_comp_channel(context) orelse return refused(errno);
        errdefer _ = symbols.ibv_destroy_comp_channel(channel);
        const wanted = @min(links * window_max, completions_max);
        const depth: c_int = @intCast(@min(wanted, @max(attr.max_cqe, 1)));
        const queue = symbols.ibv_create_cq(context, depth, null, channel, 0) orelse
            return refused(errno);
        errdefer _ = symbols.ibv_destroy_cq(queue);
        neverBlock(channel.fd);
        neverBlock(context.async_fd);
        const wake_fd = wakes.create() catch return error.OutOfMemory;
        errdefer _ = linux.close(wake_fd);
        const slices = try hub.allocator.alloc(memory.Slice, memory.slicesOf(hub.region.bytes));
        for (slices) |*slice| slice.* = .{};
        device.* = .{
            .hub = hub,
            .name = found.name,
            .numa_node = numaNodeOf(&found.ibdev_path),
            .context = context,
            .domain = .of(symbols, pd),
            .has_dma_buf = false,
            .channel = channel,
            .queue = queue,
            .room = @intCast(depth),
            .reads_out = @intCast(std.math.clamp(attr.max_qp_init_rd_atom, 1, window_max)),
            .reads_in = @intCast(std.math.clamp(attr.max_qp_rd_atom, 1, window_max)),
            .port_count = attr.phys_port_cnt,
            .slices = slices,
            .wake_fd = wake_fd,
        };
        device.has_dma_buf = device.domain.takesDmaBuf();
    }

    /// Closes the device. Its thread must have ended and its links must be destroyed.
    pub fn close(device: *Device) void {
        const symbols = &device.hub.symbols;
        for (device.slices) |slice| {
            // Memory that the device refuses to deregister is released with the context. Further
            // deregistrations would fail too.
            if (slice.mr) |mr| if (device.insist(symbols.ibv_dereg_mr, mr) != 0) break;
        }
        device.hub.allocator.free(device.slices);
        _ = symbols.ibv_destroy_cq(device.queue);
        _ = symbols.ibv_destroy_comp_channel(device.channel);
        _ = symbols.ibv_dealloc_pd(device.domain.pd);
        _ = symbols.ibv_close_device(device.context);
        _ = linux.close(device.wake_fd);
    }

    /// Tests whether memory can be registered, and returns 0 or the errno. If the limit of locked
    /// memory does not cover the region, registers its first slice and keeps it; otherwise
    /// registers one page and removes it.
    pub fn probe(device: *Device) i32 {
        const region = device.hub.region;
        const is_limited = lockedBytesMax() < region.bytes;
        const bytes = if (is_limited) @min(region.bytes, memory.slice_bytes) else 4096;
        switch (device.domain.register(region.base[0..bytes], verbs.access_local_write)) {
            .errno => |errno| return errno,
            .mr => |mr| if (is_limited) {
                device.slices[0] = .{ .state = .ready, .mr = mr };
            } else {
                _ = device.insist(device.hub.symbols.ibv_dereg_mr, mr);
            },
        }
        return 0;
    }

    /// Repeats a call that destroys `object` until it succeeds or 10 s have passed. Returns 0 or
    /// the last errno. The caller must not hold the mutex.
    ///
    /// If a device is unplugged or its driver unloaded, the kernel destroys its objects: calls
    /// return EIO from the start, and the failure event arrives after all objects are destroyed.
    pub fn insist(device: *Device, call: anytype, object: anytype) i32 {
        const end = monotonic.now() + patience_ns;
        while (true) {
            const code = call(object);
            if (code == 0) return 0;
            const errno = if (code < 0) library.lastErrno() else code;
            if (errno == eio and device.hasFailed()) return 0;
            if (monotonic.now() >= end) return errno;
            pause(ask_again_ms);
        }
    }

    fn hasFailed(device: *Device) bool {
        device.hub.mutex.lock();
        defer device.hub.mutex.unlock();
        return device.fatal;
    }

    pub fn wake(device: *Device) void {
        wakes.ring(device.wake_fd);
    }
};

/// Saves the errno before cleanup calls overwrite it.
fn refused(errno: *i32) Device.OpenError {
    errno.* = library.lastErrno();
    return error.Refused;
}

fn neverBlock(fd: i32) void {
    const flags = linux.fcntl(fd, linux.F.GETFL, 0);
    const nonblock: u32 = @bitCast(linux.O{ .NONBLOCK = true });
    // If O_NONBLOCK cannot be set, the thread still reads only after poll(2) has reported the
    // descriptor.
    _ = linux.fcntl(fd, linux.F.SETFL, flags | nonblock);
}

/// Returns how many bytes this process may lock in memory; the largest u64 without a limit.
pub fn lockedBytesMax() u64 {
    var limit: linux.rlimit = undefined;
    if (linux.errno(linux.getrlimit(.MEMLOCK, &limit)) != .SUCCESS) return 0;
    return limit.cur;
}

/// Returns the NUMA node of a device from sysfs; -1 if the host does not know it.
fn numaNodeOf(folder: *const [verbs.path_bytes]u8) i32 {
    var path: [verbs.path_bytes + 32]u8 = undefined;
    const text = std.mem.sliceTo(folder, 0);
    const whole = std.fmt.bufPrintZ(&path, "{s}/device/numa_node", .{text}) catch return -1;
    const fd = linux.open(whole, .{ .CLOEXEC = true }, 0);
    if (linux.errno(fd) != .SUCCESS) return -1;
    defer _ = linux.close(@intCast(fd));
    var digits: [16]u8 = undefined;
    const count = linux.read(@intCast(fd), &digits, digits.len);
    if (linux.errno(count) != .SUCCESS) return -1;
    const number = std.mem.trim(u8, digits[0..count], " \n");
    return std.fmt.parseInt(i32, number, 10) catch -1;
}
