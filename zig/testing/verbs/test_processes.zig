//! Tests of READs between processes, including stopped and killed ones.

const std = @import("std");
const linux = std.os.linux;
const layout = @import("layout.zig");
const support = @import("test_support.zig");
const Card = support.Card;
const Side = support.Side;
const Status = layout.Status;
const expectEqual = std.testing.expectEqual;

var into: [70_000]u8 = undefined;
var from: [70_000]u8 = undefined;

/// Runs the child process, which lends its memory until it is killed.
fn lend(in: i32, out: i32) !void {
    for (&from, 0..) |*byte, at| byte.* = @truncate(at *% 13 +% 1);
    var owner = try Side.make(&from, layout.Access.remote_read);
    try tell(out, owner.card());
    try owner.connect(try hear(in));
    try tell(out, owner.card());
    while (true) _ = linux.syscall0(.pause);
}

fn tell(fd: i32, card: Card) !void {
    const bytes = std.mem.asBytes(&card);
    if (linux.write(fd, bytes, bytes.len) != bytes.len) return error.NotTold;
}

fn hear(fd: i32) !Card {
    var card: Card = undefined;
    const bytes = std.mem.asBytes(&card);
    return if (linux.read(fd, bytes, bytes.len) == bytes.len) card else error.NotHeard;
}

const Owner = struct {
    pid: i32,
    in: i32,
    out: i32,

    fn start() !Owner {
        var down: [2]i32 = undefined;
        var up: [2]i32 = undefined;
        for ([_]*[2]i32{ &down, &up }) |pipe| {
            if (linux.errno(linux.pipe2(pipe, .{ .CLOEXEC = true })) != .SUCCESS) return error.Pipe;
        }
        const pid = std.c.fork();
        if (pid == 0) {
            lend(down[0], up[1]) catch |err| std.debug.print("owner: {t}\n", .{err});
            linux.exit_group(1);
        }
        _ = linux.close(down[0]);
        _ = linux.close(up[1]);
        return if (pid < 0) error.Fork else .{ .pid = pid, .in = up[0], .out = down[1] };
    }

    fn end(owner: Owner) void {
        _ = linux.kill(owner.pid, .KILL);
        _ = std.c.waitpid(owner.pid, null, 0);
        _ = linux.close(owner.in);
        _ = linux.close(owner.out);
    }
};

test "a READ succeeds from a running and a stopped process, and fails after its death" {
    try expectEqual(0, support.configure("retry=100"));
    const owner = try Owner.start();
    var is_over = false;
    defer if (!is_over) owner.end();
    @memset(&into, 0);
    var asker = try Side.make(&into, layout.Access.local_write);
    const lent = try hear(owner.in);
    try asker.connect(lent);
    try tell(owner.out, asker.card());
    _ = try hear(owner.in);
    try expectEqual(0, asker.read(1, lent.address, lent.key));
    try expectEqual(Status.success, (try asker.next()).status);
    for (into, 0..) |byte, at| try expectEqual(@as(u8, @truncate(at *% 13 +% 1)), byte);
    // A NIC reads memory without the host's processor, so READs from a stopped process must work.
    _ = linux.kill(owner.pid, .STOP);
    @memset(&into, 0);
    try expectEqual(0, asker.read(2, lent.address, lent.key));
    try expectEqual(Status.success, (try asker.next()).status);
    try expectEqual(14, into[1]);
    owner.end();
    is_over = true;
    try expectEqual(0, asker.read(3, lent.address, lent.key));
    try expectEqual(Status.retries_exceeded, (try asker.next()).status);
    try asker.end();
}
