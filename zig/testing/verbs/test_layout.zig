//! Compares the declarations in rdma/verbs.zig with those of the stand-in.

const std = @import("std");
const ours = @import("layout.zig");
const theirs = @import("verbs");

const structs = .{
    .{ "Device", "Device" },
    .{ "ContextOps", "ContextOps" },
    .{ "Context", "Context" },
    .{ "VerbsContext", "VerbsContext" },
    .{ "DeviceAttr", "DeviceAttr" },
    .{ "PortAttr", "PortAttr" },
    .{ "GidEntry", "GidEntry" },
    .{ "AsyncEvent", "AsyncEvent" },
    .{ "Pd", "Pd" },
    .{ "Mr", "Mr" },
    .{ "Channel", "CompChannel" },
    .{ "Cq", "Cq" },
    .{ "QpCap", "QpCap" },
    .{ "QpInitAttr", "QpInitAttr" },
    .{ "Qp", "Qp" },
    .{ "GlobalRoute", "GlobalRoute" },
    .{ "AhAttr", "AhAttr" },
    .{ "QpAttr", "QpAttr" },
    .{ "Sge", "Sge" },
    .{ "SendWr", "SendWr" },
    .{ "Wc", "Wc" },
};

const constants = .{
    .{ ours.State.init, theirs.qp_state_init },
    .{ ours.State.ready_to_receive, theirs.qp_state_rtr },
    .{ ours.State.ready_to_send, theirs.qp_state_rts },
    .{ ours.State.failed, theirs.qp_state_err },
    .{ ours.Mask.access, theirs.mask_access_flags },
    .{ ours.Mask.pkey_index, theirs.mask_pkey_index },
    .{ ours.Mask.port, theirs.mask_port },
    .{ ours.Mask.path, theirs.mask_av },
    .{ ours.Mask.path_mtu, theirs.mask_path_mtu },
    .{ ours.Mask.timeout, theirs.mask_timeout },
    .{ ours.Mask.retries, theirs.mask_retry_cnt },
    .{ ours.Mask.rnr_retries, theirs.mask_rnr_retry },
    .{ ours.Mask.receive_psn, theirs.mask_rq_psn },
    .{ ours.Mask.reads_out, theirs.mask_max_rd_atomic },
    .{ ours.Mask.rnr_timer, theirs.mask_min_rnr_timer },
    .{ ours.Mask.send_psn, theirs.mask_sq_psn },
    .{ ours.Mask.reads_in, theirs.mask_max_dest_rd_atomic },
    .{ ours.Mask.destination, theirs.mask_dest_qpn },
    .{ ours.Access.local_write, theirs.access_local_write },
    .{ ours.Access.remote_write, theirs.access_remote_write },
    .{ ours.Access.remote_read, theirs.access_remote_read },
    .{ ours.Access.relaxed_ordering, theirs.access_relaxed_ordering },
    .{ ours.Status.local_protection, theirs.wc_loc_prot_err },
    .{ ours.Status.flushed, theirs.wc_wr_flush_err },
    .{ ours.Status.remote_invalid, theirs.wc_rem_inv_req_err },
    .{ ours.Status.remote_access, theirs.wc_rem_access_err },
    .{ ours.Status.retries_exceeded, theirs.wc_retry_exc_err },
    .{ ours.Opcode.read, theirs.wr_rdma_read },
    .{ ours.Event.cq_error, theirs.event_cq_err },
    .{ ours.Event.pair_access, theirs.event_qp_access_err },
    .{ ours.Event.device_fatal, theirs.event_device_fatal },
    .{ ours.Event.port_active, theirs.event_port_active },
    .{ ours.Event.port_error, theirs.event_port_err },
    .{ ours.Event.gid_change, theirs.event_gid_change },
};

test "structures and constants equal those of the library" {
    inline for (structs) |names| {
        const Ours = @field(ours, names[0]);
        const Theirs = @field(theirs, names[1]);
        try std.testing.expectEqual(@sizeOf(Theirs), @sizeOf(Ours));
        inline for (@typeInfo(Ours).@"struct".fields) |field| {
            if (!@hasField(Theirs, field.name)) continue;
            const there = @offsetOf(Theirs, field.name);
            try std.testing.expectEqual(there, @offsetOf(Ours, field.name));
        }
    }
    inline for (constants) |pair| try std.testing.expectEqual(pair[1], pair[0]);
}
