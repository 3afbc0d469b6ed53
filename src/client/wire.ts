import {
  decodeBody,
  encodeBody,
  JSON_TYPE,
  type MediaType,
  MSGPACK_TYPE,
  mediaTypeOf,
  type Receipt,
} from "../control/index.ts";
import { COMMAND_OUTCOMES } from "../core/index.ts";
import type { WireCommand } from "./control-client.ts";

export const ENCODINGS = ["json", "msgpack"] as const;
/** How commands travel; workers answer the same way. */
export type Encoding = (typeof ENCODINGS)[number];

export interface Wire {
  readonly contentType: MediaType;
  /** A copy of its own. */
  encode(command: WireCommand): Uint8Array;
}

/** Receipts list as many blocks as a command names, each with what holds it. */
const LIMITS = { bytesMax: 64 * 2 ** 20, depthMax: 16, itemsMax: 65_536 };

export function wireOf(encoding: Encoding): Wire {
  const contentType = encoding === "json" ? JSON_TYPE : MSGPACK_TYPE;
  return {
    contentType,
    // Encoders hand out views of a buffer that they go on using.
    encode: (command) => Uint8Array.from(encodeBody(command, contentType)),
  };
}

/** Null where it is no receipt. `contentType`: JSON unless it says MessagePack. */
export function decodeReceipt(data: Uint8Array, contentType: string | null): Receipt | null {
  const body = decodeBody(data, mediaTypeOf(contentType), LIMITS);
  return body.ok ? readReceipt(body.value) : null;
}

const STATUSES: ReadonlySet<unknown> = new Set<Receipt["status"]>([
  "ok",
  "partial",
  "rejected",
  "running",
]);

/**
 * Whether a refusal says nothing of tries before it: the worker has not looked whether it knows the
 * command.
 */
export function isUnread({ status, reason = "" }: Receipt): boolean {
  return status === "rejected" && /^(?:busy|rate_limited)\b/.test(reason);
}

/** Whether the worker does not take such a command from a broadcast. */
export function isNoBroadcast({ status, reason = "" }: Receipt): boolean {
  return status === "rejected" && /^broadcast_refused\b/.test(reason);
}

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
    ["bytes", "ttl_seconds", "elapsed_ms", "blocks_left_out"].every((name) =>
      isOptional(value[name], isNumber),
    ) &&
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
