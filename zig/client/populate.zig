//! Maps the pages of a slot with one system call before the first copy to it. Without this call
//! each page costs a page fault, which takes longer than copying the page.

const builtin = @import("builtin");
const std = @import("std");
const linux = std.os.linux;

const madv_populate_read = 22;
const madv_populate_write = 23;
/// The largest base page size of a kernel for this processor.
const page_bytes: u64 = if (builtin.cpu.arch == .x86_64) 4096 else 65_536;
/// Spans of fewer bytes are not mapped in advance: their page faults cost less than the lookup in
/// `mapped`.
const bytes_min = 16 * 1024;
const slots_remembered = 1 << 15;

/// Slots whose pages were mapped, each as its first page and number of pages. Two slots with the
/// same hash replace each other, which costs one repeated system call. If an entry is older than a
/// new arena at the same address, that slot is mapped by page faults.
var mapped: [slots_remembered]std.atomic.Value(u64) = @splat(.init(0));

pub fn forWriting(address: u64, bytes: u64) void {
    populate(address, bytes, madv_populate_write);
}

pub fn forReading(address: u64, bytes: u64) void {
    populate(address, bytes, madv_populate_read);
}

fn populate(address: u64, bytes: u64, advice: u32) void {
    if (bytes < bytes_min) return;
    const first = address / page_bytes;
    const end = (address + bytes + page_bytes - 1) / page_bytes;
    const entry = &mapped[(first *% 0x9e3779b97f4a7c15) >> (64 - 15)];
    const wanted = first << 20 | @min(end - first, (1 << 20) - 1);
    if (entry.load(.monotonic) == wanted) return;
    // Kernels before 5.14 refuse this advice; page faults then map the pages. If the arena has no
    // memory left, the copy faults as it would without this call.
    _ = linux.madvise(@ptrFromInt(first * page_bytes), (end - first) * page_bytes, advice);
    entry.store(wanted, .monotonic);
}
