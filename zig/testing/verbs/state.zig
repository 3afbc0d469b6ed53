//! State of the verbs stand-in, protected by one lock: the plan and the counters.

const std = @import("std");
const Mutex = @import("mutex").Mutex;
const monotonic = @import("monotonic");
const plans = @import("plan.zig");

/// The functions of the library. Each call is counted and can be made to fail.
pub const Call = enum {
    ibv_get_device_list,
    ibv_free_device_list,
    ibv_get_device_name,
    ibv_get_device_guid,
    ibv_open_device,
    ibv_close_device,
    ibv_query_device,
    ibv_query_port,
    ibv_query_gid,
    ibv_query_gid_ex,
    ibv_query_gid_table,
    ibv_query_pkey,
    ibv_alloc_pd,
    ibv_dealloc_pd,
    ibv_reg_mr,
    ibv_reg_mr_iova,
    ibv_reg_mr_iova2,
    ibv_reg_dmabuf_mr,
    ibv_dereg_mr,
    ibv_create_comp_channel,
    ibv_destroy_comp_channel,
    ibv_create_cq,
    ibv_destroy_cq,
    ibv_get_cq_event,
    ibv_ack_cq_events,
    ibv_poll_cq,
    ibv_req_notify_cq,
    ibv_create_qp,
    ibv_modify_qp,
    ibv_query_qp,
    ibv_destroy_qp,
    ibv_post_send,
    ibv_post_recv,
    ibv_get_async_event,
    ibv_ack_async_event,
};

const Open = enum { contexts, pds, mrs, cqs, qps, channels };
const open_kinds = @typeInfo(Open).@"enum".fields.len;
const call_kinds = @typeInfo(Call).@"enum".fields.len;

/// Protects all state; released during copies and waits.
pub var lock: Mutex = .{};

pub var plan: plans.Plan = .{};
var is_planned = false;
/// Incremented with each new plan. Objects created before are no longer counted.
pub var era: u32 = 1;

var calls: [call_kinds]u64 = @splat(0);
var open: [open_kinds]i64 = @splat(0);
/// Number of READs started. The next variable is the number of READs executed.
pub var reads_begun: u64 = 0;
pub var reads_done: u64 = 0;
pub var bytes_read: u64 = 0;
pub var registrations: u64 = 0;
pub var registered_bytes: u64 = 0;

pub fn setErrno(code: i32) void {
    std.c._errno().* = code;
}

/// Counts a call and returns the errno with which it must fail; null if it must not. The caller
/// holds the lock.
pub fn entered(call: Call) ?i32 {
    if (!is_planned) begin(null) catch {
        // An invalid plan in the environment must not be taken for an empty one.
        @panic("STANDIN_VERBS contains an invalid plan");
    };
    const at = @intFromEnum(call);
    calls[at] += 1;
    return plan.faultOf(@tagName(call), calls[at]);
}

pub fn opened(kind: Open) void {
    open[@intFromEnum(kind)] += 1;
}

pub fn closed(kind: Open, of_era: u32) void {
    if (of_era == era) open[@intFromEnum(kind)] -= 1;
}

/// Resets the counters and sets the plan of the text, or of the environment if the text is null.
pub fn begin(text: ?[]const u8) error{BadPlan}!void {
    var next: plans.Plan = .{};
    const from_environment = if (std.c.getenv("STANDIN_VERBS")) |value| std.mem.span(value) else "";
    try next.parse(text orelse from_environment);
    plan = next;
    is_planned = true;
    era += 1;
    calls = @splat(0);
    open = @splat(0);
    reads_begun = 0;
    reads_done = 0;
    bytes_read = 0;
    registrations = 0;
    registered_bytes = 0;
}

/// Writes a line for each nonzero counter and for every kind of open object.
pub fn writeCounters(out: []u8) usize {
    var writer: std.Io.Writer = .fixed(out);
    writeAll(&writer) catch |err| switch (err) {
        // The buffer is full; it contains the lines that fit.
        error.WriteFailed => {},
    };
    return writer.end;
}

fn writeAll(writer: *std.Io.Writer) !void {
    for (calls, 0..) |count, at| {
        const call: Call = @enumFromInt(at);
        if (count > 0) try writer.print("calls.{s} {d}\n", .{ @tagName(call), count });
    }
    for (open, 0..) |count, at| {
        const kind: Open = @enumFromInt(at);
        try writer.print("open.{s} {d}\n", .{ @tagName(kind), count });
    }
    try writer.print("reads {d}\nbytes {d}\nregistered {d}\n", .{
        reads_done, bytes_read, registered_bytes,
    });
}

/// Waits until both counts are equal. The caller holds the lock. Returns false after `timeout_ns`.
pub fn waitUntilEqual(one: *const u32, other: *const u32, timeout_ns: u64) bool {
    const end = monotonic.now() + timeout_ns;
    while (one.* != other.*) {
        if (monotonic.now() > end) return false;
        pause();
    }
    return true;
}

/// Releases the lock for a moment, so that other threads can run.
pub fn pause() void {
    lock.unlock();
    defer lock.lock();
    const time: std.os.linux.timespec = .{ .sec = 0, .nsec = std.time.ns_per_ms / 5 };
    _ = std.os.linux.nanosleep(&time, null);
}
