//! The kernel as the memory code sees it. `testing/failing_system.zig` is its twin that says no.

const std = @import("std");
const linux = std.os.linux;
const errno = @import("errno.zig");
const Error = @import("../abi/status.zig").Error;

pub const System = struct {
    const madv_populate_write = 23;

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

    pub fn map(fd: i32, bytes: u64, writable: bool) Error![*]align(4096) u8 {
        const flags: linux.MAP = .{ .TYPE = .SHARED, .NORESERVE = true };
        const prot: linux.PROT = .{ .READ = true, .WRITE = writable };
        const address = try errno.check(linux.mmap(null, bytes, prot, flags, fd, 0));
        return @ptrFromInt(address);
    }

    pub fn unmap(address: [*]align(4096) u8, bytes: u64) void {
        // Fails only for an address that was never mapped: a bug, and better a leak than a crash.
        _ = linux.munmap(address, bytes);
    }

    pub fn adviseHuge(address: [*]align(4096) u8, bytes: u64) Error!void {
        _ = try errno.check(linux.madvise(address, bytes, linux.MADV.HUGEPAGE));
    }

    pub fn excludeFromDumps(address: [*]align(4096) u8, bytes: u64) Error!void {
        _ = try errno.check(linux.madvise(address, bytes, linux.MADV.DONTDUMP));
    }

    /// Backs the pages with memory now; shortage is an error here and not a SIGBUS later.
    pub fn populate(address: [*]u8, bytes: u64) Error!void {
        _ = errno.checkRepeat(linux.madvise, .{ address, bytes, madv_populate_write }) catch |err| {
            const einval = @intFromEnum(linux.E.INVAL);
            // Kernels before 5.14 do not know the advice; tmpfs then hands out pages on first
            // touch.
            if (err == error.System and errno.lastErrno() == einval) return error.Unsupported;
            return err;
        };
    }

    pub fn lock(address: [*]const u8, bytes: u64) Error!void {
        _ = try errno.check(linux.mlock(address, bytes));
    }

    pub fn close(fd: i32) void {
        _ = linux.close(fd);
    }
};
