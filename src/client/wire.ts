import type { Receipt, ReceiptBlock } from "../control/index.ts";
import { COMMAND_OUTCOMES, type Json, parseJson, stringifyJson } from "../core/index.ts";
import type { WireCommand } from "./control-client.ts";

export const ENCODINGS = ["json", "msgpack"] as const;
/** How commands travel; their receipts come back the same way. */
export type Encoding = (typeof ENCODINGS)[number];

export interface Wire {
  readonly contentType: string;
  encode(command: WireCommand): Uint8Array;
  /** Null where it is no receipt. */
  decode(data: Uint8Array): Receipt | null;
}

export const jsonWire: Wire = {
  contentType: "application/json",
  encode: (command) => new TextEncoder().encode(stringifyJson(command)),
  decode(data) {
    try {
      return readReceipt(parseJson(new TextDecoder("utf-8", { fatal: true }).decode(data)));
    } catch {
      return null;
    }
  },
};

const STATUSES: ReadonlySet<unknown> = new Set<Receipt["status"]>([
  "ok",
  "partial",
  "rejected",
  "running",
]);

/** Takes what came for a receipt where it has what every receipt has. */
export function readReceipt(value: Json): Receipt | null {
  if (!isObject(value)) return null;
  const { type, worker_id, incarnation, issuer, status, counts, blocks, reason } = value;
  const isReceipt =
    [type, worker_id, incarnation, issuer].every((member) => typeof member === "string") &&
    STATUSES.has(status) &&
    (reason === undefined || typeof reason === "string") &&
    isObject(counts) &&
    COMMAND_OUTCOMES.every((outcome) => Number.isSafeInteger(counts[outcome])) &&
    Array.isArray(blocks) &&
    blocks.every(isBlock);
  // The members looked at are of these types; those not looked at are for people.
  return isReceipt ? (value as unknown as Receipt) : null;
}

function isBlock(value: Json): boolean {
  return isObject(value) && typeof value.outcome === "string" && isName(value.block);
}

function isName(value: Json | undefined): value is ReceiptBlock["block"] {
  return typeof value === "string" || typeof value === "number" || typeof value === "bigint";
}

function isObject(value: Json | undefined): value is { [key: string]: Json } {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
