//! The exported functions for RDMA. They contain no logic: each converts its arguments, calls a
//! function of rdma_calls.zig and maps the error to a status.

const types = @import("rdma_types.zig");
const rdma_calls = @import("rdma_calls.zig");
const status = @import("status.zig");
const code = status.code;
const codeOrCount = status.codeOrCount;

pub const exports = struct {
    /// Opens the host's RDMA devices. Succeeds on every host: `info` reports whether a device can
    /// be used, and the reason if none can.
    pub fn hearth_rdma_create(
        request: ?*const types.RdmaRequest,
        info: ?*types.RdmaInfo,
    ) callconv(.c) i32 {
        return code(rdma_calls.create(request, info));
    }

    pub fn hearth_rdma_port(handle: u64, index: u32, out: ?*types.RdmaPort) callconv(.c) i32 {
        return code(rdma_calls.port(handle, index, out));
    }

    pub fn hearth_rdma_reap(handle: u64, done: ?[*]types.RdmaDone, count: u32) callconv(.c) i32 {
        return codeOrCount(rdma_calls.reap(handle, done, count));
    }

    /// Tests whether a NIC can write to a GPU's memory. Returns within a few seconds.
    pub fn hearth_rdma_direct(
        request: ?*const types.RdmaDirectRequest,
        out: ?*types.RdmaDirect,
    ) callconv(.c) i32 {
        return code(rdma_calls.tryDirect(request, out));
    }

    /// Closes RDMA and frees everything. Returns `busy` while links exist.
    pub fn hearth_rdma_close(handle: u64) callconv(.c) i32 {
        return code(rdma_calls.close(handle));
    }

    /// Creates an unconnected queue pair. `out` receives the handle of its link, `address` the data
    /// that the other host needs to connect.
    pub fn hearth_rdma_link_create(
        handle: u64,
        request: ?*const types.RdmaLinkRequest,
        out: ?*u64,
        address: ?*types.RdmaAddress,
    ) callconv(.c) i32 {
        return code(rdma_calls.linkCreate(handle, request, out, address));
    }

    /// Connects the link to the other host's queue pair. Returns before the device has connected
    /// it; if the device refuses, the link ends.
    pub fn hearth_rdma_link_connect(
        link: u64,
        address: ?*const types.RdmaAddress,
    ) callconv(.c) i32 {
        return code(rdma_calls.linkConnect(link, address));
    }

    /// Makes a span of the region readable by the other host. The event `lent` carries its address
    /// and key; the rest of the region stays unreadable.
    pub fn hearth_rdma_lend(link: u64, span: ?*const types.RdmaSpan) callconv(.c) i32 {
        return code(rdma_calls.lend(link, span));
    }

    /// Revokes the span that was lent with `token`. The event `returned` arrives when the other
    /// host can no longer read it.
    pub fn hearth_rdma_return(link: u64, token: u64) callconv(.c) i32 {
        return code(rdma_calls.giveBack(link, token));
    }

    pub fn hearth_rdma_read(link: u64, span: ?*const types.RdmaSpan) callconv(.c) i32 {
        return code(rdma_calls.read(link, span));
    }

    /// Cancels a read: starts no further part of it. Its event arrives when the parts in progress
    /// have ended.
    pub fn hearth_rdma_cancel(link: u64, token: u64) callconv(.c) i32 {
        return code(rdma_calls.cancel(link, token));
    }

    /// Writes to `out` how many bytes of a read have arrived; 0 if the read has ended.
    pub fn hearth_rdma_arrived(link: u64, token: u64, out: ?*u64) callconv(.c) i32 {
        return code(rdma_calls.arrived(link, token, out));
    }

    /// Ends the link: reads in progress fail, lent spans are revoked, and `ended` is the last
    /// event. The handle is invalid after the call.
    pub fn hearth_rdma_link_end(link: u64) callconv(.c) i32 {
        return code(rdma_calls.linkEnd(link));
    }
};
