import { COMMAND_OUTCOMES } from "../core/index.ts";
import { decodeBody, encodeBody } from "./body.ts";
import { trimmedReceipt } from "./make-receipt.ts";
import { JSON_TYPE, type MediaType, mediaTypeOf } from "./media-type.ts";
import { isMembers } from "./members.ts";
import type { Receipt } from "./receipt.ts";
import { receiptJson } from "./receipt-json.ts";

/** A receipt lists as many blocks as a command names, each with what holds it. */
const LIMITS = { bytesMax: 64 * 2 ** 20, depthMax: 16, itemsMax: 65_536 };
const STATUSES: ReadonlySet<unknown> = new Set(["ok", "partial", "rejected", "running"]);

/** With as many of its blocks as fit into `bytesMax`; none where even they alone do not. */
export function encodeReceipt(
  receipt: Receipt,
  type: MediaType,
  bytesMax = Number.POSITIVE_INFINITY,
): Uint8Array {
  let bytes = encoded(receipt, type);
  let blocks = Math.max(receipt.blocks.length, receipt.held?.length ?? 0);
  while (bytes.length > bytesMax && blocks > 0) {
    blocks = Math.min(blocks >> 1, Math.floor((blocks * bytesMax) / bytes.length));
    bytes = encoded(trimmedReceipt(receipt, blocks), type);
  }
  return bytes;
}

function encoded(receipt: Receipt, type: MediaType): Uint8Array {
  if (type === JSON_TYPE) return new TextEncoder().encode(receiptJson(receipt));
  return encodeBody(receipt, type);
}

/** Null where it is no receipt. Members that are not looked at are as they came. */
export function decodeReceipt(bytes: Uint8Array, contentType: string | null): Receipt | null {
  const body = decodeBody(bytes, mediaTypeOf(contentType), LIMITS);
  if (!body.ok || !isMembers(body.value)) return null;
  const { type, worker_id, incarnation, issuer, status, counts, blocks, reason } = body.value;
  const isReceipt =
    [type, worker_id, incarnation, issuer].every((member) => typeof member === "string") &&
    STATUSES.has(status) &&
    (reason === undefined || typeof reason === "string") &&
    isMembers(counts) &&
    COMMAND_OUTCOMES.every((outcome) => Number.isSafeInteger(counts[outcome])) &&
    Array.isArray(blocks) &&
    blocks.every(isBlock);
  return isReceipt ? (body.value as unknown as Receipt) : null;
}

function isBlock(value: unknown): boolean {
  if (!isMembers(value) || typeof value.outcome !== "string") return false;
  return ["string", "number", "bigint"].includes(typeof value.block);
}
