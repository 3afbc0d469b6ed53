//! A region: shared memory that this process created (the arena) or that another process created
//! and this process mapped (a view). Callers name a region by handle and a span by offset and
//! length; the region checks that the span lies inside.

const std = @import("std");
const linux = std.os.linux;
const types = @import("../abi/types.zig");
const Error = @import("../abi/status.zig").Error;

const seal_shrink = 0x0002;
const seal_grow = 0x0004;
const seal_seal = 0x0001;
const size_seals = seal_shrink | seal_grow | seal_seal;
const flag_lock_refused = 1;
const flag_huge_advised = 2;
const huge_page_bytes = 2 * 1024 * 1024;

pub const Wish = enum(u32) { off = 0, attempt = 1, require = 2 };

fn wishOf(value: u32) Error!Wish {
    return std.enums.fromInt(Wish, value) orelse error.BadRequest;
}

/// `System` makes the system calls; tests pass one with simulated failures.
pub fn RegionOf(comptime System: type) type {
    return struct {
        const Self = @This();

        base: [*]align(4096) u8,
        bytes: u64,
        fd: i32,
        page_bytes: u32,
        writable: bool,
        lock_wish: Wish,
        flags: std.atomic.Value(u32),
        populated: std.atomic.Value(u64) = .init(0),
        locked: std.atomic.Value(u64) = .init(0),
        /// Number of transparent huge pages of 2 MiB in use.
        huge_pages: std.atomic.Value(u32) = .init(0),
        /// Operations in progress; the region cannot close before they end.
        in_flight: std.atomic.Value(u32) = .init(0),

        /// Creates an arena: a memfd sealed against resizing, so that no client can shrink the file
        /// and crash a reader.
        pub fn create(request: types.RegionRequest) Error!Self {
            if (request.bytes == 0 or request.bytes % 4096 != 0) return error.BadRequest;
            const huge = try wishOf(request.huge_pages);
            const lock_wish = try wishOf(request.lock_memory);
            if (huge != .off and request.bytes % huge_page_bytes == 0) {
                if (createWith(request.bytes, true, lock_wish)) |region| return region else |err| {
                    if (huge == .require) return err;
                }
            } else if (huge == .require) return error.BadRequest;
            var region = try createWith(request.bytes, false, lock_wish);
            if (huge == .attempt) {
                if (System.adviseHuge(region.base, region.bytes)) {
                    region.flags.raw |= flag_huge_advised;
                } else |err| switch (err) {
                    // The kernel has no transparent huge pages; the arena uses small pages.
                    else => {},
                }
            }
            return region;
        }

        fn createWith(bytes: u64, huge: bool, lock_wish: Wish) Error!Self {
            const huge_flag: u32 = if (huge) linux.MFD.HUGETLB | linux.MFD.HUGE_2MB else 0;
            const flags = linux.MFD.CLOEXEC | linux.MFD.ALLOW_SEALING | huge_flag;
            const fd = try System.memfdCreate("hearth-arena", flags);
            errdefer System.close(fd);
            try System.truncate(fd, bytes);
            try System.seal(fd, size_seals);
            const base = try System.map(fd, bytes, true);
            errdefer System.unmap(base, bytes);
            if (huge) {
                // Fails here if the huge page pool is empty: creating and mapping the file succeed
                // even then.
                try System.populate(base, huge_page_bytes);
            }
            // KV blocks contain users' prompts, which must not appear in a core file.
            try System.excludeFromDumps(base, bytes);
            return .{
                .base = base,
                .bytes = bytes,
                .fd = fd,
                .page_bytes = if (huge) huge_page_bytes else 4096,
                .writable = true,
                .lock_wish = lock_wish,
                .flags = .init(0),
            };
        }

        /// Takes over the arena of an earlier process, which must have the form that `create`
        /// gives. Its pages exist and are not accessed, so all bytes count as populated. The region
        /// then owns `fd`.
        pub fn adopt(request: types.AdoptRequest) Error!Self {
            if (request.bytes == 0 or request.bytes % 4096 != 0) return error.BadRequest;
            const lock_wish = try wishOf(request.lock_memory);
            if ((try System.sealsOf(request.fd)) != size_seals) return error.NotPermitted;
            if ((try System.sizeOf(request.fd)) != request.bytes) return error.OutOfRange;
            try System.closeOnExec(request.fd);
            const base = try System.map(request.fd, request.bytes, true);
            errdefer System.unmap(base, request.bytes);
            try System.excludeFromDumps(base, request.bytes);
            var region: Self = .{
                .base = base,
                .bytes = request.bytes,
                .fd = request.fd,
                .page_bytes = try System.pageBytesOf(request.fd),
                .writable = true,
                .lock_wish = lock_wish,
                .flags = .init(0),
                .populated = .init(request.bytes),
            };
            try region.lock(0, request.bytes);
            return region;
        }

        /// Maps an arena that another process created and sealed. The region then owns `fd`.
        pub fn mapForeign(request: types.MapRequest) Error!Self {
            if (request.bytes == 0 or request.bytes % 4096 != 0) return error.BadRequest;
            // Without the seals the other process could shrink the file, and an access would raise
            // SIGBUS.
            if ((try System.sealsOf(request.fd)) & seal_shrink == 0) return error.NotPermitted;
            if ((try System.sizeOf(request.fd)) < request.bytes) return error.OutOfRange;
            const base = try System.map(request.fd, request.bytes, request.writable != 0);
            return .{
                .base = base,
                .bytes = request.bytes,
                .fd = request.fd,
                .page_bytes = 4096,
                .writable = request.writable != 0,
                .lock_wish = .off,
                .flags = .init(0),
            };
        }

        pub fn destroy(self: *Self) void {
            self.destroyView();
            System.close(self.fd);
        }

        /// Unmaps the region without closing its descriptor, which the caller still owns.
        pub fn destroyView(self: *Self) void {
            System.unmap(self.base, self.bytes);
        }

        pub fn span(self: *const Self, offset: u64, bytes: u64) Error![]u8 {
            if (offset > self.bytes or bytes > self.bytes - offset) return error.OutOfRange;
            return self.base[offset..][0..bytes];
        }

        pub fn writableSpan(self: *const Self, offset: u64, bytes: u64) Error![]u8 {
            if (!self.writable) return error.NotPermitted;
            return self.span(offset, bytes);
        }

        /// Prefers this NUMA node for pages of the span that are not yet allocated. Call before
        /// `populate`: allocated pages do not move.
        pub fn prefer(self: *Self, offset: u64, bytes: u64, node: u32) Error!void {
            const page: u64 = self.page_bytes;
            if (offset % page != 0 or bytes % page != 0) return error.BadRequest;
            const pages = try self.writableSpan(offset, bytes);
            try System.prefer(pages.ptr, pages.len, node);
        }

        /// Allocates the pages of the span, and locks them if the region was created with locking.
        /// Runs on the queue's threads.
        pub fn populate(self: *Self, offset: u64, bytes: u64) Error!void {
            if (offset % 4096 != 0 or bytes % 4096 != 0) return error.BadRequest;
            const pages = try self.writableSpan(offset, bytes);
            if (self.flags.load(.monotonic) & flag_huge_advised != 0) self.collapse(offset, bytes);
            System.populate(pages.ptr, bytes) catch |err| switch (err) {
                error.Unsupported => touch(pages),
                else => return err,
            };
            _ = self.populated.fetchAdd(bytes, .monotonic);
            try self.lock(offset, bytes);
        }

        fn lock(self: *Self, offset: u64, bytes: u64) Error!void {
            if (self.lock_wish == .off) return;
            if (System.lock(self.base + offset, bytes)) {
                _ = self.locked.fetchAdd(bytes, .monotonic);
            } else |err| {
                _ = self.flags.fetchOr(flag_lock_refused, .monotonic);
                if (self.lock_wish == .require) return err;
            }
        }

        /// Replaces the small pages inside the span by huge pages. Fewer TLB misses occur, and
        /// disks become faster because a disk request holds a limited number of memory segments.
        fn collapse(self: *Self, offset: u64, bytes: u64) void {
            const start = std.mem.alignForward(u64, offset, huge_page_bytes);
            const end = std.mem.alignBackward(u64, offset + bytes, huge_page_bytes);
            if (start >= end) return;
            // The kernel is too old or memory is fragmented; small pages work too.
            System.collapse(self.base + start, end - start) catch return;
            _ = self.huge_pages.fetchAdd(@intCast((end - start) / huge_page_bytes), .monotonic);
        }

        pub fn info(self: *const Self, handle: u64) types.RegionInfo {
            return .{
                .handle = handle,
                .address = @intFromPtr(self.base),
                .bytes = self.bytes,
                .fd = self.fd,
                .page_bytes = self.page_bytes,
                .populated_bytes = self.populated.load(.monotonic),
                .locked_bytes = self.locked.load(.monotonic),
                .flags = self.flags.load(.monotonic),
                .huge_pages = self.huge_pages.load(.monotonic),
            };
        }
    };
}

/// Allocates pages by reading the first byte of each and writing it back, which changes no content.
fn touch(pages: []u8) void {
    var at: usize = 0;
    while (at < pages.len) : (at += 4096) {
        const page: *volatile u8 = &pages[at];
        page.* = page.*;
    }
}
