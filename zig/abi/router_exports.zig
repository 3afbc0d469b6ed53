//! The exported functions for the router. They contain no logic: each converts its arguments, calls
//! a function of hash_calls.zig or prefix_calls.zig and maps the error to a status.

const types = @import("router_types.zig");
const hash_calls = @import("hash_calls.zig");
const prefix_calls = @import("prefix_calls.zig");
const status = @import("status.zig");
const code = status.code;
const codeOrCount = status.codeOrCount;

pub const exports = struct {
    /// Writes two hashes for each full block of a prompt and returns the number of blocks. Writes
    /// nothing if the output is too small.
    pub fn hearth_sequence_hashes(
        request: ?*const types.ChainRequest,
        tokens: ?[*]const u8,
        local: ?[*]align(1) u64,
        sequence: ?[*]align(1) u64,
        room: u32,
    ) callconv(.c) i32 {
        return codeOrCount(hash_calls.sequenceHashes(request, tokens, local, sequence, room));
    }

    /// Writes the first eight bytes of each block's key (layer "all") as a little-endian number.
    /// Returns the number of keys.
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

    /// Applies changes to the index in order, or none of them if one is invalid.
    pub fn hearth_prefix_apply(
        handle: u64,
        changes: ?[*]align(1) const types.PrefixChange,
        change_count: u32,
        hashes: ?[*]align(1) const u64,
        hash_count: u32,
    ) callconv(.c) i32 {
        return code(prefix_calls.apply(handle, changes, change_count, hashes, hash_count));
    }

    /// Looks up one prompt. Returns how many targets have at least its first block. The columns
    /// must have room for all targets.
    pub fn hearth_prefix_match(
        handle: u64,
        columns: ?*types.PrefixColumns,
        hashes: ?[*]align(1) const u64,
        count: u32,
    ) callconv(.c) i32 {
        return codeOrCount(prefix_calls.match(handle, columns, hashes, count));
    }

    /// Looks up many prompts; the hashes of prompt `i` end before `ends[i]`. Returns how many
    /// elements of each column were filled, or `full` if the columns are too short.
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

    /// For each hash, writes a word with the number of targets that have its block (at most `max`),
    /// then a word for each of these targets: its number in the low 16 bits and a bit for each tier
    /// above. Returns the number of words.
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

    /// Starts a dump of the content of one target, or of all targets (2^32-1).
    pub fn hearth_prefix_dump(handle: u64, target: u32) callconv(.c) i32 {
        return code(prefix_calls.dump(handle, target));
    }

    /// Writes the next whole runs of blocks of the dump, parents before children. Returns the
    /// number of bytes, 0 at the end. `busy`: the index has changed since the dump started.
    pub fn hearth_prefix_dump_next(handle: u64, out: ?[*]u8, room: u32) callconv(.c) i32 {
        return codeOrCount(prefix_calls.dumpNext(handle, out, room));
    }

    /// Starts to save the index as it is now. Changes during the save are allowed and not saved.
    pub fn hearth_prefix_save(handle: u64) callconv(.c) i32 {
        return code(prefix_calls.save(handle));
    }

    /// Writes the next bytes of the save and returns their number; 0 at the end.
    pub fn hearth_prefix_save_next(handle: u64, out: ?[*]u8, room: u32) callconv(.c) i32 {
        return codeOrCount(prefix_calls.saveNext(handle, out, room));
    }

    pub fn hearth_prefix_save_end(handle: u64) callconv(.c) i32 {
        return code(prefix_calls.saveEnd(handle));
    }

    /// Loads the next saved bytes into an index that was empty. `forged`: the bytes are damaged,
    /// and the index is empty again.
    pub fn hearth_prefix_load(handle: u64, data: ?[*]const u8, length: u32) callconv(.c) i32 {
        return code(prefix_calls.load(handle, data, length));
    }

    /// Ends a load. `forged`: the saved bytes are incomplete or damaged.
    pub fn hearth_prefix_load_end(handle: u64) callconv(.c) i32 {
        return code(prefix_calls.loadEnd(handle));
    }
};
