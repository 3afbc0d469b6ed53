//! The system calls of the memory code. `testing/failing_system.zig` implements the same interface
//! with failures.

const std = @import("std");
const linux = std.os.linux;
const errno = @import("errno.zig");
const statfs = @import("statfs.zig");
const Error = @import("../abi/status.zig").Error;

pub const System = struct {
    const madv_populate_write = 23;
    const madv_collapse = 25;
    const huge_page_bytes = 2 * 1024 * 1024;
    const nodes_max = 1024;

    pub fn memfdCreate(name: [*:0]const u8, flags: u32) Error!i32 {
        return @intCast(try errno.check(linux.memfd_create(name, flags)));
    }

    pub fn truncate(fd: i32, bytes: u64) Error!void {
        _ = try errno.checkRepeat(linux.ftruncate, .{ fd, @as(i64, @intCast(bytes)) });
    }

    /// The size of an open file.
    pub fn sizeOf(fd: i32) Error!u64 {
        return @intCast(try errno.check(linux.lseek(fd, 0, linux.SEEK.END)));
    }

    pub fn seal(fd: i32, wanted: u32) Error!void {
        const f_add_seals = 1033;
        _ = try errno.check(linux.fcntl(fd, f_add_seals, wanted));
    }

    pub fn sealsOf(fd: i32) Error!u32 {
        const f_get_seals = 1034;
        return @intCast(try errno.check(linux.fcntl(fd, f_get_seals, 0)));
    }

    pub fn closeOnExec(fd: i32) Error!void {
        _ = try errno.check(linux.fcntl(fd, linux.F.SETFD, linux.FD_CLOEXEC));
    }

    /// 4096, or the size of the huge pages of a memfd.
    pub fn pageBytesOf(fd: i32) Error!u32 {
        var stat: statfs.StatFs = undefined;
        _ = try errno.check(statfs.fstatfs(fd, &stat));
        return if (stat.kind == statfs.hugetlbfs) @intCast(stat.block_bytes) else 4096;
    }

    /// Maps at a huge page boundary if the size allows one: the kernel maps huge pages only there.
    pub fn map(fd: i32, bytes: u64, writable: bool) Error![*]align(4096) u8 {
        const prot: linux.PROT = .{ .READ = true, .WRITE = writable };
        if (bytes < huge_page_bytes) return mapAt(null, bytes, prot, fd);
        const reserve: linux.MAP = .{ .TYPE = .PRIVATE, .ANONYMOUS = true, .NORESERVE = true };
        const room = bytes + huge_page_bytes;
        const got = try errno.check(linux.mmap(null, room, .{}, reserve, -1, 0));
        const start = std.mem.alignForward(usize, got, huge_page_bytes);
        const mapped = mapAt(@ptrFromInt(start), bytes, prot, fd) catch |err| {
            unmap(@ptrFromInt(got), room);
            return err;
        };
        if (start > got) unmap(@ptrFromInt(got), start - got);
        const end = std.mem.alignForward(usize, start + bytes, 4096);
        if (got + room > end) unmap(@ptrFromInt(end), got + room - end);
        return mapped;
    }

    fn mapAt(where: ?[*]u8, bytes: u64, prot: linux.PROT, fd: i32) Error![*]align(4096) u8 {
        const fixed = where != null;
        const flags: linux.MAP = .{ .TYPE = .SHARED, .NORESERVE = true, .FIXED = fixed };
        return @ptrFromInt(try errno.check(linux.mmap(where, bytes, prot, flags, fd, 0)));
    }

    pub fn unmap(address: [*]align(4096) u8, bytes: u64) void {
        // munmap fails only for an address that was never mapped. That is a bug, and a leak is
        // better than a crash.
        _ = linux.munmap(address, bytes);
    }

    pub fn adviseHuge(address: [*]align(4096) u8, bytes: u64) Error!void {
        _ = try errno.check(linux.madvise(address, bytes, linux.MADV.HUGEPAGE));
    }

    pub fn excludeFromDumps(address: [*]align(4096) u8, bytes: u64) Error!void {
        _ = try errno.check(linux.madvise(address, bytes, linux.MADV.DONTDUMP));
    }

    /// Allocates memory for the pages now, so a shortage is an error here and not a SIGBUS later.
    pub fn populate(address: [*]u8, bytes: u64) Error!void {
        _ = errno.checkRepeat(linux.madvise, .{ address, bytes, madv_populate_write }) catch |err| {
            const einval = @intFromEnum(linux.E.INVAL);
            // Kernels before 5.14 do not know the advice; tmpfs then allocates pages on first
            // touch.
            if (err == error.System and errno.lastErrno() == einval) return error.Unsupported;
            return err;
        };
    }

    /// Replaces the pages of whole huge pages by huge ones. Most hosts disable transparent huge
    /// pages for shared memory but allow them on request; each needs one small page first.
    pub fn collapse(address: [*]u8, bytes: u64) Error!void {
        var at: u64 = 0;
        while (at < bytes) : (at += huge_page_bytes) try populate(address + at, 4096);
        _ = try errno.checkRepeat(linux.madvise, .{ address, bytes, madv_collapse });
    }

    pub fn lock(address: [*]const u8, bytes: u64) Error!void {
        _ = try errno.check(linux.mlock(address, bytes));
    }

    /// Allocates pages of the span on this NUMA node while it has memory. For shared memory the
    /// kernel stores this in the file, not in the mapping, so it applies to each process that
    /// touches the pages first.
    pub fn prefer(address: [*]u8, bytes: u64, node: u32) Error!void {
        const mpol_preferred = 1;
        var nodes: [nodes_max / 64]u64 = @splat(0);
        if (node >= nodes_max) return error.BadRequest;
        nodes[node / 64] = @as(u64, 1) << @intCast(node % 64);
        const at = @intFromPtr(address);
        // The kernel uses one bit less than the count it receives.
        const bits = nodes_max + 1;
        const mask = @intFromPtr(&nodes);
        _ = try errno.check(
            linux.syscall6(.mbind, at, bytes, mpol_preferred, mask, bits, 0),
        );
    }

    pub fn close(fd: i32) void {
        _ = linux.close(fd);
    }
};
