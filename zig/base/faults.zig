//! Planned failures for tests. The system calls of disks and lanes (data connections) have names
//! here. A plan selects which of these calls fail, when, and how. Without a plan, each call costs
//! one extra relaxed atomic load.
//!
//! A plan consists of items separated by `;`, each `name:nth:action`:
//!   name    of a call (`store.write`), or a prefix and `*` (`store.*`, `*`)
//!   nth     `3` for the third hit only, `3+` from the third hit on
//!   action  the name of an errno (`EIO`): the call is not made and fails with it
//!           `short`      half of the moved bytes are reported
//!           `flip`       one bit of the bytes read is inverted
//!           `delay=MS`   the call is made `MS` milliseconds late
//!           `freeze`     the call is not made before the plan changes
//!           `kill`, `kill-after`  SIGKILL to this process before or after the call
//!
//! The item `count` injects no failure. It makes the plan non-empty, so that hits are counted.

const std = @import("std");
const linux = std.os.linux;
const sync = @import("mutex.zig");
const Error = @import("../abi/status.zig").Error;

/// The native calls in which a plan can inject failures. TypeScript calls use names that this enum
/// does not list; `hitForeign` takes them as text.
pub const Point = enum {
    @"disk.memory",
    @"disk.eventfd",
    @"disk.thread",
    @"ring.setup",
    @"ring.map",
    @"ring.enable",
    @"ring.register",
    @"ring.enter",
    @"open.folder",
    @"open.flags",
    @"open.proc",
    @"open.probe",
    @"store.mkdir",
    @"store.open",
    @"store.reuse",
    @"store.measure",
    @"store.name",
    @"store.write",
    @"store.stat",
    @"store.link",
    @"store.rename",
    @"store.unlink",
    @"store.close",
    @"load.open",
    @"load.stat",
    @"load.read",
    @"load.close",
    @"peek.open",
    @"peek.stat",
    @"peek.read",
    @"peek.close",
    @"remove.unlink",
    @"rename.mkdir",
    @"rename.rename",
    @"rename.link",
    @"rename.unlink",
    @"list.open",
    @"list.seek",
    @"list.read",
    @"list.stat",
    @"list.close",
    @"sync.sync",
    @"space.stat",
    @"lock.open",
    @"lock.flock",
    @"lanes.memory",
    @"lanes.eventfd",
    @"lanes.epoll",
    @"lanes.thread",
    @"lane.socket",
    @"lane.connect",
    @"lane.accept",
    @"lane.send",
    @"lane.receive",
};

/// Effects of the plan that the caller of `hit` must apply to one call.
pub const Verdict = struct {
    /// The errno with which the call fails. If set, the caller must not make the system call.
    errno: ?linux.E = null,
    short: bool = false,
    flip: bool = false,
    kill_after: bool = false,

    /// The caller runs this when the system call has ended: kills the process if the plan says
    /// `kill-after`.
    pub fn after(verdict: Verdict) void {
        if (verdict.kill_after) kill();
    }

    /// Returns how many of `count` bytes the caller reports as moved, and flips a bit in `parts` if
    /// the plan says so. `parts` holds the bytes read; it is empty for writes.
    pub fn moved(verdict: Verdict, count: usize, parts: []const std.posix.iovec) usize {
        if (verdict.flip) flipBit(parts, count);
        return if (verdict.short) count / 2 else count;
    }
};

const Action = union(enum) {
    none,
    errno: linux.E,
    short,
    flip,
    delay: u32,
    freeze,
    kill,
    kill_after,
};

const name_bytes = 48;

const Name = struct {
    text: [name_bytes]u8 = undefined,
    length: u8 = 0,

    fn of(text: []const u8) Error!Name {
        if (text.len == 0 or text.len > name_bytes) return error.BadRequest;
        var name: Name = .{ .length = @intCast(text.len) };
        @memcpy(name.text[0..text.len], text);
        return name;
    }

    fn slice(name: *const Name) []const u8 {
        return name.text[0..name.length];
    }

    fn matches(pattern: *const Name, name: []const u8) bool {
        const text = pattern.slice();
        if (text[text.len - 1] != '*') return std.mem.eql(u8, text, name);
        return std.mem.startsWith(u8, name, text[0 .. text.len - 1]);
    }
};

const Item = struct {
    name: Name,
    nth: u32,
    on: bool,
    action: Action,
    hits: u32 = 0,

    fn isDue(item: *const Item) bool {
        return item.hits == item.nth or (item.on and item.hits > item.nth);
    }
};

const items_max = 64;
const foreign_max = 128;
const points = std.meta.tags(Point);

var armed: std.atomic.Value(bool) = .init(false);
var mutex: sync.Mutex = .{};
/// Signals a change of the plan to the threads that `freeze` has stopped.
var changed: sync.Condition = .{};
var generation: u64 = 0;
var items: [items_max]Item = undefined;
var item_count: usize = 0;
var counts: [points.len]u64 = @splat(0);
var foreign_names: [foreign_max]Name = undefined;
var foreign_counts: [foreign_max]u64 = @splat(0);
var foreign_count: usize = 0;

