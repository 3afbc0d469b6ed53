import {
  type BlockResult,
  COMMAND_OUTCOMES,
  type CommandOutcome,
  countOutcomes,
  type HeldBy,
  MSGPACK_LIMITS,
  type OutcomeCounts,
} from "../core/index.ts";
import type { HeldBlock, LifecycleReport } from "../store/index.ts";
import type { BudgetFigures } from "../store/pins/index.ts";
import { type Command, namesOf, type Refusal, reasonOf, type UnnamedBlock } from "./command.ts";
import {
  decodeBody,
  encodeBody,
  isMembers,
  JSON_TYPE,
  type MediaType,
  mediaTypeOf,
} from "./decode-command.ts";

export interface ReceiptBlock {
  /**
   * The block's name as written in the command. For a block that the command did not name, its
   * digest in hex.
   */
  readonly block: number | bigint | string;
  /** Layer of the block. Present if `block` is a digest. */
  readonly layer?: number;
  readonly outcome: string;
  readonly reason?: string;
  readonly by?: readonly HeldBy[];
}

/**
 * The reply to a command. Member names are those on the wire. `status`: `ok` if no block was
 * missing, held, deferred or rejected; `partial` if any was; `rejected` if the whole command was
 * refused (see `reason`) and nothing changed; `running` while the command executes (only from
 * `/v1/commands/{id}` and in progress reports).
 */
export interface Receipt {
  readonly id: string | null;
  readonly type: string;
  readonly worker_id: string;
  /** Id of the agent's run, in decimal text because it has 64 bits. */
  readonly incarnation: string;
  readonly issuer: string;
  readonly status: "ok" | "partial" | "rejected" | "running";
  /**
   * Why the command was refused or incomplete: a stable code, then a message, for example
   * "rate_limited: 500 commands a second ...".
   */
  readonly reason?: string;
  /** Present if the command is a repetition. The receipt describes its earlier execution. */
  readonly duplicate?: true;
  readonly counts: OutcomeCounts;
  /**
   * Results in the order of the command's blocks. For RevokeLease, the first 1,000 blocks of the
   * lease.
   */
  readonly blocks: readonly ReceiptBlock[];
  /**
   * Number of blocks that are not listed, because the receipt would exceed the size limit of the
   * transport or the ledger.
   */
  readonly blocks_left_out?: number;
  /**
   * Prune and Flush: the first 1,000 blocks that were not removed because something retains them.
   */
  readonly held?: readonly (ReceiptBlock & { readonly layer: number })[];
  readonly bytes?: number;
  readonly durable?: boolean;
  readonly lease_id?: string;
  /** Granted duration in seconds. It may be shorter than the requested one. */
  readonly ttl_seconds?: number;
  /** Figures of the pin budget in bytes. Present if the budget was too small for a block. */
  readonly budget?: Readonly<Record<string, number>>;
  readonly progress?: {
    readonly done_blocks: number;
    readonly total_blocks: number | null;
    readonly bytes: number;
  };
  readonly elapsed_ms: number;
}

/** The members of a receipt that are known before the command is executed. */
export type ReceiptHead = Pick<Receipt, "id" | "type" | "worker_id" | "incarnation" | "issuer">;

/** Maximum blocks of a lease that a receipt lists. */
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

/**
 * Returns the receipt that the ledger stores from the change of pins and leases until the command
 * ends.
 */
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

/** Returns the receipt with at most `blocksMax` blocks. `blocks_left_out` counts the others. */
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

/**
 * Returns true if the command addresses a lease or all blocks, so that its results cannot use the
 * command's own block names.
 */
function namesNoBlock(command: Command): boolean {
  return ["RenewLease", "RevokeLease", "Flush"].includes(command.type);
}

/** Returns true if the receipt has a lease. A Pause whose blocks are all absent creates none. */
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
      blocks.push(receiptBlock(names[i].given, results[i]));
      i++;
    }
  }
  return blocks;
}

function receiptBlock(block: ReceiptBlock["block"], result: BlockResult | undefined): ReceiptBlock {
  if (result === undefined) return { block, outcome: "missing" };
  const { outcome, reason, by } = result;
  if (reason === undefined && by === undefined) return { block, outcome };
  return { block, outcome, ...(reason === undefined ? {} : { reason }), ...(by ? { by } : {}) };
}

/** Returns true if the result describes a block of an existing lease. */
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

/**
 * Encodes a receipt as JSON, with its blocks last. Only block names can be 64-bit integers;
 * `stringifyJson` would search every value for them, which takes several times as long.
 */
export function receiptJson(receipt: Receipt): string {
  const { blocks, ...rest } = receipt;
  let text = `${JSON.stringify(rest).slice(0, -1)},"blocks":[`;
  for (let at = 0; at < blocks.length; at++) {
    text += at === 0 ? blockJson(blocks[at]) : `,${blockJson(blocks[at])}`;
  }
  return `${text}]}`;
}

function blockJson({ block, layer, outcome, reason, by }: ReceiptBlock): string {
  const name = typeof block === "string" ? JSON.stringify(block) : block.toString();
  // Outcomes are constants of this module and need no escaping.
  const isPlain = reason === undefined && by === undefined && layer === undefined;
  if (isPlain) return `{"block":${name},"outcome":"${outcome}"}`;
  return `{"block":${name},${JSON.stringify({ outcome, reason, by, layer }).slice(1)}`;
}

