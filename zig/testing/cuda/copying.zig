//! The stand-in's driver functions that copy and fill memory.

const std = @import("std");
const gate = @import("gate.zig");
const memory = @import("memory.zig");
const pinned = @import("pinned.zig");
const state = @import("state.zig");
const stream = @import("stream.zig");
const types = @import("types.zig");
const Fault = @import("codes.zig").Fault;
const Handle = types.Handle;
const Pointer = types.Pointer;

/// The pieces that one call copies. Their memory counts as in use from the call until the copies
/// have ended.
const Pieces = struct {
    segments: std.ArrayList(stream.Segment) = .empty,
    has_pageable: bool = false,

    fn add(pieces: *Pieces, to: u64, from: u64, bytes: u64) Fault!void {
        if (to == 0 or from == 0) return error.InvalidValue;
        var done: u64 = 0;
        while (done < bytes) {
            var segment: stream.Segment = .{
                .to = @ptrFromInt(to + done),
                .from = @ptrFromInt(from + done),
                .bytes = bytes - done,
                .is_first = done == 0,
            };
            if (memory.isDevice(to)) segment.to = try take(&segment, 0, to + done);
            if (memory.isDevice(from)) segment.from = try take(&segment, 1, from + done);
            const host = if (!memory.isDevice(to)) to else from;
            if (!memory.isDevice(host)) {
                segment.pinned = try pinned.holding(host, bytes, state.currentDevice());
                pieces.has_pageable = pieces.has_pageable or segment.pinned == null;
            }
            pieces.segments.append(state.allocator, segment) catch return error.OutOfMemory;
            done += segment.bytes;
        }
    }

    /// Finds the memory at an address and limits the segment to it.
    fn take(segment: *stream.Segment, side: usize, address: u64) Fault![*]u8 {
        const range = memory.find(address) orelse return error.InvalidValue;
        if (!range.is_accessible) return error.InvalidValue;
        segment.ranges[side] = range;
        segment.bytes = @min(segment.bytes, range.end() - address);
        return range.physical.shadow + (address - range.address);
    }

    /// Queues the pieces on a stream. Waits until they are copied if memory is not registered, as
    /// the driver does.
    fn push(pieces: *Pieces, on: *stream.Stream, must_wait: bool) Fault!void {
        const segments = pieces.segments.toOwnedSlice(state.allocator) catch {
            return error.OutOfMemory;
        };
        const has_pageable = pieces.has_pageable;
        if (has_pageable) state.count("pageable", 1);
        {
            errdefer state.allocator.free(segments);
            try on.push(.{ .copies = segments });
        }
        for (segments) |*segment| stream.hold(segment);
        if (has_pageable or must_wait) try on.finish();
    }

    fn deinit(pieces: *Pieces) void {
        pieces.segments.deinit(state.allocator);
    }
};

fn copy(to: u64, from: u64, bytes: usize, on: *stream.Stream, must_wait: bool) Fault!void {
    var pieces: Pieces = .{};
    defer pieces.deinit();
    try pieces.add(to, from, bytes);
    try pieces.push(on, must_wait);
}

const Direction = enum { to_device, from_device, on_device, any };

fn copyOn(direction: Direction, to: u64, from: u64, bytes: usize, handle: Handle) Fault!void {
    try check(direction, to, from);
    return copy(to, from, bytes, try stream.find(handle), false);
}

fn copyNow(direction: Direction, to: u64, from: u64, bytes: usize) Fault!void {
    try check(direction, to, from);
    return copy(to, from, bytes, try stream.find(null), true);
}

fn check(direction: Direction, to: u64, from: u64) Fault!void {
    const is_right = switch (direction) {
        .to_device => memory.isDevice(to) and !memory.isDevice(from),
        .from_device => !memory.isDevice(to) and memory.isDevice(from),
        .on_device => memory.isDevice(to) and memory.isDevice(from),
        .any => true,
    };
    if (!is_right) return error.InvalidValue;
}

const Batch = struct {
    to: ?[*]const Pointer,
    from: ?[*]const Pointer,
    sizes: ?[*]const usize,
    count: usize,
    attributes: ?[*]const types.CopyAttributes,
    attribute_starts: ?[*]const usize,
    attribute_count: usize,
};

fn copyBatch(batch: Batch, failed: ?*usize, handle: Handle) Fault!void {
    if (failed) |index| index.* = std.math.maxInt(usize);
    if (!state.plan.has_batches or state.plan.driver < 12080) return error.NotSupported;
    // The driver refuses batch copies on the default streams.
    if (@intFromPtr(handle) <= 2 or batch.count == 0) return error.InvalidValue;
    const to = batch.to orelse return error.InvalidValue;
    const from = batch.from orelse return error.InvalidValue;
    const sizes = batch.sizes orelse return error.InvalidValue;
    try checkAttributes(batch);
    const on = try stream.find(handle);
    var pieces: Pieces = .{};
    defer pieces.deinit();
    for (to[0..batch.count], from[0..batch.count], sizes[0..batch.count], 0..) |into, of, size, i| {
        if (failed) |index| index.* = i;
        if (size == 0) return error.InvalidValue;
        try pieces.add(into, of, size);
    }
    if (failed) |index| index.* = std.math.maxInt(usize);
    state.count("batches", 1);
    try pieces.push(on, false);
}

