//! For each target and tier: the number of its blocks and a digest of them. For each target:
//! whether some of its entries were evicted.

const std = @import("std");
const pages = @import("pages.zig");
const Holder = @import("chunk.zig").Holder;
const Error = @import("../abi/status.zig").Error;

pub const count = 1 << 16;
pub const tiers = 3;

/// Number and digest of blocks. `mix` is the XOR of the mixed block hashes.
pub const Sum = extern struct { blocks: u64, mix: u64 };

pub const Targets = struct {
    sums: []Sum,
    /// For each target, true if some of its entries were evicted.
    torn: []bool,
    torn_count: u32 = 0,

    pub fn init() Error!Targets {
        const sums = try pages.map(Sum, count * 4);
        errdefer pages.unmap(sums);
        return .{ .sums = sums, .torn = try pages.map(bool, count) };
    }

    pub fn deinit(self: *Targets) void {
        pages.unmap(self.sums);
        pages.unmap(self.torn);
    }

    pub fn reset(self: *Targets) void {
        pages.wipe(self.sums);
        pages.wipe(self.torn);
        self.torn_count = 0;
    }

    pub fn add(self: *Targets, holder: Holder, hashes: []const u64) void {
        const sum = &self.sums[holder];
        sum.blocks += hashes.len;
        sum.mix ^= mixOf(hashes);
    }

    pub fn remove(self: *Targets, holder: Holder, hashes: []const u64) void {
        const sum = &self.sums[holder];
        sum.blocks -= hashes.len;
        sum.mix ^= mixOf(hashes);
    }

    pub fn tear(self: *Targets, holder: Holder) void {
        const torn = &self.torn[holder >> 2];
        if (!torn.*) self.torn_count += 1;
        torn.* = true;
    }

    pub fn mend(self: *Targets, target: u16) void {
        if (self.torn[target]) self.torn_count -= 1;
        self.torn[target] = false;
    }
};

fn mixOf(hashes: []const u64) u64 {
    var mix: u64 = 0;
    for (hashes) |hash| mix ^= mixHash(hash);
    return mix;
}

/// Mixes the bits of a hash: the last step of MurmurHash3 (Austin Appleby, public domain).
fn mixHash(hash: u64) u64 {
    var mixed = (hash ^ (hash >> 33)) *% 0xff51afd7ed558ccd;
    mixed = (mixed ^ (mixed >> 33)) *% 0xc4ceb9fe1a85ec53;
    return mixed ^ (mixed >> 33);
}
