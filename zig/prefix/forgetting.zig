//! Eviction from the index. The chunks that were neither stored to nor matched for the longest time
//! go first, and the ends of prompts before their beginnings.

const std = @import("std");
const removing = @import("removing.zig");
const Index = @import("index.zig").Index;

const ages = 1024;
/// The fraction of chunks evicted at once: each search examines every chunk.
const share = 64;

/// False if no chunk can be evicted.
pub fn forgetSome(index: *Index) bool {
    const wanted = index.chunks / share + 1;
    // If all of the oldest chunks have younger children, consider more chunks for one without
    // children.
    var considered = wanted;
    while (considered < 2 * index.chunks) : (considered *|= 2) {
        if (sweep(index, wanted, ageOfOldest(index, considered), true)) return true;
    }
    // Child counts are approximate, and contradicting parents may form a cycle.
    return sweep(index, wanted, 0, false);
}

fn ageOf(index: *const Index, at: u32) u32 {
    return @min(index.round -% index.chunk(at).round, ages - 1);
}

/// The largest age that at least `wanted` chunks have.
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
