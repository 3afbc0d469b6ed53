//! The devices and their faults, as a text of items separated by `;`:
//!
//! - `devices=2`, `memory=1g` (of each; `k`, `m`, `g`), `driver=12080`, `numa=0,1` (one per
//!   device).
//! - `no-batch`, `no-vmm`, `no-ipc`, `dma-buf=off`: capabilities that this driver lacks.
//! - `init=100`: the result of cuInit.
//! - `cuMemAlloc_v2=2`: each call returns 2. `=2@3`: only the third call; `=2@3+`: the third and
//!   all
//!   that follow. Numbers count from the start of the plan. `=hang`: the call returns after
//!   `release`.
//! - `copy=700@3`: the third copy fails on its stream, after its call has succeeded.
//! - `delay=20`: milliseconds of each copy. `flip@2`: the second copy has one wrong bit.
//! - `stall`, `stall@3`: from now, or from the third copy on, copies wait for `release`.
//!
//! Codes that destroy a context (`codes.isSticky`) stay with their device. A text that begins with
//! `+` changes later faults and keeps everything else; `release` is valid only there.

const std = @import("std");

pub const devices_max = 16;
const rules_max = 32;
const name_max = 48;

pub const BadPlan = error{BadPlan};

/// The planned results of the calls of one function.
pub const Rule = struct {
    name_bytes: [name_max]u8,
    name_length: usize,
    /// The code to return; null if the call hangs until `release`.
    code: ?i32,
    /// The first call to which the rule applies, counted from 1.
    first: u64 = 1,
    is_onwards: bool = true,
    seen: u64 = 0,

    /// Counts a call and returns whether the rule applies to it.
    fn holds(rule: *Rule) bool {
        rule.seen += 1;
        return rule.seen == rule.first or (rule.is_onwards and rule.seen > rule.first);
    }
};

pub const Plan = struct {
    devices: u32 = 1,
    memory_bytes: u64 = 1 << 30,
    driver: i32 = 12080,
    has_batches: bool = true,
    has_vmm: bool = true,
    has_ipc: bool = true,
    has_dma_buf: bool = true,
    delay_ms: u64 = 0,
    /// Number of the copy in which a bit is flipped, counted from 1; 0 for none.
    flip_at: u64 = 0,
    stall_at: u64 = 0,
    is_release: bool = false,
    numa: [devices_max]i32 = @splat(-1),
    rules: [rules_max]Rule = undefined,
    rule_count: usize = 0,

    /// Counts this call of `name` and returns the rule that applies to it; null if none does.
    pub fn ruleOf(plan: *Plan, name: []const u8) ?*Rule {
        var found: ?*Rule = null;
        for (plan.rules[0..plan.rule_count]) |*rule| {
            const own = rule.name_bytes[0..rule.name_length];
            if (std.mem.eql(u8, own, name) and rule.holds() and found == null) found = rule;
        }
        return found;
    }

    /// Returns the plan `start` with the changes in the text. `copies` is the number of copies so
    /// far, from which `stall` counts.
    pub fn parse(start: Plan, text: []const u8, copies: u64) BadPlan!Plan {
        var plan = start;
        plan.is_release = false;
        var items = std.mem.tokenizeScalar(u8, text, ';');
        while (items.next()) |item| {
            try plan.take(std.mem.trim(u8, item, " "), copies);
        }
        return plan;
    }

    fn take(plan: *Plan, item: []const u8, copies: u64) BadPlan!void {
        if (std.mem.eql(u8, item, "")) return;
        if (std.mem.eql(u8, item, "no-batch")) {
            plan.has_batches = false;
        } else if (std.mem.eql(u8, item, "no-vmm")) {
            plan.has_vmm = false;
        } else if (std.mem.eql(u8, item, "no-ipc")) {
            plan.has_ipc = false;
        } else if (std.mem.eql(u8, item, "stall")) {
            plan.stall_at = copies + 1;
        } else if (std.mem.eql(u8, item, "release")) {
            plan.stall_at = 0;
            plan.is_release = true;
        } else if (after(item, "stall@")) |number| {
            plan.stall_at = copies + try unsigned(number);
        } else if (after(item, "flip@")) |number| {
            plan.flip_at = copies + try unsigned(number);
        } else {
            const equals = std.mem.indexOfScalar(u8, item, '=') orelse return error.BadPlan;
            try plan.set(item[0..equals], item[equals + 1 ..]);
        }
    }

    fn set(plan: *Plan, key: []const u8, value: []const u8) BadPlan!void {
        if (std.mem.eql(u8, key, "devices")) {
            const count = try unsigned(value);
            if (count > devices_max) return error.BadPlan;
            plan.devices = @intCast(count);
        } else if (std.mem.eql(u8, key, "memory")) {
            plan.memory_bytes = try size(value);
        } else if (std.mem.eql(u8, key, "driver")) {
            plan.driver = try signed(value);
        } else if (std.mem.eql(u8, key, "delay")) {
            plan.delay_ms = try unsigned(value);
        } else if (std.mem.eql(u8, key, "dma-buf")) {
            plan.has_dma_buf = !std.mem.eql(u8, value, "off");
        } else if (std.mem.eql(u8, key, "numa")) {
            var nodes = std.mem.splitScalar(u8, value, ',');
            var at: usize = 0;
            while (nodes.next()) |node| : (at += 1) {
                if (at == devices_max) return error.BadPlan;
                plan.numa[at] = try signed(node);
            }
        } else if (std.mem.eql(u8, key, "init")) {
            try plan.addRule("cuInit", value);
        } else if (std.mem.startsWith(u8, key, "cu") or std.mem.eql(u8, key, "copy")) {
            try plan.addRule(key, value);
        } else {
            return error.BadPlan;
        }
    }

    fn addRule(plan: *Plan, key: []const u8, value: []const u8) BadPlan!void {
        if (plan.rule_count == rules_max or key.len > name_max) return error.BadPlan;
        var parts = std.mem.splitScalar(u8, value, '@');
        const what = parts.first();
        const is_hang = std.mem.eql(u8, what, "hang");
        const rule = &plan.rules[plan.rule_count];
        rule.* = .{
            .name_bytes = undefined,
            .name_length = key.len,
            .code = if (is_hang) null else try signed(what),
        };
        @memcpy(rule.name_bytes[0..key.len], key);
        if (parts.next()) |where| {
            rule.is_onwards = std.mem.endsWith(u8, where, "+");
            rule.first = try unsigned(std.mem.trimEnd(u8, where, "+"));
        }
        plan.rule_count += 1;
    }
};

