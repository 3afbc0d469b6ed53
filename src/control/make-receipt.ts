import {
  type BlockName,
  type BlockResult,
  countOutcomes,
  type OutcomeCounts,
} from "../core/index.ts";
import type { HeldBlock, LifecycleReport } from "../store/index.ts";
import type { BudgetFigures } from "../store/pins/index.ts";
import type { Command, UnnamedBlock } from "./command.ts";
import type { Receipt, ReceiptBlock } from "./receipt.ts";
import { type Refusal, reasonOf } from "./refusals.ts";

/** Whose answer to what. */
export type ReceiptHead = Pick<Receipt, "id" | "type" | "worker_id" | "incarnation" | "issuer">;

/** Blocks of a lease that its receipt lists. */
const LEASED_LISTED = 1_000;
const NO_COUNTS: OutcomeCounts = countOutcomes([]);

export function refusedReceipt(head: ReceiptHead, refusal: Refusal, elapsedMs: number): Receipt {
  const reason = reasonOf(refusal);
  return {
    ...head,
    status: "rejected",
    reason,
    counts: NO_COUNTS,
    blocks: [],
    elapsed_ms: elapsedMs,
  };
}

export function finalReceipt(
  head: ReceiptHead,
  command: Command,
  unnamed: readonly UnnamedBlock[],
  report: LifecycleReport,
  elapsedMs: number,
): Receipt {
  const { results, held, figures } = report;
  const counts = { ...report.counts, rejected: report.counts.rejected + unnamed.length };
  const reason = namesNoBlock(command) ? results[0]?.reason : undefined;
  const leased = command.type === "RevokeLease" ? results.filter(isOfLease) : [];
  const leftOut = Math.max(0, leased.length - LEASED_LISTED);
  return {
    ...head,
    status: isComplete(counts) ? "ok" : "partial",
    ...(reason === undefined ? {} : { reason }),
    counts,
    blocks:
      leased.length > 0
        ? leased.slice(0, LEASED_LISTED).map(heldBlock)
        : receiptBlocks(command, unnamed, results),
    ...(leftOut === 0 ? {} : { blocks_left_out: leftOut }),
    ...(held.length === 0 ? {} : { held: held.map(heldBlock) }),
    bytes: report.bytes,
    durable: report.durable,
    ...("leaseId" in command && hasLease(command, report) ? { lease_id: command.leaseId } : {}),
    ...(report.ttlMs === null ? {} : { ttl_seconds: report.ttlMs / 1_000 }),
    ...(figures === null ? {} : { budget: budgetOf(figures) }),
    elapsed_ms: elapsedMs,
  };
}

export function runningReceipt(
  head: ReceiptHead,
  progress: Receipt["progress"] | null,
  elapsedMs: number,
): Receipt {
  return {
    ...head,
    status: "running",
    counts: NO_COUNTS,
    blocks: [],
    ...(progress ? { progress } : {}),
    elapsed_ms: elapsedMs,
  };
}

/** As it is remembered between the change of holds and the end of the command. */
export function unfinishedReceipt(
  head: ReceiptHead,
  command: Command,
  unnamed: readonly UnnamedBlock[],
  results: readonly BlockResult[],
  elapsedMs: number,
): Receipt {
  return {
    ...runningReceipt(head, null, elapsedMs),
    counts: countOutcomes(results),
    blocks: receiptBlocks(command, unnamed, results),
  };
}

/** The same with at most so many blocks; how many it leaves out stands in it. */
export function trimmedReceipt(receipt: Receipt, blocksMax: number): Receipt {
  const { held = [], blocks } = receipt;
  if (blocks.length <= blocksMax && held.length <= blocksMax) return receipt;
  const leftOut = (receipt.blocks_left_out ?? 0) + Math.max(0, blocks.length - blocksMax);
  return {
    ...receipt,
    blocks: blocks.slice(0, blocksMax),
    ...(leftOut === 0 ? {} : { blocks_left_out: leftOut }),
    ...(held.length === 0 ? {} : { held: held.slice(0, blocksMax) }),
  };
}

/** A command on a lease, or on everything: what it met has no names of the command's. */
function namesNoBlock(command: Command): boolean {
  return ["RenewLease", "RevokeLease", "Flush"].includes(command.type);
}

/** A pause of nothing that is here makes no lease, and grants no time. */
function hasLease({ type }: Command, { ttlMs }: LifecycleReport): boolean {
  return type !== "Pause" || ttlMs !== null;
}

function isComplete({ missing, held, deferred, rejected }: OutcomeCounts): boolean {
  return missing + held + deferred + rejected === 0;
}

function receiptBlocks(
  command: Command,
  unnamed: readonly UnnamedBlock[],
  results: readonly BlockResult[],
): ReceiptBlock[] {
  const names = namesOf(command);
  const blocks: ReceiptBlock[] = [];
  let nextUnnamed = 0;
  for (let i = 0; i < names.length || nextUnnamed < unnamed.length; ) {
    const other = unnamed[nextUnnamed];
    if (other?.at === blocks.length) {
      nextUnnamed++;
      blocks.push({ block: other.given, outcome: "rejected", reason: other.reason });
    } else {
      blocks.push(receiptBlock(names[i]!.given, results[i]));
      i++;
    }
  }
  return blocks;
}

function namesOf(command: Command): readonly BlockName[] {
  if (command.type === "Prune") return [command.after];
  return "blocks" in command ? command.blocks : [];
}

function receiptBlock(block: ReceiptBlock["block"], result: BlockResult | undefined): ReceiptBlock {
  if (result === undefined) return { block, outcome: "missing" };
  const { outcome, reason, by } = result;
  if (reason === undefined && by === undefined) return { block, outcome };
  return { block, outcome, ...(reason === undefined ? {} : { reason }), ...(by ? { by } : {}) };
}

/** As of a lease that there was. */
function isOfLease(result: BlockResult): result is HeldBlock {
  return "digest" in result;
}

function heldBlock(held: HeldBlock): ReceiptBlock & { layer: number } {
  return { ...receiptBlock(held.digest ?? "", held), layer: held.layer };
}

function budgetOf(figures: BudgetFigures): Record<string, number> {
  return {
    capacity_bytes: figures.capacityBytes,
    host_budget_bytes: figures.hostBudgetBytes,
    host_used_bytes: figures.hostUsedBytes,
    owner_budget_bytes: figures.ownerBudgetBytes,
    owner_used_bytes: figures.ownerUsedBytes,
  };
}
