//! State shared by all processes that use the verbs stand-in: one file that lists queue pairs by
//! number and memory by key, so that one process can read memory that another lent. Entries of a
//! dead process count as free.

const std = @import("std");
const linux = std.os.linux;
const monotonic = @import("monotonic");
const Mutex = @import("mutex").Mutex;

const pairs_max = 4096;
const memories_max = 32768;
const key_shift = 8;
const number_shift = 12;
/// Command numbers of open file description locks, which the kernel releases when the process ends.
const set_lock = 37;
const lock_shared = 0;
const lock_exclusive = 1;
const lock_none = 2;
/// Nanoseconds after which a waiting thread checks whether the lock's owner is stopped. The next
/// constant is the time after which it gives up.
const look_ns = 100 * std.time.ns_per_ms;
const timeout_ns = 5 * std.time.ns_per_s;

pub const Pair = extern struct {
    owner: i32,
    number: u32,
    since: u64,
    state: u32,
    destination: u32,
    receive_psn: u32,
    send_psn: u32,
    mtu: u32,
    rights: u32,
    domain: u32,
    reads_in: u32,
    lid: u32,
    is_port_up: u32,
    /// Nonzero if the other side violated the protocol: the owner's simulated NIC then fails the
    /// queue pair.
    is_killed: u32,
    uses: u32,
    gid: [16]u8,
};

pub const Memory = extern struct {
    owner: i32,
    key: u32,
    since: u64,
    domain: u32,
    rights: u32,
    /// Address of the memory in work requests.
    address: u64,
    /// Address of the memory in the owner's process.
    base: u64,
    bytes: u64,
    uses: u32,
    reserved: u32,
};

const File = extern struct {
    next_pair: u32,
    next_memory: u32,
    next_domain: u32,
    reserved: u32,
    pairs: [pairs_max]Pair,
    memories: [memories_max]Memory,
};

pub const Fabric = struct {
    path: [128]u8 = @splat(0),
    fd: i32,
    file: *File,
    /// Held while memory is copied, and while memory of this process is removed.
    lock: Mutex = .{},

    pub fn newDomain(fabric: *Fabric) u32 {
        return @atomicRmw(u32, &fabric.file.next_domain, .Add, 1, .monotonic) + 1;
    }

    /// Locks the memory's entry, so that the memory stays registered until `release`. The caller
    /// then checks that the key is still valid.
    pub fn hold(fabric: *Fabric, memory: *const Memory) void {
        fabric.range(fabric.placeOf(memory), lock_shared);
    }

    pub fn release(fabric: *Fabric, memory: *const Memory) void {
        fabric.range(fabric.placeOf(memory), lock_none);
    }

    /// Removes memory. When it returns, no process reads the memory any more.
    pub fn remove(fabric: *Fabric, memory: *Memory) void {
        fabric.lock.lock();
        defer fabric.lock.unlock();
        @atomicStore(i32, &memory.owner, 0, .release);
        fabric.range(fabric.placeOf(memory), lock_exclusive);
        fabric.range(fabric.placeOf(memory), lock_none);
    }

    fn placeOf(fabric: *Fabric, memory: *const Memory) u64 {
        return @intFromPtr(memory) - @intFromPtr(fabric.file);
    }

    /// Sets or removes a lock on the byte of the file that represents an entry. The first byte
    /// serialises the creation of entries.
    fn range(fabric: *Fabric, place: u64, kind: i16) void {
        const wanted: linux.Flock = .{
            .type = kind,
            .whence = linux.SEEK.SET,
            .start = @intCast(place),
            .len = 1,
            .pid = 0,
            ._unused = {},
        };
        const began = monotonic.now();
        while (linux.errno(linux.fcntl(fabric.fd, set_lock, @intFromPtr(&wanted))) != .SUCCESS) {
            const waited = monotonic.now() - began;
            // A process that a test has stopped while it held the lock must not block others. Its
            // copies were complete before it was stopped.
            if (waited > look_ns and fabric.someoneIsStopped()) return;
            if (waited > timeout_ns) return;
            const time: linux.timespec = .{ .sec = 0, .nsec = std.time.ns_per_ms / 10 };
            _ = linux.nanosleep(&time, null);
        }
    }

    fn someoneIsStopped(fabric: *Fabric) bool {
        var last: i32 = 0;
        for (&fabric.file.pairs) |*pair| {
            if (pair.owner == 0 or pair.owner == last) continue;
            last = pair.owner;
            const status = statusOf(last) orelse continue;
            if (status.state == 'T') return true;
        }
        return false;
    }

    /// Adds a queue pair in the state `reset`, to which no requests are sent.
    pub fn addPair(fabric: *Fabric) ?*Pair {
        fabric.range(0, lock_exclusive);
        defer fabric.range(0, lock_none);
        const file = fabric.file;
        for (0..pairs_max) |_| {
            file.next_pair = (file.next_pair + 1) % pairs_max;
            const pair = &file.pairs[file.next_pair];
            if (pair.owner != 0 and isAlive(pair.owner, pair.since)) continue;
            const uses = (pair.uses + 1) & 0xfff;
            pair.* = std.mem.zeroes(Pair);
            pair.owner = linux.getpid();
            pair.since = startOf(pair.owner);
            pair.uses = uses;
            // The numbers 0 and 1 are reserved.
            pair.number = ((uses << number_shift) | file.next_pair) & 0xffffff;
            if (pair.number < 2) pair.number |= 1 << number_shift;
            return pair;
        }
        return null;
    }

    /// Adds a registered memory. Its key is stored last, when all other fields are set.
    pub fn addMemory(fabric: *Fabric, wanted: Memory) ?*Memory {
        fabric.range(0, lock_exclusive);
        defer fabric.range(0, lock_none);
        const file = fabric.file;
        for (0..memories_max) |_| {
            file.next_memory = (file.next_memory + 1) % memories_max;
            const memory = &file.memories[file.next_memory];
            if (memory.owner != 0 and isAlive(memory.owner, memory.since)) continue;
            const uses = memory.uses +% 1;
            memory.* = wanted;
            memory.owner = linux.getpid();
            memory.since = startOf(memory.owner);
            memory.uses = uses;
            const key = ((file.next_memory + 1) << key_shift) | (uses & 0xff);
            @atomicStore(u32, &memory.key, key, .release);
            return memory;
        }
        return null;
    }

    pub fn pairOf(fabric: *Fabric, number: u32) ?*Pair {
        const pair = &fabric.file.pairs[number % pairs_max];
        const owner = @atomicLoad(i32, &pair.owner, .acquire);
        return if (owner != 0 and pair.number == number) pair else null;
    }

    pub fn memoryOf(fabric: *Fabric, key: u32) ?*Memory {
        const place = key >> key_shift;
        if (place == 0 or place > memories_max) return null;
        const memory = &fabric.file.memories[place - 1];
        const owner = @atomicLoad(i32, &memory.owner, .acquire);
        const is_it = owner != 0 and @atomicLoad(u32, &memory.key, .acquire) == key;
        return if (is_it) memory else null;
    }
};

