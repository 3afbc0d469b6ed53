//! A span that the other side of a link may read. It is registered only while it is lent, with
//! exactly its length, read-only. Functions require the hub's mutex unless their comments say
//! otherwise.

const std = @import("std");
const types = @import("../abi/rdma_types.zig");
const verbs = @import("verbs.zig");
const Link = @import("link.zig").Link;
const Error = @import("../abi/status.zig").Error;

pub const State = enum {
    /// A helper registers it.
    registering,
    /// It is registered and is reported when the link is connected: an earlier READ would have to
    /// be retransmitted.
    held,
    lent,
    /// A helper deregisters it.
    returning,
};

pub const Loan = struct {
    node: std.DoublyLinkedList.Node = .{},
    link: *Link,
    token: u64,
    span: []u8,
    mr: ?*verbs.Mr = null,
    state: State = .registering,
    /// The fault if it was revoked before it was reported.
    fault: types.RdmaFault = .none,
    is_reported: bool = false,

    pub fn begin(link: *Link, wanted: types.RdmaSpan) Error!void {
        const hub = link.hub;
        if (wanted.bytes == 0) return error.BadRequest;
        const span = try hub.region.span(wanted.offset, wanted.bytes);
        if (!link.isOpen()) return error.Closed;
        if (hub.loans_unreaped == hub.loans.len) return error.Full;
        if (span.len > hub.window_left) return error.Full;
        hub.window_left -= span.len;
        hub.loans_unreaped += 1;
        const loan = hub.free_loans.pop();
        loan.* = .{ .link = link, .token = wanted.token, .span = span };
        link.loans.append(&loan.node);
        hub.give(.{ .lend = loan });
    }

    /// The helper is done; without `mr`, `errno` is the reason.
    pub fn registered(loan: *Loan, mr: ?*verbs.Mr, errno: i32) void {
        loan.mr = mr;
        if (mr == null) {
            const fault: types.RdmaFault = if (loan.fault == .none) .unregistered else loan.fault;
            return loan.settle(fault, errno);
        }
        if (loan.fault != .none) {
            loan.state = .returning;
            return loan.link.hub.give(.{ .take_back = loan });
        }
        if (loan.link.phase == .connecting) loan.state = .held else loan.tellLent();
    }

    pub fn tellLent(loan: *Loan) void {
        const mr = loan.mr.?;
        loan.state = .lent;
        loan.is_reported = true;
        loan.report(.lent, .none, 0, @intFromPtr(loan.span.ptr), mr.rkey);
    }

    /// Revokes the loan. When `returned` is reported, the span can no longer be read.
    pub fn takeBack(loan: *Loan, fault: types.RdmaFault) void {
        if (loan.fault == .none) loan.fault = fault;
        switch (loan.state) {
            // The helper checks on completion whether the loan was revoked.
            .registering, .returning => {},
            .held, .lent => {
                loan.state = .returning;
                loan.link.hub.give(.{ .take_back = loan });
            },
        }
    }

    /// The helper is done. If the device kept the memory registered (`errno`), the link ends, so
    /// that its loans become unreachable.
    pub fn returned(loan: *Loan, errno: i32) void {
        if (errno != 0) loan.link.fail(.broken, verbs.wc_general_err);
        const fault: types.RdmaFault = if (loan.is_reported) .none else loan.fault;
        loan.settle(fault, errno);
    }

    fn settle(loan: *Loan, fault: types.RdmaFault, code: i32) void {
        const link = loan.link;
        link.loans.remove(&loan.node);
        link.hub.window_left += loan.span.len;
        loan.report(if (loan.is_reported) .returned else .lent, fault, code, 0, 0);
        link.hub.free_loans.push(loan);
        link.endIfDone();
    }

    fn report(
        loan: *Loan,
        event: types.RdmaEvent,
        fault: types.RdmaFault,
        code: i32,
        address: u64,
        key: u32,
    ) void {
        loan.link.hub.report(.{
            .token = loan.token,
            .result = address,
            .key = key,
            .event = @intFromEnum(event),
            .fault = @intFromEnum(fault),
            .code = code,
        });
    }
};
