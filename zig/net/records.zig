//! Records: the payload of a lane, split into pieces of at most 256 KiB and sealed (encrypted)
//! piece by piece. This file uses no sockets.
//!
//! A record is an unencrypted header of 24 bytes, its payload and, if sealed, a tag of 16 bytes.
//! The tag authenticates header and payload. The nonce counts records, so opening a repeated,
//! omitted or moved record fails. The key belongs to one session, lane, direction and cipher, so
//! opening a record of another lane fails too. See docs/internals/wire-protocol.md, "Sealed lanes".

const std = @import("std");
const types = @import("../abi/types.zig");
const Aegis = std.crypto.aead.aegis.Aegis128L;
const Gcm = std.crypto.aead.aes_gcm.Aes128Gcm;
const Blake3 = std.crypto.hash.Blake3;
const Error = @import("../abi/status.zig").Error;
const Cipher = types.LaneCipher;

pub const header_bytes = 24;
pub const tag_bytes = 16;
/// Largest payload of one record in bytes. A record is small enough to stay in the second-level
/// cache between sealing and sending, and to let a small transfer take its turn soon.
pub const payload_max = 256 * 1024;
pub const sealed_max = header_bytes + payload_max + tag_bytes;
const version = 1;

/// Number of bytes sealed with one key before it changes. AEGIS-128L allows 2^61 bytes; AES-GCM
/// loses 2^-69 of its secrecy in 2^30 blocks of 16 bytes.
const aegis_rekey_bytes = 64 << 30;
const gcm_rekey_bytes = 16 << 30;

pub const Kind = enum(u8) {
    /// First record from the dialling side; proves that it knows the session's secret.
    hello = 1,
    /// First record from the accepting side; proves the same.
    welcome = 2,
    data = 3,
    /// The sender sends no further record of this transfer.
    abort = 4,
    /// The sender sends no further record on this lane.
    bye = 5,
};

pub const Header = struct {
    kind: Kind,
    /// True if this is the last record of its transfer.
    last: bool = false,
    length: u32 = 0,
    transfer: u32 = 0,
    offset: u64 = 0,

    pub fn write(header: Header, to: *[header_bytes]u8) void {
        to.* = @splat(0);
        to[0] = version;
        to[1] = @intFromEnum(header.kind);
        to[2] = @intFromBool(header.last);
        std.mem.writeInt(u32, to[4..8], header.length, .little);
        std.mem.writeInt(u32, to[8..12], header.transfer, .little);
        std.mem.writeInt(u64, to[16..24], header.offset, .little);
    }

    /// Parses a header; accepts only values that `write` produces. The header is not authenticated
    /// before the record is opened.
    pub fn read(from: *const [header_bytes]u8) Error!Header {
        const kind = std.enums.fromInt(Kind, from[1]) orelse return error.Forged;
        const header: Header = .{
            .kind = kind,
            .last = from[2] == 1,
            .length = std.mem.readInt(u32, from[4..8], .little),
            .transfer = std.mem.readInt(u32, from[8..12], .little),
            .offset = std.mem.readInt(u64, from[16..24], .little),
        };
        if (header.length > payload_max or (header.length == 0) != (kind != .data))
            return error.Forged;
        var again: [header_bytes]u8 = undefined;
        header.write(&again);
        if (!std.mem.eql(u8, &again, from)) return error.Forged;
        const alone = kind == .hello or kind == .welcome or kind == .bye;
        if (alone and header.transfer != 0) return error.Forged;
        if (kind != .data and (header.last or header.offset != 0)) return error.Forged;
        return header;
    }
};

pub const Direction = enum(u32) { from_dialler = 0, to_dialler = 1 };

/// The session, lane, direction and cipher of a record, from which its key is derived.
pub const Place = struct {
    session: [16]u8,
    lane: u32,
    direction: Direction,
    cipher: Cipher,
};

