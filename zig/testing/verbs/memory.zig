//! Protection domains, and the memory registered in them. Local and remote keys are looked up in
//! the fabric, so a deregistered key is invalid at once.

const std = @import("std");
const linux = std.os.linux;
const layout = @import("layout.zig");
const state = @import("state.zig");
const fabrics = @import("fabric.zig");
const Context = @import("devices.zig").Context;
const Access = layout.Access;

const allocator = std.heap.c_allocator;
const page = std.heap.page_size_min;
const known_rights = 0xff | Access.optional;

pub const Domain = struct {
    pd: layout.Pd,
    era: u32,
    children: u32 = 0,

    pub fn of(pd: *layout.Pd) *Domain {
        return @fieldParentPtr("pd", pd);
    }
};

const Registered = struct {
    mr: layout.Mr,
    era: u32,
    entry: *fabrics.Memory,
    /// Mapping of a buffer that was given as a descriptor; null for other memory.
    mapped: ?[]align(page) u8,
};

export fn ibv_alloc_pd(opened: *layout.Context) ?*layout.Pd {
    state.lock.lock();
    defer state.lock.unlock();
    if (state.entered(.ibv_alloc_pd)) |code| return failed(*layout.Pd, code);
    const context = Context.of(opened);
    const domain = allocator.create(Domain) catch return failed(*layout.Pd, 12);
    domain.* = .{
        .pd = .{ .context = opened, .handle = context.fabric.newDomain() },
        .era = state.era,
    };
    context.children += 1;
    state.opened(.pds);
    return &domain.pd;
}

fn failed(comptime T: type, code: i32) ?T {
    state.setErrno(code);
    return null;
}

export fn ibv_dealloc_pd(pd: *layout.Pd) i32 {
    state.lock.lock();
    defer state.lock.unlock();
    if (state.entered(.ibv_dealloc_pd)) |code| return code;
    const domain = Domain.of(pd);
    if (domain.children > 0) return @intFromEnum(linux.E.BUSY);
    Context.of(pd.context).children -= 1;
    state.closed(.pds, domain.era);
    allocator.destroy(domain);
    return 0;
}

/// Registers memory. The real function takes only these 32 bits of rights; optional ones need
/// `ibv_reg_mr_iova2`.
export fn ibv_reg_mr(pd: *layout.Pd, addr: ?[*]u8, length: usize, rights: i32) ?*layout.Mr {
    const wanted: u32 = @bitCast(rights);
    return registerMemory(.ibv_reg_mr, pd, addr, length, @intFromPtr(addr), wanted);
}

export fn ibv_reg_mr_iova(
    pd: *layout.Pd,
    addr: ?[*]u8,
    length: usize,
    iova: u64,
    rights: i32,
) ?*layout.Mr {
    return registerMemory(.ibv_reg_mr_iova, pd, addr, length, iova, @bitCast(rights));
}

export fn ibv_reg_mr_iova2(
    pd: *layout.Pd,
    addr: ?[*]u8,
    length: usize,
    iova: u64,
    rights: u32,
) ?*layout.Mr {
    return registerMemory(.ibv_reg_mr_iova2, pd, addr, length, iova, rights);
}

fn registerMemory(
    call: state.Call,
    pd: *layout.Pd,
    addr: ?[*]u8,
    length: usize,
    iova: u64,
    rights: u32,
) ?*layout.Mr {
    state.lock.lock();
    defer state.lock.unlock();
    if (state.entered(call)) |code| return failed(*layout.Mr, code);
    if (refusal(pd, length, rights)) |code| return failed(*layout.Mr, code);
    if (length > 0 and !isMapped(addr, length)) {
        return failed(*layout.Mr, @intFromEnum(linux.E.FAULT));
    }
    return add(pd, .{
        .address = iova,
        .base = @intFromPtr(addr),
        .bytes = length,
        .rights = rights,
        .mapped = null,
    });
}

/// Returns the errno with which the kernel or the plan refuses a registration; null if neither
/// does.
fn refusal(pd: *layout.Pd, length: usize, rights: u32) ?i32 {
    const plan = &state.plan;
    state.registrations += 1;
    if (plan.register_fails.hits(state.registrations)) return plan.register_errno;
    if (Context.of(pd.context).is_fatal) return @intFromEnum(linux.E.IO);
    if (rights & ~@as(u32, known_rights) != 0) return @intFromEnum(linux.E.INVAL);
    const is_written = rights & Access.remote_write != 0;
    if (is_written and rights & Access.local_write == 0) return @intFromEnum(linux.E.INVAL);
    if (!plan.has_relaxed and rights & Access.optional != 0) {
        return @intFromEnum(linux.E.OPNOTSUPP);
    }
    if (length > plan.memlock -| state.registered_bytes) return @intFromEnum(linux.E.NOMEM);
    return null;
}

