//! The exported functions for GPUs. They contain no logic: each converts its arguments, calls a
//! function of gpu_calls.zig and maps the error to a status.

const types = @import("gpu_types.zig");
const gpu_calls = @import("gpu_calls.zig");
const status = @import("status.zig");
const code = status.code;
const codeOrCount = status.codeOrCount;

pub const exports = struct {
    /// Opens the host's GPUs. Succeeds on every host: `info` reports whether a GPU can be used, and
    /// the reason if none can.
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

    /// Frees and closes everything. Returns `busy` while a job is in progress or its completion is
    /// not reaped.
    pub fn hearth_gpus_close(handle: u64) callconv(.c) i32 {
        return code(gpu_calls.close(handle));
    }
};
