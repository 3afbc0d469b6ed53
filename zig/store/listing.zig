//! Lists the entries of a folder in parts: takes a position, fills one buffer with entries, and
//! returns the next position.

const std = @import("std");
const linux = std.os.linux;
const errno = @import("../base/errno.zig");
const faults = @import("../base/faults.zig");
const folders = @import("folder.zig");
const Error = @import("../abi/status.zig").Error;

/// Size of the buffer for the kernel's entries. An entry written here (17 bytes and the name) is
/// never longer than the kernel's (19 bytes, the name and a zero), so the entries of one kernel
/// buffer fit into an output of the same size.
const kernel_bytes = 16 * 1024;
const entry_fixed_bytes = 17;

pub const Page = struct { bytes: u64, next: u64 };

pub fn read(folder: *const folders.Folder, path: folders.Path, from: u64, out: []u8) Error!Page {
    if (out.len < kernel_bytes) return error.BadRequest;
    const flags: linux.O = .{ .DIRECTORY = true, .NOFOLLOW = true, .CLOEXEC = true };
    const name: folders.Path = if (path[0] == 0) "." else path;
    const opened = faults.repeat(.@"list.open", linux.openat, .{ folder.fd, name, flags, 0 });
    const fd: i32 = @intCast(try errno.checkFile(opened));
    defer faults.close(.@"list.close", fd);
    const position: i64 = @bitCast(from);
    const seek = .{ fd, position, @as(usize, linux.SEEK.SET) };
    _ = try errno.checkFile(faults.repeat(.@"list.seek", linux.lseek, seek));
    var page: Page = .{ .bytes = 0, .next = from };
    while (out.len - page.bytes >= kernel_bytes) {
        var buffer: [kernel_bytes]u8 align(8) = undefined;
        const arguments = .{ fd, &buffer, buffer.len };
        const result = faults.repeat(.@"list.read", linux.getdents64, arguments);
        const count = try errno.checkFile(result);
        if (count == 0) break;
        try convert(fd, buffer[0..count], out, &page);
    }
    return page;
}

fn convert(fd: i32, kernel: []align(8) const u8, out: []u8, page: *Page) Error!void {
    var at: usize = 0;
    while (at < kernel.len) {
        const entry: *const linux.dirent64 = @ptrCast(@alignCast(&kernel[at]));
        at += entry.reclen;
        page.next = @bitCast(entry.off);
        const name_at: [*:0]const u8 = @ptrCast(&entry.name);
        const name = std.mem.span(name_at);
        if (std.mem.eql(u8, name, ".") or std.mem.eql(u8, name, "..")) continue;
        const no_follow = linux.AT.SYMLINK_NOFOLLOW;
        const size = folders.sizeAt(fd, name, no_follow, .@"list.stat") catch |err| switch (err) {
            // The file was removed after the kernel listed it.
            error.Missing => continue,
            else => return err,
        };
        const place = out[@intCast(page.bytes)..];
        std.mem.writeInt(u64, place[0..8], size.bytes, .little);
        std.mem.writeInt(u64, place[8..16], size.allocated, .little);
        place[16] = @intCast(name.len);
        @memcpy(place[entry_fixed_bytes..][0..name.len], name);
        page.bytes += entry_fixed_bytes + name.len;
    }
}
