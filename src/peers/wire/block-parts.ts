import { assert, equalBytes } from "../../core/index.ts";
import type { FrameHeader, ItemRefusal, PeerAnswer, PeerRequest, PullItem } from "../messages.ts";
import { utf8Bytes, type WireReader, type WireWriter } from "./bytes.ts";
import { type Field, size, struct } from "./fields.ts";
import {
  ALIASES_MAX,
  FRAME_FLAGS,
  FrameFlag,
  ITEMS_MAX,
  KEY_BYTES,
  MAC_BYTES,
  MODEL_BYTES_MAX,
  Op,
  PART_BYTES_MAX,
  PAYLOAD_BYTES_MAX,
  WIRE_VERSION,
} from "./layout.ts";
import {
  beginMessage,
  blockName,
  type Decoded,
  decodeWhole,
  milliseconds,
  readEnvelope,
  reason,
} from "./requests-and-answers.ts";

/**
 * Encodes a block's header. `layer` is written twice: as part of the block's address, and as a
 * field of its own.
 */
function writeFrame(writer: WireWriter, header: FrameHeader): void {
  const { digest, layer, bytes, namespace, generation, checksum, parent, aliases, mac } = header;
  const model = utf8Bytes(header.model);
  assert(model.length <= MODEL_BYTES_MAX, `a model name has at most ${MODEL_BYTES_MAX} bytes`);
  assert(bytes > 0 && bytes <= PAYLOAD_BYTES_MAX, "a payload length has 32 bits");
  assert(aliases.length <= ALIASES_MAX, `a frame has at most ${ALIASES_MAX} aliases`);
  writer.fixed(digest, KEY_BYTES).u32(layer);
  writer.size(model.length).raw(model);
  writer.u32(layer).size(bytes);
  const flags =
    (parent === null ? 0 : FrameFlag.parent) |
    (aliases.length === 0 ? 0 : FrameFlag.aliases) |
    (mac === null ? 0 : FrameFlag.mac) |
    (header.transient ? FrameFlag.transient : 0);
  writer.u16(WIRE_VERSION).record(16, () => {
    writer.u32(flags).fixed(namespace, KEY_BYTES).u64(generation).u64(checksum);
    if (parent !== null) writer.fixed(parent, KEY_BYTES);
    if (aliases.length > 0) writeAliases(writer, aliases);
    if (mac !== null) writer.fixed(mac, MAC_BYTES);
  });
}

function writeAliases(writer: WireWriter, aliases: readonly Uint8Array[]): void {
  writer.u8(aliases.length);
  for (const alias of aliases) blockName.write(writer, alias);
}

function readFrame(reader: WireReader): FrameHeader {
  const digest = reader.bytes(KEY_BYTES, "digest");
  const layer = reader.u32("layer");
  const model = reader.utf8(reader.size(MODEL_BYTES_MAX, "model"), "model");
  if (reader.u32("layer") !== layer) reader.fail("layer: two different values");
  const bytes = reader.size(PAYLOAD_BYTES_MAX, "payload");
  if (bytes === 0) reader.fail("payload: empty");
  reader.sameVersion("frame version");
  const extension = reader.record(16, "extension", () => {
    const flags = reader.flags(FRAME_FLAGS, "frame");
    if ((flags & FrameFlag.mac) !== 0 && !reader.since(3)) reader.fail("frame: a MAC in version 2");
    return {
      namespace: reader.bytes(KEY_BYTES, "namespace"),
      generation: reader.u64("generation"),
      checksum: reader.u64("checksum"),
      parent: (flags & FrameFlag.parent) === 0 ? null : reader.bytes(KEY_BYTES, "parent"),
      transient: (flags & FrameFlag.transient) !== 0,
      aliases: (flags & FrameFlag.aliases) === 0 ? [] : readAliases(reader),
      mac: (flags & FrameFlag.mac) === 0 ? null : reader.bytes(MAC_BYTES, "MAC"),
    };
  });
  return { digest, layer, model, bytes, ...extension };
}

function readAliases(reader: WireReader): Uint8Array[] {
  const count = reader.u8("aliases");
  if (count === 0 || count > ALIASES_MAX) reader.fail(`aliases: not 1 to ${ALIASES_MAX}`);
  const aliases: Uint8Array[] = [];
  for (let i = 0; i < count && reader.ok; i++) aliases.push(blockName.read(reader, "alias"));
  return aliases;
}

/** Returns why a reply does not match its request. Null if it matches. */
export function whyNoAnswer(
  request: Exclude<PeerRequest, { op: "pull" }>,
  answer: PeerAnswer,
): string | null {
  if (answer.op === "busy" || answer.op === "refused") return null;
  if (answer.op !== request.op) return `expected an answer to ${request.op}, received ${answer.op}`;
  if (request.op === "has" && answer.op === "has" && request.blocks.length !== answer.blocks.length)
    return `expected ${request.blocks.length} blocks, received ${answer.blocks.length}`;
  if (request.op === "find" && answer.op === "find" && request.names.length !== answer.found.length)
    return `expected ${request.names.length} names, received ${answer.found.length}`;
  return null;
}

