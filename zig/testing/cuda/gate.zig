//! Entry of each of the stand-in's functions: counts the call, applies the plan's faults, and
//! checks the function's requirements.

const std = @import("std");
const codes = @import("codes.zig");
const context = @import("context.zig");
const state = @import("state.zig");
const Plan = @import("plan.zig").Plan;

pub const Needs = enum { nothing, driver, context };

/// Calls `body` with the mutex held and converts its error to a result code.
pub fn call(comptime name: []const u8, needs: Needs, comptime body: anytype, args: anytype) i32 {
    state.lock();
    defer state.unlock();
    load();
    state.count("calls." ++ name, 1);
    if (planned(name)) |code| return code;
    if (missing(needs)) |code| return code;
    @call(.auto, body, args) catch |fault| return codes.of(fault, state.lost_code);
    return codes.success;
}

fn planned(name: []const u8) ?i32 {
    const rule = state.plan.ruleOf(name) orelse return null;
    const code = rule.code orelse {
        const releases = state.releases;
        while (state.releases == releases) state.wait();
        return null;
    };
    if (codes.isSticky(code)) {
        if (state.current) |device| state.lose(device, code);
    }
    return code;
}

fn missing(needs: Needs) ?i32 {
    if (needs == .nothing) return null;
    if (!state.is_initialized) return codes.not_initialized;
    if (needs == .driver) return null;
    const device = state.current orelse return codes.invalid_context;
    if (device.retains == 0 or device.is_reset) return codes.context_destroyed;
    return if (device.lost != 0) device.lost else null;
}

/// Loads the plan from the environment unless a plan was set.
fn load() void {
    if (state.is_loaded) return;
    state.is_loaded = true;
    const text = std.mem.span(std.c.getenv("STANDIN_CUDA") orelse return);
    state.plan = Plan.parse(.{}, text, 0) catch std.debug.panic("STANDIN_CUDA: {s}", .{text});
}

/// Resets the stand-in and sets a plan. A text that begins with `+` changes the current plan
/// instead.
pub fn configure(text: ?[*:0]const u8) error{BadPlan}!void {
    state.lock();
    defer state.unlock();
    load();
    const said = text orelse std.c.getenv("STANDIN_CUDA") orelse "";
    const words = std.mem.span(said);
    if (std.mem.startsWith(u8, words, "+")) {
        state.plan = try Plan.parse(state.plan, words[1..], state.copies);
        if (state.plan.is_release) state.releases += 1;
        state.wake();
        return;
    }
    const plan = try Plan.parse(.{}, words, 0);
    state.plan.stall_at = 0;
    state.releases += 1;
    context.forgetAll();
    state.plan = plan;
}
