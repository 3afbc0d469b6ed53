//! Evicts chunks from the index: first those that were not stored to or matched for the longest
//! time, and among these the ends of prompts before their beginnings.

const std = @import("std");
const removing = @import("removing.zig");
const Index = @import("index.zig").Index;

const ages = 1024;
/// One eviction removes about 1/`share` of all chunks, because each search examines every chunk.
const share = 64;

/// Evicts some chunks. Returns false if no chunk can be evicted.
pub fn forgetSome(index: *Index) bool {
    const wanted = index.chunks / share + 1;
    // If all of the oldest chunks have children, consider younger chunks too.
    var considered = wanted;
    while (considered < 2 * index.chunks) : (considered *|= 2) {
        if (sweep(index, wanted, ageOfOldest(index, considered), true)) return true;
    }
    // Child counts are approximate, and changes with contradictory parents can form a cycle.
    return sweep(index, wanted, 0, false);
}

fn ageOf(index: *const Index, at: u32) u32 {
    return @min(index.round -% index.chunk(at).round, ages - 1);
}

/// Returns the largest age, in rounds, that at least `wanted` chunks have or exceed.
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
