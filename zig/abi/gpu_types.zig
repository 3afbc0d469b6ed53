//! Types of the boundary for GPUs.

/// Whether CUDA can be used on this host.
pub const GpuState = enum(u32) {
    ready = 0,
    /// libcuda.so.1 does not exist.
    no_library = 1,
    /// The driver runs and finds no device (CUDA_ERROR_NO_DEVICE).
    no_device = 2,
    /// The device exists but its driver does not work (CUDA_ERROR_SYSTEM_NOT_READY, or not loaded).
    not_ready = 3,
    /// The library lacks a required function.
    too_old = 4,
    /// Any other error of the driver.
    failed = 5,
};

pub const GpuOperation = enum(u32) {
    /// Registers `bytes` of the region at `offset` with the driver, for all devices.
    register = 0,
    /// Opens the allocation behind the IPC handle (64 bytes at `buffer`); `result` is its id.
    /// Repeated imports of one handle open it once.
    import_ipc = 1,
    /// Maps an allocation of `bytes` from the descriptor `fd`, which is closed in any case.
    import_fd = 2,
    /// Allocates `bytes` of memory on `device`; with `flags` 1 it can be exported as a descriptor.
    allocate = 3,
    /// Frees `memory`, or closes it if it was imported.
    free = 4,
    /// Copies `count` pieces (`GpuPiece` at `buffer`) from the region to `memory`.
    to_gpu = 5,
    /// Copies `count` pieces from `memory` to the region.
    from_gpu = 6,
    /// Writes the IPC handle of `memory` to `buffer` (64 bytes, valid until the completion);
    /// `result` is the offset of `memory` in its allocation.
    export_ipc = 7,
    /// `result` is a descriptor of `memory`, which must have been allocated with `flags` 1.
    export_fd = 8,
    /// `result` is a dma-buf of `bytes` of `memory` at `offset`, both multiples of 65,536.
    export_dma_buf = 9,
    /// The last job of `device`: waits for copies under way, then frees everything on the device.
    end = 10,
};

pub const GpusRequest = extern struct {
    /// The arena that copies read and write; it cannot close before the GPUs. 0: none.
    region: u64,
    /// Address of the library's path, terminated by a zero byte; 0 for libcuda.so.1.
    library: u64,
    /// Largest number of jobs that are not reaped.
    jobs: u32,
    /// Largest number of pieces of all these jobs.
    pieces: u32,
    /// A device that completes nothing for this time is given up as lost.
    give_up_ms: u32,
    reserved: u32,
};

pub const GpusInfo = extern struct {
    /// 0 unless the state is `ready`.
    handle: u64,
    event_fd: i32,
    /// A `GpuState`.
    state: u32,
    devices: u32,
    /// The result of cuDriverGetVersion: 12080 is 12.8. 0: unknown.
    driver_version: u32,
    /// The CUresult behind the state, or 0.
    code: i32,
    /// 1: one call copies many pieces (cuMemcpyBatchAsync).
    has_batches: u32,
};

pub const GpuDevice = extern struct {
    uuid: [16]u8,
    /// Terminated by a zero byte.
    name: [64]u8,
    /// The address, such as `0000:3b:00.0`, terminated by a zero byte.
    pci: [16]u8,
    memory_bytes: u64,
    /// -1: unknown to the driver.
    numa_node: i32,
    /// Compute capability, 90 for 9.0.
    capability: u32,
    /// 1: its memory can be exported as a dma-buf.
    has_dma_buf: u32,
    /// 0, or the CUresult with which the device was lost: it stays unusable until the process ends.
    lost: i32,
    /// Copies that were not asynchronous because their host memory is not registered.
    pageable_copies: u64,
};

pub const GpuPiece = extern struct {
    region_offset: u64,
    memory_offset: u64,
    bytes: u64,
};

/// A job for a device. Jobs that name the same memory run in the order of submission.
pub const GpuJob = extern struct {
    token: u64,
    memory: u64,
    buffer: u64,
    offset: u64,
    bytes: u64,
    count: u32,
    /// A `GpuOperation`.
    operation: u32,
    device: u32,
    fd: i32,
    flags: u32,
    reserved: u32,
};

pub const GpuDone = extern struct {
    token: u64,
    /// With the status `lost`, 1 means that the device could not be stopped and may touch the job's
    /// memory until this process ends.
    result: u64,
    /// Zero or a `Status`; `lost` if the device is lost.
    status: i32,
    /// The CUresult behind the status, or 0.
    code: i32,
};

pub const enums = .{
    .{ .name = "GPU_STATE", .type = GpuState },
    .{ .name = "GPU_OPERATION", .type = GpuOperation },
};

pub const all = .{ GpusRequest, GpusInfo, GpuDevice, GpuPiece, GpuJob, GpuDone };