/// The successive keys of one direction of one lane. Both sides change keys at the same record,
/// because they count the same bytes. A key does not reveal earlier keys.
pub const Keys = struct {
    aead: enum { aegis, gcm },
    rekey_bytes: u64,
    chain: [32]u8,
    key: [16]u8,
    base: [16]u8,
    sequence: u64 = 0,
    generation: u64 = 0,
    /// Bytes sealed with the current key, tags included.
    used: u64 = 0,

    /// `rekey_bytes` is the number of bytes sealed with one key; 0 selects the cipher's default.
    pub fn init(secret: *const [32]u8, place: Place, rekey_bytes: u64) Keys {
        var material: [60]u8 = undefined;
        defer std.crypto.secureZero(u8, &material);
        material[0..32].* = secret.*;
        material[32..48].* = place.session;
        std.mem.writeInt(u32, material[48..52], place.lane, .little);
        std.mem.writeInt(u32, material[52..56], @intFromEnum(place.direction), .little);
        std.mem.writeInt(u32, material[56..60], @intFromEnum(place.cipher), .little);
        const gcm = place.cipher == .aes_128_gcm;
        const usual: u64 = if (gcm) gcm_rekey_bytes else aegis_rekey_bytes;
        var keys: Keys = .{
            .aead = if (gcm) .gcm else .aegis,
            .rekey_bytes = if (rekey_bytes == 0) usual else rekey_bytes,
            .chain = undefined,
            .key = undefined,
            .base = undefined,
        };
        derive("hearth lanes 1: a lane's direction", &material, &keys.chain);
        keys.turn();
        return keys;
    }

    /// Derives the key of the current generation and the secret from which the next one is derived.
    fn turn(keys: *Keys) void {
        var material: [40]u8 = undefined;
        var made: [32]u8 = undefined;
        defer std.crypto.secureZero(u8, &material);
        defer std.crypto.secureZero(u8, &made);
        material[0..32].* = keys.chain;
        std.mem.writeInt(u64, material[32..40], keys.generation, .little);
        derive("hearth lanes 1: a generation's key", &material, &made);
        keys.key = made[0..16].*;
        keys.base = made[16..32].*;
        derive("hearth lanes 1: the next generation", &material, &keys.chain);
    }

    /// Returns the nonce of the next record, of `bytes` bytes. Changes the key first if its limit
    /// is reached.
    fn next(keys: *Keys, bytes: usize) [16]u8 {
        const more = bytes + tag_bytes;
        if (keys.used > 0 and keys.used + more > keys.rekey_bytes) {
            keys.generation += 1;
            keys.used = 0;
            keys.turn();
        }
        keys.used += more;
        var nonce = keys.base;
        const count = std.mem.readInt(u64, nonce[0..8], .little) ^ keys.sequence;
        std.mem.writeInt(u64, nonce[0..8], count, .little);
        keys.sequence += 1;
        return nonce;
    }

    /// Seals `plain` into `out`, which has room for the payload and the tag.
    pub fn seal(
        keys: *Keys,
        header: *const [header_bytes]u8,
        plain: []const u8,
        out: []u8,
    ) void {
        const nonce = keys.next(plain.len);
        const text = out[0..plain.len];
        const tag = out[plain.len..][0..tag_bytes];
        std.debug.assert(out.len == plain.len + tag_bytes);
        switch (keys.aead) {
            .aegis => Aegis.encrypt(text, tag, plain, header, nonce, keys.key),
            .gcm => Gcm.encrypt(text, tag, plain, header, nonce[0..12].*, keys.key),
        }
    }

    /// Opens `sealed`, tag included, into `out`, which may be the same memory. Returns `Forged` if
    /// authentication fails; `out` is then undefined and no later record opens.
    pub fn open(
        keys: *Keys,
        header: *const [header_bytes]u8,
        sealed: []const u8,
        out: []u8,
    ) Error!void {
        std.debug.assert(sealed.len == out.len + tag_bytes);
        const nonce = keys.next(out.len);
        const text = sealed[0..out.len];
        const tag = sealed[out.len..][0..tag_bytes].*;
        switch (keys.aead) {
            .aegis => Aegis.decrypt(out, text, tag, header, nonce, keys.key) catch
                return error.Forged,
            .gcm => Gcm.decrypt(out, text, tag, header, nonce[0..12].*, keys.key) catch
                return error.Forged,
        }
    }

    pub fn wipe(keys: *Keys) void {
        std.crypto.secureZero(u8, std.mem.asBytes(keys));
    }
};

fn derive(context: []const u8, material: []const u8, out: *[32]u8) void {
    var hasher = Blake3.initKdf(context, .{});
    defer std.crypto.secureZero(u8, std.mem.asBytes(&hasher));
    hasher.update(material);
    hasher.final(out);
}

