//! Types of the library's C interface for message authentication codes (MACs) of blocks.

const mac = @import("../hash/root.zig").mac;

/// A block in a region, its identity, and the MAC key of its namespace.
pub const MacRequest = extern struct {
    region: u64,
    offset: u64,
    /// Length of the block in bytes.
    bytes: u64,
    /// Address of the caller's memory to copy from or to; 0 to check the block in the region.
    buffer: u64,
    digest: [32]u8,
    layer: u32,
    reserved: u32,
    key: [16]u8,
    /// The block's MAC. A copy into the region writes it; the other calls compare it.
    mac: [16]u8,

    pub fn begin(self: *const MacRequest) mac.Mac {
        const name: mac.Name = .{
            .digest = self.digest,
            .layer = self.layer,
            .bytes = self.bytes,
        };
        return .init(&self.key, name);
    }

    /// Returns whether `payload`, which has the block's length, matches the MAC.
    pub fn matches(self: *const MacRequest, payload: []const u8) bool {
        var state = self.begin();
        state.update(payload);
        return state.matches(&self.mac);
    }
};

pub const all = .{MacRequest};
