//! The required functions of the CUDA driver, in a table that is filled at run time by exact names.
//! For a function with a `_v2` name, the plain name is an older ABI that this table never uses.
//! `dlsym` finds one ABI for each exact name, whereas `cuGetProcAddress` would choose by version.

const std = @import("std");

/// CUresult; 0 is success.
pub const Result = c_int;
pub const Device = c_int;
pub const Context = *opaque {};
pub const Stream = *opaque {};
pub const Event = *opaque {};
/// CUdeviceptr: an address in GPU memory, which the host cannot access.
pub const Pointer = u64;
/// CUmemGenericAllocationHandle.
pub const Allocation = u64;

pub const Uuid = extern struct { bytes: [16]u8 };
/// Passed to `cuIpcOpenMemHandle_v2` by value.
pub const IpcHandle = extern struct { bytes: [64]u8 };

pub const LocationType = enum(c_int) { invalid = 0, device = 1, host = 2, _ };

pub const Location = extern struct {
    type: LocationType = .invalid,
    id: c_int = 0,
};

/// CUmemcpyAttributes.
pub const CopyAttributes = extern struct {
    /// CU_MEMCPY_SRC_ACCESS_ORDER_STREAM: the source is read in the stream's order.
    source_order: c_int = 1,
    source_hint: Location = .{},
    target_hint: Location = .{},
    flags: c_uint = 0,
};

/// CUmemAllocationProp.
pub const AllocationProperties = extern struct {
    /// CU_MEM_ALLOCATION_TYPE_PINNED.
    type: c_int = 1,
    handle_types: c_int = handle_type_fd,
    location: Location,
    win32_meta_data: ?*anyopaque = null,
    compression: u8 = 0,
    can_be_read_by_nics: u8 = 0,
    usage: c_ushort = 0,
    reserved: [4]u8 = @splat(0),
};

/// CUmemAccessDesc.
pub const Access = extern struct {
    location: Location,
    /// CU_MEM_ACCESS_FLAGS_PROT_READWRITE.
    flags: c_int = 3,
};

comptime {
    std.debug.assert(@sizeOf(CopyAttributes) == 24);
    std.debug.assert(@sizeOf(AllocationProperties) == 32);
    std.debug.assert(@sizeOf(Access) == 12);
}

pub const register_portable: c_uint = 1;
pub const stream_non_blocking: c_uint = 1;
pub const event_without_timing: c_uint = 2;
pub const ipc_lazy_peer_access: c_uint = 1;
pub const handle_type_fd: c_int = 1;
pub const range_dma_buf: c_int = 1;

/// CUdevice_attribute.
pub const Attribute = enum(c_int) {
    capability_major = 75,
    capability_minor = 76,
    /// 1 if registered host memory has the same address for the device as for the host.
    host_pointers = 91,
    gpudirect_with_vmm = 110,
    dma_buf = 124,
    host_numa_node = 134,
};

