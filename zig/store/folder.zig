//! The folder of a disk, and operations on its files by name. Every operation may block.

const std = @import("std");
const linux = std.os.linux;
const errno = @import("../base/errno.zig");
const faults = @import("../base/faults.zig");
const statfs = @import("../base/statfs.zig");
const Error = @import("../abi/status.zig").Error;

pub const Path = [*:0]const u8;

const file_mode = 0o600;
const folder_mode = 0o700;
pub const name_max = 63;

fn check(result: usize) Error!usize {
    return errno.checkFile(result);
}

pub const Folder = struct {
    fd: i32 = -1,
    /// Files are opened with O_DIRECT. Cleared if the file system refuses.
    direct: bool = true,
    /// New files have no name until they are complete (O_TMPFILE, then a link through /proc).
    /// Cleared if the file system does not support this.
    nameless: bool = true,

    pub fn open(path: Path) Error!Folder {
        const flags: linux.O = .{ .DIRECTORY = true, .CLOEXEC = true };
        const fd = try check(
            faults.repeat(.@"open.folder", linux.openat, .{ linux.AT.FDCWD, path, flags, 0 }),
        );
        var folder: Folder = .{ .fd = @intCast(fd) };
        errdefer folder.close();
        folder.spreadShards();
        const proc = faults.call(
            .@"open.proc",
            linux.faccessat,
            .{ linux.AT.FDCWD, "/proc/self/fd", linux.X_OK, 0 },
        );
        folder.nameless = linux.errno(proc) == .SUCCESS;
        try folder.probe();
        return folder;
    }

    /// Asks ext4 to place each new subfolder in its own block group, as it does in its root folder.
    /// Otherwise all files share a few groups, and each allocation searches past recently freed
    /// blocks: with frequent removals, writes of 256 KiB were five times slower. Errors are
    /// ignored.
    fn spreadShards(folder: *const Folder) void {
        var stat: statfs.StatFs = undefined;
        const fd = folder.fd;
        const found = faults.repeat(.@"open.flags", statfs.fstatfs, .{ fd, &stat });
        if (linux.errno(found) != .SUCCESS or stat.kind != statfs.ext4) return;
        const get_flags = linux.IOCTL.IOR('f', 1, usize);
        const set_flags = linux.IOCTL.IOW('f', 2, usize);
        const top_folder = 0x0002_0000;
        var flags: u32 = 0;
        const at = @intFromPtr(&flags);
        const got = faults.repeat(.@"open.flags", linux.ioctl, .{ fd, get_flags, at });
        if (linux.errno(got) != .SUCCESS or flags & top_folder != 0) return;
        flags |= top_folder;
        _ = faults.repeat(.@"open.flags", linux.ioctl, .{ fd, set_flags, at });
    }

    /// Tests whether this file system supports O_DIRECT and O_TMPFILE. A full or read-only file
    /// system cannot be tested; both are then assumed to work, and the first store tests them.
    fn probe(folder: *Folder) Error!void {
        while (true) {
            var file = folder.create("probe", .@"open.probe") catch |err| {
                const code = errno.lastErrno();
                const refused = err == error.System and code == @intFromEnum(linux.E.INVAL);
                if (refused and folder.direct) {
                    folder.direct = false;
                    continue;
                }
                switch (err) {
                    error.OutOfMemory, error.NoDescriptors, error.NotPermitted => return err,
                    else => {},
                }
                return;
            };
            if (file.name_length > 0) folder.nameless = false;
            folder.discard(&file);
            return;
        }
    }

    pub fn close(folder: *Folder) void {
        if (folder.fd >= 0) _ = linux.close(folder.fd);
        folder.fd = -1;
    }

    /// Creates an empty file that is not yet visible under `path`, and the folder of `path` if it
    /// is missing.
    pub fn create(folder: *const Folder, path: Path, point: faults.Point) Error!NewFile {
        if (folder.nameless) {
            if (folder.createNameless(path, point)) |fd| return .{ .fd = fd } else |err| {
                if (!isNotOffered(err)) return err;
            }
        }
        return folder.createNamed(path, point);
    }

    /// Returns whether the error means that O_TMPFILE is unsupported: file systems return
    /// EOPNOTSUPP, old kernels EISDIR.
    fn isNotOffered(err: Error) bool {
        const code = errno.lastErrno();
        return err == error.Unsupported or
            (err == error.System and code == @intFromEnum(linux.E.ISDIR));
    }

    /// Opens an unneeded file to overwrite it completely: reusing its disk blocks is several times
    /// faster than allocating new ones. Returns `Missing` unless the file has `bytes` bytes and
    /// exactly one link.
    pub fn reuse(folder: *const Folder, spare: Path, bytes: u64) Error!NewFile {
        const flags: linux.O = .{
            .ACCMODE = .WRONLY,
            .NOFOLLOW = true,
            .DIRECT = folder.direct,
            .CLOEXEC = true,
        };
        const arguments = .{ folder.fd, spare, flags, 0 };
        const fd = try check(faults.repeat(.@"store.reuse", linux.openat, arguments));
        var file: NewFile = .{ .fd = @intCast(fd), .is_spare = true };
        errdefer folder.discard(&file);
        const size = try sizeOf(file.fd, .@"store.measure");
        if (size.bytes != bytes or size.links != 1) return error.Missing;
        const name = std.mem.span(spare);
        @memcpy(file.name[0..name.len], name);
        file.name[name.len] = 0;
        file.name_length = @intCast(name.len);
        return file;
    }

    fn createNameless(folder: *const Folder, path: Path, point: faults.Point) Error!i32 {
        var parent: Parent = .of(path);
        const flags: linux.O = .{
            .ACCMODE = .WRONLY,
            .TMPFILE = true,
            .DIRECTORY = true,
            .DIRECT = folder.direct,
            .CLOEXEC = true,
        };
        const arguments = .{ folder.fd, parent.path(), flags, file_mode };
        return folder.openOrMakeFolder(&parent, point, arguments);
    }

    fn createNamed(folder: *const Folder, path: Path, point: faults.Point) Error!NewFile {
        var parent: Parent = .of(path);
        var file: NewFile = .{};
        try file.takeName(&parent);
        const flags: linux.O = .{
            .ACCMODE = .WRONLY,
            .CREAT = true,
            .EXCL = true,
            .NOFOLLOW = true,
            .DIRECT = folder.direct,
            .CLOEXEC = true,
        };
        const arguments = .{ folder.fd, file.path(), flags, file_mode };
        file.fd = folder.openOrMakeFolder(&parent, point, arguments) catch |err| {
            // Some file systems create the name even if they refuse O_DIRECT.
            if (err != error.Exists) folder.unlinkTemporary(&file);
            return err;
        };
        return file;
    }

    fn openOrMakeFolder(
        folder: *const Folder,
        parent: *Parent,
        point: faults.Point,
        arguments: anytype,
    ) Error!i32 {
        if (check(faults.repeat(point, linux.openat, arguments))) |fd| {
            return @intCast(fd);
        } else |err| {
            if (err != error.Missing or parent.isFolderItself()) return err;
        }
        try folder.makeFolder(parent, .@"store.mkdir");
        return @intCast(try check(faults.repeat(point, linux.openat, arguments)));
    }

    fn makeFolder(folder: *const Folder, parent: *Parent, point: faults.Point) Error!void {
        const arguments = .{ folder.fd, parent.path(), folder_mode };
        _ = check(faults.call(point, linux.mkdirat, arguments)) catch |err| {
            if (err != error.Exists) return err;
        };
    }

    /// Gives a complete file its final name. Returns `Exists` if the name is taken; never replaces
    /// a file.
    pub fn publish(folder: *const Folder, file: *NewFile, path: Path) Error!void {
        if (file.is_spare) {
            try folder.move(file.path(), path, .store);
            file.name_length = 0;
            return;
        }
        if (file.name_length > 0) {
            const arguments = .{ folder.fd, file.path(), folder.fd, path, 0 };
            _ = try check(faults.repeat(.@"store.link", linux.linkat, arguments));
            folder.unlinkTemporary(file);
            return;
        }
        var buffer: [32]u8 = undefined;
        // At most 14 + 10 digits and the terminating zero.
        const source = std.fmt.bufPrintZ(&buffer, "/proc/self/fd/{d}", .{file.fd}) catch
            return error.System;
        const follow = linux.AT.SYMLINK_FOLLOW;
        const arguments = .{ linux.AT.FDCWD, source.ptr, folder.fd, path, follow };
        _ = try check(faults.repeat(.@"store.link", linux.linkat, arguments));
    }

    /// Closes an unpublished file and removes it. A spare file stays, because its owner counts its
    /// bytes and removes it.
    pub fn discard(folder: *const Folder, file: *NewFile) void {
        if (!file.is_spare) folder.unlinkTemporary(file);
        if (file.fd >= 0) faults.close(.@"store.close", file.fd);
        file.fd = -1;
    }

    fn unlinkTemporary(folder: *const Folder, file: *NewFile) void {
        if (file.name_length == 0) return;
        // If the removal fails, the next start finds the file by its temporary name and removes it.
        _ = faults.repeat(.@"store.unlink", linux.unlinkat, .{ folder.fd, file.path(), 0 });
        file.name_length = 0;
    }

    pub fn openForRead(folder: *const Folder, path: Path, point: faults.Point) Error!i32 {
        const flags: linux.O = .{ .NOFOLLOW = true, .DIRECT = folder.direct, .CLOEXEC = true };
        const result = faults.repeat(point, linux.openat, .{ folder.fd, path, flags, 0 });
        return @intCast(try check(result));
    }

    pub fn remove(folder: *const Folder, path: Path) Error!void {
        const result = faults.repeat(.@"remove.unlink", linux.unlinkat, .{ folder.fd, path, 0 });
        _ = try check(result);
    }

    pub fn rename(folder: *const Folder, from: Path, to: Path) Error!void {
        return folder.move(from, to, .rename);
    }

    /// The operation that moves a file; fault plans use a different call name for each.
    const Mover = enum { store, rename };

    fn pointOf(comptime mover: Mover, comptime call: []const u8) faults.Point {
        return @field(faults.Point, @tagName(mover) ++ "." ++ call);
    }

    /// Moves a file without replacing another one, and creates the folder of `to` if it is missing.
    fn move(folder: *const Folder, from: Path, to: Path, comptime mover: Mover) Error!void {
        if (folder.moveOnce(from, to, mover)) return else |err| {
            var parent: Parent = .of(to);
            if (err != error.Missing or parent.isFolderItself()) return err;
            try folder.makeFolder(&parent, pointOf(mover, "mkdir"));
        }
        return folder.moveOnce(from, to, mover);
    }

    fn moveOnce(folder: *const Folder, from: Path, to: Path, comptime mover: Mover) Error!void {
        const flags: linux.RENAME = .{ .NOREPLACE = true };
        const arguments = .{ folder.fd, from, folder.fd, to, flags };
        const result = faults.repeat(pointOf(mover, "rename"), linux.renameat2, arguments);
        const code = linux.errno(result);
        if (code != .INVAL and code != .NOSYS) {
            _ = try check(result);
            return;
        }
        // The file system does not support RENAME_NOREPLACE: link and unlink instead.
        const link = .{ folder.fd, from, folder.fd, to, 0 };
        _ = try check(faults.repeat(pointOf(mover, "link"), linux.linkat, link));
        const old = .{ folder.fd, from, 0 };
        const removed = faults.repeat(pointOf(mover, "unlink"), linux.unlinkat, old);
        // For a store the block already has its final name; the next start removes the leftover
        // spare name.
        if (mover == .rename) _ = try check(removed);
    }

    /// Writes all stores and removals to stable storage (syncfs), so that they survive a power
    /// loss.
    pub fn sync(folder: *const Folder) Error!void {
        _ = try check(faults.repeat(.@"sync.sync", linux.syncfs, .{folder.fd}));
    }

    pub const Space = struct { free: u64, total: u64 };

    /// Returns the free and total bytes of the file system for an unprivileged process.
    pub fn space(folder: *const Folder) Error!Space {
        var stat: statfs.StatFs = undefined;
        _ = try check(faults.repeat(.@"space.stat", statfs.fstatfs, .{ folder.fd, &stat }));
        const reserved = stat.free -| stat.available;
        return .{
            .free = stat.available *| stat.fragment_bytes,
            .total = (stat.blocks -| reserved) *| stat.fragment_bytes,
        };
    }
};

