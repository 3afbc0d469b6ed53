//! Tests of the CUDA stand-in, function by function.

const std = @import("std");
const context = @import("context.zig").entries;
const timing = @import("timing.zig").entries;
const allocating = @import("allocating.zig").entries;
const copying = @import("copying.zig").entries;
const sharing = @import("sharing.zig").entries;
const vmm = @import("vmm.zig").entries;
const lookup = @import("lookup.zig").entries;
const gate = @import("gate.zig");
const state = @import("state.zig");
const types = @import("types.zig");
const expectEqual = std.testing.expectEqual;
const expect = std.testing.expect;

const mib = 1 << 20;

/// A device with a stream, ready to copy.
const Bench = struct {
    stream: types.Handle = null,
    memory: types.Pointer = 0,

    fn begin(plan: [*:0]const u8) !Bench {
        try gate.configure(plan);
        var handle: types.Handle = null;
        try expectEqual(0, context.cuInit(0));
        try expectEqual(0, context.cuDevicePrimaryCtxRetain(&handle, 0));
        try expectEqual(0, context.cuCtxSetCurrent(handle));
        var bench: Bench = .{};
        try expectEqual(0, timing.cuStreamCreate(&bench.stream, 1));
        try expectEqual(0, allocating.cuMemAlloc_v2(&bench.memory, 4 * mib));
        return bench;
    }

    fn end(bench: *Bench) !void {
        try expectEqual(0, allocating.cuMemFree_v2(bench.memory));
        try expectEqual(0, timing.cuStreamDestroy_v2(bench.stream));
        try expectEqual(0, context.cuDevicePrimaryCtxRelease_v2(0));
        for ([_][]const u8{ "contexts", "streams", "events", "allocations" }) |what| {
            var name: [32]u8 = undefined;
            const key = try std.fmt.bufPrint(&name, "open.{s}", .{what});
            try expectEqual(0, counted(key) orelse 0);
        }
        try gate.configure("");
    }
};

fn counted(name: []const u8) ?u64 {
    var text: [8192]u8 = undefined;
    var lines = std.mem.splitScalar(u8, text[0..state.countedLines(&text)], '\n');
    while (lines.next()) |line| {
        const space = std.mem.indexOfScalar(u8, line, ' ') orelse continue;
        if (!std.mem.eql(u8, line[0..space], name)) continue;
        return std.fmt.parseInt(u64, line[space + 1 ..], 10) catch unreachable;
    }
    return null;
}

fn host(bytes: usize) ![]u8 {
    const memory = try std.testing.allocator.alloc(u8, bytes);
    for (memory, 0..) |*byte, i| byte.* = @truncate(i *% 31);
    return memory;
}

test "registered memory is copied in both directions, and the event reports the end" {
    var bench = try Bench.begin("");
    const bytes = try host(3 * mib);
    defer std.testing.allocator.free(bytes);
    const back = try std.testing.allocator.alloc(u8, bytes.len);
    defer std.testing.allocator.free(back);
    const from = @intFromPtr(bytes.ptr);
    try expectEqual(0, allocating.cuMemHostRegister_v2(from, bytes.len, 1));
    try expectEqual(712, allocating.cuMemHostRegister_v2(from + 4096, 4096, 1));
    var event: types.Handle = null;
    try expectEqual(0, timing.cuEventCreate(&event, 2));
    try gate.configure("+stall");
    const to = bench.memory + mib;
    try expectEqual(0, copying.cuMemcpyHtoDAsync_v2(to, from, bytes.len, bench.stream));
    try expectEqual(0, timing.cuEventRecord(event, bench.stream));
    try expectEqual(600, timing.cuEventQuery(event));
    try expectEqual(600, timing.cuStreamQuery(bench.stream));
    try gate.configure("+release");
    try expectEqual(0, timing.cuEventSynchronize(event));
    try expectEqual(0, timing.cuEventQuery(event));
    try expectEqual(null, counted("pageable"));
    const into = @intFromPtr(back.ptr);
    // For unregistered memory the copy has ended when the call returns.
    try expectEqual(0, copying.cuMemcpyDtoHAsync_v2(into, to, back.len, bench.stream));
    try expect(std.mem.eql(u8, bytes, back));
    try expectEqual(1, counted("pageable").?);
    try expectEqual(0, allocating.cuMemHostUnregister(from));
    try expectEqual(713, allocating.cuMemHostUnregister(from));
    try expectEqual(0, timing.cuEventDestroy_v2(event));
    try bench.end();
}

