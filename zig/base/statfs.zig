//! fstatfs(2), which Zig's standard library lacks.

const linux = @import("std").os.linux;

/// `struct statfs` of 64-bit Linux.
pub const StatFs = extern struct {
    kind: i64,
    block_bytes: u64,
    blocks: u64,
    free: u64,
    available: u64,
    files: u64,
    files_free: u64,
    id: [2]i32,
    name_max: i64,
    fragment_bytes: u64,
    flags: i64,
    spare: [4]i64,
};

/// `kind` of ext2, ext3 and ext4.
pub const ext4 = 0xef53;
/// `kind` of a memfd with huge pages; `block_bytes` is then the huge page size.
pub const hugetlbfs = 0x958458f6;

pub fn fstatfs(fd: i32, out: *StatFs) usize {
    return linux.syscall2(.fstatfs, @as(usize, @bitCast(@as(isize, fd))), @intFromPtr(out));
}