/// Seals adjacent unsealed records, each a header and its payload, and returns the number of bytes
/// written. For test vectors and fault tests.
pub fn sealAll(keys: *Keys, plain: []const u8, out: []u8) Error!u32 {
    var from: usize = 0;
    var to: usize = 0;
    while (from < plain.len) {
        const head = try headAt(plain[from..]);
        const length = (try Header.read(head)).length;
        if (plain.len - from < header_bytes + length) return error.Short;
        if (out.len - to < header_bytes + length + tag_bytes) return error.Full;
        out[to..][0..header_bytes].* = head.*;
        const payload = plain[from + header_bytes ..][0..length];
        keys.seal(head, payload, out[to + header_bytes ..][0 .. length + tag_bytes]);
        from += header_bytes + length;
        to += header_bytes + length + tag_bytes;
    }
    return @intCast(to);
}

/// Opens adjacent sealed records. Returns `Short` if the last one is incomplete.
pub fn openAll(keys: *Keys, sealed: []const u8, out: []u8) Error!u32 {
    var from: usize = 0;
    var to: usize = 0;
    while (from < sealed.len) {
        const head = try headAt(sealed[from..]);
        const length = (try Header.read(head)).length;
        if (sealed.len - from < header_bytes + length + tag_bytes) return error.Short;
        if (out.len - to < header_bytes + length) return error.Full;
        const text = sealed[from + header_bytes ..][0 .. length + tag_bytes];
        try keys.open(head, text, out[to + header_bytes ..][0..length]);
        out[to..][0..header_bytes].* = head.*;
        from += header_bytes + length + tag_bytes;
        to += header_bytes + length;
    }
    return @intCast(to);
}

fn headAt(bytes: []const u8) Error!*const [header_bytes]u8 {
    if (bytes.len < header_bytes) return error.Short;
    return bytes[0..header_bytes];
}

const testing = std.testing;
const test_secret: [32]u8 = blk: {
    var bytes: [32]u8 = undefined;
    for (&bytes, 0..) |*byte, i| byte.* = i;
    break :blk bytes;
};
const test_place: Place = .{
    .session = @splat(0xa5),
    .lane = 3,
    .direction = .to_dialler,
    .cipher = .aegis_128l,
};

fn expectHex(wanted: []const u8, got: []const u8) !void {
    var text: [512]u8 = undefined;
    try testing.expectEqualStrings(wanted, try std.fmt.bufPrint(&text, "{x}", .{got}));
}

test "AEGIS-128L equals the draft's test vector" {
    // draft-irtf-cfrg-aegis-aead, A.2, test vector 1.
    const key: [16]u8 = .{ 0x10, 0x01 } ++ @as([14]u8, @splat(0));
    const nonce: [16]u8 = .{ 0x10, 0x00, 0x02 } ++ @as([13]u8, @splat(0));
    const plain: [16]u8 = @splat(0);
    var text: [16]u8 = undefined;
    var tag: [16]u8 = undefined;
    Aegis.encrypt(&text, &tag, &plain, "", nonce, key);
    try expectHex("c1c0e58bd913006feba00f4b3cc3594e", &text);
    try expectHex("abe0ece80c24868a226a35d16bdae37a", &tag);
}

test "a header is read as written, and other bytes are refused" {
    var bytes: [header_bytes]u8 = undefined;
    const headers = [_]Header{
        .{ .kind = .hello },
        .{ .kind = .abort, .transfer = 7 },
        .{ .kind = .data, .last = true, .length = payload_max, .transfer = 1 << 31, .offset = 9 },
    };
    for (headers) |header| {
        header.write(&bytes);
        try testing.expectEqual(header, try Header.read(&bytes));
    }
    const wrong = [_]Header{
        .{ .kind = .data, .length = payload_max + 1 },
        .{ .kind = .data, .length = 0 },
        .{ .kind = .hello, .length = 1 },
        .{ .kind = .bye, .transfer = 1 },
        .{ .kind = .abort, .offset = 1 },
        .{ .kind = .welcome, .last = true },
    };
    for (wrong) |header| {
        header.write(&bytes);
        try testing.expectError(error.Forged, Header.read(&bytes));
    }
    for ([_]usize{ 0, 1, 2, 3, 12 }) |at| {
        (Header{ .kind = .hello }).write(&bytes);
        bytes[at] = 0xff;
        try testing.expectError(error.Forged, Header.read(&bytes));
    }
}