pub const Driver = struct {
    cuInit: *const fn (flags: c_uint) callconv(.c) Result,
    cuDriverGetVersion: *const fn (version: *c_int) callconv(.c) Result,
    cuDeviceGetCount: *const fn (count: *c_int) callconv(.c) Result,
    cuDeviceGet: *const fn (device: *Device, ordinal: c_int) callconv(.c) Result,
    cuDeviceGetName: *const fn (name: [*]u8, room: c_int, device: Device) callconv(.c) Result,
    cuDeviceGetUuid: *const fn (uuid: *Uuid, device: Device) callconv(.c) Result,
    cuDeviceGetPCIBusId: *const fn (id: [*]u8, room: c_int, device: Device) callconv(.c) Result,
    cuDeviceTotalMem_v2: *const fn (bytes: *usize, device: Device) callconv(.c) Result,
    cuDeviceGetAttribute: *const fn (
        value: *c_int,
        attribute: Attribute,
        device: Device,
    ) callconv(.c) Result,
    cuDevicePrimaryCtxRetain: *const fn (context: *?Context, device: Device) callconv(.c) Result,
    cuDevicePrimaryCtxRelease_v2: *const fn (device: Device) callconv(.c) Result,
    cuDevicePrimaryCtxReset_v2: *const fn (device: Device) callconv(.c) Result,
    cuCtxSetCurrent: *const fn (context: ?Context) callconv(.c) Result,
    cuStreamCreate: *const fn (stream: *?Stream, flags: c_uint) callconv(.c) Result,
    cuStreamDestroy_v2: *const fn (stream: Stream) callconv(.c) Result,
    cuStreamQuery: *const fn (stream: Stream) callconv(.c) Result,
    cuStreamWaitEvent: *const fn (stream: Stream, event: Event, flags: c_uint) callconv(.c) Result,
    cuEventCreate: *const fn (event: *?Event, flags: c_uint) callconv(.c) Result,
    cuEventDestroy_v2: *const fn (event: Event) callconv(.c) Result,
    cuEventRecord: *const fn (event: Event, stream: Stream) callconv(.c) Result,
    cuEventQuery: *const fn (event: Event) callconv(.c) Result,
    cuMemAlloc_v2: *const fn (pointer: *Pointer, bytes: usize) callconv(.c) Result,
    cuMemFree_v2: *const fn (pointer: Pointer) callconv(.c) Result,
    cuMemGetAddressRange_v2: *const fn (
        base: ?*Pointer,
        bytes: ?*usize,
        pointer: Pointer,
    ) callconv(.c) Result,
    cuMemHostRegister_v2: *const fn (
        address: *anyopaque,
        bytes: usize,
        flags: c_uint,
    ) callconv(.c) Result,
    cuMemHostUnregister: *const fn (address: *anyopaque) callconv(.c) Result,
    cuMemcpyHtoDAsync_v2: *const fn (
        to: Pointer,
        from: *const anyopaque,
        bytes: usize,
        stream: Stream,
    ) callconv(.c) Result,
    cuMemcpyDtoHAsync_v2: *const fn (
        to: *anyopaque,
        from: Pointer,
        bytes: usize,
        stream: Stream,
    ) callconv(.c) Result,
    cuIpcGetMemHandle: *const fn (handle: *IpcHandle, pointer: Pointer) callconv(.c) Result,
    cuIpcOpenMemHandle_v2: *const fn (
        pointer: *Pointer,
        handle: IpcHandle,
        flags: c_uint,
    ) callconv(.c) Result,
    cuIpcCloseMemHandle: *const fn (pointer: Pointer) callconv(.c) Result,

    /// Identifies one partition (MIG) of a device; the plain cuDeviceGetUuid does not.
    cuDeviceGetUuid_v2: ?*const fn (uuid: *Uuid, device: Device) callconv(.c) Result = null,
    /// Available since CUDA 12.8. On error `failed` is the index of the rejected copy.
    cuMemcpyBatchAsync: ?*const fn (
        to: [*]Pointer,
        from: [*]Pointer,
        bytes: [*]usize,
        count: usize,
        attributes: [*]CopyAttributes,
        attribute_starts: [*]usize,
        attribute_count: usize,
        failed: *usize,
        stream: Stream,
    ) callconv(.c) Result = null,
    /// Available since CUDA 13.0.
    cuMemcpyBatchAsync_v2: ?*const fn (
        to: [*]Pointer,
        from: [*]Pointer,
        bytes: [*]usize,
        count: usize,
        attributes: [*]CopyAttributes,
        attribute_starts: [*]usize,
        attribute_count: usize,
        stream: Stream,
    ) callconv(.c) Result = null,
    cuMemCreate: ?*const fn (
        allocation: *Allocation,
        bytes: usize,
        properties: *const AllocationProperties,
        flags: c_ulonglong,
    ) callconv(.c) Result = null,
    cuMemRelease: ?*const fn (allocation: Allocation) callconv(.c) Result = null,
    cuMemGetAllocationGranularity: ?*const fn (
        bytes: *usize,
        properties: *const AllocationProperties,
        /// `option` 0 requests the minimum granularity.
        option: c_int,
    ) callconv(.c) Result = null,
    cuMemAddressReserve: ?*const fn (
        pointer: *Pointer,
        bytes: usize,
        alignment: usize,
        address: Pointer,
        flags: c_ulonglong,
    ) callconv(.c) Result = null,
    cuMemAddressFree: ?*const fn (pointer: Pointer, bytes: usize) callconv(.c) Result = null,
    cuMemMap: ?*const fn (
        pointer: Pointer,
        bytes: usize,
        offset: usize,
        allocation: Allocation,
        flags: c_ulonglong,
    ) callconv(.c) Result = null,
    cuMemUnmap: ?*const fn (pointer: Pointer, bytes: usize) callconv(.c) Result = null,
    cuMemSetAccess: ?*const fn (
        pointer: Pointer,
        bytes: usize,
        access: *const Access,
        count: usize,
    ) callconv(.c) Result = null,
    /// `handle` is the address at which the driver stores the descriptor.
    cuMemExportToShareableHandle: ?*const fn (
        handle: *anyopaque,
        allocation: Allocation,
        handle_type: c_int,
        flags: c_ulonglong,
    ) callconv(.c) Result = null,
    /// `handle` is the descriptor number itself, cast to a pointer.
    cuMemImportFromShareableHandle: ?*const fn (
        allocation: *Allocation,
        handle: ?*anyopaque,
        handle_type: c_int,
    ) callconv(.c) Result = null,
    cuMemGetHandleForAddressRange: ?*const fn (
        handle: *anyopaque,
        pointer: Pointer,
        bytes: usize,
        handle_type: c_int,
        flags: c_ulonglong,
    ) callconv(.c) Result = null,

    pub const Found = union(enum) {
        driver: Driver,
        no_library,
        /// Name of the required function that the library lacks.
        lacks: [:0]const u8,
    };

    /// Opens the library and never closes it, because threads of the driver keep running its code.
    pub fn open(path: [*:0]const u8) Found {
        const library = std.c.dlopen(path, .{ .NOW = true }) orelse return .no_library;
        var driver: Driver = undefined;
        inline for (@typeInfo(Driver).@"struct".fields) |field| {
            const is_optional = @typeInfo(field.type) == .optional;
            const symbol = std.c.dlsym(library, field.name);
            if (is_optional) {
                @field(driver, field.name) = @ptrCast(@alignCast(symbol));
            } else {
                const address = symbol orelse return .{ .lacks = field.name };
                @field(driver, field.name) = @ptrCast(@alignCast(address));
            }
        }
        return .{ .driver = driver };
    }

    /// Returns whether the driver can copy many pieces in one call.
    pub fn hasBatches(driver: *const Driver) bool {
        return driver.cuMemcpyBatchAsync != null or driver.cuMemcpyBatchAsync_v2 != null;
    }
};
