//! The stand-in's devices and their faults: items separated by `;`.
//!
//!   devices=2 ports=1       named standin0 and so on; `no-device` is devices=0
//!   layer=infiniband        otherwise ethernet
//!   gid=10.1.2.3            the address of the first port; `gid=none`: link-local addresses only
//!   numa=1                  the NUMA node of the devices
//!   reads=16 message=BYTES  READs in flight of a queue pair; the largest message
//!   port=down               or `up`; `port=down/1` only for the second device
//!   dir=FOLDER              the folder that connects processes
//!   delay=MS                duration of each READ
//!   retry=MS                how long a queue pair retries to reach its other side, at most
//!   read=STATUS@N           the Nth READ ends with the status; `@N+` from then on, no @: each
//!   hang@N                  nothing completes from the Nth READ on; `release` ends it
//!   flip@N                  the Nth READ has one wrong bit
//!   port-down@N fatal@N     at the Nth READ
//!   reg=ERRNO@N             the Nth registration fails
//!   memlock, memlock=BYTES  bytes that may be registered; 0 without a number
//!   dmabuf=off no-relaxed   the device lacks the capability
//!   ibv_NAME=ERRNO@N        that call fails
//!
//! A text that begins with `+` is added to the current plan, and ports and hanging READs follow at
//! once: `+port=down`, `+port=up`, `+release`, `+fatal`.

const std = @import("std");

/// Selects READs or calls by number: none, only the Nth, or all from the Nth on.
pub const Nth = struct {
    first: u64 = 0,
    onwards: bool = false,

    pub fn hits(nth: Nth, count: u64) bool {
        if (nth.first == 0) return false;
        return count == nth.first or (nth.onwards and count > nth.first);
    }
};

pub const Fault = struct {
    name: [32]u8 = @splat(0),
    length: usize = 0,
    code: i32 = 0,
    nth: Nth = .{},
};

pub const devices_max = 4;
const faults_max = 16;

const Key = enum {
    devices,
    ports,
    @"no-device",
    layer,
    gid,
    numa,
    reads,
    message,
    port,
    dir,
    delay,
    retry,
    read,
    hang,
    release,
    flip,
    @"port-down",
    fatal,
    reg,
    memlock,
    dmabuf,
    @"no-relaxed",
};

