import { assert, isU64, unreachable, type WorkerId } from "../../core/index.ts";
import { Tier } from "../../store/blocks/index.ts";
import type {
  HardwareReport,
  PeerAnswer,
  PeerFound,
  PeerHas,
  PeerHello,
  PeerRequest,
  PullItem,
  WantedBlock,
} from "../messages.ts";
import { utf8Bytes, WireReader, WireWriter } from "./bytes.ts";
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

/** Writes the first eight bytes of every message: version, type, and flags (none are defined). */
export function beginMessage(op: number, bytes?: number): WireWriter {
  return new WireWriter(bytes).u16(WIRE_VERSION).u16(op).u32(0);
}

/** Reads the first eight bytes; returns the message type. */
export function readEnvelope(reader: WireReader): number {
  reader.version("version");
  const op = reader.u16("operation");
  reader.flags(0, "message");
  return op;
}

/** Reads a list of records of at least `bytesMin` bytes each, their length included. */
function readItems<T>(
  reader: WireReader,
  max: number,
  bytesMin: number,
  what: string,
  read: () => T,
): T[] {
  const items: T[] = [];
  const count = reader.count(max, bytesMin, what);
  for (let i = 0; i < count && reader.ok; i++) items.push(reader.record(16, what, read));
  return items;
}

function writeItems<T>(writer: WireWriter, items: readonly T[], write: (item: T) => void): void {
  writer.u32(items.length);
  for (const item of items) writer.record(16, () => write(item));
}

const CONTROLS = /\p{Cc}+/gu;

/** Writes a reason: a 16-bit length, then one line of text, truncated if it is too long. */
export function writeWhy(writer: WireWriter, why: string): void {
  let line = why.toWellFormed().replace(CONTROLS, " ");
  let bytes = utf8Bytes(line);
  while (bytes.length > WHY_BYTES_MAX) {
    line = line.slice(0, Math.floor((line.length * WHY_BYTES_MAX) / bytes.length)).toWellFormed();
    bytes = utf8Bytes(line);
  }
  writer.u16(bytes.length).raw(bytes);
}

export function readWhy(reader: WireReader): string {
  const length = reader.u16("reason");
  if (length > WHY_BYTES_MAX) reader.fail(`reason: more than ${WHY_BYTES_MAX} bytes`);
  return reader.utf8(length, "reason");
}

function writeHello(writer: WireWriter, hello: PeerHello): void {
  const { hasRdmaNic, hasAes, cores, rdmaDevices } = hello.hardware;
  assert(isU64(hello.incarnation), "an incarnation has 64 bits");
  assert(rdmaDevices.length <= DEVICES_MAX, `at most ${DEVICES_MAX} RDMA devices are named`);
  writer.text(hello.worker).u64(hello.incarnation);
  writer.u8((hasRdmaNic ? HardwareBit.rdma : 0) | (hasAes ? HardwareBit.aes : 0));
  writer.u16(Math.min(cores, 0xffff)).u8(rdmaDevices.length);
  for (const device of rdmaDevices) writer.text(device);
}

function readHello(reader: WireReader): PeerHello {
  const worker = reader.text("worker") as WorkerId;
  if (reader.ok && worker === "") reader.fail("worker: empty");
  const incarnation = reader.u64("incarnation");
  return { worker, incarnation, hardware: readHardware(reader) };
}

function readHardware(reader: WireReader): HardwareReport {
  const bits = reader.u8("hardware");
  const known = HardwareBit.rdma | HardwareBit.aes;
  if (!reader.newer && (bits & ~known) !== 0) reader.fail("hardware: unknown bit");
  const cores = reader.u16("cores");
  const count = reader.u8("devices");
  if (count > DEVICES_MAX) reader.fail(`devices: more than ${DEVICES_MAX}`);
  const rdmaDevices: string[] = [];
  for (let i = 0; i < count && reader.ok; i++) rdmaDevices.push(reader.text("device"));
  return {
    hasRdmaNic: (bits & HardwareBit.rdma) !== 0,
    rdmaDevices,
    cores,
    hasAes: (bits & HardwareBit.aes) !== 0,
  };
}

export type DecodedRequest =
  | { readonly ok: true; readonly request: PeerRequest }
  /** Message; contains no text from the peer. */
  | { readonly ok: false; readonly why: string };

