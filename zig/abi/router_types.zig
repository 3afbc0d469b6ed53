//! Types of the boundary for the router.

/// A prompt, or its rest, whose blocks are hashed.
pub const ChainRequest = extern struct {
    /// Seed of the hash of each block.
    seed: u64,
    /// Sequence hash of the block before the first, if `has_parent` is 1.
    parent: u64,
    token_count: u32,
    /// Tokens from the start of one block to the start of the next.
    block_tokens: u32,
    /// Tokens that the hash of a block covers; at least `block_tokens`.
    window_tokens: u32,
    has_parent: u32,
};

/// Parameters of a prefix index.
pub const PrefixRequest = extern struct {
    /// Upper limit of the memory that grows with the content.
    bytes: u64,
    /// Secret, so that clients cannot choose hashes that collide.
    seed: u64,
};

pub const PrefixInfo = extern struct {
    handle: u64,
    /// Distinct hashes that at least one target has.
    blocks: u64,
    /// Pairs of a block and a target that has it.
    held: u64,
    chunks: u64,
    /// Bytes in use.
    bytes: u64,
    /// Blocks evicted from the index for lack of room.
    forgotten: u64,
};

/// A change; its hashes follow those of the changes before it.
pub const PrefixChange = extern struct {
    /// The hash before the first one, if `kind` is 0.
    parent: u64,
    target: u32,
    /// 0 device, 1 host, 2 disk; 3 for all tiers.
    tier: u32,
    /// 0 stored after `parent`, 1 stored as the first of a prompt, 2 removed, 3 cleared.
    kind: u32,
    /// Number of hashes.
    count: u32,
};

/// Addresses of the columns of an answer: u16 of targets, u32 of blocks on each tier.
pub const PrefixColumns = extern struct {
    targets: u64,
    device: u64,
    host: u64,
    disk: u64,
    /// Places in each column.
    room: u32,
    /// Output: number of blocks up to which the answer is exact.
    exact: u32,
};

/// Addresses of three u32 for each prompt: its first place in the columns, its number of places,
/// and the number of blocks up to which they are exact.
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
    /// 1: the index has evicted blocks of the target.
    torn: u32,
    reserved: u32,
};

/// The header of a run of hashes in a dump.
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