pub const Plan = struct {
    devices: u32 = 1,
    ports: u32 = 1,
    infiniband: bool = false,
    gid: [4]u8 = .{ 10, 77, 0, 1 },
    has_gid: bool = true,
    numa: i32 = -1,
    reads: u8 = 16,
    message_bytes: u32 = 1 << 30,
    down: [devices_max]bool = @splat(false),
    fatal: bool = false,
    dir: [96]u8 = @splat(0),
    delay_ns: u64 = 0,
    retry_ns: u64 = std.time.ns_per_s,
    read_status: u32 = 0,
    read_fails: Nth = .{},
    hang: Nth = .{},
    flip: Nth = .{},
    port_down: Nth = .{},
    fatal_at: Nth = .{},
    register_errno: i32 = 0,
    register_fails: Nth = .{},
    memlock: u64 = std.math.maxInt(u64),
    has_dma_buf: bool = true,
    has_relaxed: bool = true,
    faults: [faults_max]Fault = @splat(.{}),
    faults_count: usize = 0,

    pub fn parse(plan: *Plan, text: []const u8) error{BadPlan}!void {
        var items = std.mem.tokenizeAny(u8, text, "; \n");
        while (items.next()) |item| try plan.add(item);
    }

    fn add(plan: *Plan, item: []const u8) error{BadPlan}!void {
        const at = std.mem.indexOfScalar(u8, item, '@');
        const nth: Nth = if (at) |place| try nthOf(item[place + 1 ..]) else .{
            .first = 1,
            .onwards = true,
        };
        const said = item[0 .. at orelse item.len];
        const equals = std.mem.indexOfScalar(u8, said, '=');
        const key = said[0 .. equals orelse said.len];
        const value = if (equals) |place| said[place + 1 ..] else "";
        if (std.mem.startsWith(u8, key, "ibv_")) return plan.addFault(key, value, nth);
        switch (std.meta.stringToEnum(Key, key) orelse return error.BadPlan) {
            .devices => plan.devices = try number(u32, value, devices_max),
            .ports => plan.ports = try number(u32, value, 2),
            .@"no-device" => plan.devices = 0,
            .layer => plan.infiniband = std.mem.eql(u8, value, "infiniband"),
            .gid => try plan.setGid(value),
            .numa => plan.numa = try number(i32, value, 1023),
            .reads => plan.reads = try number(u8, value, 128),
            .message => plan.message_bytes = try number(u32, value, 1 << 31),
            .port => try plan.setPort(value),
            .dir => try plan.setFolder(value),
            .delay => plan.delay_ns = try milliseconds(value),
            .retry => plan.retry_ns = try milliseconds(value),
            .read => {
                plan.read_status = try number(u32, value, 23);
                plan.read_fails = nth;
            },
            .hang => plan.hang = nth,
            .release => plan.hang = .{},
            .flip => plan.flip = nth,
            .@"port-down" => plan.port_down = nth,
            .fatal => if (at == null) {
                plan.fatal = true;
            } else {
                plan.fatal_at = nth;
            },
            .reg => {
                plan.register_errno = try number(i32, value, 4095);
                plan.register_fails = nth;
            },
            .memlock => plan.memlock = if (equals == null)
                0
            else
                try number(u64, value, std.math.maxInt(u64)),
            .dmabuf => plan.has_dma_buf = !std.mem.eql(u8, value, "off"),
            .@"no-relaxed" => plan.has_relaxed = false,
        }
    }

    fn addFault(plan: *Plan, name: []const u8, value: []const u8, nth: Nth) error{BadPlan}!void {
        var fault: Fault = .{
            .length = name.len,
            .code = try number(i32, value, 4095),
            .nth = nth,
        };
        if (name.len > fault.name.len or plan.faults_count == faults_max) return error.BadPlan;
        @memcpy(fault.name[0..name.len], name);
        plan.faults[plan.faults_count] = fault;
        plan.faults_count += 1;
    }

    fn setGid(plan: *Plan, value: []const u8) error{BadPlan}!void {
        plan.has_gid = !std.mem.eql(u8, value, "none");
        if (!plan.has_gid) return;
        var parts = std.mem.splitScalar(u8, value, '.');
        for (&plan.gid) |*byte| byte.* = try number(u8, parts.next() orelse "", 255);
        if (parts.next() != null) return error.BadPlan;
    }

    fn setPort(plan: *Plan, value: []const u8) error{BadPlan}!void {
        var parts = std.mem.splitScalar(u8, value, '/');
        const is_down = std.mem.eql(u8, parts.first(), "down");
        if (!is_down and !std.mem.eql(u8, value[0..@min(2, value.len)], "up")) {
            return error.BadPlan;
        }
        if (parts.next()) |device| {
            plan.down[try number(u32, device, devices_max - 1)] = is_down;
        } else plan.down = @splat(is_down);
    }

    fn setFolder(plan: *Plan, value: []const u8) error{BadPlan}!void {
        if (value.len >= plan.dir.len) return error.BadPlan;
        plan.dir = @splat(0);
        @memcpy(plan.dir[0..value.len], value);
    }

    /// Returns the errno with which call number `count` of this function fails; null if it does
    /// not.
    pub fn faultOf(plan: *const Plan, name: []const u8, count: u64) ?i32 {
        for (plan.faults[0..plan.faults_count]) |*fault| {
            const is_it = std.mem.eql(u8, fault.name[0..fault.length], name);
            if (is_it and fault.nth.hits(count)) return fault.code;
        }
        return null;
    }
};

fn nthOf(text: []const u8) error{BadPlan}!Nth {
    const onwards = std.mem.endsWith(u8, text, "+");
    const digits = text[0 .. text.len - @intFromBool(onwards)];
    const first = try number(u64, digits, std.math.maxInt(u64));
    if (first == 0) return error.BadPlan;
    return .{ .first = first, .onwards = onwards };
}

fn number(comptime T: type, text: []const u8, max: T) error{BadPlan}!T {
    const value = std.fmt.parseInt(T, text, 10) catch return error.BadPlan;
    return if (value < 0 or value > max) error.BadPlan else value;
}

fn milliseconds(text: []const u8) error{BadPlan}!u64 {
    return try number(u64, text, 60_000) * std.time.ns_per_ms;
}

test "a plan has the devices and faults of its text" {
    var plan: Plan = .{};
    try plan.parse("devices=2;gid=10.1.2.3;read=12@3;hang@5+; ibv_create_qp=12@2;port=down/1");
    try std.testing.expectEqual(2, plan.devices);
    try std.testing.expectEqual([4]u8{ 10, 1, 2, 3 }, plan.gid);
    try std.testing.expect(plan.read_fails.hits(3) and !plan.read_fails.hits(4));
    try std.testing.expect(plan.hang.hits(6) and !plan.hang.hits(4));
    try std.testing.expectEqual(12, plan.faultOf("ibv_create_qp", 2));
    try std.testing.expectEqual(null, plan.faultOf("ibv_create_qp", 3));
    try std.testing.expect(plan.down[1] and !plan.down[0]);
    try plan.parse("port=up;release");
    try std.testing.expect(!plan.down[1] and !plan.hang.hits(6));
}

test "an invalid plan is refused" {
    for ([_][]const u8{ "read", "flop@1", "flip@0", "gid=1.2.3", "devices=9", "port=no" }) |text| {
        var plan: Plan = .{};
        try std.testing.expectError(error.BadPlan, plan.parse(text));
    }
}
