import { COMMAND_OUTCOMES } from "../core/index.ts";
import { isMembers } from "./members.ts";
import type { Receipt } from "./receipt.ts";

const STATUSES: ReadonlySet<unknown> = new Set<Receipt["status"]>([
  "ok",
  "partial",
  "rejected",
  "running",
]);

/** Takes what came for a receipt where all that it has is of the receipt's types. */
export function readReceipt(value: unknown): Receipt | null {
  if (!isMembers(value)) return null;
  const { counts, blocks, held = [] } = value;
  const isReceipt =
    ["type", "worker_id", "incarnation", "issuer"].every((name) => isText(value[name])) &&
    (value.id === null || isText(value.id)) &&
    STATUSES.has(value.status) &&
    isMembers(counts) &&
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
  if (!isMembers(value) || !isText(value.outcome) || !isOptional(value.reason, isText))
    return false;
  const { block, by, layer } = value;
  const isNamed = ["string", "number", "bigint"].includes(typeof block);
  return (
    isNamed &&
    isOptional(layer, isNumber) &&
    isOptional(by, (holders) => isListOf(holders, isHolder))
  );
}

function isHolder(value: unknown): boolean {
  return (
    isMembers(value) &&
    isText(value.kind) &&
    ["owner", "name"].every((name) => isOptional(value[name], isText))
  );
}

function isProgress(value: unknown): boolean {
  return (
    isMembers(value) &&
    ["done_blocks", "bytes"].every((name) => isNumber(value[name])) &&
    (value.total_blocks === null || isNumber(value.total_blocks))
  );
}

function isFigures(value: unknown): boolean {
  return isMembers(value) && Object.values(value).every(isNumber);
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
