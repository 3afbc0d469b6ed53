//! The functions behind the exports that hash the token blocks of a prompt for the router.

const std = @import("std");
const hash = @import("../hash/root.zig");
const types = @import("router_types.zig");
const calls = @import("calls.zig");
const Error = @import("status.zig").Error;
const required = calls.required;
const bytesAt = calls.bytesAt;

const block_tokens_max = 65_536;

pub fn sequenceHashes(
    request: ?*const types.ChainRequest,
    tokens: ?[*]const u8,
    local: ?[*]align(1) u64,
    sequence: ?[*]align(1) u64,
    room: u32,
) Error!u32 {
    const wanted = try required(request);
    if (wanted.block_tokens == 0 or wanted.window_tokens < wanted.block_tokens) {
        return error.BadRequest;
    }
    if (wanted.window_tokens > block_tokens_max) return error.BadRequest;
    const chain: hash.Chain = .{
        .seed = wanted.seed,
        .parent = if (wanted.has_parent == 0) null else wanted.parent,
        .stride_bytes = wanted.block_tokens * 4,
        .block_bytes = wanted.window_tokens * 4,
    };
    const bytes = try bytesAt(tokens, @as(u64, wanted.token_count) * 4);
    const count = chain.count(bytes.len);
    if (count > room) return error.Full;
    if (count == 0) return 0;
    chain.run(bytes, (try required(local))[0..count], (try required(sequence))[0..count]);
    return @intCast(count);
}

pub fn keyHashes(
    key: ?*const [32]u8,
    tokens: ?[*]const u8,
    token_count: u32,
    block_tokens: u32,
    out: ?[*]align(1) u64,
    room: u32,
) Error!u32 {
    const space = try required(key);
    if (block_tokens == 0 or block_tokens > block_tokens_max) return error.BadRequest;
    const bytes = try bytesAt(tokens, @as(u64, token_count) * 4);
    const count = token_count / block_tokens;
    if (count > room) return error.Full;
    if (count == 0) return 0;
    const digests = std.heap.c_allocator.alloc([32]u8, count) catch return error.OutOfMemory;
    defer std.heap.c_allocator.free(digests);
    const block_bytes = block_tokens * 4;
    hash.prefixDigests(space, bytes[0 .. @as(usize, count) * block_bytes], block_bytes, digests);
    hash.keyHashes(digests, (try required(out))[0..count]);
    return count;
}
