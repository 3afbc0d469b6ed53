//! Memory of one GPU that copies may use: allocated here, or imported from other processes. Only
//! the device's own thread uses this table.

const std = @import("std");
const linux = std.os.linux;
const errno = @import("../base/errno.zig");
const cuda = @import("driver.zig");
const Caller = @import("caller.zig").Caller;
const Error = @import("../abi/status.zig").Error;

pub const memories_max = 4096;
pub const devices_max = 256;
const slot_bits = 12;
const device_bits = 8;
/// Granularity in bytes at which every known device maps memory.
const granularity_bytes = 2 * 1024 * 1024;

const Kind = enum { none, allocated, ipc, mapped };

pub const Memory = struct {
    kind: Kind = .none,
    pointer: cuda.Pointer = 0,
    bytes: u64 = 0,
    /// Bytes of the reserved address range; only for kind `mapped`.
    mapped_bytes: u64 = 0,
    /// The allocation to export, or 0 if it was imported; only for kind `mapped`.
    allocation: cuda.Allocation = 0,
    /// The imported IPC handle; only for kind `ipc`.
    handle: cuda.IpcHandle = .{ .bytes = @splat(0) },
    /// Number of imports of this memory that are not yet freed.
    uses: u32 = 0,
    /// Number of copies in progress from or to this memory.
    copies: u32 = 0,
    generation: u32 = 0,

    pub fn holds(memory: *const Memory, offset: u64, bytes: u64) bool {
        return offset <= memory.bytes and bytes <= memory.bytes - offset;
    }
};

/// Returns the index of the device that owns the memory with this id.
pub fn deviceOf(id: u64) u32 {
    return @intCast((id >> slot_bits) & (devices_max - 1));
}

