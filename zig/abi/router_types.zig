//! Types of the library's C interface for the router.

/// A prompt, or the rest of one, whose token blocks are hashed.
pub const ChainRequest = extern struct {
    /// Seed for the hash of each block.
    seed: u64,
    /// Sequence hash of the block that precedes the first one, if `has_parent` is 1.
    parent: u64,
    token_count: u32,
    /// Distance in tokens between the starts of consecutive blocks.
    block_tokens: u32,
    /// Number of tokens that a block's hash covers; at least `block_tokens`.
    window_tokens: u32,
    has_parent: u32,
};

/// Size limit and hash seed of a prefix index.
pub const PrefixRequest = extern struct {
    /// Maximum bytes of the memory that grows with the content of the index.
    bytes: u64,
    /// Secret seed, so that clients cannot choose block hashes that collide in the table.
    seed: u64,
};

pub const PrefixInfo = extern struct {
    handle: u64,
    /// Number of distinct block hashes that at least one target has.
    blocks: u64,
    /// Number of pairs of a block and a target that has it.
    held: u64,
    chunks: u64,
    /// Bytes of memory in use.
    bytes: u64,
    /// Number of blocks evicted from the index because its memory was full.
    forgotten: u64,
};

/// One change of the index. Its hashes follow the hashes of the preceding changes.
pub const PrefixChange = extern struct {
    /// Hash of the block that precedes the first hash; used only if `kind` is 0.
    parent: u64,
    target: u32,
    /// 0 device, 1 host, 2 disk, 3 all tiers.
    tier: u32,
    /// 0: stored, following `parent`. 1: stored at the start of a prompt. 2: removed. 3: cleared.
    kind: u32,
    /// Number of hashes of this change.
    count: u32,
};

/// Addresses of the output columns of a lookup: an array of target numbers (u16), and for each tier
/// an array of block counts (u32).
pub const PrefixColumns = extern struct {
    targets: u64,
    device: u64,
    host: u64,
    disk: u64,
    /// Length of each column in elements.
    room: u32,
    /// Output: number of leading blocks for which the counts are exact.
    exact: u32,
};

/// Addresses of three u32 arrays with one element for each prompt: the index of its first element
/// in the columns, its number of elements, and the number of leading blocks for which the counts
/// are exact.
pub const PrefixRows = extern struct {
    starts: u64,
    counts: u64,
    exact: u64,
};

pub const PrefixDigests = extern struct {
    device_blocks: u64,
    device_mix: u64,
    host_blocks: u64,
    host_mix: u64,
    disk_blocks: u64,
    disk_mix: u64,
    /// 1 if the index has evicted blocks of this target, so that its content is incomplete; else 0.
    torn: u32,
    reserved: u32,
};

/// Header of a run of consecutive block hashes in a dump.
pub const PrefixRun = extern struct {
    parent: u64,
    target: u32,
    tier: u32,
    has_parent: u32,
    count: u32,
};

pub const all = .{
    ChainRequest,  PrefixRequest, PrefixInfo,    PrefixChange,
    PrefixColumns, PrefixRows,    PrefixDigests, PrefixRun,
};
