//! libhearth: the native library that moves, hashes and checks block bytes for TypeScript.

const std = @import("std");
const sets = @import("abi/export_sets.zig").sets;

comptime {
    for (sets) |exports| {
        for (@typeInfo(exports).@"struct".decls) |decl| {
            @export(&@field(exports, decl.name), .{ .name = decl.name });
        }
    }
}

test {
    _ = @import("abi/status.zig");
    _ = @import("base/faults.zig");
    _ = @import("base/fifo.zig");
    _ = @import("base/handles.zig");
    _ = @import("gpu/gpus.zig");
    _ = @import("gpu/runs.zig");
    _ = @import("hash/root.zig");
    _ = @import("io/queue.zig");
    _ = @import("mem/root.zig");
    _ = @import("net/silent.zig");
    _ = @import("net/tune.zig");
    _ = @import("net/plain.zig");
    _ = @import("net/records.zig");
    _ = @import("net/sockets.zig");
    _ = @import("net/unix.zig");
    _ = @import("net/worker.zig");
    _ = @import("prefix/index.zig");
    _ = @import("rdma/library.zig");
    _ = @import("rdma/memory.zig");
    _ = @import("rdma/port.zig");
    _ = @import("rdma/read.zig");
    _ = @import("rdma/test_hub.zig");
    _ = @import("store/disk.zig");
    _ = @import("store/folder.zig");
    _ = @import("store/job.zig");
    _ = @import("store/path.zig");
    _ = @import("store/registered.zig");
}