fn checkAttributes(batch: Batch) Fault!void {
    const attributes = batch.attributes orelse return error.InvalidValue;
    const starts = batch.attribute_starts orelse return error.InvalidValue;
    const count = batch.attribute_count;
    if (count == 0 or count > batch.count or starts[0] != 0) return error.InvalidValue;
    for (attributes[0..count], starts[0..count], 0..) |attribute, start, i| {
        if (attribute.source_order < 1 or attribute.source_order > 3) return error.InvalidValue;
        if (attribute.flags > 1 or start >= batch.count) return error.InvalidValue;
        if (i > 0 and start <= starts[i - 1]) return error.InvalidValue;
    }
}

fn fill(to: Pointer, value: u8, bytes: usize, on: *stream.Stream, must_wait: bool) Fault!void {
    var done: u64 = 0;
    while (done < bytes) {
        var segment: stream.Segment = .{
            .to = undefined,
            .from = undefined,
            .bytes = bytes - done,
            .is_first = false,
        };
        segment.to = try Pieces.take(&segment, 0, to + done);
        try on.push(.{ .fill = .{ .segment = segment, .value = value } });
        stream.hold(&segment);
        done += segment.bytes;
    }
    if (must_wait) try on.finish();
}

fn fillOn(to: Pointer, value: u8, bytes: usize, handle: Handle) Fault!void {
    return fill(to, value, bytes, try stream.find(handle), false);
}

fn fillNow(to: Pointer, value: u8, bytes: usize) Fault!void {
    return fill(to, value, bytes, try stream.find(null), true);
}

pub const entries = struct {
    pub fn cuMemcpyHtoD_v2(to: Pointer, from: u64, bytes: usize) callconv(.c) i32 {
        const args = .{ .to_device, to, from, bytes };
        return gate.call("cuMemcpyHtoD_v2", .context, copyNow, args);
    }

    pub fn cuMemcpyDtoH_v2(to: u64, from: Pointer, bytes: usize) callconv(.c) i32 {
        const args = .{ .from_device, to, from, bytes };
        return gate.call("cuMemcpyDtoH_v2", .context, copyNow, args);
    }

    pub fn cuMemcpyDtoD_v2(to: Pointer, from: Pointer, bytes: usize) callconv(.c) i32 {
        const args = .{ .on_device, to, from, bytes };
        return gate.call("cuMemcpyDtoD_v2", .context, copyNow, args);
    }

    pub fn cuMemcpyHtoDAsync_v2(to: Pointer, from: u64, bytes: usize, on: Handle) callconv(.c) i32 {
        const args = .{ .to_device, to, from, bytes, on };
        return gate.call("cuMemcpyHtoDAsync_v2", .context, copyOn, args);
    }

    pub fn cuMemcpyDtoHAsync_v2(to: u64, from: Pointer, bytes: usize, on: Handle) callconv(.c) i32 {
        const args = .{ .from_device, to, from, bytes, on };
        return gate.call("cuMemcpyDtoHAsync_v2", .context, copyOn, args);
    }

    pub fn cuMemcpyDtoDAsync_v2(
        to: Pointer,
        from: Pointer,
        bytes: usize,
        on: Handle,
    ) callconv(.c) i32 {
        const args = .{ .on_device, to, from, bytes, on };
        return gate.call("cuMemcpyDtoDAsync_v2", .context, copyOn, args);
    }

    pub fn cuMemcpyAsync(to: Pointer, from: Pointer, bytes: usize, on: Handle) callconv(.c) i32 {
        return gate.call("cuMemcpyAsync", .context, copyOn, .{ .any, to, from, bytes, on });
    }

    pub fn cuMemcpyBatchAsync(
        to: ?[*]const Pointer,
        from: ?[*]const Pointer,
        sizes: ?[*]const usize,
        count: usize,
        attributes: ?[*]const types.CopyAttributes,
        attribute_starts: ?[*]const usize,
        attribute_count: usize,
        failed: ?*usize,
        on: Handle,
    ) callconv(.c) i32 {
        const batch: Batch = .{
            .to = to,
            .from = from,
            .sizes = sizes,
            .count = count,
            .attributes = attributes,
            .attribute_starts = attribute_starts,
            .attribute_count = attribute_count,
        };
        return gate.call("cuMemcpyBatchAsync", .context, copyBatch, .{ batch, failed, on });
    }

    pub fn cuMemcpyBatchAsync_v2(
        to: ?[*]const Pointer,
        from: ?[*]const Pointer,
        sizes: ?[*]const usize,
        count: usize,
        attributes: ?[*]const types.CopyAttributes,
        attribute_starts: ?[*]const usize,
        attribute_count: usize,
        on: Handle,
    ) callconv(.c) i32 {
        const batch: Batch = .{
            .to = to,
            .from = from,
            .sizes = sizes,
            .count = count,
            .attributes = attributes,
            .attribute_starts = attribute_starts,
            .attribute_count = attribute_count,
        };
        const args = .{ batch, @as(?*usize, null), on };
        return gate.call("cuMemcpyBatchAsync_v2", .context, copyBatch, args);
    }

    pub fn cuMemsetD8_v2(to: Pointer, value: u8, bytes: usize) callconv(.c) i32 {
        return gate.call("cuMemsetD8_v2", .context, fillNow, .{ to, value, bytes });
    }

    pub fn cuMemsetD8Async(to: Pointer, value: u8, bytes: usize, on: Handle) callconv(.c) i32 {
        return gate.call("cuMemsetD8Async", .context, fillOn, .{ to, value, bytes, on });
    }
};