type Check = (value: unknown) => boolean;

const isText: Check = (value) => typeof value === "string";
const isNumber: Check = (value) => typeof value === "number";
const isBlockName: Check = (value) => ["string", "number", "bigint"].includes(typeof value);

function optional(check: Check): Check {
  return (value) => value === undefined || check(value);
}

function nullOr(check: Check): Check {
  return (value) => value === null || check(value);
}

function listOf(check: Check): Check {
  return (value) => Array.isArray(value) && value.every(check);
}

function shape(members: Readonly<Record<string, Check>>): Check {
  const checks = Object.entries(members);
  return (value) => isMembers(value) && checks.every(([name, check]) => check(value[name]));
}

const isBlock = shape({
  block: isBlockName,
  layer: optional(isNumber),
  outcome: isText,
  reason: optional(isText),
  by: optional(listOf(shape({ kind: isText, owner: optional(isText), name: optional(isText) }))),
});

const isReceipt = shape({
  id: nullOr(isText),
  type: isText,
  worker_id: isText,
  incarnation: isText,
  issuer: isText,
  status: (value) => ["ok", "partial", "rejected", "running"].includes(value as string),
  reason: optional(isText),
  counts: shape(Object.fromEntries(COMMAND_OUTCOMES.map((outcome) => [outcome, isNumber]))),
  blocks: listOf(isBlock),
  blocks_left_out: optional(isNumber),
  held: optional(listOf(isBlock)),
  bytes: optional(isNumber),
  lease_id: optional(isText),
  ttl_seconds: optional(isNumber),
  budget: optional((value) => isMembers(value) && Object.values(value).every(isNumber)),
  progress: optional(
    shape({ done_blocks: isNumber, total_blocks: nullOr(isNumber), bytes: isNumber }),
  ),
  elapsed_ms: optional(isNumber),
});

/** Returns the value as a receipt if every member has the correct type, else null. */
export function readReceipt(value: unknown): Receipt | null {
  return isReceipt(value) ? (value as Receipt) : null;
}

/**
 * Encodes a receipt with as many of its blocks as fit in `bytesMax`. The result is larger than
 * `bytesMax` only if the receipt without blocks is. The caller owns the returned bytes.
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
  // Copy the result, because the encoder returns a view of a buffer that it reuses.
  return Uint8Array.from(encodeBody(receipt, type));
}

/**
 * Decodes a receipt. Returns null if the bytes are not a receipt. `contentType` defaults to JSON.
 */
export function decodeReceipt(bytes: Uint8Array, contentType: string | null): Receipt | null {
  const body = decodeBody(bytes, mediaTypeOf(contentType), MSGPACK_LIMITS.receipt);
  return body.ok ? readReceipt(body.value) : null;
}

interface BlockReason {
  /**
   * Outcomes of blocks that can have this reason. Empty: the reason occurs only on the receipt
   * itself.
   */
  readonly outcomes: readonly CommandOutcome[];
  readonly meaning: string;
}

/**
 * Reasons of single blocks, by the stable codes at the start of `reason`. For commands that name no
 * block, one of them may begin the receipt's own `reason`.
 */
export const BLOCK_REASONS = {
  aborted: {
    outcomes: ["deferred"],
    meaning: "the agent is stopping; the remaining blocks were not processed",
  },
  budget: {
    outcomes: ["rejected"],
    meaning: "pins and leases would exceed their budget; `budget` has the figures",
  },
  busy: { outcomes: ["rejected"], meaning: "too many prunes are traversing the tree" },
  durable: {
    outcomes: ["deferred"],
    meaning: "done, but the disk has not confirmed that the change survives a loss of power",
  },
  forbidden: {
    outcomes: ["rejected"],
    meaning:
      "the command would delete the block, which the sender's role does not allow; the " +
      "message names the key to set",
  },
  full: {
    outcomes: ["rejected"],
    meaning: "warming the block would evict blocks in RAM that are in use",
  },
  gpu: {
    outcomes: ["done"],
    meaning: "removed from RAM and SSD; an engine keeps a copy on its GPU until it evicts it",
  },
  gpu_sink: {
    outcomes: ["deferred"],
    meaning:
      "the block is in RAM; no engine on this host loads blocks to its GPU without a request",
  },
  interrupted: {
    outcomes: [],
    meaning: "receipts only: the agent stopped while the command was executing",
  },
  limit: {
    outcomes: ["rejected"],
    meaning: "a limit on pins, leases, owners, or blocks per pin or lease was reached",
  },
  name: { outcomes: ["rejected"], meaning: "the name is neither a hash nor a key" },
  no_ssd: {
    outcomes: ["rejected"],
    meaning: "the command is a Pause and this host has no SSD tier",
  },
  not_transient: {
    outcomes: ["rejected"],
    meaning: "the command purges a block that was never marked transient",
  },
  owner: { outcomes: ["rejected"], meaning: "the lease of this name belongs to another owner" },
  peers: {
    outcomes: ["deferred"],
    meaning: "the command is a Warm and no peer delivered the block in time",
  },
  ssd: {
    outcomes: ["deferred", "rejected"],
    meaning:
      "the SSD cannot write, read or delete it now; deletions and copies of pinned blocks are " +
      "tried again",
  },
  transient: {
    outcomes: ["deferred", "rejected"],
    meaning: "pinned in RAM alone, or not paused: it is never written to SSD",
  },
} as const satisfies Record<string, BlockReason>;
