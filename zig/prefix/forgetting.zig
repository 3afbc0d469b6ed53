//! Making room: chunks that were neither stored to nor matched for the longest go first, and of
//! prompts their ends before their beginnings.

const std = @import("std");
const removing = @import("removing.zig");
const Index = @import("index.zig").Index;

const ages = 1024;
/// Of all chunks, at once: each search looks at every chunk.
const share = 64;

/// False where there is nothing that may go.
pub fn forgetSome(index: *Index) bool {
    const wanted = index.chunks / share + 1;
    // The oldest may all have children that are younger: then it is the oldest with none.
    var considered = wanted;
    while (considered < 2 * index.chunks) : (considered *|= 2) {
        if (sweep(index, wanted, ageOfOldest(index, considered), true)) return true;
    }
    // Children are counted roughly, and parents that contradict each other may form a ring.
    return sweep(index, wanted, 0, false);
}

fn ageOf(index: *const Index, at: u32) u32 {
    return @min(index.round -% index.chunk(at).round, ages - 1);
}

/// The age that so many chunks have at least.
fn ageOfOldest(index: *const Index, wanted: u32) u32 {
    var counts: [ages]u32 = @splat(0);
    var walk = index.arena.walk(0);
    while (walk.nextChunk()) |at| counts[ageOf(index, at)] += 1;
    var sum: u32 = 0;
    var age: u32 = ages;
    while (age > 0 and sum < wanted) {
        age -= 1;
        sum += counts[age];
    }
    return age;
}

fn sweep(index: *Index, wanted: u32, age: u32, only_ends: bool) bool {
    var gone: u32 = 0;
    var walk = index.arena.walk(0);
    while (gone < wanted) {
        const at = walk.nextChunk() orelse break;
        if (index.isPinned(at) or ageOf(index, at) < age) continue;
        if (only_ends and index.chunk(at).children > 0) continue;
        removing.forget(index, at);
        gone += 1;
    }
    return gone > 0;
}
