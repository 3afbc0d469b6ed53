//! Types of the library's C interface for GPUs.

/// Whether CUDA can be used on this host, or the reason if it cannot.
pub const GpuState = enum(u32) {
    ready = 0,
    /// libcuda.so.1 does not exist.
    no_library = 1,
    /// The driver works but finds no GPU (CUDA_ERROR_NO_DEVICE).
    no_device = 2,
    /// A GPU exists but its driver does not work (CUDA_ERROR_SYSTEM_NOT_READY) or is not loaded.
    not_ready = 3,
    /// libcuda.so.1 lacks a required function.
    too_old = 4,
    /// The driver returned another error.
    failed = 5,
};

pub const GpuOperation = enum(u32) {
    /// Registers `bytes` of the region at `offset` with the driver, for all devices.
    register = 0,
    /// Opens the GPU allocation of the IPC handle (64 bytes at `buffer`); `result` is the memory's
    /// id. Repeated imports of one handle open it once.
    import_ipc = 1,
    /// Maps the GPU allocation of `bytes` bytes behind the descriptor `fd`. The library closes `fd`
    /// even if the job fails.
    import_fd = 2,
    /// Allocates `bytes` bytes of GPU memory on `device`; `flags` 1 makes it exportable as a
    /// descriptor.
    allocate = 3,
    /// Frees `memory`, or closes it if it was imported.
    free = 4,
    /// Copies `count` pieces (an array of `GpuPiece` at `buffer`) from the region to `memory`.
    to_gpu = 5,
    /// Copies `count` pieces from `memory` to the region.
    from_gpu = 6,
    /// Writes the IPC handle of `memory` to `buffer` (64 bytes, valid until the completion);
    /// `result` is the offset of `memory` in its allocation.
    export_ipc = 7,
    /// Exports `memory`, allocated with `flags` 1, as a file descriptor, which is the `result`.
    export_fd = 8,
    /// Exports `bytes` bytes of `memory` at `offset` as a dma-buf, whose descriptor is the
    /// `result`. Both are multiples of 65,536.
    export_dma_buf = 9,
    /// The last job of `device`: waits for the copies in progress, then frees everything on the
    /// device.
    end = 10,
};

pub const GpusRequest = extern struct {
    /// Handle of the region (arena) that copies read and write; it cannot close before the GPUs. 0:
    /// none.
    region: u64,
    /// Address of the path of the CUDA library, terminated by a zero byte; 0 for libcuda.so.1.
    library: u64,
    /// Largest number of jobs whose completions are not reaped.
    jobs: u32,
    /// Largest total number of pieces of the jobs in progress.
    pieces: u32,
    /// Milliseconds without any completed copy or call after which a busy device counts as lost.
    give_up_ms: u32,
    reserved: u32,
};

pub const GpusInfo = extern struct {
    /// Handle of the GPUs; 0 unless the state is `ready`.
    handle: u64,
    event_fd: i32,
    /// A `GpuState` as a number.
    state: u32,
    devices: u32,
    /// The value of cuDriverGetVersion: 12080 means 12.8. 0: unknown.
    driver_version: u32,
    /// The CUresult that caused the state; 0 if there is none.
    code: i32,
    /// 1 if one driver call copies many pieces (cuMemcpyBatchAsync), else 0.
    has_batches: u32,
};

pub const GpuDevice = extern struct {
    uuid: [16]u8,
    /// Name of the device, terminated by a zero byte.
    name: [64]u8,
    /// PCI address of the device, such as `0000:3b:00.0`, terminated by a zero byte.
    pci: [16]u8,
    memory_bytes: u64,
    /// NUMA node of the device; -1 if unknown.
    numa_node: i32,
    /// Compute capability: 90 for 9.0.
    capability: u32,
    /// 1 if the device's memory can be exported as a dma-buf, else 0.
    has_dma_buf: u32,
    /// 0, or the CUresult with which the device was lost. A lost device stays unusable until the
    /// process ends.
    lost: i32,
    /// Number of copies that blocked the device's thread because their host memory is not
    /// registered.
    pageable_copies: u64,
};

pub const GpuPiece = extern struct {
    region_offset: u64,
    memory_offset: u64,
    bytes: u64,
};

/// A job for a device. Jobs on the same memory run in the order of submission.
pub const GpuJob = extern struct {
    token: u64,
    memory: u64,
    buffer: u64,
    offset: u64,
    bytes: u64,
    count: u32,
    /// A `GpuOperation` as a number.
    operation: u32,
    device: u32,
    fd: i32,
    flags: u32,
    reserved: u32,
};

pub const GpuDone = extern struct {
    token: u64,
    /// Result of the operation. With the status `lost`, 1 means that the device could not be
    /// stopped and may access the job's memory until this process ends.
    result: u64,
    /// 0 or a `Status`; `lost` if the device is lost.
    status: i32,
    /// The CUresult that caused the status; 0 if there is none.
    code: i32,
};

pub const enums = .{
    .{ .name = "GPU_STATE", .type = GpuState },
    .{ .name = "GPU_OPERATION", .type = GpuOperation },
};

pub const all = .{ GpusRequest, GpusInfo, GpuDevice, GpuPiece, GpuJob, GpuDone };