const fabrics_max = 8;
var fabrics: [fabrics_max]Fabric = undefined;
var fabrics_count: usize = 0;

/// Opens the fabric in this folder and creates it if it is missing. The caller holds the state's
/// lock.
pub fn at(folder: []const u8) !*Fabric {
    var path: [128]u8 = @splat(0);
    _ = if (folder.len > 0)
        try std.fmt.bufPrint(&path, "{s}/fabric-{x}", .{ folder, @sizeOf(File) })
    else
        try std.fmt.bufPrint(&path, "/dev/shm/standin-verbs-{d}-{x}", .{
            linux.getuid(), @sizeOf(File),
        });
    for (fabrics[0..fabrics_count]) |*fabric| {
        if (std.mem.eql(u8, &fabric.path, &path)) return fabric;
    }
    if (fabrics_count == fabrics_max) return error.TooMany;
    const flags: linux.O = .{ .ACCMODE = .RDWR, .CREAT = true, .CLOEXEC = true };
    const fd = try positive(linux.open(@ptrCast(&path), flags, 0o600));
    errdefer _ = linux.close(@intCast(fd));
    _ = try positive(linux.ftruncate(@intCast(fd), @sizeOf(File)));
    const prot: linux.PROT = .{ .READ = true, .WRITE = true };
    const file = try positive(
        linux.mmap(null, @sizeOf(File), prot, .{ .TYPE = .SHARED }, @intCast(fd), 0),
    );
    const fabric = &fabrics[fabrics_count];
    fabric.* = .{ .path = path, .fd = @intCast(fd), .file = @ptrFromInt(file) };
    fabrics_count += 1;
    return fabric;
}

fn positive(result: usize) error{System}!usize {
    return if (linux.errno(result) == .SUCCESS) result else error.System;
}

/// Returns whether the process is still running and is not a later process with the same id.
fn isAlive(pid: i32, since: u64) bool {
    if (pid == linux.getpid()) return since == startOf(pid);
    return since == startOf(pid) and since != 0;
}

var own_pid: i32 = 0;
var own_start: u64 = 0;

/// Returns the start time of the process in ticks since boot; 0 if it has ended.
fn startOf(pid: i32) u64 {
    if (pid == own_pid) return own_start;
    const status = statusOf(pid) orelse return 0;
    if (status.state == 'Z' or status.state == 'X') return 0;
    if (pid == linux.getpid()) {
        own_pid = pid;
        own_start = status.start;
    }
    return status.start;
}

const Status = struct { state: u8, start: u64 };

/// Returns the status of a process; null if it does not exist.
fn statusOf(pid: i32) ?Status {
    var path: [32]u8 = @splat(0);
    _ = std.fmt.bufPrint(&path, "/proc/{d}/stat", .{pid}) catch return null;
    const fd = positive(linux.open(@ptrCast(&path), .{ .CLOEXEC = true }, 0)) catch return null;
    defer _ = linux.close(@intCast(fd));
    var text: [1024]u8 = undefined;
    const length = positive(linux.read(@intCast(fd), &text, text.len)) catch return null;
    // The process name, in parentheses, may contain any characters.
    const name_end = std.mem.lastIndexOfScalar(u8, text[0..length], ')') orelse return null;
    var fields = std.mem.tokenizeScalar(u8, text[name_end + 1 .. length], ' ');
    const state = fields.next() orelse return null;
    for (0..18) |_| _ = fields.next();
    const start = std.fmt.parseInt(u64, fields.next() orelse "0", 10) catch return null;
    return .{ .state = state[0], .start = start };
}
