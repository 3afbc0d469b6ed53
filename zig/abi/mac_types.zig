//! Types of the boundary for message authentication codes of blocks.

const mac = @import("../hash/root.zig").mac;

/// A block in a region and the key of its namespace.
pub const MacRequest = extern struct {
    region: u64,
    offset: u64,
    /// Length of the block.
    bytes: u64,
    /// Address of the caller's memory to copy from or to; 0 for a check in place.
    buffer: u64,
    digest: [32]u8,
    layer: u32,
    reserved: u32,
    key: [16]u8,
    /// The MAC: a copy into the region writes it, the other calls compare it.
    mac: [16]u8,

    pub fn begin(self: *const MacRequest) mac.Mac {
        const name: mac.Name = .{
            .digest = self.digest,
            .layer = self.layer,
            .bytes = self.bytes,
        };
        return .init(&self.key, name);
    }

    /// Whether these bytes, of the block's length, match the MAC.
    pub fn matches(self: *const MacRequest, payload: []const u8) bool {
        var state = self.begin();
        state.update(payload);
        return state.matches(&self.mac);
    }
};

pub const all = .{MacRequest};
