//! The exported functions for RDMA. They hold no logic: each casts, calls and maps the error.

const types = @import("rdma_types.zig");
const rdma_calls = @import("rdma_calls.zig");
const status = @import("status.zig");
const code = status.code;
const codeOrCount = status.codeOrCount;

pub const exports = struct {
    /// Succeeds on every host: `info` reports whether a device can be used, and the reason if none
    /// can.
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

    /// Tests whether a NIC can write to a GPU's memory; returns within a few seconds.
    pub fn hearth_rdma_direct(
        request: ?*const types.RdmaDirectRequest,
        out: ?*types.RdmaDirect,
    ) callconv(.c) i32 {
        return code(rdma_calls.tryDirect(request, out));
    }

    /// `busy` while links exist.
    pub fn hearth_rdma_close(handle: u64) callconv(.c) i32 {
        return code(rdma_calls.close(handle));
    }

    /// Creates a queue pair without a remote side; `out` receives its handle, `address` the data
    /// that the remote side needs.
    pub fn hearth_rdma_link_create(
        handle: u64,
        request: ?*const types.RdmaLinkRequest,
        out: ?*u64,
        address: ?*types.RdmaAddress,
    ) callconv(.c) i32 {
        return code(rdma_calls.linkCreate(handle, request, out, address));
    }

    /// Returns before the device has connected. A refusal of the device ends the link.
    pub fn hearth_rdma_link_connect(
        link: u64,
        address: ?*const types.RdmaAddress,
    ) callconv(.c) i32 {
        return code(rdma_calls.linkConnect(link, address));
    }

    /// Makes a span readable for the other side; the event `lent` carries its address and key. The
    /// rest of the region stays unreadable.
    pub fn hearth_rdma_lend(link: u64, span: ?*const types.RdmaSpan) callconv(.c) i32 {
        return code(rdma_calls.lend(link, span));
    }

    /// Revokes the span lent under `token`; the event `returned` reports when it can no longer be
    /// read.
    pub fn hearth_rdma_return(link: u64, token: u64) callconv(.c) i32 {
        return code(rdma_calls.giveBack(link, token));
    }

    pub fn hearth_rdma_read(link: u64, span: ?*const types.RdmaSpan) callconv(.c) i32 {
        return code(rdma_calls.read(link, span));
    }

    /// Starts no further part of a read; its event arrives when the parts under way have ended.
    pub fn hearth_rdma_cancel(link: u64, token: u64) callconv(.c) i32 {
        return code(rdma_calls.cancel(link, token));
    }

    /// Bytes of a read that have arrived; 0 for a read that is over.
    pub fn hearth_rdma_arrived(link: u64, token: u64, out: ?*u64) callconv(.c) i32 {
        return code(rdma_calls.arrived(link, token, out));
    }

    /// Ends the link: everything under way fails, lent spans are revoked, `ended` is the last
    /// event. The handle is invalid after the call.
    pub fn hearth_rdma_link_end(link: u64) callconv(.c) i32 {
        return code(rdma_calls.linkEnd(link));
    }
};