/**
 * Items of a pull that have not been answered. A transport checks each part against the request
 * here before it accepts payload.
 */
export class OpenItems {
  readonly #namespace: Uint8Array;
  readonly #items: readonly PullItem[];
  readonly #open: Set<number>;

  constructor(namespace: Uint8Array, items: readonly PullItem[]) {
    this.#namespace = namespace;
    this.#items = items;
    this.#open = new Set(items.keys());
  }

  get size(): number {
    return this.#open.size;
  }

  has(index: number): boolean {
    return this.#open.has(index);
  }

  /**
   * Checks a part and marks its item as answered. Returns the reason if the part is invalid,
   * otherwise null.
   */
  take(part: Part): string | null {
    const item = this.#items[part.index];
    if (item === undefined) return "answer to an item that was not requested";
    if (!this.#open.has(part.index)) return "second answer to one item";
    const why = part.kind === "frame" ? this.#whyNoFrame(item, part.header) : null;
    if (why === null) this.#open.delete(part.index);
    return why;
  }

  #whyNoFrame(item: PullItem, header: FrameHeader): string | null {
    const { digest, layer, namespace, bytes, generation } = header;
    if (!equalBytes(digest, item.digest) || layer !== item.layer)
      return "frame address differs from the request";
    if (!equalBytes(namespace, this.#namespace)) return "frame namespace differs from the request";
    if (bytes > item.bytesMax) return "frame is longer than requested";
    if (item.generation !== 0n && generation !== item.generation)
      return "frame generation differs from the request";
    return null;
  }
}

/**
 * Reply for one item of a pull, identified by the item's index in the request. The payload of a
 * frame is not part of this message; each transport carries payload in its own way.
 */
export type Part =
  | { readonly kind: "frame"; readonly index: number; readonly header: FrameHeader }
  | { readonly kind: "refusal"; readonly index: number; readonly refusal: ItemRefusal };

/**
 * Encodes a block's header as a message without its length prefix. Throws if a limit of the wire
 * format is exceeded.
 */
export function encodeFrame(index: number, header: FrameHeader): Uint8Array {
  const writer = beginPart(Op.frame, index);
  writeFrame(writer, header);
  return writer.done();
}

/** Encodes a refusal of one item as a message without its length prefix. */
export function encodeRefusal(index: number, refusal: ItemRefusal): Uint8Array {
  const writer = beginPart(Op.refusal, index);
  return writer.record(16, () => writeRefusal(writer, refusal)).done();
}

function beginPart(op: number, index: number): WireWriter {
  assert(index >= 0 && index < ITEMS_MAX, "an index is below ITEMS_MAX");
  return beginMessage(op).u32(index);
}

/**
 * Reasons for refusing an item. Their numbers, the indices in this table's order, are part of the
 * wire format and never reused.
 */
const REFUSALS: {
  readonly [Kind in ItemRefusal["kind"]]: Field<Omit<Extract<ItemRefusal, { kind: Kind }>, "kind">>;
} = {
  absent: struct({}),
  busy: struct({ retryAfterMs: milliseconds }),
  tooLong: struct({ bytes: size(PAYLOAD_BYTES_MAX) }),
  refused: struct({ why: reason }),
};
const REFUSAL_KINDS = Object.keys(REFUSALS) as ItemRefusal["kind"][];

function writeRefusal(writer: WireWriter, refusal: ItemRefusal): void {
  writer.u8(REFUSAL_KINDS.indexOf(refusal.kind));
  const fields: Field<object> = REFUSALS[refusal.kind] as Field<object>;
  fields.write(writer, refusal);
}

/** Decodes a complete message. Never throws. The result does not reference `bytes`. */
export function decodePart(bytes: Uint8Array): Decoded<"part", Part> {
  return decodeWhole("part", bytes, PART_BYTES_MAX, readPart);
}

function readPart(reader: WireReader): Part | null {
  const op = readEnvelope(reader);
  const index = reader.u32("index");
  if (index >= ITEMS_MAX) reader.fail("index: out of range");
  if (!reader.ok) return null;
  if (op === Op.frame) return { kind: "frame", index, header: readFrame(reader) };
  if (op === Op.refusal) {
    const refusal = reader.record(16, "refusal", () => readRefusal(reader));
    return { kind: "refusal", index, refusal };
  }
  reader.fail("operation: unknown");
  return null;
}

function readRefusal(reader: WireReader): ItemRefusal {
  const kind = REFUSAL_KINDS[reader.u8("refusal")];
  if (kind !== undefined) return { kind, ...REFUSALS[kind].read(reader, kind) } as ItemRefusal;
  if (!reader.newer) reader.fail("refusal: unknown kind");
  return { kind: "refused", why: "for an unknown reason" };
}
