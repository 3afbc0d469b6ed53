//! Tests of the verbs stand-in inside one process.

const std = @import("std");
const linux = std.os.linux;
const layout = @import("layout.zig");
const support = @import("test_support.zig");
const Couple = support.Couple;
const State = layout.State;
const Status = layout.Status;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;

extern fn ibv_get_cq_event(*layout.Channel, **layout.Cq, *?*anyopaque) i32;
extern fn ibv_ack_cq_events(*layout.Cq, u32) void;
extern fn ibv_get_async_event(*layout.Context, *layout.AsyncEvent) i32;
extern fn ibv_ack_async_event(*layout.AsyncEvent) void;
extern fn ibv_reg_mr_iova2(*layout.Pd, ?[*]u8, usize, u64, u32) ?*layout.Mr;
extern fn ibv_reg_dmabuf_mr(*layout.Pd, u64, usize, u64, i32, i32) ?*layout.Mr;

var into: [10_000]u8 = undefined;
var from: [10_000]u8 = undefined;

fn couple(plan: [*:0]const u8) !Couple {
    @memset(&into, 0);
    for (&from, 0..) |*byte, at| byte.* = @truncate(at *% 31 +% 7);
    return Couple.make(plan, &into, &from);
}

test "a READ copies the bytes and raises one completion" {
    var both = try couple("");
    try expectEqual(0, both.read(7));
    const wc = try both.asker.next();
    try expectEqual(Status.success, wc.status);
    try expectEqual(7, wc.wr_id);
    try expectEqual(into.len, wc.byte_len);
    try expectEqual(both.asker.qp.qp_num, wc.qp_num);
    try std.testing.expectEqualSlices(u8, &from, &into);
    try support.expectCount("", "reads", 1);
    try both.end();
}

test "each state transition requires exactly its attributes" {
    var both = try couple("");
    const Case = struct { from: u32, to: u32, mask: i32 };
    const steps = [_]Case{
        .{ .from = State.reset, .to = State.init, .mask = support.init_mask },
        .{ .from = State.init, .to = State.ready_to_receive, .mask = support.receive_mask },
        .{ .from = State.ready_to_receive, .to = State.ready_to_send, .mask = support.send_mask },
    };
    const qp = both.asker.qp;
    var attr = both.asker.attributesFor(both.owner.card());
    attr.qp_state = State.reset;
    try expectEqual(0, support.modify(qp, &attr, layout.Mask.state));
    for (steps) |case| {
        attr.qp_state = case.to;
        for (1..21) |bit| {
            const one = @as(i32, 1) << @intCast(bit);
            const is_demanded = case.mask & one != 0;
            const is_neutral = one == layout.Mask.current_state or
                (case.to == State.ready_to_receive and (one == layout.Mask.pkey_index or
                    one == layout.Mask.access or one == layout.Mask.other_path)) or
                (case.to == State.ready_to_send and (one == layout.Mask.access or
                    one == layout.Mask.rnr_timer or one == layout.Mask.other_path or
                    one == layout.Mask.migration));
            if (is_neutral) continue;
            const wrong = if (is_demanded) case.mask & ~one else case.mask | one;
            try expectEqual(22, support.modify(qp, &attr, wrong));
            try expectEqual(case.from, qp.state);
        }
        try expectEqual(0, support.modify(qp, &attr, case.mask));
    }
    attr.qp_state = State.init;
    try expectEqual(22, support.modify(qp, &attr, support.init_mask));
    try both.end();
}

test "a wrong key, a wrong span and a missing right fail both queue pairs" {
    const Case = enum { key, span, right, gone };
    for (std.enums.values(Case)) |case| {
        var both = try couple("");
        const address = @intFromPtr(&from);
        const rkey = both.owner.mr.rkey;
        const own = ibv_reg_mr_iova2(both.owner.pd, &from, from.len, address, 1).?;
        const gone = own.rkey;
        if (case == .gone) try expectEqual(0, support.deregister(own));
        try expectEqual(0, switch (case) {
            .key => both.asker.read(1, address, rkey +% 1),
            .span => both.asker.read(1, address + 1, rkey),
            .right => both.asker.read(1, address, own.rkey),
            .gone => both.asker.read(1, address, gone),
        });
        try expectEqual(Status.remote_access, (try both.asker.next()).status);
        try expectEqual(State.failed, both.asker.qp.state);
        var event: layout.AsyncEvent = undefined;
        try expectEqual(0, ibv_get_async_event(both.owner.context, &event));
        try expectEqual(layout.Event.pair_access, event.event_type);
        ibv_ack_async_event(&event);
        try expectEqual(State.failed, both.owner.qp.state);
        try expectEqual(0, both.read(2));
        try expectEqual(Status.flushed, (try both.asker.next()).status);
        if (case != .gone) try expectEqual(0, support.deregister(own));
        try both.end();
    }
}

test "a queue refuses requests beyond its capacity" {
    var both = try couple("hang@1");
    for (0..4) |at| try expectEqual(0, both.read(at));
    try expectEqual(12, both.read(5));
    try expectEqual(0, support.configure("+release"));
    for (0..4) |at| try expectEqual(at, (try both.asker.next()).wr_id);
    try expectEqual(0, both.read(6));
    try expectEqual(6, (try both.asker.next()).wr_id);
    try both.end();
}

