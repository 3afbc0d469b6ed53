//! Properties of a GPU that can be read without creating a context on it.

const std = @import("std");
const linux = std.os.linux;
const types = @import("../abi/gpu_types.zig");
const cuda = @import("driver.zig");
const Caller = @import("caller.zig").Caller;
const Error = @import("../abi/status.zig").Error;

pub const Identity = struct {
    device: cuda.Device,
    /// The properties reported to the caller, except those that change.
    properties: types.GpuDevice,
    /// False on WSL 2. There a batch copy with host addresses is an illegal access, but single
    /// copies translate these addresses.
    takes_host_pointers: bool,
};

pub fn identify(caller: *Caller, ordinal: c_int) Error!Identity {
    const driver = caller.driver;
    var device: cuda.Device = 0;
    try caller.check(driver.cuDeviceGet(&device, ordinal));
    var properties = std.mem.zeroes(types.GpuDevice);
    var uuid: cuda.Uuid = undefined;
    try caller.check((driver.cuDeviceGetUuid_v2 orelse driver.cuDeviceGetUuid)(&uuid, device));
    properties.uuid = uuid.bytes;
    try caller.check(driver.cuDeviceGetName(&properties.name, properties.name.len, device));
    try caller.check(driver.cuDeviceGetPCIBusId(&properties.pci, properties.pci.len, device));
    for (&properties.pci) |*letter| letter.* = std.ascii.toLower(letter.*);
    var bytes: usize = 0;
    try caller.check(driver.cuDeviceTotalMem_v2(&bytes, device));
    properties.memory_bytes = bytes;
    const major = attribute(driver, .capability_major, device) orelse 0;
    const minor = attribute(driver, .capability_minor, device) orelse 0;
    properties.capability = @intCast(@max(0, major * 10 + minor));
    properties.has_dma_buf = @intFromBool((attribute(driver, .dma_buf, device) orelse 0) > 0);
    properties.numa_node = attribute(driver, .host_numa_node, device) orelse -1;
    // Drivers before 12.2 cannot report the NUMA node; the kernel can.
    if (properties.numa_node < 0) properties.numa_node = numaNodeOf(&properties.pci);
    // Drivers that do not know this attribute always accept host addresses.
    const takes_host_pointers = attribute(driver, .host_pointers, device) != 0;
    return .{ .device = device, .properties = properties, .takes_host_pointers = takes_host_pointers };
}

/// Returns an attribute of the device; null if the driver does not know it.
fn attribute(driver: *const cuda.Driver, which: cuda.Attribute, device: cuda.Device) ?c_int {
    var value: c_int = 0;
    return if (driver.cuDeviceGetAttribute(&value, which, device) == 0) value else null;
}

/// Returns the NUMA node of a PCI device from sysfs; -1 if the kernel does not know it.
fn numaNodeOf(pci: *const [16]u8) i32 {
    const end = std.mem.indexOfScalar(u8, pci, 0) orelse pci.len;
    var path: [64]u8 = undefined;
    const text = std.fmt.bufPrintZ(
        &path,
        "/sys/bus/pci/devices/{s}/numa_node",
        .{pci[0..end]},
    ) catch unreachable;
    const opened = linux.open(text, .{ .CLOEXEC = true }, 0);
    if (linux.errno(opened) != .SUCCESS) return -1;
    const fd: i32 = @intCast(opened);
    defer _ = linux.close(fd);
    var digits: [16]u8 = undefined;
    const count = linux.read(fd, &digits, digits.len);
    if (linux.errno(count) != .SUCCESS) return -1;
    const number = std.mem.trim(u8, digits[0..count], " \n");
    return std.fmt.parseInt(i32, number, 10) catch -1;
}
