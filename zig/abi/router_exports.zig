//! The functions exported for the router. No logic here: cast, call, map the error.

const types = @import("router_types.zig");
const hash_calls = @import("hash_calls.zig");
const prefix_calls = @import("prefix_calls.zig");
const status = @import("status.zig");
const code = status.code;
const codeOrCount = status.codeOrCount;

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

    pub fn hearth_prefix_create(
        request: ?*const types.PrefixRequest,
        info: ?*types.PrefixInfo,
    ) callconv(.c) i32 {
        return code(prefix_calls.create(request, info));
    }

    pub fn hearth_prefix_info(handle: u64, info: ?*types.PrefixInfo) callconv(.c) i32 {
        return code(prefix_calls.infoOf(handle, info));
    }

    pub fn hearth_prefix_close(handle: u64) callconv(.c) i32 {
        return code(prefix_calls.close(handle));
    }

    /// Carries changes out in order, or none where one of them is not possible.
    pub fn hearth_prefix_apply(
        handle: u64,
        changes: ?[*]align(1) const types.PrefixChange,
        change_count: u32,
        hashes: ?[*]align(1) const u64,
        hash_count: u32,
    ) callconv(.c) i32 {
        return code(prefix_calls.apply(handle, changes, change_count, hashes, hash_count));
    }

    /// How many targets have something of the prompt. The columns have room for all there can be.
    pub fn hearth_prefix_match(
        handle: u64,
        columns: ?*types.PrefixColumns,
        hashes: ?[*]align(1) const u64,
        count: u32,
    ) callconv(.c) i32 {
        return codeOrCount(prefix_calls.match(handle, columns, hashes, count));
    }

    /// Prompt `i` ends before `ends[i]`. How many places of the columns were filled; `full` where
    /// there are not enough.
    pub fn hearth_prefix_match_many(
        handle: u64,
        columns: ?*const types.PrefixColumns,
        hashes: ?[*]align(1) const u64,
        ends: ?[*]align(1) const u32,
        prompts: u32,
        rows: ?*const types.PrefixRows,
    ) callconv(.c) i32 {
        return codeOrCount(
            prefix_calls.matchMany(handle, columns, hashes, ends, prompts, rows),
        );
    }

    /// For each hash a word with the number of targets that have it, at most `max`, and a word for
    /// each of these: the target, and a bit for each tier from bit 16 on. How many words.
    pub fn hearth_prefix_holders(
        handle: u64,
        hashes: ?[*]align(1) const u64,
        count: u32,
        max: u32,
        out: ?[*]align(1) u32,
        room: u32,
    ) callconv(.c) i32 {
        return codeOrCount(prefix_calls.holders(handle, hashes, count, max, out, room));
    }

    pub fn hearth_prefix_sums(
        handle: u64,
        target: u32,
        out: ?*types.PrefixDigests,
    ) callconv(.c) i32 {
        return code(prefix_calls.digests(handle, target, out));
    }

    /// Begins a dump, of one target or (2^32-1) of all.
    pub fn hearth_prefix_dump(handle: u64, target: u32) callconv(.c) i32 {
        return code(prefix_calls.dump(handle, target));
    }

    /// Whole runs, parents before children; their bytes, 0 at the end. `busy`: it changed since.
    pub fn hearth_prefix_dump_next(handle: u64, out: ?[*]u8, room: u32) callconv(.c) i32 {
        return codeOrCount(prefix_calls.dumpNext(handle, out, room));
    }

    /// Begins to save the index as it is now; it may change meanwhile.
    pub fn hearth_prefix_save(handle: u64) callconv(.c) i32 {
        return code(prefix_calls.save(handle));
    }

    /// The next bytes of it, 0 at the end.
    pub fn hearth_prefix_save_next(handle: u64, out: ?[*]u8, room: u32) callconv(.c) i32 {
        return codeOrCount(prefix_calls.saveNext(handle, out, room));
    }

    pub fn hearth_prefix_save_end(handle: u64) callconv(.c) i32 {
        return code(prefix_calls.saveEnd(handle));
    }

    /// The next bytes of what was saved, into an index that was empty. `forged`: they are not, and
    /// it is empty again.
    pub fn hearth_prefix_load(handle: u64, data: ?[*]const u8, length: u32) callconv(.c) i32 {
        return code(prefix_calls.load(handle, data, length));
    }

    /// That was all; `forged` as before.
    pub fn hearth_prefix_load_end(handle: u64) callconv(.c) i32 {
        return code(prefix_calls.loadEnd(handle));
    }
};