/// Returns whether both ends of the span can be read.
fn isMapped(addr: ?[*]u8, length: usize) bool {
    const base = addr orelse return false;
    for ([_]usize{ 0, length - 1 }) |at| {
        var byte: [1]u8 = undefined;
        if (!copy(linux.getpid(), &byte, @intFromPtr(base) + at)) return false;
    }
    return true;
}

/// Copies from the memory of the process `owner`. Returns false if that fails.
pub fn copy(owner: i32, into: []u8, from: u64) bool {
    var done: usize = 0;
    while (done < into.len) {
        const rest = into[done..];
        const local: [1]std.posix.iovec = .{.{ .base = rest.ptr, .len = rest.len }};
        const remote: [1]std.posix.iovec_const = .{.{
            .base = @ptrFromInt(from + done),
            .len = rest.len,
        }};
        const got = linux.process_vm_readv(owner, &local, &remote, 0);
        if (linux.errno(got) != .SUCCESS or got == 0) return false;
        done += got;
    }
    return true;
}

const Span = struct {
    address: u64,
    base: u64,
    bytes: u64,
    rights: u32,
    mapped: ?[]align(page) u8,
};

fn add(pd: *layout.Pd, span: Span) ?*layout.Mr {
    const context = Context.of(pd.context);
    const kept = allocator.create(Registered) catch return failed(*layout.Mr, 12);
    var wanted = std.mem.zeroes(fabrics.Memory);
    wanted.domain = pd.handle;
    wanted.rights = span.rights;
    wanted.address = span.address;
    wanted.base = span.base;
    wanted.bytes = span.bytes;
    const entry = context.fabric.addMemory(wanted) orelse {
        allocator.destroy(kept);
        return failed(*layout.Mr, @intFromEnum(linux.E.NOMEM));
    };
    kept.* = .{
        .mr = .{
            .context = pd.context,
            .pd = pd,
            .addr = @ptrFromInt(span.base),
            .length = span.bytes,
            .handle = entry.key,
            .lkey = entry.key,
            .rkey = entry.key,
        },
        .era = state.era,
        .entry = entry,
        .mapped = span.mapped,
    };
    Domain.of(pd).children += 1;
    state.registered_bytes += span.bytes;
    state.opened(.mrs);
    return &kept.mr;
}

/// Registers a buffer that is given as a descriptor, as a GPU driver exports it.
export fn ibv_reg_dmabuf_mr(
    pd: *layout.Pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: i32,
    rights: i32,
) ?*layout.Mr {
    state.lock.lock();
    defer state.lock.unlock();
    if (state.entered(.ibv_reg_dmabuf_mr)) |code| return failed(*layout.Mr, code);
    if (!state.plan.has_dma_buf) return failed(*layout.Mr, @intFromEnum(linux.E.OPNOTSUPP));
    const size = linux.lseek(fd, 0, linux.SEEK.END);
    if (linux.errno(size) != .SUCCESS) return failed(*layout.Mr, @intFromEnum(linux.E.BADF));
    const is_outside = offset > size or length > size - offset;
    // The address and the buffer offset must have the same offset in a page.
    if (length == 0 or is_outside or offset % page != iova % page) {
        return failed(*layout.Mr, @intFromEnum(linux.E.INVAL));
    }
    if (refusal(pd, length, @bitCast(rights))) |code| return failed(*layout.Mr, code);
    const first = std.mem.alignBackward(u64, offset, page);
    const bytes = offset - first + length;
    const prot: linux.PROT = .{ .READ = true, .WRITE = true };
    const got = linux.mmap(null, bytes, prot, .{ .TYPE = .SHARED }, fd, @intCast(first));
    if (linux.errno(got) != .SUCCESS) return failed(*layout.Mr, @intFromEnum(linux.errno(got)));
    const mapped: [*]align(page) u8 = @ptrFromInt(got);
    return add(pd, .{
        .address = iova,
        .base = got + (offset - first),
        .bytes = length,
        .rights = @bitCast(rights),
        .mapped = mapped[0..bytes],
    }) orelse {
        _ = linux.munmap(mapped, bytes);
        return null;
    };
}

/// Deregisters memory. Returns when no process reads it any more.
export fn ibv_dereg_mr(mr: *layout.Mr) i32 {
    state.lock.lock();
    defer state.lock.unlock();
    if (state.entered(.ibv_dereg_mr)) |code| return code;
    const kept: *Registered = @fieldParentPtr("mr", mr);
    Context.of(mr.context).fabric.remove(kept.entry);
    if (kept.mapped) |mapped| _ = linux.munmap(mapped.ptr, mapped.len);
    Domain.of(mr.pd).children -= 1;
    if (kept.era == state.era) state.registered_bytes -= mr.length;
    state.closed(.mrs, kept.era);
    allocator.destroy(kept);
    return 0;
}