/** Length of the record, digest and layer. */
const BLOCK_BYTES_MIN = 2 + KEY_BYTES + 4;
const U32_MAX = 0xffff_ffff;

/** Milliseconds for the wire: rounded up to 32 bits; NaN becomes 0. */
export function wireMs(ms: number): number {
  return Math.min(U32_MAX, Math.max(0, Math.ceil(ms) || 0));
}

/**
 * Encodes the message without its length prefix. Throws if a limit of the wire format is exceeded.
 */
export function encodeRequest(request: PeerRequest): Uint8Array {
  const writer = writeRequest(request);
  const bytes = writer.done();
  assert(bytes.length <= REQUEST_BYTES_MAX, "a request is within its size limit");
  return bytes;
}

function writeRequest(request: PeerRequest): WireWriter {
  switch (request.op) {
    case "hello": {
      const writer = beginMessage(Op.hello);
      return writer.record(32, () => writeHello(writer, request.hello)).u32(0);
    }
    case "pull":
      return writePull(request);
    case "has": {
      const { namespace, blocks } = request;
      assert(blocks.length <= ITEMS_MAX, `at most ${ITEMS_MAX} blocks are requested at once`);
      const writer = beginMessage(Op.has, 64 + blocks.length * BLOCK_BYTES_MIN);
      writer.record(32, () => writer.fixed(namespace, KEY_BYTES));
      writeItems(writer, blocks, (block) => writeBlock(writer, block));
      return writer;
    }
    case "find": {
      const { names } = request;
      assert(
        names.length <= FIND_NAMES_MAX,
        `at most ${FIND_NAMES_MAX} names are resolved at once`,
      );
      const writer = beginMessage(Op.find).u32(0);
      writeItems(writer, names, (name) => {
        assert(isName(name), "an engine's name has 8 or 32 bytes");
        writer.u8(name.length).raw(name);
      });
      return writer;
    }
    case "summary": {
      const writer = beginMessage(Op.summary);
      const write = () => writer.fixed(request.namespace, KEY_BYTES).u64(request.known);
      return writer.record(32, write).u32(0);
    }
    default:
      return unreachable(request satisfies never, "a request");
  }
}

function writePull(pull: Extract<PeerRequest, { op: "pull" }>): WireWriter {
  const { namespace, items, deadlineMs } = pull;
  assert(items.length <= ITEMS_MAX, `at most ${ITEMS_MAX} blocks are requested at once`);
  const writer = beginMessage(Op.pull, 64 + items.length * (BLOCK_BYTES_MIN + 16));
  writer.record(32, () =>
    writer.fixed(namespace, KEY_BYTES).u32(wireMs(deadlineMs)).u32(ACCEPTS_RAW),
  );
  writeItems(writer, items, (item) => {
    writeBlock(writer, item);
    writer.size(Math.min(item.bytesMax, PAYLOAD_BYTES_MAX)).u64(item.generation);
  });
  return writer;
}

function writeBlock(writer: WireWriter, block: WantedBlock): void {
  writer.fixed(block.digest, KEY_BYTES).u32(block.layer);
}

function readBlock(reader: WireReader): WantedBlock {
  return { digest: reader.bytes(KEY_BYTES, "digest"), layer: reader.u32("layer") };
}

/** `name`: an engine's name of a block, 8 (engine hash) or 32 bytes (page key). */
export function isName(name: Uint8Array): boolean {
  return name.length === HASH_BYTES || name.length === KEY_BYTES;
}

/** Reads an 8-bit length, then an engine's name. */
export function readName(reader: WireReader, what: string): Uint8Array {
  const length = reader.u8(what);
  if (length !== HASH_BYTES && length !== KEY_BYTES) reader.fail(`${what}: not 8 or 32 bytes`);
  return reader.bytes(length, what);
}

/** Decodes a complete message. Never throws; the result does not reference `bytes`. */
export function decodeRequest(bytes: Uint8Array): DecodedRequest {
  if (bytes.length > REQUEST_BYTES_MAX) return { ok: false, why: "request: too long" };
  const reader = new WireReader(bytes);
  const request = readRequest(reader);
  reader.end("request");
  if (reader.ok && request !== null) return { ok: true, request };
  return { ok: false, why: reader.why ?? "operation: unknown" };
}

