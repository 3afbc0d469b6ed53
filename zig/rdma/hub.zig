//! RDMA of this process: devices and ports, links between queue pairs, spans that other hosts may
//! read (lent spans), and reads. The event loop begins and ends operations. One thread per device
//! collects completions. Helper threads register memory, compute checksums and stop queue pairs.
//! One eventfd reports events. All tables have fixed sizes, and the event queue has room for all
//! possible events.

const std = @import("std");
const linux = std.os.linux;
const sync = @import("../base/mutex.zig");
const wakes = @import("../base/wake.zig");
const types = @import("../abi/rdma_types.zig");
const regions = @import("../mem/root.zig").table;
const Region = @import("../mem/root.zig").Region;
const Fifo = @import("../base/fifo.zig").Fifo;
const verbs = @import("verbs.zig");
const library = @import("library.zig");
const memory = @import("memory.zig");
const opening = @import("opening.zig");
const ports_file = @import("port.zig");
const completions = @import("completions.zig");
const helpers = @import("helpers.zig");
const Symbols = @import("symbols.zig").Symbols;
const Device = @import("device.zig").Device;
const link_file = @import("link.zig");
const Link = link_file.Link;
const Loan = @import("loan.zig").Loan;
const Read = @import("read.zig").Read;
const Error = @import("../abi/status.zig").Error;

/// Number of helper threads. One thread cannot compute checksums at the rate of a fast port.
const helpers_count = 4;
pub const links_max = 1024;
const spans_max = 65_536;

pub const Port = struct {
    device: *Device,
    now: types.RdmaPort,
    /// True if an event with the port's current state is queued and not yet reaped.
    is_reported: bool = false,
};

