import { assert, type WorkerId } from "../../core/index.ts";
import { Tier } from "../../store/blocks/index.ts";
import type { HardwareReport, PeerAnswer, PeerHello, PeerRequest } from "../messages.ts";
import { utf8Bytes, WireReader, WireWriter } from "./bytes.ts";
import {
  bytes,
  type Field,
  type Fields,
  records,
  type Struct,
  size,
  struct,
  u32,
  u64,
} from "./fields.ts";
import {
  ACCEPTS_RAW,
  ANSWER_BYTES_MAX,
  DEVICES_MAX,
  FILTER_BYTES_MAX,
  FIND_NAMES_MAX,
  FOUND_MAX,
  HASH_BYTES,
  HardwareBit,
  ITEMS_MAX,
  KEY_BYTES,
  Op,
  PAYLOAD_BYTES_MAX,
  REQUEST_BYTES_MAX,
  WHY_BYTES_MAX,
  WIRE_VERSION,
} from "./layout.ts";

/** Writes the first eight bytes of a message: version, type, and flags, which are all zero. */
export function beginMessage(op: number, bytes?: number): WireWriter {
  return new WireWriter(bytes).u16(WIRE_VERSION).u16(op).u32(0);
}

/** Reads the first eight bytes of a message. Returns the message type. */
export function readEnvelope(reader: WireReader): number {
  reader.version("version");
  const op = reader.u16("operation");
  reader.flags(0, "message");
  return op;
}

const CONTROLS = /\p{Cc}+/gu;

/** A message for people: a 16-bit length, then one line of text, truncated if it is too long. */
export const reason: Field<string> = {
  write(writer, why) {
    let line = why.toWellFormed().replace(CONTROLS, " ");
    let text = utf8Bytes(line);
    while (text.length > WHY_BYTES_MAX) {
      line = line.slice(0, Math.floor((line.length * WHY_BYTES_MAX) / text.length)).toWellFormed();
      text = utf8Bytes(line);
    }
    writer.u16(text.length).raw(text);
  },
  read(reader) {
    const length = reader.u16("reason");
    if (length > WHY_BYTES_MAX) reader.fail(`reason: more than ${WHY_BYTES_MAX} bytes`);
    return reader.utf8(length, "reason");
  },
};

const U32_MAX = 0xffff_ffff;

/** A duration in milliseconds as u32. Writing rounds up; NaN becomes 0. */
export const milliseconds: Field<number> = {
  write: (writer, ms) => void writer.u32(Math.min(U32_MAX, Math.max(0, Math.ceil(ms) || 0))),
  read: (reader, what) => reader.u32(what),
};

/**
 * A name that an engine uses for a block: its length in one byte, then 8 bytes (engine hash) or 32
 * bytes (page key).
 */
export const blockName: Field<Uint8Array> = {
  write(writer, name) {
    assert(isNameLength(name.length), "an engine's name or alias has 8 or 32 bytes");
    writer.u8(name.length).raw(name);
  },
  read(reader, what) {
    const length = reader.u8(what);
    if (!isNameLength(length)) reader.fail(`${what}: not 8 or 32 bytes`);
    return reader.bytes(length, what);
  },
};

function isNameLength(length: number): boolean {
  return length === HASH_BYTES || length === KEY_BYTES;
}

const worker: Field<WorkerId> = {
  write: (writer, name) => void writer.text(name),
  read(reader, what) {
    const name = reader.text(what) as WorkerId;
    if (reader.ok && name === "") reader.fail(`${what}: empty`);
    return name;
  },
};

const hardware: Field<HardwareReport> = {
  write(writer, { hasRdmaNic, hasAes, cores, rdmaDevices }) {
    assert(rdmaDevices.length <= DEVICES_MAX, `at most ${DEVICES_MAX} RDMA devices are named`);
    writer.u8((hasRdmaNic ? HardwareBit.rdma : 0) | (hasAes ? HardwareBit.aes : 0));
    writer.u16(Math.min(cores, 0xffff)).u8(rdmaDevices.length);
    for (const device of rdmaDevices) writer.text(device);
  },
  read(reader, what) {
    const bits = reader.u8(what);
    const known = HardwareBit.rdma | HardwareBit.aes;
    if (!reader.newer && (bits & ~known) !== 0) reader.fail(`${what}: unknown bit`);
    const cores = reader.u16("cores");
    const count = reader.u8("devices");
    if (count > DEVICES_MAX) reader.fail(`devices: more than ${DEVICES_MAX}`);
    const rdmaDevices: string[] = [];
    while (rdmaDevices.length < count && reader.ok) rdmaDevices.push(reader.text("device"));
    return {
      hasRdmaNic: (bits & HardwareBit.rdma) !== 0,
      rdmaDevices,
      cores,
      hasAes: (bits & HardwareBit.aes) !== 0,
    };
  },
};

