import { assert, equalBytes } from "../../core/index.ts";
import { HEADER_BYTES } from "../../native/index.ts";

export { HEADER_BYTES };

/** Block files are padded to a multiple of this many bytes. */
const PAGE_BYTES = 4096;

/** Maximum payload in bytes: the engine protocol and the block table store it as u32. */
export const PAYLOAD_BYTES_MAX = 0xffff_ffff;

/**
 * Returns the length in bytes of the file for a payload: header, payload, zeros up to a multiple of
 * 4096.
 */
export function fileBytesOf(payloadBytes: number): number {
  return HEADER_BYTES + Math.ceil(payloadBytes / PAGE_BYTES) * PAGE_BYTES;
}

/** Fields of the header, which is the first 4096 bytes of a `.kvb` file. The payload follows it. */
export interface KvbHeader {
  /** 32 bytes. Digest and `layer` together are the full address of the block. */
  readonly digest: Uint8Array;
  readonly layer: number;
  /** Digest of the previous block of the prompt; null if this is the first block. */
  readonly parent: Uint8Array | null;
  /** Key of the block's namespace, 32 bytes. */
  readonly namespaceKey: Uint8Array;
  /** Length of the payload in bytes, 1 to 2^32 - 1, without the padding of the file. */
  readonly payloadBytes: number;
  /** XXH3-64 of the payload, without padding. */
  readonly payloadChecksum: bigint;
  /** 16 bytes, computed with the MAC key of the block's namespace; null if the block has no MAC. */
  readonly mac: Uint8Array | null;
  /**
   * Number that identifies the run of the agent that wrote the file, and sequence number of the
   * write in that run.
   */
  readonly incarnation: bigint;
  readonly sequence: number;
  /**
   * Unix time of the write in milliseconds. It is the age of the block if nothing else is known.
   */
  readonly writtenMs: number;
}

/** The first fault found in a header, in the order of the checks. */
export type HeaderFault =
  | "magic"
  | "version"
  | "checksum"
  | "header_length"
  | "flags"
  | "reserved"
  | "payload_length"
  | "number";

export type DecodedHeader =
  | { readonly ok: true; readonly header: KvbHeader }
  | { readonly ok: false; readonly fault: HeaderFault; readonly why: string };

/** "HEARTHKV" as a little-endian number. */
export const MAGIC = 0x564b_4854_5241_4548n;
/** Format version of files of blocks without a MAC (1), and with one (2). Nothing else differs. */
export const FORMAT_VERSION = 1;
export const MAC_FORMAT_VERSION = 2;
const HAS_PARENT = 1;
const HAS_MAC = 2;

/** Byte offset and length of each field. `docs/internals/on-disk-format.md` has the same table. */
export const HEADER_FIELDS = {
  magic: { at: 0, bytes: 8 },
  version: { at: 8, bytes: 4 },
  headerBytes: { at: 12, bytes: 4 },
  digest: { at: 16, bytes: 32 },
  layer: { at: 48, bytes: 4 },
  flags: { at: 52, bytes: 4 },
  payloadBytes: { at: 56, bytes: 8 },
  payloadChecksum: { at: 64, bytes: 8 },
  namespaceKey: { at: 72, bytes: 32 },
  parentDigest: { at: 104, bytes: 32 },
  incarnation: { at: 136, bytes: 8 },
  sequence: { at: 144, bytes: 8 },
  writtenMs: { at: 152, bytes: 8 },
  mac: { at: 160, bytes: 16 },
  reserved: { at: 176, bytes: 3912 },
  headerChecksum: { at: 4088, bytes: 8 },
} as const;

type Field = keyof typeof HEADER_FIELDS;

const at = (field: Field) => HEADER_FIELDS[field].at;

/**
 * Private copy of a header. Headers are validated and read from this copy, never from memory to
 * which another process may write. There is a single instance, so that a call creates no garbage.
 */