pub const Hub = struct {
    allocator: std.mem.Allocator,
    region: *Region,
    symbols: Symbols,
    event_fd: i32,
    gid_index: u32,
    devices: []Device = &.{},
    ports: []Port = &.{},
    mutex: sync.Mutex = .{},
    /// Wakes a helper thread for a job.
    work: sync.Condition = .{},
    jobs: Fifo(helpers.Job) = .{ .items = &.{} },
    done: Fifo(types.RdmaDone) = .{ .items = &.{} },
    /// True from the write to the eventfd until all events are reaped.
    woken: bool = false,
    links: []Link = &.{},
    reads: []Read = &.{},
    free_reads: Fifo(*Read) = .{ .items = &.{} },
    loans: []Loan = &.{},
    free_loans: Fifo(*Loan) = .{ .items = &.{} },
    /// Number of links whose `ended` event is not reaped.
    links_unreaped: u32 = 0,
    reads_unreaped: u32 = 0,
    loans_unreaped: u32 = 0,
    /// Number of further bytes that peers may be allowed to read before the limit is reached.
    window_left: u64,
    helpers: [helpers_count]std.Thread = undefined,
    helpers_started: usize = 0,
    stopping: std.atomic.Value(bool) = .init(false),

    pub const Opened = union(enum) {
        ready: *Hub,
        none: struct { state: types.RdmaState, errno: i32 = 0 },
    };

    pub fn create(allocator: std.mem.Allocator, request: types.RdmaRequest) Error!Opened {
        if (request.links == 0 or request.links > links_max) return error.BadRequest;
        if (request.reads == 0 or request.reads > spans_max) return error.BadRequest;
        if (request.window_spans == 0 or request.window_spans > spans_max) return error.BadRequest;
        if (request.window_bytes == 0) return error.BadRequest;
        const symbols = library.open(@ptrFromInt(request.library)) catch |err| return .{
            .none = .{ .state = switch (err) {
                error.NoLibrary => .no_library,
                error.TooOld => .too_old,
            } },
        };
        return createWith(allocator, request, symbols);
    }

    /// Opens RDMA with the functions of a library or of a simulation.
    pub fn createWith(
        allocator: std.mem.Allocator,
        request: types.RdmaRequest,
        symbols: Symbols,
    ) Error!Opened {
        const region = try regions.acquire(request.region);
        errdefer regions.release(region);
        if (!region.writable) return error.NotPermitted;
        const hub = try allocator.create(Hub);
        errdefer allocator.destroy(hub);
        hub.* = .{
            .allocator = allocator,
            .region = region,
            .symbols = symbols,
            .event_fd = -1,
            .gid_index = request.gid_index,
            .window_left = request.window_bytes,
        };
        errdefer hub.undo();
        const outcome = try opening.open(hub, &request);
        if (outcome.state != .ready) {
            hub.undo();
            allocator.destroy(hub);
            regions.release(region);
            return .{ .none = .{ .state = outcome.state, .errno = outcome.errno } };
        }
        hub.event_fd = try wakes.create();
        try hub.makeTables(&request);
        try hub.startThreads();
        return .{ .ready = hub };
    }

    fn makeTables(hub: *Hub, request: *const types.RdmaRequest) Error!void {
        const allocator = hub.allocator;
        hub.links = try allocator.alloc(Link, request.links);
        for (hub.links, 0..) |*link, slot| link.* = .{ .hub = hub, .slot = @intCast(slot) };
        hub.reads = try allocator.alloc(Read, request.reads);
        hub.free_reads.items = try allocator.alloc(*Read, request.reads);
        for (hub.reads) |*read| hub.free_reads.push(read);
        hub.loans = try allocator.alloc(Loan, request.window_spans);
        hub.free_loans.items = try allocator.alloc(*Loan, request.window_spans);
        for (hub.loans) |*loan| hub.free_loans.push(loan);
        // Each link, read, loan and slice has at most one job in the queue.
        const slices = hub.devices.len * memory.slicesOf(hub.region.bytes);
        const jobs = hub.links.len + hub.reads.len + hub.loans.len + slices;
        hub.jobs.items = try allocator.alloc(helpers.Job, jobs);
        const events = hub.links.len + hub.reads.len + 2 * hub.loans.len + hub.ports.len;
        hub.done.items = try allocator.alloc(types.RdmaDone, events);
    }

    fn startThreads(hub: *Hub) Error!void {
        for (hub.devices) |*device| {
            // With libc, spawn fails only if memory or process slots run out.
            device.thread = std.Thread.spawn(.{}, completions.run, .{device}) catch
                return error.OutOfMemory;
        }
        for (&hub.helpers) |*thread| {
            thread.* = std.Thread.spawn(.{}, helpers.run, .{hub}) catch return error.OutOfMemory;
            hub.helpers_started += 1;
        }
    }

    /// Frees everything that was created so far. No link may exist.
    fn undo(hub: *Hub) void {
        const allocator = hub.allocator;
        hub.mutex.lock();
        hub.stopping.store(true, .release);
        hub.work.broadcast();
        hub.mutex.unlock();
        for (hub.devices) |*device| {
            device.wake();
            if (device.thread) |thread| thread.join();
        }
        for (hub.helpers[0..hub.helpers_started]) |thread| thread.join();
        for (hub.devices) |*device| device.close();
        allocator.free(hub.devices);
        allocator.free(hub.ports);
        allocator.free(hub.links);
        allocator.free(hub.reads);
        allocator.free(hub.free_reads.items);
        allocator.free(hub.loans);
        allocator.free(hub.free_loans.items);
        allocator.free(hub.jobs.items);
        allocator.free(hub.done.items);
        if (hub.event_fd >= 0) _ = linux.close(hub.event_fd);
    }

    /// Stops all threads and frees everything. Returns `Busy` while a link exists.
    pub fn close(hub: *Hub) Error!void {
        {
            hub.mutex.lock();
            defer hub.mutex.unlock();
            for (hub.links) |*link| if (link.phase != .free) return error.Busy;
        }
        const region = hub.region;
        const allocator = hub.allocator;
        hub.undo();
        allocator.destroy(hub);
        regions.release(region);
    }

    pub fn port(hub: *Hub, index: u32) Error!types.RdmaPort {
        hub.mutex.lock();
        defer hub.mutex.unlock();
        if (index >= hub.ports.len) return error.OutOfRange;
        return hub.ports[index].now;
    }

    /// Queues an event and wakes the reader unless it was already woken. The caller holds the
    /// mutex.
    pub fn report(hub: *Hub, event: types.RdmaDone) void {
        hub.done.push(event);
        if (hub.woken) return;
        hub.woken = true;
        wakes.ring(hub.event_fd);
    }

    /// Queues a job for a helper thread. The caller holds the mutex.
    pub fn give(hub: *Hub, job: helpers.Job) void {
        hub.jobs.push(job);
        hub.work.signal();
    }

    /// Returns the local key of a slice; null if the slice is not registered yet, in which case a
    /// helper registers it. The caller holds the mutex.
    pub fn sliceKey(hub: *Hub, device: *Device, index: usize) ?u32 {
        const slice = &device.slices[index];
        switch (slice.state) {
            .ready => return slice.mr.?.lkey,
            .registering => {},
            .absent => {
                slice.state = .registering;
                hub.give(.{ .slice = .{ .device = device, .index = index } });
            },
        }
        return null;
    }

    /// Registers a slice on a helper thread; the reads that wait for it then continue or fail. The
    /// caller holds the mutex, which is released during the registration.
    pub fn registerSlice(hub: *Hub, device: *Device, index: usize) void {
        const offset = index * memory.slice_bytes;
        const bytes = @min(hub.region.bytes - offset, memory.slice_bytes);
        const span = hub.region.base[offset..][0..bytes];
        hub.mutex.unlock();
        const outcome = device.domain.register(span, verbs.access_local_write);
        hub.mutex.lock();
        const slice = &device.slices[index];
        switch (outcome) {
            .mr => |mr| slice.* = .{ .state = .ready, .mr = mr },
            .errno => |errno| {
                // The next read that needs the slice tries to register it again.
                slice.state = .absent;
                for (hub.links) |*link| {
                    if (link.isOpen() and link.port.?.device == device) {
                        link.endReadsInto(index, errno);
                    }
                }
            },
        }
        completions.pumpAll(hub, device);
    }

    /// Moves up to `out.len` events to `out` and returns their number. Never waits.
    pub fn reap(hub: *Hub, out: []types.RdmaDone) u32 {
        hub.mutex.lock();
        defer hub.mutex.unlock();
        const count = @min(out.len, hub.done.count);
        for (out[0..count]) |*event| {
            event.* = hub.done.pop();
            switch (@as(types.RdmaEvent, @enumFromInt(event.event))) {
                .ended => hub.links_unreaped -= 1,
                .read => hub.reads_unreaped -= 1,
                .returned => hub.loans_unreaped -= 1,
                .lent => if (event.fault != 0) {
                    hub.loans_unreaped -= 1;
                },
                .port => hub.ports[@intCast(event.token)].is_reported = false,
            }
        }
        if (hub.done.count == 0) hub.woken = false;
        return @intCast(count);
    }

    /// Queries the ports of a device again and ends the links whose port has changed. The caller
    /// must not hold the mutex, because the device may be slow.
    pub fn refresh(hub: *Hub, device: *Device) void {
        for (hub.ports, 0..) |*each, index| {
            if (each.device != device) continue;
            hub.mutex.lock();
            var now = each.now;
            const is_fatal = device.fatal;
            hub.mutex.unlock();
            const asking: ports_file.Asking = .{
                .symbols = &hub.symbols,
                .context = device.context,
                .gid_index = hub.gid_index,
            };
            if (is_fatal) {
                now.state = @intFromEnum(types.RdmaPortState.fatal);
            } else {
                asking.ask(&now);
            }
            hub.mutex.lock();
            defer hub.mutex.unlock();
            hub.change(@intCast(index), &now);
        }
    }

    fn change(hub: *Hub, index: u32, now: *const types.RdmaPort) void {
        const each = &hub.ports[index];
        const was = each.now;
        each.now = now.*;
        const is_active = now.state == @intFromEnum(types.RdmaPortState.active);
        const is_elsewhere = link_file.isElsewhere(&was, now);
        if (!is_active or is_elsewhere) {
            for (hub.links) |*link| {
                if (link.port == each) link.fail(.port, 0);
            }
        }
        if (now.state == was.state and !is_elsewhere and now.speed == was.speed) return;
        if (each.is_reported) return;
        each.is_reported = true;
        hub.report(.{
            .token = index,
            .result = 0,
            .key = 0,
            .event = @intFromEnum(types.RdmaEvent.port),
            .fault = 0,
            .code = 0,
        });
    }
};
