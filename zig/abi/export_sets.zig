//! All that the library exports.

pub const sets = .{
    @import("exports.zig").exports,
    @import("router_exports.zig").exports,
};
