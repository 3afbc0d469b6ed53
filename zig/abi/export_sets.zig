//! The sets of functions that the library exports.

pub const sets = .{
    @import("exports.zig").exports,
    @import("mac_exports.zig").exports,
    @import("router_exports.zig").exports,
    @import("gpu_exports.zig").exports,
    @import("rdma_exports.zig").exports,
};