const hello: Field<PeerHello> = struct({ worker, incarnation: u64, hardware });

const key = bytes(KEY_BYTES);
const address = { digest: key, layer: u32 };
/** Minimum encoded size of a block in a request: length prefix, digest and layer. */
const BLOCK_BYTES_MIN = 2 + KEY_BYTES + 4;

/**
 * Number of bytes that the client has reserved for a block's payload. Limited to the maximum
 * payload of a block.
 */
const bytesMax: Field<number> = {
  write: (writer, max) => void writer.size(Math.min(max, PAYLOAD_BYTES_MAX)),
  read: (reader, what) => reader.size(PAYLOAD_BYTES_MAX, what),
};

/**
 * Milliseconds until the client's deadline, followed by flags for the payload encodings that the
 * client accepts.
 */
const deadlineMs: Field<number> = {
  write(writer, ms) {
    milliseconds.write(writer, ms);
    writer.u32(ACCEPTS_RAW);
  },
  read(reader, what) {
    const ms = milliseconds.read(reader, what);
    const accepts = reader.u32("accepts");
    const unknown = (accepts & ~ACCEPTS_RAW) !== 0 && !reader.newer;
    if ((accepts & ACCEPTS_RAW) === 0 || unknown) reader.fail("accepts: no supported encoding");
    return ms;
  },
};

const TIERS = Tier.ram | Tier.ssd;

const tiers: Field<number> = {
  write: (writer, mask) => void writer.u8(mask),
  read(reader, what) {
    const mask = reader.u8(what);
    if (!reader.newer && (mask & ~TIERS) !== 0) reader.fail(`${what}: unknown bit`);
    return mask & TIERS;
  },
};

const copy = { tiers, bytes: size(PAYLOAD_BYTES_MAX), generation: u64, checksum: u64 };
/**
 * Minimum encoded size of a peer's copy of a block: length prefix, tiers, bytes, generation,
 * checksum.
 */
const HAS_BYTES_MIN = 2 + 1 + 8 + 8 + 8;
const FOUND_BYTES_MIN = HAS_BYTES_MIN + KEY_BYTES + KEY_BYTES + 4;

/**
 * A key filter, or null. The first byte is 1 if a filter follows, with a 32-bit length, and 0 for
 * null.
 */
const filter: Field<Uint8Array | null> = {
  write(writer, value) {
    assert((value?.length ?? 0) <= FILTER_BYTES_MAX, "a filter is within its size limit");
    writer.u8(value === null ? 0 : 1);
    if (value !== null) writer.u32(value.length).raw(value);
  },
  read(reader, what) {
    const given = reader.u8(what);
    if (given > 1) reader.fail(`${what}: invalid presence byte`);
    if (given !== 1) return null;
    return reader.bytes(reader.count(FILTER_BYTES_MAX, 1, what), what);
  },
};

/** Encoding of a message after its first eight bytes: one record, then a list of records. */
interface Layout<Message> {
  readonly code: number;
  readonly op: string;
  readonly head: Field<Message>;
  /** The list. Null if this type of message always has an empty list. */
  readonly items: Field<Message> | null;
}

function layout<
  const Name extends string,
  H extends Fields,
  I extends Fields = Record<never, never>,
>(
  op: Name,
  code: number,
  head: H,
  items: I | null = null,
): Layout<{ readonly op: Name } & Struct<H> & Struct<I>> {
  type Message = { readonly op: Name } & Struct<H> & Struct<I>;
  const list = items === null ? null : (struct(items) as unknown as Field<Message>);
  return { code, op, head: struct(head) as unknown as Field<Message>, items: list };
}

const listed = { what: "block", many: "blocks", max: ITEMS_MAX };
const blocks = records({ ...listed, item: struct(address), bytesMin: BLOCK_BYTES_MIN });
const items = records({
  ...listed,
  item: struct({ ...address, bytesMax, generation: u64 }),
  bytesMin: BLOCK_BYTES_MIN + 8,
});
const names = { what: "name", many: "names", max: FIND_NAMES_MAX };
const found = records({
  what: "found",
  many: "blocks",
  max: FOUND_MAX,
  bytesMin: FOUND_BYTES_MIN,
  item: struct({ namespace: key, ...address, ...copy }),
});

const REQUESTS: {
  readonly [Name in PeerRequest["op"]]: Layout<Extract<PeerRequest, { op: Name }>>;
} = {
  hello: layout("hello", Op.hello, { hello }),
  pull: layout("pull", Op.pull, { namespace: key, deadlineMs }, { items }),
  has: layout("has", Op.has, { namespace: key }, { blocks }),
  find: layout(
    "find",
    Op.find,
    {},
    { names: records({ ...names, item: blockName, bytesMin: 2 + 1 + HASH_BYTES }) },
  ),
  summary: layout("summary", Op.summary, { namespace: key, known: u64 }),
};