test "invalid spans are refused" {
    var bench = try Bench.begin("");
    const bytes = try host(mib);
    defer std.testing.allocator.free(bytes);
    const from = @intFromPtr(bytes.ptr);
    const copy = copying.cuMemcpyHtoDAsync_v2;
    try expectEqual(1, copy(bench.memory + 4 * mib - 1, from, 2, bench.stream));
    try expectEqual(1, copy(from, from, 2, bench.stream));
    try expectEqual(400, copy(bench.memory, from, 2, @ptrFromInt(0x5000)));
    const half = std.mem.alignBackward(u64, from + mib / 2, 4096);
    try expectEqual(0, allocating.cuMemHostRegister_v2(from, half - from, 1));
    try expectEqual(0, allocating.cuMemHostRegister_v2(half, from + mib - half, 1));
    // The span is in two registrations.
    try expectEqual(1, copy(bench.memory, from, mib, bench.stream));
    try expectEqual(0, copy(bench.memory, from, half - from, bench.stream));
    try expectEqual(0, timing.cuStreamSynchronize(bench.stream));
    try expectEqual(0, allocating.cuMemHostUnregister(from));
    try expectEqual(0, allocating.cuMemHostUnregister(half));
    try bench.end();
}

test "a batch reports the index of the invalid piece" {
    var bench = try Bench.begin("");
    const bytes = try host(mib);
    defer std.testing.allocator.free(bytes);
    const from = @intFromPtr(bytes.ptr);
    const sources = [_]u64{ from, from + 1000 };
    var targets = [_]u64{ bench.memory, bench.memory + 5000 };
    const sizes = [_]usize{ 1000, 2000 };
    const place: types.Location = .{ .kind = 0, .id = 0 };
    const attributes = [_]types.CopyAttributes{
        .{ .source_order = 1, .source = place, .destination = place, .flags = 0 },
    };
    const starts = [_]usize{0};
    var failed: usize = 7;
    const on = bench.stream;
    const batch = copying.cuMemcpyBatchAsync;
    const good = batch(&targets, &sources, &sizes, 2, &attributes, &starts, 1, &failed, on);
    try expectEqual(0, good);
    try expectEqual(std.math.maxInt(usize), failed);
    targets[1] += 4 * mib;
    const bad = batch(&targets, &sources, &sizes, 2, &attributes, &starts, 1, &failed, on);
    try expectEqual(1, bad);
    try expectEqual(1, failed);
    const bare = batch(&targets, &sources, &sizes, 1, &attributes, &starts, 1, &failed, null);
    try expectEqual(1, bare);
    try expectEqual(2, counted("copies").?);
    try bench.end();
}

test "a lost device stays lost, and no call waits for it" {
    const bench = try Bench.begin("copy=700@2;cuMemAlloc_v2=2@2");
    var memory: types.Pointer = 0;
    try expectEqual(2, allocating.cuMemAlloc_v2(&memory, 64));
    const bytes = try host(4096);
    defer std.testing.allocator.free(bytes);
    const from = @intFromPtr(bytes.ptr);
    try expectEqual(0, allocating.cuMemHostRegister_v2(from, bytes.len, 1));
    const copy = copying.cuMemcpyHtoDAsync_v2;
    try expectEqual(0, copy(bench.memory, from, 4096, bench.stream));
    try expectEqual(0, timing.cuStreamSynchronize(bench.stream));
    try expectEqual(0, copy(bench.memory, from, 4096, bench.stream));
    try expectEqual(700, timing.cuStreamSynchronize(bench.stream));
    try expectEqual(700, copy(bench.memory, from, 4096, bench.stream));
    try expectEqual(700, allocating.cuMemFree_v2(bench.memory));
    try expectEqual(0, context.cuDevicePrimaryCtxRelease_v2(0));
    try expectEqual(0, counted("open.allocations").?);
    try expectEqual(0, counted("open.registrations").?);
    try expectEqual(0, counted("open.streams").?);
    var handle: types.Handle = null;
    try expectEqual(700, context.cuDevicePrimaryCtxRetain(&handle, 0));
    try gate.configure("");
}

test "a reset ends copies that would never end" {
    const bench = try Bench.begin("stall");
    const bytes = try host(4096);
    defer std.testing.allocator.free(bytes);
    const from = @intFromPtr(bytes.ptr);
    try expectEqual(0, allocating.cuMemHostRegister_v2(from, bytes.len, 1));
    const copy = copying.cuMemcpyHtoDAsync_v2;
    try expectEqual(0, copy(bench.memory, from, 4096, bench.stream));
    try expectEqual(0, context.cuDevicePrimaryCtxReset_v2(0));
    try expectEqual(709, timing.cuStreamQuery(bench.stream));
    try expectEqual(0, counted("open.streams").?);
    try expectEqual(0, context.cuDevicePrimaryCtxRelease_v2(0));
    try gate.configure("");
}

