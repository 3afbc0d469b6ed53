//! Parameter types of the CUDA driver's functions, in the layout of its public interface.

pub const Pointer = u64;
pub const Handle = ?*anyopaque;

pub const IpcHandle = extern struct { bytes: [64]u8 };

pub const Location = extern struct { kind: u32, id: i32 };

/// CUmemAllocationProp.
pub const Property = extern struct {
    kind: u32,
    handle_types: u32,
    location: Location,
    windows_data: Handle,
    compression: u8,
    gpu_direct: u8,
    usage: u16,
    reserved: [4]u8,
};

/// CUmemAccessDesc.
pub const Access = extern struct { location: Location, flags: u32 };

/// CUmemcpyAttributes.
pub const CopyAttributes = extern struct {
    source_order: u32,
    source: Location,
    destination: Location,
    flags: u32,
};

pub const HostFunction = *const fn (data: ?*anyopaque) callconv(.c) void;
pub const Callback = *const fn (stream: Handle, code: i32, data: ?*anyopaque) callconv(.c) void;

comptime {
    const assert = @import("std").debug.assert;
    assert(@sizeOf(IpcHandle) == 64);
    assert(@sizeOf(Property) == 32);
    assert(@sizeOf(Access) == 12);
    assert(@sizeOf(CopyAttributes) == 24);
}
