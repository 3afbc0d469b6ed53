//! A text that describes all exported functions and types. The library and the TypeScript loader
//! compare a hash of it.

const std = @import("std");
const types = @import("types.zig");
const status = @import("status.zig");
const sets = @import("export_sets.zig").sets;

/// The first 16 bytes of SHA-256 of `manifest_text`.
pub const abi_hash: [16]u8 = blk: {
    @setEvalBranchQuota(4_000_000);
    var full: [32]u8 = undefined;
    std.crypto.hash.sha2.Sha256.hash(manifest_text, &full, .{});
    break :blk full[0..16].*;
};

pub const manifest_text: []const u8 = blk: {
    @setEvalBranchQuota(1_000_000);
    var text: []const u8 = "";
    for (@typeInfo(status.Status).@"enum".fields) |field| {
        text = text ++ std.fmt.comptimePrint("status {s} {d}\n", .{ field.name, field.value });
    }
    for (types.enums) |item| {
        for (@typeInfo(item.type).@"enum".fields) |field| {
            const parts = .{ item.name, field.name, field.value };
            text = text ++ std.fmt.comptimePrint("{s} {s} {d}\n", parts);
        }
    }
    for (types.all) |T| {
        text = text ++ std.fmt.comptimePrint("struct {s} {d}\n", .{ shortName(T), @sizeOf(T) });
        for (@typeInfo(T).@"struct".fields) |field| {
            const parts = .{ field.name, @offsetOf(T, field.name), typeName(field.type) };
            text = text ++ std.fmt.comptimePrint("  {s} {d} {s}\n", parts);
        }
    }
    for (sets) |exports| {
        for (@typeInfo(exports).@"struct".decls) |decl| {
            text = text ++ "function " ++ decl.name;
            const Function = @TypeOf(@field(exports, decl.name));
            for (@typeInfo(Function).@"fn".params) |parameter| {
                text = text ++ " " ++ typeName(parameter.type.?);
            }
            text = text ++ "\n";
        }
    }
    break :blk text;
};

/// Returns the type's name without its namespace path.
pub fn shortName(comptime T: type) []const u8 {
    const full = @typeName(T);
    const dot = std.mem.lastIndexOfScalar(u8, full, '.').?;
    return full[dot + 1 ..];
}

/// Returns the name that the TypeScript bindings use for the type of a parameter or field.
pub fn typeName(comptime T: type) []const u8 {
    return switch (@typeInfo(T)) {
        .int => @typeName(T),
        .optional => "ptr",
        .array => |array| std.fmt.comptimePrint("bytes{d}", .{array.len}),
        else => @compileError("no wire type for " ++ @typeName(T)),
    };
}
