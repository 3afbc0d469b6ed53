//! A loan: a span that the other host of a link may read. The span is registered only while it is
//! lent, read-only and with exactly its length. The caller of each function holds the hub's mutex
//! unless its comment says otherwise.

const std = @import("std");
const types = @import("../abi/rdma_types.zig");
const verbs = @import("verbs.zig");
const Link = @import("link.zig").Link;
const Error = @import("../abi/status.zig").Error;

pub const State = enum {
    /// A helper thread is registering the span.
    registering,
    /// The span is registered. The `lent` event waits until the link is connected, because an
    /// earlier READ would have to be retransmitted.
    held,
    lent,
    /// A helper thread is deregistering the span.
    returning,
};

pub const Loan = struct {
    node: std.DoublyLinkedList.Node = .{},
    link: *Link,
    token: u64,
    span: []u8,
    mr: ?*verbs.Mr = null,
    state: State = .registering,
    /// The reason for which the loan was revoked before the `lent` event; `none` if it was not.
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

    /// Continues after a helper thread has registered the span. If `mr` is null, `errno` is the
    /// reason of the failure.
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

    /// Revokes the loan. After its `returned` event the other host can no longer read the span.
    pub fn takeBack(loan: *Loan, fault: types.RdmaFault) void {
        if (loan.fault == .none) loan.fault = fault;
        switch (loan.state) {
            // When the helper thread has finished, it checks whether the loan was revoked.
            .registering, .returning => {},
            .held, .lent => {
                loan.state = .returning;
                loan.link.hub.give(.{ .take_back = loan });
            },
        }
    }

    /// Continues after a helper thread has deregistered the span. If the device kept it registered
    /// (`errno` is not 0), ends the link, so that the other host cannot reach its loans.
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
