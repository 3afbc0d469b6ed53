//! A copy that bypasses the caches. The writer does not read its block again, and ordinary stores
//! would first load the destination's cache lines, which wastes memory bandwidth.

const std = @import("std");
const builtin = @import("builtin");

const line_bytes = 64;
/// Copies of fewer bytes use the caches: a reader may find the bytes there, and the fence would
/// cost too much.
const streamed_min = 64 * 1024;
/// False in debug builds, whose compiler backend lacks the streaming store instruction.
const has_stream = builtin.zig_backend == .stage2_llvm and
    builtin.cpu.arch == .x86_64 and builtin.cpu.has(.x86, .avx);

const Half = @Vector(4, u64);

/// Returns whether a copy to this destination is large enough to bypass the caches.
pub fn worthIt(dst: []const u8) bool {
    return has_stream and dst.len >= streamed_min and @intFromPtr(dst.ptr) % line_bytes == 0;
}

/// Copies `src` to `dst` past the caches; both have the same length, and `worthIt` returned true.
/// The caller must call `fence` before another thread or process may read the bytes.
pub fn copy(dst: []u8, src: []const u8) void {
    std.debug.assert(dst.len == src.len);
    // The slices' length limits the loop; a runtime check would cost time for each line.
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

/// Makes all bytes written past the caches visible before later writes of this thread.
pub fn fence() void {
    if (builtin.cpu.arch == .x86_64) asm volatile ("sfence" ::: .{ .memory = true });
}

/// How the hash functions write each stripe of 64 bytes that they copy.
pub const Store = enum {
    none,
    /// Through the caches, to any address.
    plain,
    /// Past the caches, to an address that is a multiple of `streamed_align`. The caller must then
    /// call `fence`.
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
/// Size in bytes, and alignment, of one store that bypasses the caches.
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
