//! The functions exported for RDMA. No logic here: cast, call, map the error.

const types = @import("rdma_types.zig");
const rdma_calls = @import("rdma_calls.zig");
const status = @import("status.zig");
const code = status.code;
const codeOrCount = status.codeOrCount;

pub const exports = struct {
    /// Succeeds on every host: `info` says whether there is a device to use, and why not.
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

    /// Tries whether a NIC writes to a GPU's memory; returns within a few seconds.
    pub fn hearth_rdma_direct(
        request: ?*const types.RdmaDirectRequest,
        out: ?*types.RdmaDirect,
    ) callconv(.c) i32 {
        return code(rdma_calls.tryDirect(request, out));
    }

    /// `busy` while there are links.
    pub fn hearth_rdma_close(handle: u64) callconv(.c) i32 {
        return code(rdma_calls.close(handle));
    }

    /// A queue pair that has no other side yet; `out` names it, `address` is what the other side
    /// must know.
    pub fn hearth_rdma_link_create(
        handle: u64,
        request: ?*const types.RdmaLinkRequest,
        out: ?*u64,
        address: ?*types.RdmaAddress,
    ) callconv(.c) i32 {
        return code(rdma_calls.linkCreate(handle, request, out, address));
    }

    /// Returns before the device has done it; one that refuses ends the link.
    pub fn hearth_rdma_link_connect(
        link: u64,
        address: ?*const types.RdmaAddress,
    ) callconv(.c) i32 {
        return code(rdma_calls.linkConnect(link, address));
    }

    /// Lends a span for reading; `lent` says how it is reached. Nothing else of the region is.
    pub fn hearth_rdma_lend(link: u64, span: ?*const types.RdmaSpan) callconv(.c) i32 {
        return code(rdma_calls.lend(link, span));
    }

    /// Takes back what was lent under `token`; `returned` says when nothing can read it any more.
    pub fn hearth_rdma_return(link: u64, token: u64) callconv(.c) i32 {
        return code(rdma_calls.giveBack(link, token));
    }

    pub fn hearth_rdma_read(link: u64, span: ?*const types.RdmaSpan) callconv(.c) i32 {
        return code(rdma_calls.read(link, span));
    }

    /// Begins no more of a read; its event comes when what is begun is over.
    pub fn hearth_rdma_cancel(link: u64, token: u64) callconv(.c) i32 {
        return code(rdma_calls.cancel(link, token));
    }

    /// Bytes of a read that have arrived; 0 for one that is over.
    pub fn hearth_rdma_arrived(link: u64, token: u64, out: ?*u64) callconv(.c) i32 {
        return code(rdma_calls.arrived(link, token, out));
    }

    /// Ends the link: everything under way fails, what is lent is taken back, `ended` comes last.
    /// The handle is gone with the call.
    pub fn hearth_rdma_link_end(link: u64) callconv(.c) i32 {
        return code(rdma_calls.linkEnd(link));
    }
};