test "a record with one changed bit does not open" {
    for ([_]Cipher{ .aegis_128l, .aes_128_gcm }) |cipher| {
        var place = test_place;
        place.cipher = cipher;
        var head: [header_bytes]u8 = undefined;
        (Header{ .kind = .data, .last = true, .length = 37, .transfer = 5 }).write(&head);
        var plain: [37]u8 = @splat('p');
        var record: [header_bytes + 37 + tag_bytes]u8 = undefined;
        record[0..header_bytes].* = head;
        var sealing: Keys = .init(&test_secret, place, 0);
        sealing.seal(&head, &plain, record[header_bytes..]);
        for (0..record.len * 8) |bit| {
            var changed = record;
            changed[bit / 8] ^= @as(u8, 1) << @intCast(bit % 8);
            var opening: Keys = .init(&test_secret, place, 0);
            const in = changed[header_bytes..];
            try testing.expectError(error.Forged, opening.open(changed[0..24], in, &plain));
        }
        var opening: Keys = .init(&test_secret, place, 0);
        try opening.open(&head, record[header_bytes..], &plain);
        try testing.expectEqualSlices(u8, &@as([37]u8, @splat('p')), &plain);
        // Opening the same record twice is a replay.
        try testing.expectError(
            error.Forged,
            opening.open(&head, record[header_bytes..], &plain),
        );
    }
}

test "a record of another place does not open" {
    var head: [header_bytes]u8 = undefined;
    (Header{ .kind = .hello }).write(&head);
    var sealed: [tag_bytes]u8 = undefined;
    var sealing: Keys = .init(&test_secret, test_place, 0);
    sealing.seal(&head, "", &sealed);
    var places: [4]Place = @splat(test_place);
    places[0].session[15] ^= 1;
    places[1].lane = 2;
    places[2].direction = .from_dialler;
    places[3].cipher = .none;
    for (places) |place| {
        var opening: Keys = .init(&test_secret, place, 0);
        try testing.expectError(error.Forged, opening.open(&head, &sealed, &.{}));
    }
    var secret = test_secret;
    secret[31] ^= 1;
    var opening: Keys = .init(&secret, test_place, 0);
    try testing.expectError(error.Forged, opening.open(&head, &sealed, &.{}));
}

test "both sides change the key after the same bytes, and the old key is wiped" {
    var sealing: Keys = .init(&test_secret, test_place, 300);
    var opening: Keys = .init(&test_secret, test_place, 300);
    var plain: [100]u8 = @splat(1);
    var sealed: [116]u8 = undefined;
    var head: [header_bytes]u8 = undefined;
    (Header{ .kind = .data, .length = 100 }).write(&head);
    var last_key = sealing.key;
    for (0..20) |count| {
        sealing.seal(&head, &plain, &sealed);
        try opening.open(&head, &sealed, &plain);
        // Two records of 116 bytes fit under the limit of one key.
        try testing.expectEqual(count / 2, sealing.generation);
        const is_new = !std.mem.eql(u8, &last_key, &sealing.key);
        try testing.expectEqual(count > 0 and count % 2 == 0, is_new);
        last_key = sealing.key;
    }
    sealing.wipe();
    try testing.expect(std.mem.allEqual(u8, std.mem.asBytes(&sealing), 0));
}

test "runs of records survive sealing and opening" {
    var plain: [2 * header_bytes + 5]u8 = undefined;
    (Header{ .kind = .data, .length = 5, .transfer = 1 }).write(plain[0..header_bytes]);
    plain[header_bytes..][0..5].* = "hello".*;
    (Header{ .kind = .bye }).write(plain[header_bytes + 5 ..][0..header_bytes]);
    var sealed: [plain.len + 2 * tag_bytes]u8 = undefined;
    var keys: Keys = .init(&test_secret, test_place, 0);
    try testing.expectEqual(sealed.len, try sealAll(&keys, &plain, &sealed));
    var opened: [plain.len]u8 = undefined;
    keys = .init(&test_secret, test_place, 0);
    try testing.expectEqual(plain.len, try openAll(&keys, &sealed, &opened));
    try testing.expectEqualSlices(u8, &plain, &opened);
    keys = .init(&test_secret, test_place, 0);
    try testing.expectError(error.Short, openAll(&keys, sealed[0 .. sealed.len - 1], &opened));
    keys = .init(&test_secret, test_place, 0);
    try testing.expectError(error.Full, openAll(&keys, &sealed, opened[0..40]));
}
