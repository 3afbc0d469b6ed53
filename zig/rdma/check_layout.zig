//! Compares every field, constant and signature of verbs.zig and symbols.zig with the header of
//! libibverbs, as translate-c reads it. The comparison runs at compile time; `bun run check:verbs`
//! compiles this file.

const std = @import("std");
const header = @import("header");
const verbs = @import("verbs.zig");
const Symbols = @import("symbols.zig").Symbols;

const structs = .{
    .{ "Device", "ibv_device" },
    .{ "ContextOps", "ibv_context_ops" },
    .{ "Context", "ibv_context" },
    .{ "VerbsContext", "verbs_context" },
    .{ "DeviceAttr", "ibv_device_attr" },
    .{ "PortAttr", "ibv_port_attr" },
    .{ "GidEntry", "ibv_gid_entry" },
    .{ "AsyncEvent", "ibv_async_event" },
    .{ "Pd", "ibv_pd" },
    .{ "Mr", "ibv_mr" },
    .{ "CompChannel", "ibv_comp_channel" },
    .{ "Cq", "ibv_cq" },
    .{ "QpCap", "ibv_qp_cap" },
    .{ "QpInitAttr", "ibv_qp_init_attr" },
    .{ "Qp", "ibv_qp" },
    .{ "GlobalRoute", "ibv_global_route" },
    .{ "AhAttr", "ibv_ah_attr" },
    .{ "QpAttr", "ibv_qp_attr" },
    .{ "Sge", "ibv_sge" },
    .{ "SendWr", "ibv_send_wr" },
    .{ "Wc", "ibv_wc" },
};

const constants = .{
    .{ "name_bytes", "IBV_SYSFS_NAME_MAX" },
    .{ "path_bytes", "IBV_SYSFS_PATH_MAX" },
    .{ "transport_ib", "IBV_TRANSPORT_IB" },
    .{ "link_layer_unspecified", "IBV_LINK_LAYER_UNSPECIFIED" },
    .{ "link_layer_infiniband", "IBV_LINK_LAYER_INFINIBAND" },
    .{ "link_layer_ethernet", "IBV_LINK_LAYER_ETHERNET" },
    .{ "gid_type_ib", "IBV_GID_TYPE_IB" },
    .{ "gid_type_roce_v1", "IBV_GID_TYPE_ROCE_V1" },
    .{ "gid_type_roce_v2", "IBV_GID_TYPE_ROCE_V2" },
    .{ "port_down", "IBV_PORT_DOWN" },
    .{ "port_active", "IBV_PORT_ACTIVE" },
    .{ "port_active_defer", "IBV_PORT_ACTIVE_DEFER" },
    .{ "access_local_write", "IBV_ACCESS_LOCAL_WRITE" },
    .{ "access_remote_write", "IBV_ACCESS_REMOTE_WRITE" },
    .{ "access_remote_read", "IBV_ACCESS_REMOTE_READ" },
    .{ "access_relaxed_ordering", "IBV_ACCESS_RELAXED_ORDERING" },
    .{ "qp_type_rc", "IBV_QPT_RC" },
    .{ "qp_state_reset", "IBV_QPS_RESET" },
    .{ "qp_state_init", "IBV_QPS_INIT" },
    .{ "qp_state_rtr", "IBV_QPS_RTR" },
    .{ "qp_state_rts", "IBV_QPS_RTS" },
    .{ "qp_state_err", "IBV_QPS_ERR" },
    .{ "mask_state", "IBV_QP_STATE" },
    .{ "mask_access_flags", "IBV_QP_ACCESS_FLAGS" },
    .{ "mask_pkey_index", "IBV_QP_PKEY_INDEX" },
    .{ "mask_port", "IBV_QP_PORT" },
    .{ "mask_av", "IBV_QP_AV" },
    .{ "mask_path_mtu", "IBV_QP_PATH_MTU" },
    .{ "mask_timeout", "IBV_QP_TIMEOUT" },
    .{ "mask_retry_cnt", "IBV_QP_RETRY_CNT" },
    .{ "mask_rnr_retry", "IBV_QP_RNR_RETRY" },
    .{ "mask_rq_psn", "IBV_QP_RQ_PSN" },
    .{ "mask_max_rd_atomic", "IBV_QP_MAX_QP_RD_ATOMIC" },
    .{ "mask_min_rnr_timer", "IBV_QP_MIN_RNR_TIMER" },
    .{ "mask_sq_psn", "IBV_QP_SQ_PSN" },
    .{ "mask_max_dest_rd_atomic", "IBV_QP_MAX_DEST_RD_ATOMIC" },
    .{ "mask_dest_qpn", "IBV_QP_DEST_QPN" },
    .{ "wr_rdma_read", "IBV_WR_RDMA_READ" },
    .{ "send_signaled", "IBV_SEND_SIGNALED" },
    .{ "wc_success", "IBV_WC_SUCCESS" },
    .{ "wc_loc_prot_err", "IBV_WC_LOC_PROT_ERR" },
    .{ "wc_wr_flush_err", "IBV_WC_WR_FLUSH_ERR" },
    .{ "wc_rem_inv_req_err", "IBV_WC_REM_INV_REQ_ERR" },
    .{ "wc_rem_access_err", "IBV_WC_REM_ACCESS_ERR" },
    .{ "wc_rem_op_err", "IBV_WC_REM_OP_ERR" },
    .{ "wc_retry_exc_err", "IBV_WC_RETRY_EXC_ERR" },
    .{ "wc_fatal_err", "IBV_WC_FATAL_ERR" },
    .{ "wc_general_err", "IBV_WC_GENERAL_ERR" },
    .{ "wc_opcode_rdma_read", "IBV_WC_RDMA_READ" },
    .{ "event_cq_err", "IBV_EVENT_CQ_ERR" },
    .{ "event_qp_fatal", "IBV_EVENT_QP_FATAL" },
    .{ "event_qp_req_err", "IBV_EVENT_QP_REQ_ERR" },
    .{ "event_qp_access_err", "IBV_EVENT_QP_ACCESS_ERR" },
    .{ "event_device_fatal", "IBV_EVENT_DEVICE_FATAL" },
    .{ "event_port_active", "IBV_EVENT_PORT_ACTIVE" },
    .{ "event_port_err", "IBV_EVENT_PORT_ERR" },
    .{ "event_lid_change", "IBV_EVENT_LID_CHANGE" },
    .{ "event_client_reregister", "IBV_EVENT_CLIENT_REREGISTER" },
    .{ "event_gid_change", "IBV_EVENT_GID_CHANGE" },
};

