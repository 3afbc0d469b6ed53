//! The functions exported for the router. No logic here: cast, call, map the error.

const types = @import("router_types.zig");
const hash_calls = @import("hash_calls.zig");
const codeOrCount = @import("status.zig").codeOrCount;

pub const exports = struct {
    /// Two hashes for each full block of a prompt; their number. Nothing is written where there is
    /// no room for all of them.
    pub fn hearth_sequence_hashes(
        request: ?*const types.ChainRequest,
        tokens: ?[*]const u8,
        local: ?[*]align(1) u64,
        sequence: ?[*]align(1) u64,
        room: u32,
    ) callconv(.c) i32 {
        return codeOrCount(hash_calls.sequenceHashes(request, tokens, local, sequence, room));
    }

    /// The first eight bytes of each block's key (layer "all"), little endian; their number.
    pub fn hearth_key_hashes(
        key: ?*const [32]u8,
        tokens: ?[*]const u8,
        token_count: u32,
        block_tokens: u32,
        out: ?[*]align(1) u64,
        room: u32,
    ) callconv(.c) i32 {
        return codeOrCount(
            hash_calls.keyHashes(key, tokens, token_count, block_tokens, out, room),
        );
    }
};
