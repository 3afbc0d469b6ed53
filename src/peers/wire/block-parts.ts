import { assert, equalBytes, unreachable } from "../../core/index.ts";
import type { FrameHeader, ItemRefusal, PeerAnswer, PeerRequest, PullItem } from "../messages.ts";
import { utf8Bytes, WireReader, type WireWriter } from "./bytes.ts";
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
  RefusalKind,
  WIRE_VERSION,
} from "./layout.ts";
import {
  beginMessage,
  isName,
  readEnvelope,
  readName,
  readWhy,
  wireMs,
  writeWhy,
} from "./requests-and-answers.ts";

/** `layer` comes twice: as part of the address, and as a field of the frame. */
function writeFrame(writer: WireWriter, header: FrameHeader): void {
  const { digest, layer, bytes, namespace, generation, checksum, parent, aliases, mac } = header;
  const model = utf8Bytes(header.model);
  assert(model.length <= MODEL_BYTES_MAX, `a model's name has ${MODEL_BYTES_MAX} bytes at most`);
  assert(bytes > 0 && bytes <= PAYLOAD_BYTES_MAX, "a payload's length has 32 bits");
  assert(aliases.length <= ALIASES_MAX, `at most ${ALIASES_MAX} aliases are told`);
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
  for (const alias of aliases) {
    assert(isName(alias), "an alias has 8 or 32 bytes");
    writer.u8(alias.length).raw(alias);
  }
}

function readFrame(reader: WireReader): FrameHeader {
  const digest = reader.bytes(KEY_BYTES, "digest");
  const layer = reader.u32("layer");
  const model = reader.utf8(reader.size(MODEL_BYTES_MAX, "model"), "model");
  if (reader.u32("layer") !== layer) reader.fail("layer: two that differ");
  const bytes = reader.size(PAYLOAD_BYTES_MAX, "payload");
  if (bytes === 0) reader.fail("payload: empty");
  reader.sameVersion("frame's version");
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
  for (let i = 0; i < count && reader.ok; i++) aliases.push(readName(reader, "alias"));
  return aliases;
}

/** Why this is no answer to the request, in words; null: it is one. */
export function whyNoAnswer(
  request: Exclude<PeerRequest, { op: "pull" }>,
  answer: PeerAnswer,
): string | null {
  if (answer.op === "busy" || answer.op === "refused") return null;
  if (answer.op !== request.op) return `asked for ${request.op}, answered was ${answer.op}`;
  if (request.op === "has" && answer.op === "has" && request.blocks.length !== answer.blocks.length)
    return `asked for ${request.blocks.length} blocks, told of ${answer.blocks.length}`;
  if (request.op === "find" && answer.op === "find" && request.names.length !== answer.found.length)
    return `asked for ${request.names.length} names, told of ${answer.found.length}`;
  return null;
}

/**
 * The items of a pull that were not answered yet. Every part that comes is compared with what was
 * asked for, before a byte of its payload is taken.
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

  /** Takes the answer of one item. Null, or why it makes no sense, in words. */
  take(part: Part): string | null {
    const item = this.#items[part.index];
    if (item === undefined) return "an answer to an item that was not asked for";
    if (!this.#open.has(part.index)) return "a second answer to one item";
    const why = part.kind === "frame" ? this.#whyNoFrame(item, part.header) : null;
    if (why === null) this.#open.delete(part.index);
    return why;
  }

  #whyNoFrame(item: PullItem, header: FrameHeader): string | null {
    const { digest, layer, namespace, bytes, generation } = header;
    if (!equalBytes(digest, item.digest) || layer !== item.layer)
      return "a frame with another address than was asked for";
    if (!equalBytes(namespace, this.#namespace)) return "a frame of another namespace";
    if (bytes > item.bytesMax) return "a frame that is longer than was accepted";
    if (item.generation !== 0n && generation !== item.generation)
      return "a frame of another generation than was asked for";
    return null;
  }
}

/**
 * One answer of a pull: to the item of this index. A frame's payload is no part of the message; how
 * it travels is the transport's.
 */
export type Part =
  | { readonly kind: "frame"; readonly index: number; readonly header: FrameHeader }
  | { readonly kind: "refusal"; readonly index: number; readonly refusal: ItemRefusal };

export type DecodedPart =
  | { readonly ok: true; readonly part: Part }
  /** For people; nothing of what the peer wrote is in it. */
  | { readonly ok: false; readonly why: string };

/** The message, without its length. Throws where a cap of the wire is exceeded. */
export function encodeFrame(index: number, header: FrameHeader): Uint8Array {
  const writer = beginPart(Op.frame, index);
  writeFrame(writer, header);
  return writer.done();
}

/** The message, without its length. */
export function encodeRefusal(index: number, refusal: ItemRefusal): Uint8Array {
  const writer = beginPart(Op.refusal, index);
  return writer.record(16, () => writeRefusal(writer, refusal)).done();
}

function beginPart(op: number, index: number): WireWriter {
  assert(index >= 0 && index < ITEMS_MAX, "an index is that of an item");
  return beginMessage(op).u32(index);
}

function writeRefusal(writer: WireWriter, refusal: ItemRefusal): void {
  writer.u8(RefusalKind[refusal.kind]);
  switch (refusal.kind) {
    case "absent":
      return;
    case "busy":
      writer.u32(wireMs(refusal.retryAfterMs));
      return;
    case "tooLong":
      writer.size(refusal.bytes);
      return;
    case "refused":
      writeWhy(writer, refusal.why);
      return;
    default:
      unreachable(refusal satisfies never, "a refusal");
  }
}

/** Reads a whole message. Never throws; nothing of `bytes` is referred to by what it gives. */
export function decodePart(bytes: Uint8Array): DecodedPart {
  if (bytes.length > PART_BYTES_MAX) return { ok: false, why: "part: too long" };
  const reader = new WireReader(bytes);
  const part = readPart(reader);
  reader.end("part");
  if (reader.ok && part !== null) return { ok: true, part };
  return { ok: false, why: reader.why ?? "operation: not known here" };
}

function readPart(reader: WireReader): Part | null {
  const op = readEnvelope(reader);
  const index = reader.u32("index");
  if (index >= ITEMS_MAX) reader.fail("index: of no item");
  if (!reader.ok) return null;
  if (op === Op.frame) return { kind: "frame", index, header: readFrame(reader) };
  if (op === Op.refusal) {
    const refusal = reader.record(16, "refusal", () => readRefusal(reader));
    return { kind: "refusal", index, refusal };
  }
  reader.fail("operation: not known here");
  return null;
}

function readRefusal(reader: WireReader): ItemRefusal {
  const kind = reader.u8("refusal");
  switch (kind) {
    case RefusalKind.absent:
      return { kind: "absent" };
    case RefusalKind.busy:
      return { kind: "busy", retryAfterMs: reader.u32("retry after") };
    case RefusalKind.tooLong:
      return { kind: "tooLong", bytes: reader.size(PAYLOAD_BYTES_MAX, "bytes") };
    case RefusalKind.refused:
      return { kind: "refused", why: readWhy(reader) };
    default:
      if (!reader.newer) reader.fail("refusal: of a kind that is not known here");
      return { kind: "refused", why: "for a reason that is not known here" };
  }
}