class Scratch {
  readonly bytes = new Uint8Array(HEADER_BYTES);
  readonly view = new DataView(this.bytes.buffer);
  readonly #summed = this.bytes.subarray(0, at("headerChecksum"));
  readonly #reserved = new Uint32Array(
    this.bytes.buffer,
    at("reserved"),
    HEADER_FIELDS.reserved.bytes / 4,
  );

  checksum(): bigint {
    return Bun.hash.xxHash3(this.#summed);
  }

  /** Returns whether the reserved bytes are zero. */
  isReservedClear(): boolean {
    const words = this.#reserved;
    let set = 0;
    for (let i = 0; i < words.length; i++) set |= words[i];
    return set === 0;
  }

  isZero(field: Field): boolean {
    const { at, bytes } = HEADER_FIELDS[field];
    for (let i = at; i < at + bytes; i++) if (this.bytes[i] !== 0) return false;
    return true;
  }

  u32(field: Field): number {
    return this.view.getUint32(at(field), true);
  }

  u64(field: Field): bigint {
    return this.view.getBigUint64(at(field), true);
  }

  /** Returns the value of a u64 field if it is at most 2^53 - 1, otherwise -1. */
  safe(field: Field): number {
    const value = Number(this.u64(field));
    return Number.isSafeInteger(value) ? value : -1;
  }

  copy(field: Field): Uint8Array {
    const { at, bytes } = HEADER_FIELDS[field];
    return this.bytes.slice(at, at + bytes);
  }
}

const encoding = new Scratch();
const decoding = new Scratch();

/** Writes the 4096 bytes of a header to `into`, which may be any memory of that length. */
export function encodeHeader(header: KvbHeader, into: Uint8Array): void {
  assert(into.length === HEADER_BYTES, "a header has 4096 bytes");
  assert(header.digest.length === 32 && header.namespaceKey.length === 32, "32-byte names");
  assert(header.parent === null || header.parent.length === 32, "a 32-byte parent");
  assert(header.mac === null || header.mac.length === 16, "a 16-byte MAC");
  const { payloadBytes } = header;
  assert(payloadBytes >= 1 && payloadBytes <= PAYLOAD_BYTES_MAX, "a payload of 1 to 2^32 - 1");
  const { bytes, view } = encoding;
  view.setBigUint64(at("magic"), MAGIC, true);
  const version = header.mac === null ? FORMAT_VERSION : MAC_FORMAT_VERSION;
  view.setUint32(at("version"), version, true);
  view.setUint32(at("headerBytes"), HEADER_BYTES, true);
  bytes.set(header.digest, at("digest"));
  view.setUint32(at("layer"), header.layer, true);
  const flags = (header.parent === null ? 0 : HAS_PARENT) | (header.mac === null ? 0 : HAS_MAC);
  view.setUint32(at("flags"), flags, true);
  view.setBigUint64(at("payloadBytes"), BigInt(payloadBytes), true);
  view.setBigUint64(at("payloadChecksum"), header.payloadChecksum, true);
  bytes.set(header.namespaceKey, at("namespaceKey"));
  if (header.parent === null) bytes.fill(0, at("parentDigest"), at("incarnation"));
  else bytes.set(header.parent, at("parentDigest"));
  view.setBigUint64(at("incarnation"), header.incarnation, true);
  view.setBigUint64(at("sequence"), BigInt(header.sequence), true);
  view.setBigUint64(at("writtenMs"), BigInt(header.writtenMs), true);
  if (header.mac === null) bytes.fill(0, at("mac"), at("reserved"));
  else bytes.set(header.mac, at("mac"));
  view.setBigUint64(at("headerChecksum"), encoding.checksum(), true);
  into.set(bytes);
}

function refused(fault: HeaderFault, why: string): DecodedHeader {
  return { ok: false, fault, why };
}