fn refuse(comptime format: []const u8, comptime values: anytype) noreturn {
    @compileError(std.fmt.comptimePrint(format, values));
}

/// Compares a struct's fields and returns their number. Fields named `unused…` only keep the
/// offsets of the others and are not compared.
fn compareStruct(comptime our_name: []const u8, comptime their_name: []const u8) usize {
    const Ours = @field(verbs, our_name);
    const Theirs = @field(header, "struct_" ++ their_name);
    if (@sizeOf(Ours) != @sizeOf(Theirs)) {
        const sizes = .{ their_name, @sizeOf(Ours), @sizeOf(Theirs) };
        refuse("{s} has {d} bytes in verbs.zig and {d} in the header", sizes);
    }
    var count: usize = 0;
    for (@typeInfo(Ours).@"struct".fields) |field| {
        if (std.mem.startsWith(u8, field.name, "unused")) continue;
        const place = .{ their_name, field.name };
        if (!@hasField(Theirs, field.name)) refuse("{s} has no field {s}", place);
        if (@offsetOf(Ours, field.name) != @offsetOf(Theirs, field.name)) {
            refuse("{s}.{s} has another offset in the header", place);
        }
        if (@sizeOf(field.type) != @sizeOf(@FieldType(Theirs, field.name))) {
            refuse("{s}.{s} has another size in the header", place);
        }
        count += 1;
    }
    return count;
}

fn compareConstant(comptime our_name: []const u8, comptime their_name: []const u8) void {
    const ours: i64 = @field(verbs, our_name);
    const theirs: i64 = @field(header, their_name);
    const values = .{ their_name, ours, theirs };
    if (ours != theirs) refuse("{s}: {d} in verbs.zig, {d} in the header", values);
}

fn functionOf(comptime Pointer: type) std.builtin.Type.Fn {
    const Bare = switch (@typeInfo(Pointer)) {
        .optional => |optional| optional.child,
        else => Pointer,
    };
    return @typeInfo(@typeInfo(Bare).pointer.child).@"fn";
}

fn compareCall(comptime name: []const u8, comptime Pointer: type) void {
    const ours = functionOf(Pointer);
    const theirs = @typeInfo(@TypeOf(@field(header, name))).@"fn";
    if (ours.params.len != theirs.params.len) refuse("{s}: other parameter count", .{name});
    for (ours.params, theirs.params, 0..) |our, their, index| {
        if (@sizeOf(our.type.?) != @sizeOf(their.type.?)) {
            refuse("{s}: argument {d} has another type", .{ name, index });
        }
    }
    if (@sizeOf(ours.return_type.?) != @sizeOf(theirs.return_type.?)) {
        refuse("{s}: other return type", .{name});
    }
}

/// Compares the fields of a READ request, which the header keeps in a union.
fn compareRead() void {
    const Ours = @FieldType(verbs.SendWr, "wr");
    const Theirs = @FieldType(@FieldType(header.struct_ibv_send_wr, "wr"), "rdma");
    for (.{ "remote_addr", "rkey" }) |name| {
        if (@offsetOf(Ours, name) != @offsetOf(Theirs, name)) refuse("rdma.{s}", .{name});
    }
}

/// Fails unless every declaration of verbs.zig is compared.
fn compareNames() void {
    for (@typeInfo(verbs).@"struct".decls) |decl| {
        const value = @field(verbs, decl.name);
        const listed = switch (@TypeOf(value)) {
            comptime_int => isListed(constants, decl.name),
            type => @typeInfo(value) != .@"struct" or isListed(structs, decl.name),
            else => true,
        };
        // translate-c cannot translate this constant, because the header casts a number.
        const is_cast = std.mem.eql(u8, decl.name, "abi_extended");
        if (!listed and !is_cast) refuse("{s} is not compared", .{decl.name});
    }
}

fn isListed(comptime list: anytype, comptime name: []const u8) bool {
    for (list) |pair| if (std.mem.eql(u8, pair[0], name)) return true;
    return false;
}

test "the hand-written layout equals the header" {
    @setEvalBranchQuota(100_000);
    comptime var fields: usize = 0;
    inline for (structs) |pair| fields += comptime compareStruct(pair[0], pair[1]);
    inline for (constants) |pair| comptime compareConstant(pair[0], pair[1]);
    const calls = @typeInfo(Symbols).@"struct".fields;
    inline for (calls) |field| comptime compareCall(field.name, field.type);
    comptime compareRead();
    comptime compareNames();
    std.debug.print("{d} structs, {d} fields, {d} constants, {d} calls\n", .{
        structs.len,
        fields,
        constants.len,
        calls.len,
    });
}
