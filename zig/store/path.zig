//! Validates the relative paths of a disk's files.

const std = @import("std");
const Error = @import("../abi/status.zig").Error;

/// Accepts a path inside the disk's folder. With `empty_allowed` also accepts an empty path, which
/// means the folder itself.
pub fn check(bytes: *const [64]u8, empty_allowed: bool) Error!void {
    const length = std.mem.indexOfScalar(u8, bytes, 0) orelse return error.BadRequest;
    if (length == 0 and !empty_allowed) return error.BadRequest;
    const path = bytes[0..length];
    if (std.mem.startsWith(u8, path, "/")) return error.BadRequest;
    var names = std.mem.splitScalar(u8, path, '/');
    while (names.next()) |name| if (std.mem.eql(u8, name, "..")) return error.BadRequest;
}

test "paths that lead out of the folder are refused" {
    var bytes: [64]u8 = @splat(0);
    try std.testing.expectError(error.BadRequest, check(&bytes, false));
    try check(&bytes, true);
    const cases = .{
        .{ "ab/cd.kvb", true },
        .{ "..kvb", true },
        .{ "/etc/passwd", false },
        .{ "ab/../../x", false },
        .{ "..", false },
    };
    inline for (cases) |case| {
        bytes = @splat(0);
        @memcpy(bytes[0..case[0].len], case[0]);
        if (case[1]) {
            try check(&bytes, false);
        } else {
            try std.testing.expectError(error.BadRequest, check(&bytes, false));
        }
    }
    bytes = @splat('a');
    try std.testing.expectError(error.BadRequest, check(&bytes, false));
}
