//! The system calls of the memory code. Tests replace this type by `testing/failing_system.zig`,
//! whose calls can fail.

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

    /// Returns the size of an open file in bytes.
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

    /// Returns the page size of a memfd: 4096, or its huge page size.
    pub fn pageBytesOf(fd: i32) Error!u32 {
        var stat: statfs.StatFs = undefined;
        _ = try errno.check(statfs.fstatfs(fd, &stat));
        return if (stat.kind == statfs.hugetlbfs) @intCast(stat.block_bytes) else 4096;
    }

    /// Maps the file. From 2 MiB on the address is a multiple of 2 MiB, because the kernel uses
    /// huge pages only at such addresses.
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
        // munmap fails only for an address that was never mapped. That would be a bug, and leaking
        // memory is better than crashing.
        _ = linux.munmap(address, bytes);
    }

    pub fn adviseHuge(address: [*]align(4096) u8, bytes: u64) Error!void {
        _ = try errno.check(linux.madvise(address, bytes, linux.MADV.HUGEPAGE));
    }

    pub fn excludeFromDumps(address: [*]align(4096) u8, bytes: u64) Error!void {
        _ = try errno.check(linux.madvise(address, bytes, linux.MADV.DONTDUMP));
    }

    /// Allocates memory for the pages now, so a shortage is an error here and not a SIGBUS at first
    /// access.
    pub fn populate(address: [*]u8, bytes: u64) Error!void {
        _ = errno.checkRepeat(linux.madvise, .{ address, bytes, madv_populate_write }) catch |err| {
            const einval = @intFromEnum(linux.E.INVAL);
            // Kernels before 5.14 lack MADV_POPULATE_WRITE. tmpfs then allocates pages on first
            // access.
            if (err == error.System and errno.lastErrno() == einval) return error.Unsupported;
            return err;
        };
    }

    /// Replaces small pages by 2 MiB huge pages. Most hosts disable automatic huge pages for shared
    /// memory but allow this request, which needs one allocated small page per huge page.
    pub fn collapse(address: [*]u8, bytes: u64) Error!void {
        var at: u64 = 0;
        while (at < bytes) : (at += huge_page_bytes) try populate(address + at, 4096);
        _ = try errno.checkRepeat(linux.madvise, .{ address, bytes, madv_collapse });
    }

    pub fn lock(address: [*]const u8, bytes: u64) Error!void {
        _ = try errno.check(linux.mlock(address, bytes));
    }

    /// Makes the kernel allocate pages of the span on this NUMA node while the node has free
    /// memory. The policy belongs to the shared file, not to the mapping, so it applies to
    /// whichever process touches a page first.
    pub fn prefer(address: [*]u8, bytes: u64, node: u32) Error!void {
        const mpol_preferred = 1;
        var nodes: [nodes_max / 64]u64 = @splat(0);
        if (node >= nodes_max) return error.BadRequest;
        nodes[node / 64] = @as(u64, 1) << @intCast(node % 64);
        const at = @intFromPtr(address);
        // The kernel reads one bit less than the count it receives.
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