const ANSWERS: {
  readonly [Name in PeerAnswer["op"]]: Layout<Extract<PeerAnswer, { op: Name }>>;
} = {
  hello: layout("hello", Op.helloAnswer, { hello }),
  has: layout(
    "has",
    Op.hasAnswer,
    {},
    { blocks: records({ ...listed, item: struct(copy), bytesMin: HAS_BYTES_MIN }) },
  ),
  find: layout(
    "find",
    Op.findAnswer,
    {},
    { found: records({ ...names, item: found, bytesMin: 2 + 4 }) },
  ),
  summary: layout("summary", Op.summaryAnswer, { version: u64, filter }),
  busy: layout("busy", Op.busyAnswer, { retryAfterMs: milliseconds }),
  refused: layout("refused", Op.refusedAnswer, { why: reason }),
};

function encode<Message extends PeerRequest | PeerAnswer>(
  { code, head, items }: Layout<Message>,
  message: Message,
): Uint8Array {
  const writer = beginMessage(code, roomFor(message));
  writer.record(32, () => head.write(writer, message));
  if (items === null) writer.u32(0);
  else items.write(writer, message);
  return writer.done();
}

/**
 * Returns the initial buffer size for encoding a message, so that a large message is not copied as
 * the buffer grows.
 */
function roomFor(message: PeerRequest | PeerAnswer): number {
  const filterBytes = "filter" in message ? (message.filter?.length ?? 0) : 0;
  const items = "items" in message ? message.items : "blocks" in message ? message.blocks : [];
  return 64 + filterBytes + items.length * (BLOCK_BYTES_MIN + 16);
}

/** Decodes a message. Returns null if it is invalid; the reader then has the reason. */
function decode<Message>(
  reader: WireReader,
  layouts: ReadonlyMap<number, Layout<Message>>,
): Message | null {
  const code = readEnvelope(reader);
  if (!reader.ok) return null;
  const found = layouts.get(code);
  if (found === undefined) {
    reader.fail("operation: unknown");
    return null;
  }
  const { op, head, items } = found;
  const fields = reader.record(32, op, () => head.read(reader, op));
  if (items === null) reader.count(0, 1, "items");
  const list = items?.read(reader, op);
  return { op, ...fields, ...list } as Message;
}

function byCode<Message>(layouts: object): ReadonlyMap<number, Layout<Message>> {
  const all: readonly Layout<Message>[] = Object.values(layouts);
  return new Map(all.map((one) => [one.code, one]));
}
const REQUESTS_BY_CODE = byCode<PeerRequest>(REQUESTS);
const ANSWERS_BY_CODE = byCode<PeerAnswer>(ANSWERS);

/**
 * Encodes a request without its length prefix. Throws if a limit of the wire format is exceeded.
 */
export function encodeRequest(request: PeerRequest): Uint8Array {
  const bytes = encode(REQUESTS[request.op] as Layout<PeerRequest>, request);
  assert(bytes.length <= REQUEST_BYTES_MAX, "a request is within its size limit");
  return bytes;
}

/** Encodes a reply without its length prefix. Throws if a limit of the wire format is exceeded. */
export function encodeAnswer(answer: PeerAnswer): Uint8Array {
  const bytes = encode(ANSWERS[answer.op] as Layout<PeerAnswer>, answer);
  assert(bytes.length <= ANSWER_BYTES_MAX, "an answer is within its size limit");
  return bytes;
}

/** The decoded message, or the reason it is invalid. The reason contains no text from the peer. */
export type Decoded<Name extends string, T> =
  | ({ readonly ok: true } & { readonly [Key in Name]: T })
  | { readonly ok: false; readonly why: string };

/** Decodes a complete message. Never throws. The result does not reference `bytes`. */
export function decodeWhole<Name extends string, T>(
  name: Name,
  bytes: Uint8Array,
  bytesMax: number,
  read: (reader: WireReader) => T | null,
): Decoded<Name, T> {
  if (bytes.length > bytesMax) return { ok: false, why: `${name}: too long` };
  const reader = new WireReader(bytes);
  const value = read(reader);
  reader.end(name);
  if (reader.ok && value !== null) return { ok: true, [name]: value } as Decoded<Name, T>;
  return { ok: false, why: reader.why ?? "operation: unknown" };
}

/** Decodes a request as `decodeWhole` does. */
export function decodeRequest(bytes: Uint8Array): Decoded<"request", PeerRequest> {
  return decodeWhole("request", bytes, REQUEST_BYTES_MAX, (reader) =>
    decode(reader, REQUESTS_BY_CODE),
  );
}

/** Decodes a reply as `decodeWhole` does. */
export function decodeAnswer(bytes: Uint8Array): Decoded<"answer", PeerAnswer> {
  return decodeWhole("answer", bytes, ANSWER_BYTES_MAX, (reader) =>
    decode(reader, ANSWERS_BY_CODE),
  );
}
