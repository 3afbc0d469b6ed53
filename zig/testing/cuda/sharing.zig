//! The stand-in's functions that give other processes or devices access to memory: IPC handles,
//! descriptors and dma-bufs. An IPC handle contains the process id and the memory's descriptor
//! number; importing it opens that descriptor through /proc.

const std = @import("std");
const linux = std.os.linux;
const gate = @import("gate.zig");
const memory = @import("memory.zig");
const state = @import("state.zig");
const types = @import("types.zig");
const Fault = @import("codes.zig").Fault;
const Pointer = types.Pointer;

const magic = 0x5354414e44494e31;
const lazy_peer_access = 1;

/// Content of the 64 bytes of an IPC handle.
const Ticket = extern struct {
    magic: u64,
    pid: i32,
    fd: i32,
    inode: u64,
    bytes: u64,
    allocation_bytes: u64,
    device: u64,
    reserved: [2]u64 = @splat(0),
};

fn ipcHandle(out: ?*types.IpcHandle, address: Pointer) Fault!void {
    const to = out orelse return error.InvalidValue;
    if (!state.plan.has_ipc) return error.NotSupported;
    const range = memory.find(address) orelse return error.InvalidValue;
    // Mapped memory and memory of another process cannot be exported by an IPC handle.
    if (range.kind != .allocated) return error.InvalidValue;
    // Some drivers accept any address in the allocation; only the base address is documented.
    if (range.address != address) return error.InvalidValue;
    const ticket: Ticket = .{
        .magic = magic,
        .pid = linux.getpid(),
        .fd = range.physical.fd,
        .inode = try memory.inodeOf(range.physical.fd),
        .bytes = range.bytes,
        .allocation_bytes = range.physical.bytes,
        .device = range.device.index,
    };
    to.bytes = std.mem.toBytes(ticket);
}

fn openIpc(out: ?*Pointer, handle: types.IpcHandle, flags: u32) Fault!void {
    const to = out orelse return error.InvalidValue;
    if (!state.plan.has_ipc) return error.NotSupported;
    if (flags != lazy_peer_access) return error.InvalidValue;
    const ticket = std.mem.bytesToValue(Ticket, &handle.bytes);
    if (ticket.magic != magic) return error.InvalidHandle;
    if (ticket.pid == linux.getpid()) return error.InvalidContext;
    const device = state.currentDevice();
    for (memory.ranges.items) |range| {
        if (range.kind != .opened or range.inode != ticket.inode) continue;
        if (range.device != device) continue;
        range.opens += 1;
        to.* = range.address;
        return;
    }
    const fd = try reopen(ticket.pid, ticket.fd);
    errdefer _ = linux.close(fd);
    const size = memory.sizeOfOurs(fd) catch return error.InvalidHandle;
    const is_same = size == ticket.allocation_bytes and try memory.inodeOf(fd) == ticket.inode;
    if (!is_same) return error.InvalidHandle;
    const address = try memory.reserve(ticket.bytes);
    const physical = try memory.adopt(device, fd, size);
    _ = memory.addRange(.{
        .address = address,
        .bytes = ticket.bytes,
        .physical = physical,
        .kind = .opened,
        .device = device,
        .inode = ticket.inode,
    }) catch |fault| {
        // The caller receives the error and closes the descriptor.
        _ = linux.munmap(physical.shadow, physical.bytes);
        state.allocator.destroy(physical);
        return fault;
    };
    state.count("open.imports", 1);
    to.* = address;
}

fn reopen(pid: i32, fd: i32) Fault!i32 {
    var path: [64]u8 = undefined;
    const text = std.fmt.bufPrintZ(&path, "/proc/{d}/fd/{d}", .{ pid, fd }) catch {
        return error.InvalidHandle;
    };
    const got = linux.open(text, .{ .ACCMODE = .RDWR, .CLOEXEC = true }, 0);
    if (linux.errno(got) != .SUCCESS) return error.InvalidHandle;
    return @intCast(got);
}

fn closeIpc(address: Pointer) Fault!void {
    const range = memory.find(address) orelse return error.InvalidValue;
    if (range.kind != .opened or range.address != address) return error.InvalidValue;
    range.opens -= 1;
    if (range.opens > 0) return;
    memory.removeRange(range);
    state.count("open.imports", -1);
}

/// Returns a dma-buf descriptor. Its file position is set to the offset of the range, for the verbs
/// stand-in, which uses the file as a dma-buf.
fn rangeHandle(out: ?*anyopaque, address: Pointer, bytes: usize, kind: u32, flags: u64) Fault!void {
    const to: *align(1) i32 = @ptrCast(out orelse return error.InvalidValue);
    if (!state.plan.has_dma_buf) return error.NotSupported;
    if (kind != 1 or flags > 1 or bytes == 0) return error.InvalidValue;
    if ((address | bytes) % memory.page_bytes != 0) return error.InvalidValue;
    const range = memory.find(address) orelse return error.InvalidValue;
    const start = address - range.address;
    if (start + bytes > range.physical.bytes) return error.InvalidValue;
    const fd = try reopen(linux.getpid(), range.physical.fd);
    _ = try memory.checked(linux.lseek(fd, @intCast(start), linux.SEEK.SET));
    to.* = fd;
}

pub const entries = struct {
    pub fn cuIpcGetMemHandle(out: ?*types.IpcHandle, address: Pointer) callconv(.c) i32 {
        return gate.call("cuIpcGetMemHandle", .context, ipcHandle, .{ out, address });
    }

    pub fn cuIpcOpenMemHandle_v2(
        out: ?*Pointer,
        handle: types.IpcHandle,
        flags: u32,
    ) callconv(.c) i32 {
        return gate.call("cuIpcOpenMemHandle_v2", .context, openIpc, .{ out, handle, flags });
    }

    pub fn cuIpcCloseMemHandle(address: Pointer) callconv(.c) i32 {
        return gate.call("cuIpcCloseMemHandle", .context, closeIpc, .{address});
    }

    pub fn cuMemGetHandleForAddressRange(
        out: ?*anyopaque,
        address: Pointer,
        bytes: usize,
        kind: u32,
        flags: u64,
    ) callconv(.c) i32 {
        const args = .{ out, address, bytes, kind, flags };
        return gate.call("cuMemGetHandleForAddressRange", .context, rangeHandle, args);
    }
};