pub const Memories = struct {
    caller: *Caller,
    device: u32,
    ordinal: c_int,
    items: []Memory,

    pub fn find(memories: *Memories, id: u64) Error!*Memory {
        const memory = &memories.items[id & (memories_max - 1)];
        if (deviceOf(id) != memories.device) return error.StaleHandle;
        if (memory.kind == .none) return error.StaleHandle;
        if (memory.generation != id >> (slot_bits + device_bits)) return error.StaleHandle;
        return memory;
    }

    fn idOf(memories: *Memories, memory: *const Memory) u64 {
        const slot = memory - memories.items.ptr;
        const low = (@as(u64, memories.device) << slot_bits) | slot;
        return (@as(u64, memory.generation) << (slot_bits + device_bits)) | low;
    }

    /// Stores a memory in a free element of the table and returns its id. The caller has found the
    /// free element.
    fn keep(memories: *Memories, place: *Memory, memory: Memory) u64 {
        const generation = place.generation + 1;
        place.* = memory;
        place.generation = generation;
        place.uses = 1;
        return memories.idOf(place);
    }

    fn takePlace(memories: *Memories) Error!*Memory {
        for (memories.items) |*memory| if (memory.kind == .none) return memory;
        return error.Full;
    }

    pub fn allocate(memories: *Memories, bytes: u64, is_exportable: bool) Error!u64 {
        if (bytes == 0) return error.BadRequest;
        const place = try memories.takePlace();
        if (is_exportable) return memories.allocateExportable(place, bytes);
        const caller = memories.caller;
        var pointer: cuda.Pointer = 0;
        try caller.check(caller.driver.cuMemAlloc_v2(&pointer, bytes));
        return memories.keep(place, .{ .kind = .allocated, .pointer = pointer, .bytes = bytes });
    }

    fn allocateExportable(memories: *Memories, place: *Memory, bytes: u64) Error!u64 {
        const caller = memories.caller;
        const create = try caller.need(caller.driver.cuMemCreate);
        const release = try caller.need(caller.driver.cuMemRelease);
        const mapped_bytes = try memories.aligned(bytes);
        var properties = memories.propertiesOf();
        properties.can_be_read_by_nics = @intFromBool(memories.canBeReadByNics());
        var allocation: cuda.Allocation = 0;
        try caller.check(create(&allocation, mapped_bytes, &properties, 0));
        errdefer caller.ignore(release(allocation));
        const pointer = try memories.map(allocation, mapped_bytes);
        return memories.keep(place, .{
            .kind = .mapped,
            .pointer = pointer,
            .bytes = bytes,
            .mapped_bytes = mapped_bytes,
            .allocation = allocation,
        });
    }

    fn propertiesOf(memories: *const Memories) cuda.AllocationProperties {
        return .{ .location = .{ .type = .device, .id = memories.ordinal } };
    }

    fn canBeReadByNics(memories: *Memories) bool {
        var value: c_int = 0;
        const get = memories.caller.driver.cuDeviceGetAttribute;
        return get(&value, .gpudirect_with_vmm, memories.ordinal) == 0 and value != 0;
    }

    fn aligned(memories: *Memories, bytes: u64) Error!u64 {
        if (bytes == 0 or bytes > std.math.maxInt(i64)) return error.BadRequest;
        var granularity: usize = granularity_bytes;
        if (memories.caller.driver.cuMemGetAllocationGranularity) |get| {
            const properties = memories.propertiesOf();
            try memories.caller.check(get(&granularity, &properties, 0));
        }
        return std.mem.alignForward(u64, bytes, @max(granularity, 1));
    }

    fn map(memories: *Memories, allocation: cuda.Allocation, bytes: u64) Error!cuda.Pointer {
        const caller = memories.caller;
        const reserve = try caller.need(caller.driver.cuMemAddressReserve);
        const unreserve = try caller.need(caller.driver.cuMemAddressFree);
        const mapAt = try caller.need(caller.driver.cuMemMap);
        const unmap = try caller.need(caller.driver.cuMemUnmap);
        const setAccess = try caller.need(caller.driver.cuMemSetAccess);
        var pointer: cuda.Pointer = 0;
        try caller.check(reserve(&pointer, bytes, 0, 0, 0));
        errdefer _ = unreserve(pointer, bytes);
        try caller.check(mapAt(pointer, bytes, 0, allocation, 0));
        errdefer _ = unmap(pointer, bytes);
        const access: cuda.Access = .{ .location = memories.propertiesOf().location };
        try caller.check(setAccess(pointer, bytes, &access, 1));
        return pointer;
    }

    /// Imports the memory of an IPC handle and returns its id. A handle that is already open is not
    /// opened again.
    pub fn importIpc(memories: *Memories, handle: cuda.IpcHandle, bytes: u64) Error!u64 {
        for (memories.items) |*memory| {
            if (memory.kind != .ipc) continue;
            if (!std.mem.eql(u8, &memory.handle.bytes, &handle.bytes)) continue;
            if (bytes > memory.bytes) return error.OutOfRange;
            memory.uses += 1;
            return memories.idOf(memory);
        }
        const place = try memories.takePlace();
        const caller = memories.caller;
        var pointer: cuda.Pointer = 0;
        const open = caller.driver.cuIpcOpenMemHandle_v2;
        try caller.check(open(&pointer, handle, cuda.ipc_lazy_peer_access));
        errdefer _ = caller.driver.cuIpcCloseMemHandle(pointer);
        // The exporting process may state a wrong size; no access may go beyond the allocation.
        const room = try memories.roomAt(pointer);
        if (bytes > room) return error.OutOfRange;
        const memory: Memory =
            .{ .kind = .ipc, .pointer = pointer, .bytes = room, .handle = handle };
        return memories.keep(place, memory);
    }

    fn roomAt(memories: *Memories, pointer: cuda.Pointer) Error!u64 {
        const caller = memories.caller;
        var base: cuda.Pointer = 0;
        var bytes: usize = 0;
        try caller.check(caller.driver.cuMemGetAddressRange_v2(&base, &bytes, pointer));
        return base + bytes - pointer;
    }

    /// Imports the memory of a descriptor, which the caller still owns, and returns its id.
    pub fn importFd(memories: *Memories, fd: i32, bytes: u64) Error!u64 {
        if (fd < 0) return error.BadRequest;
        const place = try memories.takePlace();
        const caller = memories.caller;
        const import = try caller.need(caller.driver.cuMemImportFromShareableHandle);
        const release = try caller.need(caller.driver.cuMemRelease);
        const mapped_bytes = try memories.aligned(bytes);
        var allocation: cuda.Allocation = 0;
        const handle: ?*anyopaque = @ptrFromInt(@as(usize, @intCast(fd)));
        try caller.check(import(&allocation, handle, cuda.handle_type_fd));
        // The mapping keeps the allocation alive.
        defer caller.ignore(release(allocation));
        const pointer = try memories.map(allocation, mapped_bytes);
        return memories.keep(place, .{
            .kind = .mapped,
            .pointer = pointer,
            .bytes = bytes,
            .mapped_bytes = mapped_bytes,
        });
    }

    /// Frees one import or allocation of the memory; the last one closes it. No copy may be in
    /// progress.
    pub fn free(memories: *Memories, memory: *Memory) Error!void {
        std.debug.assert(memory.copies == 0 and memory.uses > 0);
        memory.uses -= 1;
        if (memory.uses > 0) return;
        const was = memory.*;
        memory.kind = .none;
        const caller = memories.caller;
        const driver = caller.driver;
        switch (was.kind) {
            .none => unreachable,
            .allocated => try caller.check(driver.cuMemFree_v2(was.pointer)),
            .ipc => try caller.check(driver.cuIpcCloseMemHandle(was.pointer)),
            .mapped => {
                try caller.check(driver.cuMemUnmap.?(was.pointer, was.mapped_bytes));
                try caller.check(driver.cuMemAddressFree.?(was.pointer, was.mapped_bytes));
                if (was.allocation == 0) return;
                try caller.check(driver.cuMemRelease.?(was.allocation));
            },
        }
    }

    /// Frees all memory. If the driver refuses to free a memory, it stays allocated.
    pub fn freeAll(memories: *Memories) Error!void {
        for (memories.items) |*memory| {
            if (memory.kind == .none) continue;
            memory.uses = 1;
            memories.free(memory) catch |err| if (err == error.Lost) return err;
        }
    }

    /// Empties the table after the context, and with it all memory, was destroyed.
    pub fn forgetAll(memories: *Memories) void {
        for (memories.items) |*memory| {
            memory.kind = .none;
            memory.copies = 0;
        }
    }

    /// Writes the IPC handle of the memory's allocation and returns the offset of the memory in it.
    pub fn exportIpc(memories: *Memories, memory: *const Memory, out: *cuda.IpcHandle) Error!u64 {
        const caller = memories.caller;
        var base: cuda.Pointer = 0;
        const range = caller.driver.cuMemGetAddressRange_v2;
        try caller.check(range(&base, null, memory.pointer));
        // The handle covers the whole allocation. Drivers may refuse addresses other than its base.
        try caller.check(caller.driver.cuIpcGetMemHandle(out, base));
        return memory.pointer - base;
    }

    pub fn exportFd(memories: *Memories, memory: *const Memory) Error!u64 {
        if (memory.kind != .mapped or memory.allocation == 0) return error.BadRequest;
        const caller = memories.caller;
        const exportTo = try caller.need(caller.driver.cuMemExportToShareableHandle);
        var fd: c_int = -1;
        try caller.check(exportTo(&fd, memory.allocation, cuda.handle_type_fd, 0));
        return closedOnExec(fd);
    }

    pub fn exportDmaBuf(
        memories: *Memories,
        memory: *const Memory,
        offset: u64,
        bytes: u64,
    ) Error!u64 {
        const page_bytes = 65_536;
        if (offset % page_bytes != 0 or bytes % page_bytes != 0) return error.BadRequest;
        if (bytes == 0 or !memory.holds(offset, bytes)) return error.OutOfRange;
        const caller = memories.caller;
        const get = try caller.need(caller.driver.cuMemGetHandleForAddressRange);
        var fd: c_int = -1;
        const pointer = memory.pointer + offset;
        try caller.check(get(&fd, pointer, bytes, cuda.range_dma_buf, 0));
        return closedOnExec(fd);
    }
};

fn closedOnExec(fd: c_int) Error!u64 {
    errdefer _ = linux.close(fd);
    _ = try errno.check(linux.fcntl(fd, linux.F.SETFD, linux.FD_CLOEXEC));
    return @intCast(fd);
}
