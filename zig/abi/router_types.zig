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

pub const all = .{ChainRequest};
