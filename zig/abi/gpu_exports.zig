//! The exported functions for GPUs. They hold no logic: each casts, calls and maps the error.

const types = @import("gpu_types.zig");
const gpu_calls = @import("gpu_calls.zig");
const status = @import("status.zig");
const code = status.code;
const codeOrCount = status.codeOrCount;

pub const exports = struct {
    /// Succeeds on every host: `info` reports whether a GPU can be used, and the reason if none
    /// can.
    pub fn hearth_gpus_create(
        request: ?*const types.GpusRequest,
        info: ?*types.GpusInfo,
    ) callconv(.c) i32 {
        return code(gpu_calls.create(request, info));
    }

    pub fn hearth_gpus_device(
        handle: u64,
        index: u32,
        out: ?*types.GpuDevice,
    ) callconv(.c) i32 {
        return code(gpu_calls.device(handle, index, out));
    }

    pub fn hearth_gpus_submit(handle: u64, job: ?*const types.GpuJob) callconv(.c) i32 {
        return code(gpu_calls.submit(handle, job));
    }

    pub fn hearth_gpus_reap(
        handle: u64,
        done: ?[*]types.GpuDone,
        count: u32,
    ) callconv(.c) i32 {
        return codeOrCount(gpu_calls.reap(handle, done, count));
    }

    /// `busy` while a job is in flight or not reaped. Frees and closes all remaining objects.
    pub fn hearth_gpus_close(handle: u64) callconv(.c) i32 {
        return code(gpu_calls.close(handle));
    }
};
