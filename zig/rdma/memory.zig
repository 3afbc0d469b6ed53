//! Registers memory that a device may read or write.

const std = @import("std");
const verbs = @import("verbs.zig");
const library = @import("library.zig");
const Symbols = @import("symbols.zig").Symbols;

/// Bytes of the region registered together as a target of reads. Registering allocates all of their
/// pages: larger slices would delay the first read and grow a sparse arena at once, smaller ones
/// would use more of the device's tables.
pub const slice_bytes = 256 << 20;

/// A memory registration, or the errno of the failure.
pub const Outcome = union(enum) { mr: *verbs.Mr, errno: i32 };

/// A protection domain, and whether its device accepts optional flags.
pub const Domain = struct {
    symbols: *const Symbols,
    pd: *verbs.Pd,
    has_relaxed_ordering: bool,

    pub fn of(symbols: *const Symbols, pd: *verbs.Pd) Domain {
        const has_relaxed = symbols.ibv_reg_mr_iova2 != null;
        return .{ .symbols = symbols, .pd = pd, .has_relaxed_ordering = has_relaxed };
    }

    /// Registers exactly `span`, at its own address. Relaxed ordering is allowed: no reader depends
    /// on the order of the bytes.
    pub fn register(domain: *Domain, span: []u8, access: c_uint) Outcome {
        if (domain.has_relaxed_ordering) {
            const relaxed = access | verbs.access_relaxed_ordering;
            const call = domain.symbols.ibv_reg_mr_iova2.?;
            if (call(domain.pd, span.ptr, span.len, @intFromPtr(span.ptr), relaxed)) |mr| {
                return .{ .mr = mr };
            }
            const errno = library.lastErrno();
            if (!isRefusal(errno)) return .{ .errno = errno };
            domain.has_relaxed_ordering = false;
        }
        const plain: c_int = @intCast(access);
        if (domain.symbols.ibv_reg_mr(domain.pd, span.ptr, span.len, plain)) |mr| {
            return .{ .mr = mr };
        }
        return .{ .errno = library.lastErrno() };
    }

    /// Whether the errno rejects the flags rather than the memory.
    fn isRefusal(errno: i32) bool {
        return switch (@as(std.os.linux.E, @enumFromInt(errno))) {
            .INVAL, .OPNOTSUPP, .NOSYS => true,
            else => false,
        };
    }

    /// Whether memory of other devices can be registered, tested with an invalid descriptor.
    pub fn takesDmaBuf(domain: *const Domain) bool {
        const call = domain.symbols.ibv_reg_dmabuf_mr orelse return false;
        const access = verbs.access_local_write;
        if (call(domain.pd, 0, 4096, 0, -1, access)) |mr| {
            // No known device accepts the descriptor; if one does, the registration is empty.
            _ = domain.symbols.ibv_dereg_mr(mr);
            return true;
        }
        return switch (@as(std.os.linux.E, @enumFromInt(library.lastErrno()))) {
            .OPNOTSUPP, .PROTONOSUPPORT, .NOSYS => false,
            else => true,
        };
    }
};

/// A part of the region that queue pairs of one device read into.
pub const Slice = struct {
    state: State = .absent,
    mr: ?*verbs.Mr = null,

    pub const State = enum { absent, registering, ready };
};

/// The slice that contains the byte at `offset`, and the bytes left in it.
pub fn sliceAt(offset: u64) struct { index: usize, left: u64 } {
    return .{ .index = @intCast(offset / slice_bytes), .left = slice_bytes - offset % slice_bytes };
}

pub fn slicesOf(bytes: u64) usize {
    return @intCast((bytes + slice_bytes - 1) / slice_bytes);
}

test "slices cover the region, each byte once" {
    try std.testing.expectEqual(1, slicesOf(4096));
    try std.testing.expectEqual(2, slicesOf(slice_bytes + 1));
    const last = sliceAt(slice_bytes - 1);
    try std.testing.expectEqual(0, last.index);
    try std.testing.expectEqual(1, last.left);
    try std.testing.expectEqual(1, sliceAt(slice_bytes).index);
}