/// A file that is being written. `name` of length 0: the file has no name yet.
pub const NewFile = struct {
    fd: i32 = -1,
    name: [2 * (name_max + 1)]u8 = undefined,
    name_length: u8 = 0,
    /// True if the file is a reused old file, under a name that its owner chose.
    is_spare: bool = false,

    fn path(file: *const NewFile) Path {
        return file.name[0..file.name_length :0];
    }

    /// Gives the file a unique temporary name in the folder of its final name. Recovery recognises
    /// leftovers by this form.
    fn takeName(file: *NewFile, parent: *Parent) Error!void {
        var random: [8]u8 = undefined;
        _ = try check(faults.repeat(.@"store.name", linux.getrandom, .{ &random, random.len, 0 }));
        const hex = std.fmt.bytesToHex(random, .lower);
        // The parent has at most 63 bytes, the rest of the name 22.
        const text = std.fmt.bufPrintZ(&file.name, "{s}/.{s}.tmp", .{ parent.path(), &hex }) catch
            return error.System;
        file.name_length = @intCast(text.len);
    }
};

/// The folder part of a path; `.` if the path has none.
const Parent = struct {
    text: [name_max + 1]u8 = undefined,

    fn of(child: Path) Parent {
        var parent: Parent = .{};
        const whole = std.mem.span(child);
        const part = std.fs.path.dirnamePosix(whole) orelse ".";
        @memcpy(parent.text[0..part.len], part);
        parent.text[part.len] = 0;
        return parent;
    }

    fn path(parent: *const Parent) Path {
        return @ptrCast(&parent.text);
    }

    fn isFolderItself(parent: *const Parent) bool {
        return parent.text[0] == '.' and parent.text[1] == 0;
    }
};

pub const Size = struct { bytes: u64, allocated: u64, links: u32 };

/// Returns the size of an open file in bytes, and its allocated bytes.
pub fn sizeOf(fd: i32, point: faults.Point) Error!Size {
    return sizeAt(fd, "", linux.AT.EMPTY_PATH, point);
}

/// Returns the size of the file at `path`, relative to the folder `fd`.
pub fn sizeAt(fd: i32, path: Path, flags: u32, point: faults.Point) Error!Size {
    var stat: linux.Statx = undefined;
    const mask: linux.STATX = .{ .SIZE = true, .BLOCKS = true, .NLINK = true };
    _ = try check(faults.repeat(point, linux.statx, .{ fd, path, flags, mask, &stat }));
    return .{ .bytes = stat.size, .allocated = stat.blocks * 512, .links = stat.nlink };
}

test "the parent folder of a path is found" {
    var parent: Parent = .of("ab/cd.kvb");
    try std.testing.expectEqualStrings("ab", std.mem.span(parent.path()));
    try std.testing.expect(!parent.isFolderItself());
    parent = .of("cd.kvb");
    try std.testing.expect(parent.isFolderItself());
}