/// Replaces the plan and resets the hit counts; an empty text removes the plan. Returns
/// `BadRequest` and changes nothing if the text is invalid.
pub fn set(text: []const u8) Error!void {
    var parsed: [items_max]Item = undefined;
    var count: usize = 0;
    var words = std.mem.tokenizeScalar(u8, text, ';');
    while (words.next()) |word| {
        if (count == items_max) return error.Full;
        parsed[count] = try parse(word);
        count += 1;
    }
    mutex.lock();
    defer mutex.unlock();
    items = parsed;
    item_count = count;
    counts = @splat(0);
    foreign_count = 0;
    generation += 1;
    armed.store(count > 0, .release);
    changed.broadcast();
}

fn parse(text: []const u8) Error!Item {
    if (std.mem.eql(u8, text, "count")) {
        return .{ .name = try .of("*"), .nth = 1, .on = true, .action = .none };
    }
    var parts = std.mem.splitScalar(u8, text, ':');
    const name: Name = try .of(parts.first());
    const when = parts.next() orelse return error.BadRequest;
    const what = parts.next() orelse return error.BadRequest;
    if (parts.next() != null) return error.BadRequest;
    const on = std.mem.endsWith(u8, when, "+");
    const digits = if (on) when[0 .. when.len - 1] else when;
    const nth = std.fmt.parseInt(u32, digits, 10) catch return error.BadRequest;
    if (nth == 0) return error.BadRequest;
    return .{ .name = name, .nth = nth, .on = on, .action = try parseAction(what) };
}

fn parseAction(text: []const u8) Error!Action {
    const words = std.StaticStringMap(Action).initComptime(.{
        .{ "short", .short },
        .{ "flip", .flip },
        .{ "freeze", .freeze },
        .{ "kill", .kill },
        .{ "kill-after", .kill_after },
    });
    if (words.get(text)) |action| return action;
    if (std.mem.startsWith(u8, text, "delay=")) {
        const ms = std.fmt.parseInt(u32, text["delay=".len..], 10) catch return error.BadRequest;
        return .{ .delay = ms };
    }
    if (text.len < 2 or text[0] != 'E') return error.BadRequest;
    const errno = std.meta.stringToEnum(linux.E, text[1..]) orelse return error.BadRequest;
    return .{ .errno = errno };
}

/// Counts one hit of a native call. Sleeps, freezes or kills the process here if the plan says so;
/// the caller applies the returned verdict.
pub fn hit(point: Point) Verdict {
    if (!armed.load(.monotonic)) return .{};
    mutex.lock();
    counts[@intFromEnum(point)] += 1;
    return decide(@tagName(point), true);
}

/// Counts one hit of a TypeScript call. Returns the number of the planned errno, or 0. Ignores
/// `freeze`, because a frozen event loop could not change the plan.
pub fn hitForeign(name: []const u8) Error!u32 {
    if (!armed.load(.monotonic)) return 0;
    const copy: Name = try .of(name);
    mutex.lock();
    const index = for (foreign_names[0..foreign_count], 0..) |*known, index| {
        if (std.mem.eql(u8, known.slice(), name)) break index;
    } else foreign_count;
    if (index == foreign_max) {
        mutex.unlock();
        return error.Full;
    }
    if (index == foreign_count) {
        foreign_names[index] = copy;
        foreign_counts[index] = 0;
        foreign_count += 1;
    }
    foreign_counts[index] += 1;
    const verdict = decide(name, false);
    verdict.after();
    return if (verdict.errno) |errno| @intFromEnum(errno) else 0;
}

/// Finds the plan's effect on this hit. The caller holds the mutex; this function unlocks it.
fn decide(name: []const u8, may_freeze: bool) Verdict {
    var verdict: Verdict = .{};
    var delay_ms: u32 = 0;
    var freeze = false;
    for (items[0..item_count]) |*item| {
        if (!item.name.matches(name)) continue;
        item.hits +|= 1;
        if (!item.isDue()) continue;
        switch (item.action) {
            .none => {},
            .errno => |errno| verdict.errno = errno,
            .short => verdict.short = true,
            .flip => verdict.flip = true,
            .delay => |ms| delay_ms = ms,
            .freeze => freeze = may_freeze,
            .kill => kill(),
            .kill_after => verdict.kill_after = true,
        }
    }
    const frozen_in = generation;
    while (freeze and generation == frozen_in) changed.wait(&mutex);
    mutex.unlock();
    if (delay_ms > 0) pause(delay_ms);
    return verdict;
}

/// Makes a system call, or applies the failure that the plan sets for it.
pub fn call(point: Point, comptime function: anytype, arguments: anytype) usize {
    const verdict = hit(point);
    if (verdict.errno) |errno| return failure(errno);
    const result: usize = @call(.auto, function, arguments);
    verdict.after();
    return result;
}

