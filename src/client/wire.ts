import type { Receipt } from "../control/index.ts";
import { COMMAND_OUTCOMES, parseJson, stringifyJson } from "../core/index.ts";
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

export function wireOf(_encoding: Encoding): Wire {
  return jsonWire;
}

const STATUSES: ReadonlySet<unknown> = new Set<Receipt["status"]>([
  "ok",
  "partial",
  "rejected",
  "running",
]);

/** Takes what came for a receipt where all that it has is of the receipt's types. */
export function readReceipt(value: unknown): Receipt | null {
  if (!isObject(value)) return null;
  const { counts, blocks, held = [] } = value;
  const isReceipt =
    ["type", "worker_id", "incarnation", "issuer"].every((name) => isText(value[name])) &&
    (value.id === null || isText(value.id)) &&
    STATUSES.has(value.status) &&
    isObject(counts) &&
    COMMAND_OUTCOMES.every((outcome) => typeof counts[outcome] === "number") &&
    isListOf(blocks, isBlock) &&
    isListOf(held, isBlock) &&
    ["reason", "lease_id"].every((name) => isOptional(value[name], isText)) &&
    ["bytes", "ttl_seconds", "elapsed_ms"].every((name) => isOptional(value[name], isNumber)) &&
    isOptional(value.budget, isFigures) &&
    isOptional(value.progress, isProgress);
  return isReceipt ? (value as unknown as Receipt) : null;
}

function isBlock(value: unknown): boolean {
  if (!isObject(value) || !isText(value.outcome) || !isOptional(value.reason, isText)) return false;
  const { block, by } = value;
  const isNamed = ["string", "number", "bigint"].includes(typeof block);
  return isNamed && isOptional(by, (holders) => isListOf(holders, isHolder));
}

function isHolder(value: unknown): boolean {
  return (
    isObject(value) &&
    isText(value.kind) &&
    ["owner", "name"].every((name) => isOptional(value[name], isText))
  );
}

function isProgress(value: unknown): boolean {
  return (
    isObject(value) &&
    ["done_blocks", "bytes"].every((name) => isNumber(value[name])) &&
    (value.total_blocks === null || isNumber(value.total_blocks))
  );
}

function isFigures(value: unknown): boolean {
  return isObject(value) && Object.values(value).every(isNumber);
}

function isOptional(value: unknown, is: (value: unknown) => boolean): boolean {
  return value === undefined || is(value);
}

function isListOf(value: unknown, is: (item: unknown) => boolean): boolean {
  return Array.isArray(value) && value.every(is);
}

function isText(value: unknown): value is string {
  return typeof value === "string";
}

function isNumber(value: unknown): value is number {
  return typeof value === "number";
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
