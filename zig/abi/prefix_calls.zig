//! The functions behind the exports of the prefix index: each checks its request and calls
//! prefix/index.zig.

const std = @import("std");
const handles = @import("../base/handles.zig");
const calls = @import("calls.zig");
const types = @import("router_types.zig");
const walks = @import("../prefix/walks.zig");
const targets_file = @import("../prefix/targets.zig");
const Error = @import("status.zig").Error;
const Index = @import("../prefix/index.zig").Index;
const Loader = @import("../prefix/loader.zig").Loader;
const Reader = @import("../prefix/reader.zig").Reader;
const Saver = @import("../prefix/saver.zig").Saver;
const required = calls.required;
const bytesAt = calls.bytesAt;
const writableAt = calls.writableAt;

const indexes_max = 256;
const all_targets = std.math.maxInt(u32);
var indexes: handles.HandleTable(Index, indexes_max, 6) = .{};

const Hashes = []align(1) const u64;

fn hashesAt(address: ?[*]align(1) const u64, count: u32) Error!Hashes {
    return if (count == 0) &.{} else (try required(address))[0..count];
}

pub fn create(request: ?*const types.PrefixRequest, info: ?*types.PrefixInfo) Error!void {
    const out = try required(info);
    const index = try Index.create(std.heap.c_allocator, (try required(request)).*);
    errdefer index.destroy();
    out.* = index.stats(try indexes.add(index));
}

pub fn infoOf(handle: u64, info: ?*types.PrefixInfo) Error!void {
    (try required(info)).* = (try indexes.get(handle)).stats(handle);
}

pub fn close(handle: u64) Error!void {
    (try indexes.remove(handle)).destroy();
}

pub fn apply(
    handle: u64,
    changes: ?[*]align(1) const types.PrefixChange,
    change_count: u32,
    hashes: ?[*]align(1) const u64,
    hash_count: u32,
) Error!void {
    const index = try indexes.get(handle);
    if (change_count == 0) return;
    const all = (try required(changes))[0..change_count];
    return index.apply(all, try hashesAt(hashes, hash_count));
}

fn columnsAt(out: *const types.PrefixColumns) Error!walks.Columns {
    const targets: ?[*]u16 = @ptrFromInt(out.targets);
    const device: ?[*]u32 = @ptrFromInt(out.device);
    const host: ?[*]u32 = @ptrFromInt(out.host);
    const disk: ?[*]u32 = @ptrFromInt(out.disk);
    return .{
        .targets = try required(targets),
        .tiers = .{ try required(device), try required(host), try required(disk) },
    };
}

pub fn match(
    handle: u64,
    columns: ?*types.PrefixColumns,
    hashes: ?[*]align(1) const u64,
    count: u32,
) Error!u32 {
    const index = try indexes.get(handle);
    const out = try required(columns);
    if (out.room < targets_file.count) return error.Full;
    const answer = index.walks.one(index, try hashesAt(hashes, count), try columnsAt(out));
    out.exact = answer.exact;
    return answer.count;
}

/// Looks up `prompts` prompts and returns how many elements of each column were filled.
pub fn matchMany(
    handle: u64,
    columns: ?*const types.PrefixColumns,
    hashes: ?[*]align(1) const u64,
    ends: ?[*]align(1) const u32,
    prompts: u32,
    rows: ?*const types.PrefixRows,
) Error!u32 {
    const index = try indexes.get(handle);
    const out = try required(columns);
    const per_prompt = try required(rows);
    if (prompts == 0) return 0;
    const all_ends = (try required(ends))[0..prompts];
    var before: u32 = 0;
    for (all_ends) |end| {
        if (end < before) return error.BadRequest;
        before = end;
    }
    const starts: ?[*]u32 = @ptrFromInt(per_prompt.starts);
    const counts: ?[*]u32 = @ptrFromInt(per_prompt.counts);
    const exact: ?[*]u32 = @ptrFromInt(per_prompt.exact);
    const filled = index.walks.many(index, try hashesAt(hashes, before), all_ends, .{
        .columns = try columnsAt(out),
        .room = out.room,
        .starts = try required(starts),
        .counts = try required(counts),
        .exact = try required(exact),
    });
    return @intCast(filled orelse return error.Full);
}

