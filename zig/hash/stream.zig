//! A copy that bypasses the caches. A writer does not read its block again, and ordinary stores
//! would first load the destination's lines into the cache, which wastes memory bandwidth.

const std = @import("std");
const builtin = @import("builtin");

const line_bytes = 64;
/// Below this size a reader may find the destination in the cache, and the fence costs too much.
const streamed_min = 64 * 1024;
/// Debug builds use a backend without the instruction.
const has_stream = builtin.zig_backend == .stage2_llvm and
    builtin.cpu.arch == .x86_64 and builtin.cpu.has(.x86, .avx);

const Half = @Vector(4, u64);

/// Whether `copy` bypasses the caches for this destination.
pub fn worthIt(dst: []const u8) bool {
    return has_stream and dst.len >= streamed_min and @intFromPtr(dst.ptr) % line_bytes == 0;
}

/// Copies `src` to `dst`, of equal length, for which `worthIt` returned true. `fence` must follow
/// before another thread or process learns of the bytes.
pub fn copy(dst: []u8, src: []const u8) void {
    std.debug.assert(dst.len == src.len);
    // The loop is bounded by the slices' length; a runtime check would cost time on every line.
    @setRuntimeSafety(false);
    const whole = dst.len / line_bytes * line_bytes;
    var at: usize = 0;
    while (at < whole) : (at += line_bytes) {
        const low: Half = @bitCast(src[at..][0..32].*);
        const high: Half = @bitCast(src[at + 32 ..][0..32].*);
        store(dst.ptr + at, low);
        store(dst.ptr + at + 32, high);
    }
    @memcpy(dst[whole..], src[whole..]);
}

inline fn store(to: [*]u8, value: Half) void {
    if (!has_stream) unreachable;
    asm volatile ("vmovntdq %[value], (%[to])"
        :
        : [value] "x" (value),
          [to] "r" (to),
        : .{ .memory = true });
}

/// Orders the streamed bytes before all later writes.
pub fn fence() void {
    if (builtin.cpu.arch == .x86_64) asm volatile ("sfence" ::: .{ .memory = true });
}

/// How a stripe of 64 bytes is written while it is hashed.
pub const Store = enum {
    none,
    /// To any address, through the caches.
    plain,
    /// To a multiple of `streamed_align`, past the caches; `fence` must follow.
    streamed,

    pub inline fn put(comptime self: Store, to: [*]u8, stripe: @Vector(8, u64)) void {
        switch (self) {
            .none => {},
            .plain => @as(*align(1) @Vector(8, u64), @ptrCast(to)).* = stripe,
            .streamed => {
                const words: [8]u64 = stripe;
                const parts: [64 / streamed_align]Part = @bitCast(words);
                inline for (parts, 0..) |part, i| putPart(to + i * streamed_align, part);
            },
        }
    }
};

const has_avx = builtin.cpu.arch == .x86_64 and builtin.cpu.has(.x86, .avx);
/// Bytes of one streaming store, and its alignment.
pub const streamed_align = if (has_avx) 32 else 16;
const Part = @Vector(streamed_align / 8, u64);

inline fn putPart(to: [*]u8, part: Part) void {
    if (builtin.zig_backend != .stage2_llvm or builtin.cpu.arch != .x86_64) {
        @as(*align(1) Part, @ptrCast(to)).* = part;
    } else if (has_avx) {
        asm volatile ("vmovntdq %[value], (%[to])"
            :
            : [value] "x" (part),
              [to] "r" (to),
            : .{ .memory = true });
    } else {
        asm volatile ("movntdq %[value], (%[to])"
            :
            : [value] "x" (part),
              [to] "r" (to),
            : .{ .memory = true });
    }
}
