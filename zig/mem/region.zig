//! A region: shared memory that this process created (the arena) or mapped (an engine's view of
//! it). Every access names the region by handle and a span by offset and length, checked here.

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

/// `System` is the kernel, or its simulated twin.
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
        /// Transparent ones.
        huge_pages: std.atomic.Value(u32) = .init(0),
        /// Operations in flight; the region cannot close before they end.
        in_flight: std.atomic.Value(u32) = .init(0),

        /// A new arena: memfd, sealed against resizing so that no client can make a reader fault.
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
                    // A kernel without transparent huge pages: ordinary ones it is.
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
                // The pool may be empty although the file and the mapping succeeded.
                try System.populate(base, huge_page_bytes);
            }
            // KV blocks are users' prompts: they have no place in a core file.
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

        /// The arena of a process that went before: only exactly what `create` makes. Its pages are
        /// there and are not touched; all of it counts as populated. Takes over `fd`.
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

        /// A view of an arena that another process created and sealed. Takes over `fd`.
        pub fn mapForeign(request: types.MapRequest) Error!Self {
            if (request.bytes == 0 or request.bytes % 4096 != 0) return error.BadRequest;
            // Without the seals, its owner could shrink the file and kill us with SIGBUS.
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

        /// Leaves the descriptor to whoever gave it.
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

        /// The span's pages will come from this NUMA node where it has any left. Before they are
        /// populated: what is there already stays where it is.
        pub fn prefer(self: *Self, offset: u64, bytes: u64, node: u32) Error!void {
            const page: u64 = self.page_bytes;
            if (offset % page != 0 or bytes % page != 0) return error.BadRequest;
            const pages = try self.writableSpan(offset, bytes);
            try System.prefer(pages.ptr, pages.len, node);
        }

        /// Backs the span with memory and locks it as wished. Called from the queue's threads.
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

        /// Huge pages for what they fit in. Beside fewer misses of the processor's, they are what
        /// makes a disk fast: its requests hold a limited number of pieces of memory.
        fn collapse(self: *Self, offset: u64, bytes: u64) void {
            const start = std.mem.alignForward(u64, offset, huge_page_bytes);
            const end = std.mem.alignBackward(u64, offset + bytes, huge_page_bytes);
            if (start >= end) return;
            // Too old a kernel, or memory in small pieces: ordinary pages do as well.
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

/// Reads each page's first byte and writes it back: no reader sees a change.
fn touch(pages: []u8) void {
    var at: usize = 0;
    while (at < pages.len) : (at += 4096) {
        const page: *volatile u8 = &pages[at];
        page.* = page.*;
    }
}
