//! Registers memory that an RDMA device may read or write.

const std = @import("std");
const verbs = @import("verbs.zig");
const library = @import("library.zig");
const Symbols = @import("symbols.zig").Symbols;

/// Bytes of the region that are registered together as a target of reads. Registering allocates all
/// their pages: larger slices would delay the first read and allocate more of a sparse arena,
/// smaller ones would use more of the device's tables.
pub const slice_bytes = 256 << 20;

/// A memory registration, or the errno of the failure.
pub const Outcome = union(enum) { mr: *verbs.Mr, errno: i32 };

/// A protection domain, and whether its device accepts optional access flags.
pub const Domain = struct {
    symbols: *const Symbols,
    pd: *verbs.Pd,
    has_relaxed_ordering: bool,

    pub fn of(symbols: *const Symbols, pd: *verbs.Pd) Domain {
        const has_relaxed = symbols.ibv_reg_mr_iova2 != null;
        return .{ .symbols = symbols, .pd = pd, .has_relaxed_ordering = has_relaxed };
    }

    /// Registers exactly `span`, at its own address. Uses relaxed ordering if the device allows it,
    /// because no reader depends on the order of the bytes.
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

    /// Returns whether the errno means that the device rejects the flags and not the memory.
    fn isRefusal(errno: i32) bool {
        return switch (@as(std.os.linux.E, @enumFromInt(errno))) {
            .INVAL, .OPNOTSUPP, .NOSYS => true,
            else => false,
        };
    }

    /// Returns whether memory of other devices (dma-buf) can be registered. Tests it with an
    /// invalid descriptor.
    pub fn takesDmaBuf(domain: *const Domain) bool {
        const call = domain.symbols.ibv_reg_dmabuf_mr orelse return false;
        const access = verbs.access_local_write;
        if (call(domain.pd, 0, 4096, 0, -1, access)) |mr| {
            // No known device accepts the invalid descriptor. If one does, the registration is
            // empty.
            _ = domain.symbols.ibv_dereg_mr(mr);
            return true;
        }
        return switch (@as(std.os.linux.E, @enumFromInt(library.lastErrno()))) {
            .OPNOTSUPP, .PROTONOSUPPORT, .NOSYS => false,
            else => true,
        };
    }
};

/// A part of the region that is registered with one device as a target of its READs.
pub const Slice = struct {
    state: State = .absent,
    mr: ?*verbs.Mr = null,

    pub const State = enum { absent, registering, ready };
};

/// Returns the index of the slice that contains the byte at `offset`, and the number of bytes from
/// there to the slice's end.
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