fn after(item: []const u8, start: []const u8) ?[]const u8 {
    return if (std.mem.startsWith(u8, item, start)) item[start.len..] else null;
}

fn signed(text: []const u8) BadPlan!i32 {
    return std.fmt.parseInt(i32, text, 10) catch return error.BadPlan;
}

fn unsigned(text: []const u8) BadPlan!u64 {
    return std.fmt.parseInt(u64, text, 10) catch return error.BadPlan;
}

fn size(text: []const u8) BadPlan!u64 {
    if (text.len == 0) return error.BadPlan;
    const shift: u6 = switch (text[text.len - 1]) {
        'k' => 10,
        'm' => 20,
        'g' => 30,
        else => return unsigned(text),
    };
    return try unsigned(text[0 .. text.len - 1]) << shift;
}

test "a plan has the values of its text" {
    const text = "devices=2; memory=64m;numa=0,1;no-vmm;dma-buf=off;flip@3;copy=700@2;delay=5";
    var plan = try Plan.parse(.{}, text, 0);
    try std.testing.expectEqual(2, plan.devices);
    try std.testing.expectEqual(64 << 20, plan.memory_bytes);
    try std.testing.expectEqual(1, plan.numa[1]);
    try std.testing.expect(!plan.has_vmm and plan.has_ipc and !plan.has_dma_buf);
    try std.testing.expectEqual(3, plan.flip_at);
    try std.testing.expectEqual(null, plan.ruleOf("copy"));
    try std.testing.expectEqual(700, plan.ruleOf("copy").?.code.?);
    try std.testing.expectEqual(null, plan.ruleOf("copy"));
    const wrong = [_][]const u8{ "device=2", "memory=", "devices=17", "copy=x", "flip@", "numa=a" };
    for (wrong) |bad| try std.testing.expectError(error.BadPlan, Plan.parse(.{}, bad, 0));
}

test "rules apply from a call on, and added rules count from their addition" {
    var plan = try Plan.parse(.{}, "cuMemAlloc_v2=2@2+;cuInit=hang", 0);
    try std.testing.expectEqual(null, plan.ruleOf("cuMemAlloc_v2"));
    for (0..3) |_| try std.testing.expectEqual(2, plan.ruleOf("cuMemAlloc_v2").?.code.?);
    try std.testing.expectEqual(null, plan.ruleOf("cuInit").?.code);
    const later = try Plan.parse(plan, "stall@2;flip@1", 10);
    try std.testing.expectEqual(12, later.stall_at);
    try std.testing.expectEqual(11, later.flip_at);
    const released = try Plan.parse(later, "release", 12);
    try std.testing.expectEqual(0, released.stall_at);
    try std.testing.expect(released.is_release);
}
