//! What crosses the boundary for the router.

/// A prompt, or the rest of one, whose blocks are to be named.
pub const ChainRequest = extern struct {
    /// Of the blocks' own hashes.
    seed: u64,
    /// The sequence hash of the block before the first, where `has_parent` is 1.
    parent: u64,
    token_count: u32,
    /// From the start of one block to the start of the next.
    block_tokens: u32,
    /// What a block's own hash is of: `block_tokens` of them, or more.
    window_tokens: u32,
    has_parent: u32,
};

/// How to make a prefix index.
pub const PrefixRequest = extern struct {
    /// All the memory that it may have for what grows with what it holds.
    bytes: u64,
    /// Secret, so that nobody can choose hashes that collide.
    seed: u64,
};

pub const PrefixInfo = extern struct {
    handle: u64,
    /// Distinct hashes that somebody holds.
    blocks: u64,
    /// Pairs of a block and who holds it.
    held: u64,
    chunks: u64,
    /// In use.
    bytes: u64,
    /// Blocks forgotten for want of room.
    forgotten: u64,
};

/// A change; its hashes lie behind those of the changes before it.
pub const PrefixChange = extern struct {
    /// The hash before the first, where `kind` is 0.
    parent: u64,
    target: u32,
    /// 0 device, 1 host, 2 disk; 3 where it is all of them.
    tier: u32,
    /// 0 stored behind `parent`, 1 stored as the first of a prompt, 2 removed, 3 cleared.
    kind: u32,
    /// Of hashes.
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
    /// Out: up to where the answer is exact.
    exact: u32,
};

/// Addresses of u32 for each prompt: its first place in the columns, how many it has, and up to
/// where that is exact.
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
    /// 1: something of the target was forgotten.
    torn: u32,
    reserved: u32,
};

/// What stands before the hashes of a run in a dump.
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
