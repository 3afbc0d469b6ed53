//! What crosses the boundary about GPUs.

/// Whether CUDA can be used on this host.
pub const GpuState = enum(u32) {
    ready = 0,
    /// There is no libcuda.so.1.
    no_library = 1,
    /// The driver is there and sees no device (CUDA_ERROR_NO_DEVICE).
    no_device = 2,
    /// The device is there and its driver is not (CUDA_ERROR_SYSTEM_NOT_READY, or none loaded).
    not_ready = 3,
    /// The library lacks a call that is needed.
    too_old = 4,
    /// Any other answer of the driver.
    failed = 5,
};

pub const GpuOperation = enum(u32) {
    /// Registers `bytes` of the region at `offset` with the driver, for all devices.
    register = 0,
    /// Opens the allocation behind the IPC handle (64 bytes at `buffer`); `result` names it. One
    /// handle is opened once, however often it is imported.
    import_ipc = 1,
    /// Maps an allocation of `bytes` that came as the descriptor `fd`, which is closed whatever
    /// comes of it.
    import_fd = 2,
    /// `bytes` of memory of `device`; with `flags` 1 so that it can be exported as a descriptor.
    allocate = 3,
    /// Gives `memory` back, or closes it where it was imported.
    free = 4,
    /// Copies `count` pieces (`GpuPiece` at `buffer`) from the region to `memory`.
    to_gpu = 5,
    /// The other way round.
    from_gpu = 6,
    /// Writes the IPC handle of `memory` to `buffer` (64 bytes, there until the completion);
    /// `result` is where `memory` begins in its allocation.
    export_ipc = 7,
    /// `result` is a descriptor of `memory`, which was allocated for that.
    export_fd = 8,
    /// `result` is a dma-buf of `bytes` of `memory` at `offset`, both multiples of 65,536.
    export_dma_buf = 9,
    /// The last job of `device`: frees what is left of it, copies under way first.
    end = 10,
};

pub const GpusRequest = extern struct {
    /// The arena that copies go to and come from; it cannot close before. 0: none.
    region: u64,
    /// Address of the library's path, ended by a zero byte; 0 for libcuda.so.1.
    library: u64,
    /// Jobs that are not reaped, at most.
    jobs: u32,
    /// Pieces of all of them, at most.
    pieces: u32,
    /// A device that has brought nothing to an end for so long is given up as lost.
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
    /// As cuDriverGetVersion says it: 12080 is 12.8. 0: unknown.
    driver_version: u32,
    /// The CUresult behind the state, or 0.
    code: i32,
    /// Copies of many pieces are one call (cuMemcpyBatchAsync).
    has_batches: u32,
};

pub const GpuDevice = extern struct {
    uuid: [16]u8,
    /// Ends at the first zero byte.
    name: [64]u8,
    /// As in `0000:3b:00.0`, ends at the first zero byte.
    pci: [16]u8,
    memory_bytes: u64,
    /// -1: the driver does not know it.
    numa_node: i32,
    /// Compute capability, 90 for 9.0.
    capability: u32,
    /// 1: its memory can be exported as a dma-buf.
    has_dma_buf: u32,
    /// 0, or the CUresult with which it was lost: nothing of it works until the process ends.
    lost: i32,
    /// Copies that were not asynchronous, since their memory of the host is not registered.
    pageable_copies: u64,
};

pub const GpuPiece = extern struct {
    region_offset: u64,
    memory_offset: u64,
    bytes: u64,
};

/// Work for the devices. Jobs that name the same memory run in the order in which they came.
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
    /// With the status `lost` 1 where the device may touch what the job names until this process
    /// ends: it could not be stopped.
    result: u64,
    /// Zero or a `Status`; `lost` where the device is.
    status: i32,
    /// The CUresult behind it, or 0.
    code: i32,
};

pub const enums = .{
    .{ .name = "GPU_STATE", .type = GpuState },
    .{ .name = "GPU_OPERATION", .type = GpuOperation },
};

pub const all = .{ GpusRequest, GpusInfo, GpuDevice, GpuPiece, GpuJob, GpuDone };
