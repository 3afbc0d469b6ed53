import type { BroadcastResult } from "../../control/client/index.ts";
import type { Receipt, ReceiptBlock } from "../../control/index.ts";
import { COMMAND_OUTCOMES, formatBytes } from "../../core/index.ts";
import type { Io } from "../io.ts";
import { printJson, printRows } from "../output.ts";
import { holdersOf, nameOf } from "./documents.ts";
import { plain } from "./plain.ts";

/** More blocks than these are summed up: of them only those are shown that went wrong. */
const BLOCKS_SHOWN_MAX = 20;

/** The receipt on one line, or for people its blocks, and a line on the whole. */
export function printReceipt(io: Io, receipt: Receipt, json: boolean): void {
  if (json) {
    printJson(io, receipt);
    return;
  }
  printBlocks(io, receipt.blocks, "block", receipt.blocks_left_out ?? 0);
  printBlocks(io, receipt.held ?? [], "held block", 0);
  io.out.write(`${summaryOf(receipt)}\n`);
  for (const line of detailsOf(receipt)) io.out.write(`  ${line}\n`);
}

/** A row for each worker; with `json` the receipts, then who was silent. */
export function printBroadcast(io: Io, result: BroadcastResult, json: boolean): void {
  if (json) {
    for (const receipt of result.receipts) printJson(io, receipt);
    for (const worker_id of result.silent) printJson(io, { worker_id, status: "silent" });
    return;
  }
  const outcomes = COMMAND_OUTCOMES.filter((outcome) =>
    result.receipts.some(({ counts }) => counts[outcome] > 0),
  );
  const none = Object.fromEntries(outcomes.map((outcome) => [outcome, null]));
  printRows(
    io,
    [
      ...result.receipts.map(({ worker_id, status, counts, reason }) => ({
        worker: plain(worker_id),
        status,
        ...Object.fromEntries(outcomes.map((outcome) => [outcome, counts[outcome]])),
        reason: plain(reason ?? ""),
      })),
      ...result.silent.map((id) => ({ worker: plain(id), status: "silent", ...none, reason: "" })),
    ],
    false,
  );
}

/** `leftOut`: so many more the worker did not list. */
function printBlocks(
  io: Io,
  blocks: readonly ReceiptBlock[],
  title: string,
  leftOut: number,
): void {
  const isLong = blocks.length > BLOCKS_SHOWN_MAX;
  const wanted = isLong
    ? blocks.filter(({ outcome }) => outcome !== "done" && outcome !== "already")
    : blocks;
  const shown = wanted.slice(0, BLOCKS_SHOWN_MAX);
  const hasWhy = shown.some(({ reason, by }) => reason !== undefined || by !== undefined);
  printRows(
    io,
    shown.map((block) => ({
      [title]: nameOf(block.block),
      outcome: plain(block.outcome),
      ...(hasWhy ? { why: whyOf(block) } : {}),
    })),
    false,
  );
  const left = wanted.length - shown.length;
  if (left > 0) io.out.write(`and ${left} more that are not done\n`);
  if (leftOut > 0) io.out.write(`and ${leftOut} more that the receipt does not list\n`);
}

function whyOf({ reason, by = [] }: ReceiptBlock): string {
  const holders = holdersOf(by);
  const held = holders === "" ? "" : `by ${holders}`;
  return plain([reason ?? "", held].filter((part) => part !== "").join("; "));
}

/** `Cache on node-1: 2 done, 1 missing; durable; 1.2 ms`. */
function summaryOf(receipt: Receipt): string {
  const { type, worker_id, status, reason, counts, durable, duplicate, elapsed_ms } = receipt;
  const outcomes = COMMAND_OUTCOMES.flatMap((outcome) =>
    counts[outcome] === 0 ? [] : [`${counts[outcome]} ${outcome}`],
  );
  const parts = [
    status === "rejected" ? `rejected, ${reason ?? "without a reason"}` : "",
    outcomes.join(", "),
    durable === true ? "durable" : "",
    duplicate === true ? "carried out before" : "",
    typeof elapsed_ms === "number" ? `${Number(elapsed_ms.toPrecision(3))} ms` : "",
  ];
  const text = parts.filter((part) => part !== "").join("; ");
  return plain(`${type} on ${worker_id}: ${text === "" ? status : text}`, Infinity);
}

/** `host 4.06MiB of 8MiB; owner 1MiB of 2MiB`. */
function budgetText(budget: NonNullable<Receipt["budget"]>): string {
  const parts = ["host", "owner"].flatMap((who) => {
    const used = budget[`${who}_used_bytes`];
    const all = budget[`${who}_budget_bytes`];
    return used === undefined || all === undefined
      ? []
      : [`${who} ${formatBytes(used)} of ${formatBytes(all)}`];
  });
  return parts.join("; ");
}

function detailsOf({ bytes, lease_id, ttl_seconds, budget }: Receipt): string[] {
  const lines: string[] = [];
  if (bytes !== undefined) lines.push(`bytes    ${formatBytes(bytes)}`);
  if (lease_id !== undefined) lines.push(`lease    ${lease_id}`);
  if (ttl_seconds !== undefined) lines.push(`granted  ${ttl_seconds} s`);
  const figures = budgetText(budget ?? {});
  if (figures !== "") lines.push(`budget   ${figures}`);
  return lines.map((line) => plain(line, Infinity));
}
