import { assert, unreachable } from "../../core/index.ts";
import type { PeerRequest, PullItem, WantedBlock } from "../messages.ts";
import { beginMessage, readEnvelope, readItems, writeItems } from "./envelope.ts";
import { readHello, writeHello } from "./hello.ts";
import {
  ACCEPTS_RAW,
  FIND_NAMES_MAX,
  HASH_BYTES,
  ITEMS_MAX,
  KEY_BYTES,
  Op,
  PAYLOAD_BYTES_MAX,
  REQUEST_BYTES_MAX,
} from "./layout.ts";
import { WireReader } from "./wire-reader.ts";
import type { WireWriter } from "./wire-writer.ts";

export type DecodedRequest =
  | { readonly ok: true; readonly request: PeerRequest }
  /** For people; nothing of what the peer wrote is in it. */
  | { readonly ok: false; readonly why: string };

/** A record's length, digest and layer. */
const BLOCK_BYTES_MIN = 2 + KEY_BYTES + 4;
const U32_MAX = 0xffff_ffff;

/**
 * Milliseconds as the wire has them: whole, rounded up, of 32 bits. NaN is nothing.
 */
export function wireMs(ms: number): number {
  return Math.min(U32_MAX, Math.max(0, Math.ceil(ms) || 0));
}

/** The message, without its length. Throws where a cap of the wire is exceeded. */
export function encodeRequest(request: PeerRequest): Uint8Array {
  const writer = writeRequest(request);
  const bytes = writer.done();
  assert(bytes.length <= REQUEST_BYTES_MAX, "a request keeps to its cap");
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
      assert(blocks.length <= ITEMS_MAX, `at most ${ITEMS_MAX} blocks are asked for at once`);
      const writer = beginMessage(Op.has, 64 + blocks.length * BLOCK_BYTES_MIN);
      writer.record(32, () => writer.fixed(namespace, KEY_BYTES));
      writeItems(writer, blocks, (block) => writeBlock(writer, block));
      return writer;
    }
    case "find": {
      const { names } = request;
      assert(names.length <= FIND_NAMES_MAX, `at most ${FIND_NAMES_MAX} names are looked for`);
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
  assert(items.length <= ITEMS_MAX, `at most ${ITEMS_MAX} blocks are asked for at once`);
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

/** `name`: what an engine calls a block, 8 (engine hash) or 32 bytes (page key). */
export function isName(name: Uint8Array): boolean {
  return name.length === HASH_BYTES || name.length === KEY_BYTES;
}

/** An engine's name behind its length in 8 bits. */
export function readName(reader: WireReader, what: string): Uint8Array {
  const length = reader.u8(what);
  if (length !== HASH_BYTES && length !== KEY_BYTES) reader.fail(`${what}: not 8 or 32 bytes`);
  return reader.bytes(length, what);
}

/** Reads a whole message. Never throws; nothing of `bytes` is referred to by what it gives. */
export function decodeRequest(bytes: Uint8Array): DecodedRequest {
  if (bytes.length > REQUEST_BYTES_MAX) return { ok: false, why: "request: too long" };
  const reader = new WireReader(bytes);
  const request = readRequest(reader);
  reader.end("request");
  if (reader.ok && request !== null) return { ok: true, request };
  return { ok: false, why: reader.why ?? "operation: not known here" };
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
      reader.fail("operation: not known here");
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
    if ((accepts & ACCEPTS_RAW) === 0 || unknown) reader.fail("accepts: nothing that we send");
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
