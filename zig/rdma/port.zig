//! A port of an RDMA device: its capabilities and its address.

const std = @import("std");
const types = @import("../abi/rdma_types.zig");
const verbs = @import("verbs.zig");
const Symbols = @import("symbols.zig").Symbols;

/// GID index that lets the library choose the GID.
pub const by_rule = std.math.maxInt(u32);
/// Number of GID table entries that a queue pair can use: its GID index has 8 bits.
const gids_max = 256;

const zero_gid: [16]u8 = @splat(0);
const v4_prefix = [_]u8{ 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff };

/// Rates how suitable a GID is for reaching other hosts: higher is better, 0 is unusable.
pub fn worthOf(entry: *const verbs.GidEntry) u32 {
    if (entry.gid_type != verbs.gid_type_roce_v2) return 0;
    if (std.mem.eql(u8, &entry.gid, &zero_gid) or isLinkLocal(&entry.gid)) return 0;
    return if (std.mem.startsWith(u8, &entry.gid, &v4_prefix)) 2 else 1;
}

fn isLinkLocal(gid: *const [16]u8) bool {
    return gid[0] == 0xfe and gid[1] & 0xc0 == 0x80;
}

/// Returns the speed in Mbit/s for the header's codes of lane rate and width; 0 if a code is
/// unknown.
pub fn speedOf(speed: u8, width: u8) u64 {
    const lane: u64 = switch (speed) {
        1 => 2_500,
        2 => 5_000,
        4, 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        else => 0,
    };
    const lanes: u64 = switch (width) {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        else => 0,
    };
    return lane * lanes;
}

/// Returns the bytes of an MTU code of the header: 1 is 256, 5 is 4096.
pub fn mtuBytes(mtu: c_int) u32 {
    return if (mtu < 1 or mtu > 5) 0 else @as(u32, 128) << @intCast(mtu);
}

pub fn mtuNumber(bytes: u32) ?c_int {
    for (1..6) |number| {
        if (mtuBytes(@intCast(number)) == bytes) return @intCast(number);
    }
    return null;
}

/// The library functions and parameters for querying a port.
pub const Asking = struct {
    symbols: *const Symbols,
    context: *verbs.Context,
    gid_index: u32,

    /// Updates the variable fields of `port`. A GID that was chosen before stays chosen while it
    /// exists.
    pub fn ask(asking: Asking, port: *types.RdmaPort) void {
        var attr = std.mem.zeroes(verbs.PortAttr);
        if (asking.query(@intCast(port.number), &attr) != 0) {
            port.state = @intFromEnum(types.RdmaPortState.down);
            return;
        }
        port.message_bytes_max = attr.max_msg_sz;
        port.speed = speedOf(attr.active_speed, attr.active_width);
        port.lid = attr.lid;
        port.mtu = mtuBytes(attr.active_mtu);
        const is_infiniband = attr.link_layer == verbs.link_layer_infiniband;
        // Devices that report no link layer are older than RoCE, so they use InfiniBand.
        const is_unsaid = attr.link_layer == verbs.link_layer_unspecified;
        port.link_layer = if (is_infiniband or is_unsaid) 1 else 2;
        const entries: u32 = @intCast(std.math.clamp(attr.gid_tbl_len, 0, gids_max));
        const has_address = asking.address(port, entries);
        const is_active = attr.state == verbs.port_active or
            attr.state == verbs.port_active_defer;
        const is_usable = has_address and port.mtu != 0 and port.message_bytes_max != 0;
        const state: types.RdmaPortState =
            if (!is_active) .down else if (!is_usable) .no_address else .active;
        port.state = @intFromEnum(state);
    }

    fn query(asking: Asking, number: u8, attr: *verbs.PortAttr) c_int {
        const context = asking.context;
        if (verbs.VerbsContext.of(context)) |around| {
            if (around.query_port) |call| {
                return call(context, number, attr, @sizeOf(verbs.PortAttr));
            }
        }
        return asking.symbols.ibv_query_port(context, number, attr);
    }

    fn address(asking: Asking, port: *types.RdmaPort, entries: u32) bool {
        // These queue pairs do not work with iWARP or proprietary protocols.
        if (asking.context.device.transport_type != verbs.transport_ib) return false;
        if (port.link_layer == verbs.link_layer_infiniband) {
            const index = if (asking.gid_index == by_rule) 0 else asking.gid_index;
            return asking.take(port, index) and port.lid != 0;
        }
        if (asking.gid_index != by_rule) return asking.take(port, asking.gid_index);
        if (asking.isStill(port)) return true;
        var best: u32 = 0;
        var best_index: u32 = 0;
        for (0..entries) |index| {
            const entry = asking.entryOf(port, @intCast(index)) orelse continue;
            const worth = worthOf(&entry);
            if (worth <= best) continue;
            best = worth;
            best_index = @intCast(index);
        }
        if (best == 0) port.gid = zero_gid;
        return best != 0 and asking.take(port, best_index);
    }

    fn isStill(asking: Asking, port: *const types.RdmaPort) bool {
        if (std.mem.eql(u8, &port.gid, &zero_gid)) return false;
        const entry = asking.entryOf(port, port.gid_index) orelse return false;
        return worthOf(&entry) > 0 and std.mem.eql(u8, &entry.gid, &port.gid);
    }

    fn take(asking: Asking, port: *types.RdmaPort, index: u32) bool {
        const entry = asking.entryOf(port, index) orelse std.mem.zeroes(verbs.GidEntry);
        port.gid = entry.gid;
        port.gid_index = index;
        port.gid_type = entry.gid_type;
        return !std.mem.eql(u8, &port.gid, &zero_gid);
    }

    fn entryOf(asking: Asking, port: *const types.RdmaPort, index: u32) ?verbs.GidEntry {
        if (index >= gids_max) return null;
        var entry = std.mem.zeroes(verbs.GidEntry);
        const bytes = @sizeOf(verbs.GidEntry);
        const call = asking.symbols._ibv_query_gid_ex;
        // Most table entries are empty, which the call reports as an error.
        const code = call(asking.context, port.number, index, &entry, 0, bytes);
        return if (code == 0) entry else null;
    }
};

test "addresses are ranked by their use to other hosts" {
    var entry = std.mem.zeroes(verbs.GidEntry);
    entry.gid_type = verbs.gid_type_roce_v2;
    try std.testing.expectEqual(0, worthOf(&entry));
    entry.gid = .{ 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, 0, 0, 1 };
    try std.testing.expectEqual(0, worthOf(&entry));
    entry.gid[0..2].* = .{ 0x20, 0x01 };
    try std.testing.expectEqual(1, worthOf(&entry));
    entry.gid = v4_prefix ++ [_]u8{ 10, 0, 0, 1 };
    try std.testing.expectEqual(2, worthOf(&entry));
    entry.gid_type = verbs.gid_type_roce_v1;
    try std.testing.expectEqual(0, worthOf(&entry));
}

test "speed and MTU codes convert to Mbit/s and bytes" {
    try std.testing.expectEqual(400_000, speedOf(128, 2));
    try std.testing.expectEqual(0, speedOf(3, 2));
    try std.testing.expectEqual(4096, mtuBytes(5));
    try std.testing.expectEqual(0, mtuBytes(6));
    try std.testing.expectEqual(3, mtuNumber(1024));
    try std.testing.expectEqual(null, mtuNumber(1500));
}