/// For each hash, writes the number of targets that have its block, then one word for each of these
/// targets with the tiers in the high bits. Returns the number of words.
pub fn holders(
    handle: u64,
    hashes: ?[*]align(1) const u64,
    count: u32,
    max: u32,
    out: ?[*]align(1) u32,
    room: u32,
) Error!u32 {
    const index = try indexes.get(handle);
    const all = try hashesAt(hashes, count);
    if (all.len == 0) return 0;
    const words = (try required(out))[0..room];
    var filled: usize = 0;
    for (all) |hash| {
        if (filled == words.len) return error.Full;
        filled += 1 + try holdersOf(index, hash, max, words[filled..]);
    }
    return @intCast(filled);
}

fn holdersOf(index: *Index, hash: u64, max: u32, words: []align(1) u32) Error!usize {
    words[0] = 0;
    const place = index.find(hash) orelse return 0;
    var count: usize = 0;
    for (index.chunk(place.chunk).holders(&index.arena)) |entry| {
        if (!entry.has(place.at)) continue;
        const tier = @as(u32, 1) << @intCast(16 + @as(u5, entry.tier()));
        if (count > 0 and words[count] & 0xffff == entry.target()) {
            words[count] |= tier;
            continue;
        }
        if (count == max) break;
        if (count + 1 == words.len) return error.Full;
        count += 1;
        words[count] = entry.target() | tier;
    }
    words[0] = @intCast(count);
    return count;
}

pub fn digests(handle: u64, target: u32, out: ?*types.PrefixDigests) Error!void {
    const index = try indexes.get(handle);
    const place = try required(out);
    if (target >= targets_file.count) return error.BadRequest;
    const sums = index.targets.sums[@as(usize, target) * 4 ..][0..targets_file.tiers];
    place.* = .{
        .device_blocks = sums[0].blocks,
        .device_mix = sums[0].mix,
        .host_blocks = sums[1].blocks,
        .host_mix = sums[1].mix,
        .disk_blocks = sums[2].blocks,
        .disk_mix = sums[2].mix,
        .torn = @intFromBool(index.targets.torn[target]),
        .reserved = 0,
    };
}

pub fn dump(handle: u64, target: u32) Error!void {
    const index = try indexes.get(handle);
    if (target != all_targets and target >= targets_file.count) return error.BadRequest;
    if (index.reader) |reader| reader.destroy(index.gpa);
    index.reader = null;
    index.reader = try Reader.create(index, if (target == all_targets) null else @intCast(target));
}

pub fn dumpNext(handle: u64, out: ?[*]u8, room: u32) Error!u32 {
    const index = try indexes.get(handle);
    const bytes = try writableAt(out, room);
    const reader = index.reader orelse return error.Closed;
    errdefer endDump(index, reader);
    const count = try reader.next(index, bytes);
    if (count == 0) endDump(index, reader);
    return count;
}

fn endDump(index: *Index, reader: *Reader) void {
    index.reader = null;
    reader.destroy(index.gpa);
}

pub fn save(handle: u64) Error!void {
    const index = try indexes.get(handle);
    if (index.saver != null or index.loader != null) return error.Busy;
    index.saver = try Saver.create(index);
}

pub fn saveNext(handle: u64, out: ?[*]u8, room: u32) Error!u32 {
    const index = try indexes.get(handle);
    const bytes = try writableAt(out, room);
    if (bytes.len == 0) return error.BadRequest;
    return (index.saver orelse return error.Closed).next(index, bytes);
}

pub fn saveEnd(handle: u64) Error!void {
    const index = try indexes.get(handle);
    const saver = index.saver orelse return error.Closed;
    index.saver = null;
    saver.destroy(index.gpa);
    Saver.finish(index);
}

pub fn load(handle: u64, data: ?[*]const u8, length: u32) Error!void {
    const index = try indexes.get(handle);
    const bytes = try bytesAt(data, length);
    const loader = index.loader orelse begin: {
        if (index.chunks > 0 or index.saver != null) return error.Busy;
        index.loader = try Loader.create(index);
        break :begin index.loader.?;
    };
    errdefer endLoad(index, loader, false);
    try loader.take(index, bytes);
}

pub fn loadEnd(handle: u64) Error!void {
    const index = try indexes.get(handle);
    const loader = index.loader orelse return error.Closed;
    errdefer endLoad(index, loader, false);
    try loader.finish(index);
    endLoad(index, loader, true);
}

fn endLoad(index: *Index, loader: *Loader, keep: bool) void {
    index.loader = null;
    loader.destroy(index.gpa);
    if (!keep) index.reset();
}
