import { assert, unreachable } from "../../core/index.ts";
import type { FrameHeader, ItemRefusal } from "../messages.ts";
import { beginMessage, readEnvelope } from "./envelope.ts";
import { readFrame, writeFrame } from "./frames.ts";
import { ITEMS_MAX, Op, PART_BYTES_MAX, PAYLOAD_BYTES_MAX, RefusalKind } from "./layout.ts";
import { wireMs } from "./requests.ts";
import { readWhy, writeWhy } from "./why.ts";
import { WireReader } from "./wire-reader.ts";
import type { WireWriter } from "./wire-writer.ts";

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