/** Returns the fault of the header in `decoding`, or null. */
function judge(): DecodedHeader | null {
  const it = decoding;
  if (it.u64("magic") !== MAGIC) return refused("magic", "does not begin with HEARTHKV");
  const version = it.u32("version");
  if (version !== FORMAT_VERSION && version !== MAC_FORMAT_VERSION) {
    return refused("version", `is of format version ${version}, this program reads 1 and 2`);
  }
  if (it.u64("headerChecksum") !== it.checksum()) {
    return refused("checksum", "the header does not match its checksum");
  }
  if (it.u32("headerBytes") !== HEADER_BYTES) {
    return refused("header_length", `a header of ${it.u32("headerBytes")} bytes, not 4096`);
  }
  const flags = it.u32("flags");
  const wanted = version === MAC_FORMAT_VERSION ? HAS_MAC : 0;
  if ((flags & ~HAS_PARENT) !== wanted) {
    return refused("flags", `flags 0x${flags.toString(16)} in format version ${version}`);
  }
  if ((flags & HAS_PARENT) === 0 && !it.isZero("parentDigest")) {
    return refused("flags", "parent digest without the parent flag");
  }
  if (it.isZero("mac") !== (version === FORMAT_VERSION)) {
    return refused("flags", "a MAC is given in format version 2 alone, and is not zero there");
  }
  if (!it.isReservedClear()) return refused("reserved", "reserved bytes are not zero");
  const payloadBytes = it.safe("payloadBytes");
  if (payloadBytes < 1 || payloadBytes > PAYLOAD_BYTES_MAX) {
    return refused("payload_length", `a payload of ${it.u64("payloadBytes")} bytes`);
  }
  if (it.safe("sequence") < 0 || it.safe("writtenMs") < 0) {
    return refused("number", "a sequence or time beyond 2^53");
  }
  return null;
}

/** Decodes and validates a header. The result shares no memory with `from`. */
export function decodeHeader(from: Uint8Array): DecodedHeader {
  assert(from.length === HEADER_BYTES, "a header has 4096 bytes");
  const it = decoding;
  it.bytes.set(from);
  const refusal = judge();
  if (refusal !== null) return refusal;
  const header: KvbHeader = {
    digest: it.copy("digest"),
    layer: it.u32("layer"),
    parent: (it.u32("flags") & HAS_PARENT) !== 0 ? it.copy("parentDigest") : null,
    namespaceKey: it.copy("namespaceKey"),
    payloadBytes: it.safe("payloadBytes"),
    payloadChecksum: it.u64("payloadChecksum"),
    mac: (it.u32("flags") & HAS_MAC) !== 0 ? it.copy("mac") : null,
    incarnation: it.u64("incarnation"),
    sequence: it.safe("sequence"),
    writtenMs: it.safe("writtenMs"),
  };
  return { ok: true, header };
}

/** Fields that a file must have according to the block table. */
export interface ExpectedBlock {
  readonly digest: Uint8Array;
  readonly layer: number;
  readonly namespaceKey: Uint8Array;
  /** Digest of the parent. Undefined: unknown. Null: the block has no parent. */
  readonly parent: Uint8Array | null | undefined;
  readonly bytes: number;
  readonly checksum: bigint;
}

/** The first field of a valid header that differs from the expected block. */
export type HeaderMismatch = "digest" | "layer" | "namespace" | "parent" | "bytes" | "checksum";

function sameParent(a: Uint8Array | null, b: Uint8Array | null): boolean {
  return a === null || b === null ? a === b : equalBytes(a, b);
}

/**
 * Compares a valid header with the expected block. Returns the first field that differs, or null.
 * Detects files of another block, of another namespace, and of an earlier payload of this block.
 */
export function verifyHeader(header: KvbHeader, expected: ExpectedBlock): HeaderMismatch | null {
  if (!equalBytes(header.digest, expected.digest)) return "digest";
  if (header.layer !== expected.layer) return "layer";
  if (!equalBytes(header.namespaceKey, expected.namespaceKey)) return "namespace";
  const { parent } = expected;
  if (parent !== undefined && !sameParent(header.parent, parent)) return "parent";
  if (header.payloadBytes !== expected.bytes) return "bytes";
  if (header.payloadChecksum !== expected.checksum) return "checksum";
  return null;
}
