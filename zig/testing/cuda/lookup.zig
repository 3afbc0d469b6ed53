//! The stand-in's cuGetProcAddress: finds functions by base name and version.

const std = @import("std");
const gate = @import("gate.zig");
const state = @import("state.zig");
const Fault = @import("codes.zig").Fault;

const sets = .{
    @import("context.zig").entries,
    @import("timing.zig").entries,
    @import("allocating.zig").entries,
    @import("copying.zig").entries,
    @import("sharing.zig").entries,
    @import("vmm.zig").entries,
};

const Status = enum(i32) { found = 0, not_found = 1, version_too_low = 2 };

/// First version of functions that were added later; all others exist in every version.
const since = .{
    .cuMemcpyBatchAsync = 12080,
    .cuMemcpyBatchAsync_v2 = 13000,
    .cuMemGetHandleForAddressRange = 11070,
    .cuGetProcAddress_v2 = 12000,
};

fn isLeftOut(name: []const u8) bool {
    const plan = &state.plan;
    if (!plan.has_batches and std.mem.startsWith(u8, name, "cuMemcpyBatch")) return true;
    if (plan.has_vmm) return false;
    return for (std.meta.declarations(@import("vmm.zig").entries)) |each| {
        if (std.mem.eql(u8, name, each.name)) break true;
    } else false;
}

fn find(
    symbol: ?[*:0]const u8,
    out: ?*?*const anyopaque,
    version: i32,
    flags: u64,
    status: ?*i32,
) Fault!void {
    const name = std.mem.span(symbol orelse return error.InvalidValue);
    const to = out orelse return error.InvalidValue;
    if (flags > 2) return error.InvalidValue;
    to.* = null;
    var said: Status = .not_found;
    const limit = @min(version, state.plan.driver);
    inline for (sets ++ .{entries}) |set| {
        inline for (comptime std.meta.declarations(set)) |each| {
            const base = comptime baseName(each.name);
            const first = if (@hasField(@TypeOf(since), each.name)) @field(since, each.name) else 0;
            if (std.mem.eql(u8, name, base) and !isLeftOut(each.name)) {
                if (limit >= first) {
                    // The table lists later versions of a function after earlier ones, so the last
                    // match wins.
                    to.* = @ptrCast(&@field(set, each.name));
                    said = .found;
                } else if (said == .not_found) {
                    said = .version_too_low;
                }
            }
        }
    }
    if (status) |answer| answer.* = @intFromEnum(said);
    if (said != .found) return error.NotFound;
}

fn baseName(comptime name: []const u8) []const u8 {
    const is_second = std.mem.endsWith(u8, name, "_v2");
    return if (is_second) name[0 .. name.len - 3] else name;
}

pub const entries = struct {
    pub fn cuGetProcAddress_v2(
        symbol: ?[*:0]const u8,
        out: ?*?*const anyopaque,
        version: i32,
        flags: u64,
        status: ?*i32,
    ) callconv(.c) i32 {
        const args = .{ symbol, out, version, flags, status };
        return gate.call("cuGetProcAddress_v2", .nothing, find, args);
    }
};

pub const all_sets = sets ++ .{entries};
