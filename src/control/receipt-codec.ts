import { decodeBody, encodeBody } from "./body.ts";
import { trimmedReceipt } from "./make-receipt.ts";
import { JSON_TYPE, type MediaType, mediaTypeOf } from "./media-type.ts";
import { readReceipt } from "./read-receipt.ts";
import type { Receipt } from "./receipt.ts";
import { receiptJson } from "./receipt-json.ts";

/** A receipt lists as many blocks as a command names, or holds, each with what holds it. */
const LIMITS = { bytesMax: 64 * 2 ** 20, depthMax: 16, itemsMax: 65_536, valuesMax: 2 ** 24 };

/**
 * With as many of its blocks as fit into `bytesMax`; none where even they alone do not. Bytes of
 * its own: nothing writes over them later.
 */
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
  // The encoder hands out views of a buffer that it goes on using.
  return Uint8Array.from(encodeBody(receipt, type));
}

/** Null where it is no receipt. `contentType`: JSON unless it says MessagePack. */
export function decodeReceipt(bytes: Uint8Array, contentType: string | null): Receipt | null {
  const body = decodeBody(bytes, mediaTypeOf(contentType), LIMITS);
  return body.ok ? readReceipt(body.value) : null;
}
