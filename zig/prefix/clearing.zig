//! Removes all blocks of a target from the index.

const arena_file = @import("arena.zig");
const holding = @import("holding.zig");
const removing = @import("removing.zig");
const targets_file = @import("targets.zig");
const Holder = @import("chunk.zig").Holder;
const Index = @import("index.zig").Index;

/// Removes the target's blocks on one tier (`only`) or on all tiers (null).
pub fn clear(index: *Index, target: u16, only: ?Holder) void {
    const first = only orelse @as(Holder, target) << 2;
    const last = only orelse first + 3;
    const sums = index.targets.sums[first .. @as(usize, last) + 1];
    var walk = index.arena.walk(0);
    while (blocksIn(sums) > 0) {
        // The remaining blocks are in later chunks; those in earlier chunks are already removed.
        const at = walk.nextChunk().?;
        index.pinned[0] = at;
        holding.releaseAll(index, at, first, last);
        _ = removing.settle(index, at);
    }
    if (only == null) index.targets.mend(target);
    // No target has evicted blocks any more, so the filter can start empty.
    if (index.targets.torn_count == 0) index.filter.reset();
}

fn blocksIn(sums: []const targets_file.Sum) u64 {
    var blocks: u64 = 0;
    for (sums) |sum| blocks += sum.blocks;
    return blocks;
}