function readRequest(reader: WireReader): PeerRequest | null {
  const op = readEnvelope(reader);
  if (!reader.ok) return null;
  switch (op) {
    case Op.hello: {
      const hello = reader.record(32, "hello", () => readHello(reader));
      return withoutItems(reader, { op: "hello", hello });
    }
    case Op.pull:
      return readPull(reader);
    case Op.has: {
      const namespace = reader.record(32, "has", () => reader.bytes(KEY_BYTES, "namespace"));
      const blocks = readItems(reader, ITEMS_MAX, BLOCK_BYTES_MIN, "block", () =>
        readBlock(reader),
      );
      return { op: "has", namespace, blocks };
    }
    case Op.find: {
      reader.record(32, "find", () => null);
      const read = () => readName(reader, "name");
      return { op: "find", names: readItems(reader, FIND_NAMES_MAX, 11, "name", read) };
    }
    case Op.summary: {
      const head = reader.record(32, "summary", () => ({
        namespace: reader.bytes(KEY_BYTES, "namespace"),
        known: reader.u64("known"),
      }));
      return withoutItems(reader, { op: "summary", ...head });
    }
    default:
      reader.fail("operation: unknown");
      return null;
  }
}

function withoutItems(reader: WireReader, request: PeerRequest): PeerRequest {
  reader.count(0, 1, "items");
  return request;
}

function readPull(reader: WireReader): PeerRequest {
  const head = reader.record(32, "pull", () => {
    const namespace = reader.bytes(KEY_BYTES, "namespace");
    const deadlineMs = reader.u32("deadline");
    const accepts = reader.u32("accepts");
    const unknown = (accepts & ~ACCEPTS_RAW) !== 0 && !reader.newer;
    if ((accepts & ACCEPTS_RAW) === 0 || unknown) reader.fail("accepts: no supported encoding");
    return { namespace, deadlineMs };
  });
  const read = (): PullItem => {
    const block = readBlock(reader);
    const bytesMax = reader.size(PAYLOAD_BYTES_MAX, "longest payload");
    return { ...block, bytesMax, generation: reader.u64("generation") };
  };
  const items = readItems(reader, ITEMS_MAX, BLOCK_BYTES_MIN + 8, "item", read);
  return { op: "pull", ...head, items };
}

export type DecodedAnswer =
  | { readonly ok: true; readonly answer: PeerAnswer }
  /** Message; contains no text from the peer. */
  | { readonly ok: false; readonly why: string };

const TIERS = Tier.ram | Tier.ssd;
/** Length of the record, tiers, bytes, generation, checksum. */
const HAS_BYTES_MIN = 2 + 1 + 8 + 8 + 8;
const FOUND_BYTES_MIN = HAS_BYTES_MIN + KEY_BYTES + KEY_BYTES + 4;

/**
 * Encodes the message without its length prefix. Throws if a limit of the wire format is exceeded.
 */
export function encodeAnswer(answer: PeerAnswer): Uint8Array {
  const bytes = writeAnswer(answer).done();
  assert(bytes.length <= ANSWER_BYTES_MAX, "an answer is within its size limit");
  return bytes;
}

function writeAnswer(answer: PeerAnswer): WireWriter {
  switch (answer.op) {
    case "hello": {
      const writer = beginMessage(Op.helloAnswer);
      return writer.record(32, () => writeHello(writer, answer.hello)).u32(0);
    }
    case "has": {
      const { blocks } = answer;
      assert(blocks.length <= ITEMS_MAX, `at most ${ITEMS_MAX} blocks are answered at once`);
      const writer = beginMessage(Op.hasAnswer, 64 + blocks.length * HAS_BYTES_MIN).u32(0);
      writeItems(writer, blocks, (has) => writeHas(writer, has));
      return writer;
    }
    case "find": {
      assert(
        answer.found.length <= FIND_NAMES_MAX,
        `at most ${FIND_NAMES_MAX} names are answered at once`,
      );
      const writer = beginMessage(Op.findAnswer).u32(0);
      writeItems(writer, answer.found, (found) => {
        assert(found.length <= FOUND_MAX, `a name resolves to at most ${FOUND_MAX} blocks`);
        writeItems(writer, found, (block) => writeFound(writer, block));
      });
      return writer;
    }
    case "summary": {
      const { version, filter } = answer;
      const writer = beginMessage(Op.summaryAnswer, 64 + (filter?.length ?? 0));
      const write = () => {
        writer.u64(version).u8(filter === null ? 0 : 1);
        if (filter !== null) writer.u32(filter.length).raw(filter);
      };
      assert((filter?.length ?? 0) <= FILTER_BYTES_MAX, "a filter is within its size limit");
      return writer.record(32, write).u32(0);
    }
    case "busy": {
      const writer = beginMessage(Op.busyAnswer);
      return writer.record(32, () => writer.u32(wireMs(answer.retryAfterMs))).u32(0);
    }
    case "refused": {
      const writer = beginMessage(Op.refusedAnswer);
      return writer.record(32, () => writeWhy(writer, answer.why)).u32(0);
    }
    default:
      return unreachable(answer satisfies never, "an answer");
  }
}

