//! Opens libibverbs at run time and never closes it, because its providers keep threads and hooks.

const std = @import("std");
const verbs = @import("verbs.zig");
const Symbols = @import("symbols.zig").Symbols;

extern "c" fn dlvsym(
    library: *anyopaque,
    name: [*:0]const u8,
    version: [*:0]const u8,
) ?*anyopaque;

pub const OpenError = error{
    /// The dynamic linker did not find the library.
    NoLibrary,
    /// The library lacks a required function.
    TooOld,
};

/// Opens the library at `path`. If `path` is null, the dynamic linker searches for it.
pub fn open(path: ?[*:0]const u8) OpenError!Symbols {
    const name = path orelse verbs.library_name;
    const library = std.c.dlopen(name, .{ .NOW = true }) orelse return error.NoLibrary;
    var symbols: Symbols = undefined;
    inline for (@typeInfo(Symbols).@"struct".fields) |field| {
        const found = find(library, field.name);
        if (@typeInfo(field.type) == .optional) {
            @field(symbols, field.name) = @ptrCast(@alignCast(found));
        } else {
            @field(symbols, field.name) = @ptrCast(@alignCast(found orelse return error.TooOld));
        }
    }
    return symbols;
}

fn find(library: *anyopaque, name: [*:0]const u8) ?*anyopaque {
    return dlvsym(library, name, verbs.symbol_version) orelse std.c.dlsym(library, name);
}

/// Returns the errno of this thread's last failed library call; EIO if the call set none.
pub fn lastErrno() i32 {
    const code = std.c._errno().*;
    return if (code == 0) @intFromEnum(std.os.linux.E.IO) else code;
}

test "a file that is not the library is refused" {
    try std.testing.expectError(error.NoLibrary, open("/nowhere/libibverbs.so.1"));
    try std.testing.expectError(error.TooOld, open("libc.so.6"));
}