test "the Nth READ fails as planned, and later ones are flushed" {
    var both = try couple("read=11@2;hang@1");
    for (0..3) |at| try expectEqual(0, both.read(at));
    try expectEqual(0, support.configure("+release"));
    try expectEqual(Status.success, (try both.asker.next()).status);
    try expectEqual(11, (try both.asker.next()).status);
    try expectEqual(Status.flushed, (try both.asker.next()).status);
    try both.end();
}

test "the error state flushes READs that hang" {
    var both = try couple("hang@1");
    try expectEqual(0, both.read(1));
    try expectEqual(null, both.asker.poll());
    var attr = std.mem.zeroes(layout.QpAttr);
    attr.qp_state = State.failed;
    try expectEqual(0, support.modify(both.asker.qp, &attr, layout.Mask.state));
    try expectEqual(Status.flushed, (try both.asker.next()).status);
    try both.end();
}

test "a planned flip changes one bit" {
    var both = try couple("flip@1");
    try expectEqual(0, both.read(1));
    try expectEqual(Status.success, (try both.asker.next()).status);
    var different: u32 = 0;
    for (into, from) |one, other| different += @popCount(one ^ other);
    try expectEqual(1, different);
    try both.end();
}

test "retries to reach the other side are bounded" {
    var both = try couple("retry=50");
    var attr = std.mem.zeroes(layout.QpAttr);
    attr.qp_state = State.failed;
    try expectEqual(0, support.modify(both.owner.qp, &attr, layout.Mask.state));
    try expectEqual(0, both.read(1));
    try expectEqual(Status.retries_exceeded, (try both.asker.next()).status);
    try both.end();
}

test "a port that goes down reports it and fails READs; it recovers for new pairs" {
    var both = try couple("retry=50");
    try expectEqual(0, support.configure("+port=down"));
    var event: layout.AsyncEvent = undefined;
    try expectEqual(0, ibv_get_async_event(both.asker.context, &event));
    try expectEqual(layout.Event.port_error, event.event_type);
    try expectEqual(1, event.element.port_num);
    try expectEqual(0, both.read(1));
    try expectEqual(Status.retries_exceeded, (try both.asker.next()).status);
    try expectEqual(0, support.configure("+port=up"));
    try expectEqual(0, ibv_get_async_event(both.asker.context, &event));
    try expectEqual(layout.Event.port_active, event.event_type);
    try both.end();
}

test "an armed queue raises one event, and none for earlier completions" {
    var both = try couple("");
    const asker = &both.asker;
    // Reading a non-blocking descriptor shows that no event is queued.
    const nonblock: u32 = @bitCast(linux.O{ .NONBLOCK = true });
    _ = linux.fcntl(asker.channel.fd, linux.F.SETFL, nonblock);
    var cq: *layout.Cq = undefined;
    var user: ?*anyopaque = null;
    try expectEqual(0, both.read(1));
    _ = try asker.next();
    try expectEqual(0, both.read(2));
    while (both.asker.context.ops.req_notify_cq(asker.cq, 0) != 0) {}
    // The second READ may have completed before the queue was armed; take its completion.
    _ = try asker.next();
    try expectEqual(0, both.read(3));
    while (ibv_get_cq_event(asker.channel, &cq, &user) != 0) try std.Thread.yield();
    try expectEqual(asker.cq, cq);
    ibv_ack_cq_events(cq, 1);
    try expectEqual(-1, ibv_get_cq_event(asker.channel, &cq, &user));
    try both.end();
}

test "a READ writes to memory behind a descriptor" {
    var both = try couple("");
    const fd: i32 = @intCast(linux.memfd_create("buffer", 0));
    defer _ = linux.close(fd);
    try expectEqual(0, linux.ftruncate(fd, 65536));
    const iova = 0x7000_0000_1000;
    const asker = &both.asker;
    try expectEqual(null, ibv_reg_dmabuf_mr(asker.pd, 4096, 61441, iova, fd, 1));
    try expectEqual(null, ibv_reg_dmabuf_mr(asker.pd, 4096, 4096, iova + 8, fd, 1));
    const mr = ibv_reg_dmabuf_mr(asker.pd, 4096, into.len, iova, fd, 1).?;
    const kept = asker.*;
    asker.mr = mr;
    asker.memory = @as([*]u8, @ptrFromInt(iova))[0..into.len];
    try expectEqual(0, both.read(1));
    try expectEqual(Status.success, (try asker.next()).status);
    asker.* = kept;
    try expectEqual(into.len, linux.pread(fd, &into, into.len, 4096));
    try std.testing.expectEqualSlices(u8, &from, &into);
    try expectEqual(0, support.deregister(mr));
    try both.end();
}

test "registrations fail as planned" {
    try expectEqual(0, support.configure("memlock=10000"));
    try std.testing.expectError(error.NotRegistered, Couple.make("reg=12@1", &into, &from));
    try std.testing.expectError(error.NotRegistered, Couple.make("memlock=9999", &into, &from));
    try std.testing.expectError(error.NotRegistered, Couple.make("no-relaxed", &into, &from));
    try std.testing.expectError(error.NoPair, Couple.make("ibv_create_qp=12", &into, &from));
    try std.testing.expectError(error.NoAddress, Couple.make("gid=none", &into, &from));
}