test "the planned copy has one wrong bit" {
    var bench = try Bench.begin("flip@2");
    const bytes = try host(4096);
    defer std.testing.allocator.free(bytes);
    var back: [4096]u8 = undefined;
    const to = bench.memory;
    try expectEqual(0, copying.cuMemcpyHtoD_v2(to, @intFromPtr(bytes.ptr), 4096));
    try expectEqual(0, copying.cuMemcpyDtoH_v2(@intFromPtr(&back), to, 4096));
    var wrong: u32 = 0;
    for (bytes, back) |one, other| wrong += @popCount(one ^ other);
    try expectEqual(1, wrong);
    try bench.end();
}

test "memory and addresses are exported, imported, mapped and freed separately" {
    var bench = try Bench.begin("");
    const property: types.Property = .{
        .kind = 1,
        .handle_types = 1,
        .location = .{ .kind = 1, .id = 0 },
        .windows_data = null,
        .compression = 0,
        .gpu_direct = 0,
        .usage = 0,
        .reserved = @splat(0),
    };
    const access = [_]types.Access{.{ .location = property.location, .flags = 3 }};
    var handle: u64 = 0;
    var fd: i32 = -1;
    try expectEqual(1, vmm.cuMemCreate(&handle, 1000, &property, 0));
    try expectEqual(0, vmm.cuMemCreate(&handle, 2 * mib, &property, 0));
    try expectEqual(0, vmm.cuMemExportToShareableHandle(&fd, handle, 1, 0));
    var imported: u64 = 0;
    const descriptor: types.Handle = @ptrFromInt(@as(usize, @intCast(fd)));
    try expectEqual(0, vmm.cuMemImportFromShareableHandle(&imported, descriptor, 1));
    try expectEqual(0, std.os.linux.close(fd));
    var places = [_]u64{ 0, 0 };
    for (&places, [_]u64{ handle, imported }) |*place, number| {
        try expectEqual(0, vmm.cuMemAddressReserve(place, 2 * mib, 0, 0, 0));
        try expectEqual(0, vmm.cuMemMap(place.*, 2 * mib, 0, number, 0));
        try expectEqual(1, copying.cuMemsetD8_v2(place.*, 7, 100));
        try expectEqual(0, vmm.cuMemSetAccess(place.*, 2 * mib, &access, 1));
        try expectEqual(0, vmm.cuMemRelease(number));
    }
    try expectEqual(0, copying.cuMemsetD8_v2(places[0] + 50, 7, 100));
    var back: [100]u8 = @splat(0);
    try expectEqual(0, copying.cuMemcpyDtoH_v2(@intFromPtr(&back), places[1] + 50, 100));
    try expect(std.mem.allEqual(u8, &back, 7));
    for (places) |place| {
        try expectEqual(1, vmm.cuMemAddressFree(place, 2 * mib));
        try expectEqual(0, vmm.cuMemUnmap(place, 2 * mib));
        try expectEqual(0, vmm.cuMemAddressFree(place, 2 * mib));
    }
    for ([_][]const u8{ "mappings", "reservations", "imports" }) |what| {
        var name: [32]u8 = undefined;
        try expectEqual(0, counted(try std.fmt.bufPrint(&name, "open.{s}", .{what})).?);
    }
    try bench.end();
}

test "a process cannot open its own handles, and an old driver lacks new calls" {
    var bench = try Bench.begin("no-vmm;driver=12040");
    var handle: types.IpcHandle = undefined;
    var opened: types.Pointer = 0;
    try expectEqual(1, sharing.cuIpcGetMemHandle(&handle, bench.memory + 100));
    try expectEqual(0, sharing.cuIpcGetMemHandle(&handle, bench.memory));
    try expectEqual(201, sharing.cuIpcOpenMemHandle_v2(&opened, handle, 1));
    handle.bytes[0] ^= 1;
    try expectEqual(400, sharing.cuIpcOpenMemHandle_v2(&opened, handle, 1));
    var found: ?*const anyopaque = null;
    var status: i32 = -1;
    const find = lookup.cuGetProcAddress_v2;
    try expectEqual(500, find("cuMemcpyBatchAsync", &found, 13000, 0, &status));
    try expectEqual(2, status);
    try expectEqual(500, find("cuMemCreate", &found, 13000, 0, &status));
    try expectEqual(1, status);
    try expectEqual(0, find("cuMemAlloc", &found, 12000, 0, &status));
    try expectEqual(@as(*const anyopaque, &allocating.cuMemAlloc_v2), found.?);
    try bench.end();
}

test "a call that hangs returns after its release" {
    var bench = try Bench.begin("cuStreamQuery=hang");
    const other = try std.Thread.spawn(.{}, struct {
        fn run() void {
            while (true) {
                state.lock();
                const is_there = (counted("calls.cuStreamQuery") orelse 0) == 1;
                state.unlock();
                if (is_there) break;
                std.Thread.yield() catch unreachable;
            }
            gate.configure("+release") catch unreachable;
        }
    }.run, .{});
    try expectEqual(0, timing.cuStreamQuery(bench.stream));
    other.join();
    try bench.end();
}