function writeHas(writer: WireWriter, has: PeerHas): void {
  writer.u8(has.tiers).size(has.bytes).u64(has.generation).u64(has.checksum);
}

function readHas(reader: WireReader): PeerHas {
  const tiers = reader.u8("tiers");
  if (!reader.newer && (tiers & ~TIERS) !== 0) reader.fail("tiers: unknown bit");
  return {
    tiers: tiers & TIERS,
    bytes: reader.size(PAYLOAD_BYTES_MAX, "bytes"),
    generation: reader.u64("generation"),
    checksum: reader.u64("checksum"),
  };
}

function writeFound(writer: WireWriter, found: PeerFound): void {
  writer.fixed(found.namespace, KEY_BYTES).fixed(found.digest, KEY_BYTES).u32(found.layer);
  writeHas(writer, found);
}

function readFound(reader: WireReader): PeerFound {
  return {
    namespace: reader.bytes(KEY_BYTES, "namespace"),
    digest: reader.bytes(KEY_BYTES, "digest"),
    layer: reader.u32("layer"),
    ...readHas(reader),
  };
}

/** Decodes a complete message. Never throws; the result does not reference `bytes`. */
export function decodeAnswer(bytes: Uint8Array): DecodedAnswer {
  if (bytes.length > ANSWER_BYTES_MAX) return { ok: false, why: "answer: too long" };
  const reader = new WireReader(bytes);
  const answer = readAnswer(reader);
  reader.end("answer");
  if (reader.ok && answer !== null) return { ok: true, answer };
  return { ok: false, why: reader.why ?? "operation: unknown" };
}

function readAnswer(reader: WireReader): PeerAnswer | null {
  const op = readEnvelope(reader);
  if (!reader.ok) return null;
  switch (op) {
    case Op.hasAnswer: {
      reader.record(32, "has", () => null);
      const read = () => readHas(reader);
      return { op: "has", blocks: readItems(reader, ITEMS_MAX, HAS_BYTES_MIN, "block", read) };
    }
    case Op.findAnswer: {
      reader.record(32, "find", () => null);
      const read = () =>
        readItems(reader, FOUND_MAX, FOUND_BYTES_MIN, "found", () => readFound(reader));
      return { op: "find", found: readItems(reader, FIND_NAMES_MAX, 6, "name", read) };
    }
    default:
      return readSingle(reader, op);
  }
}

/** Decodes answers that consist of one record. */
function readSingle(reader: WireReader, op: number): PeerAnswer | null {
  const answer = reader.record(32, "answer", (): PeerAnswer | null => {
    switch (op) {
      case Op.helloAnswer:
        return { op: "hello", hello: readHello(reader) };
      case Op.summaryAnswer:
        return readSummary(reader);
      case Op.busyAnswer:
        return { op: "busy", retryAfterMs: reader.u32("retry after") };
      case Op.refusedAnswer:
        return { op: "refused", why: readWhy(reader) };
      default:
        reader.fail("operation: unknown");
        return null;
    }
  });
  reader.count(0, 1, "items");
  return answer;
}

function readSummary(reader: WireReader): PeerAnswer {
  const version = reader.u64("version");
  const given = reader.u8("filter");
  if (given > 1) reader.fail("filter: invalid presence byte");
  if (given !== 1) return { op: "summary", version, filter: null };
  const length = reader.count(FILTER_BYTES_MAX, 1, "filter");
  return { op: "summary", version, filter: reader.bytes(length, "filter") };
}
