//! Round-trip test of the structs. The library reads every field by name and writes it back with
//! inverted bits, so a test detects a field whose offset or size differs between Zig and
//! TypeScript.

const std = @import("std");
const types = @import("types.zig");
const Error = @import("status.zig").Error;

pub fn run(index: u32, in: ?[*]const u8, out: ?[*]u8) Error!void {
    const from = in orelse return error.NullArgument;
    const to = out orelse return error.NullArgument;
    inline for (types.all, 0..) |T, number| {
        if (index == number) {
            var value: T = undefined;
            @memcpy(std.mem.asBytes(&value), from[0..@sizeOf(T)]);
            const inverted = invert(T, value);
            @memcpy(to[0..@sizeOf(T)], std.mem.asBytes(&inverted));
            return;
        }
    }
    return error.BadRequest;
}

fn invert(comptime T: type, value: T) T {
    var result: T = undefined;
    inline for (@typeInfo(T).@"struct".fields) |field| {
        const from = @field(value, field.name);
        if (@typeInfo(field.type) == .array) {
            for (from, &@field(result, field.name)) |byte, *place| place.* = ~byte;
        } else {
            @field(result, field.name) = ~from;
        }
    }
    return result;
}