/// Like `call`, but repeats a call that a signal interrupted (EINTR), up to 100 times.
pub fn repeat(point: Point, comptime function: anytype, arguments: anytype) usize {
    const attempts_max = 100;
    for (1..attempts_max) |_| {
        const result = call(point, function, arguments);
        if (linux.errno(result) != .INTR) return result;
    }
    return call(point, function, arguments);
}

/// Closes a descriptor and ignores errors: Linux releases the descriptor even if close(2) fails.
pub fn close(point: Point, fd: i32) void {
    const verdict = hit(point);
    _ = linux.close(fd);
    verdict.after();
}

/// Returns an error if the plan says that the allocation at `point` fails.
pub fn gate(point: Point) Error!void {
    const verdict = hit(point);
    verdict.after();
    if (verdict.errno != null) return error.OutOfMemory;
}

/// Encodes an errno as the return value of a failed raw system call.
pub fn failure(errno: linux.E) usize {
    return @bitCast(-@as(isize, @intFromEnum(errno)));
}

/// Writes a line `name count` for each call hit since the plan was set and returns the bytes
/// written. Returns `Full` if the lines do not fit.
pub fn report(out: []u8) Error!u32 {
    mutex.lock();
    defer mutex.unlock();
    var at: usize = 0;
    for (points, counts) |point, count| try append(out, &at, @tagName(point), count);
    for (foreign_names[0..foreign_count], foreign_counts[0..foreign_count]) |*name, count| {
        try append(out, &at, name.slice(), count);
    }
    return @intCast(at);
}

fn append(out: []u8, at: *usize, name: []const u8, count: u64) Error!void {
    if (count == 0) return;
    const line = std.fmt.bufPrint(out[at.*..], "{s} {d}\n", .{ name, count }) catch
        return error.Full;
    at.* += line.len;
}

fn kill() noreturn {
    _ = linux.kill(linux.getpid(), .KILL);
    // SIGKILL may arrive late; this thread must do nothing until then.
    while (true) pause(1000);
}

/// Sleeps for `ms` milliseconds on this thread.
pub fn pause(ms: u32) void {
    var left: linux.timespec = .{ .sec = ms / 1000, .nsec = @as(i64, ms % 1000) * 1_000_000 };
    while (linux.errno(linux.nanosleep(&left, &left)) == .INTR) continue;
}

/// Inverts one bit in the middle of the first `count` bytes of `parts`.
fn flipBit(parts: []const std.posix.iovec, count: usize) void {
    var at = count / 2;
    for (parts) |part| {
        if (at < part.len) {
            part.base[at] ^= 0x10;
            return;
        }
        at -= part.len;
    }
}

test "a plan fails the calls it names at the hits it names" {
    defer set("") catch unreachable;
    try set("store.open:2:ENOSPC;load.*:1+:EIO;peek.read:1:short");
    try std.testing.expectEqual(null, hit(.@"store.open").errno);
    try std.testing.expectEqual(.NOSPC, hit(.@"store.open").errno.?);
    try std.testing.expectEqual(null, hit(.@"store.open").errno);
    try std.testing.expectEqual(.IO, hit(.@"load.read").errno.?);
    try std.testing.expectEqual(.IO, hit(.@"load.open").errno.?);
    try std.testing.expectEqual(50, hit(.@"peek.read").moved(100, &.{}));
    try std.testing.expectEqual(100, hit(.@"peek.read").moved(100, &.{}));
    try std.testing.expectEqual(0, try hitForeign("index.commit"));
    var text: [256]u8 = undefined;
    const wanted = "store.open 3\nload.open 1\nload.read 1\npeek.read 2\nindex.commit 1\n";
    try std.testing.expectEqualStrings(wanted, text[0..try report(&text)]);
}

test "an invalid plan is refused and changes nothing" {
    defer set("") catch unreachable;
    try set("store.open:1+:EIO");
    const wrong = [_][]const u8{
        "x", "x:1", "x:0:EIO", "x:1:EWHAT", "x:-1:EIO", ":1:EIO", "x:1:EIO:EIO",
    };
    for (wrong) |text| try std.testing.expectError(error.BadRequest, set(text));
    try std.testing.expectEqual(.IO, hit(.@"store.open").errno.?);
    try set("");
    try std.testing.expectEqual(null, hit(.@"store.open").errno);
    var text: [64]u8 = undefined;
    try std.testing.expectEqual(0, try report(&text));
}

test "a flipped bit is within the bytes read" {
    defer set("") catch unreachable;
    try set("load.read:1:flip");
    var first: [4]u8 = @splat(0);
    var second: [4]u8 = @splat(0);
    const parts = [_]std.posix.iovec{
        .{ .base = &first, .len = 4 },
        .{ .base = &second, .len = 4 },
    };
    try std.testing.expectEqual(8, hit(.@"load.read").moved(8, &parts));
    try std.testing.expectEqualSlices(u8, &.{ 0, 0, 0, 0 }, &first);
    try std.testing.expectEqualSlices(u8, &.{ 0x10, 0, 0, 0 }, &second);
}
