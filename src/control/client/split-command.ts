import { type Clock, HearthError, type Random } from "../../core/index.ts";
import { COMMAND_LIMITS, type Receipt } from "../index.ts";
import type { BroadcastResult, SendOptions, SendResult, WireCommand } from "./control-client.ts";
import { newCommandId } from "./control-client.ts";

/** Members of commands that contain a list of blocks. */
const LISTS = ["block_hashes", "block_keys"] as const;

/**
 * Splits a command into parts of at most `COMMAND_LIMITS.blocksMax` blocks. Returns a smaller
 * command unchanged. The id of a part is the command's `id` with the part's number appended, so
 * that splitting the command again gives the same ids. Throws LIMIT if the command has a `seq`,
 * because each part would need its own.
 */
export function splitCommand(command: WireCommand, random: Random): readonly WireCommand[] {
  const { blocksMax } = COMMAND_LIMITS;
  const name = LISTS.find((list) => Array.isArray(command[list]));
  const blocks = name === undefined ? [] : (command[name] as readonly unknown[]);
  if (name === undefined || blocks.length <= blocksMax) return [command];
  if (command.seq !== undefined && command.seq !== null) {
    throw new HearthError(
      "LIMIT",
      `${blocks.length} blocks in one command, the maximum is ${blocksMax}`,
      {
        fix: "send several commands, each with its own seq",
      },
    );
  }
  const id = command.id ?? newCommandId(random);
  const parts: WireCommand[] = [];
  for (let at = 0; at < blocks.length; at += blocksMax) {
    const some = blocks.slice(at, at + blocksMax);
    parts.push({ ...command, id: `${id}.${parts.length}`, [name]: some });
  }
  return parts;
}

/**
 * Returns a function that returns the options for the next part, with the remaining time as
 * deadline.
 */
function remaining({ clock, options, deadlineMs }: Sending): () => SendOptions {
  const endMs = clock.monotonicMs() + (options.deadlineMs ?? deadlineMs);
  return () => ({ ...options, deadlineMs: Math.max(0, endMs - clock.monotonicMs()) });
}

export interface Sending {
  readonly clock: Clock;
  readonly options: SendOptions;
  /** Maximum ms for all parts together, unless the options set a deadline. */
  readonly deadlineMs: number;
}

/** Sends the parts in order. Stops at the first part that gets no receipt or is rejected. */
export async function sendParts(
  parts: readonly WireCommand[],
  sending: Sending,
  send: (part: WireCommand, options: SendOptions) => Promise<SendResult>,
): Promise<SendResult> {
  const left = remaining(sending);
  const receipts: Receipt[] = [];
  for (const part of parts) {
    const result = await send(part, left());
    if (result.kind !== "receipt") return result;
    receipts.push(result.receipt);
    if (result.receipt.status === "rejected") break;
  }
  return { kind: "receipt", receipt: joinReceipts(parts, receipts) };
}

/**
 * Sends the parts to all workers. A worker that did not reply to one of the parts counts as silent.
 */
export async function broadcastParts(
  parts: readonly WireCommand[],
  sending: Sending,
  send: (part: WireCommand, options: SendOptions) => Promise<BroadcastResult>,
): Promise<BroadcastResult> {
  const left = remaining(sending);
  const byWorker = new Map<string, Receipt[]>();
  const silent = new Set<string>();
  for (const part of parts) {
    const result = await send(part, left());
    if (result.why !== null) return result;
    for (const worker of result.silent) silent.add(worker);
    for (const receipt of result.receipts) {
      const { worker_id } = receipt;
      byWorker.set(worker_id, [...(byWorker.get(worker_id) ?? []), receipt]);
    }
  }
  const receipts = [...byWorker]
    .filter(([worker]) => !silent.has(worker))
    .map(([, ofParts]) => joinReceipts(parts, ofParts));
  return { receipts, silent: [...silent].sort(), why: null };
}

/**
 * Combines the receipts of the parts into one. Blocks of parts that were not sent are `rejected`.
 */
function joinReceipts(parts: readonly WireCommand[], receipts: readonly Receipt[]): Receipt {
  const first = receipts[0];
  const last = receipts.at(-1)!;
  if (parts.length === 1 || (receipts.length === 1 && first.status === "rejected")) {
    return withId(first, parts);
  }
  const done = receipts.filter(({ status }) => status !== "rejected");
  const counts = { ...first.counts };
  for (const key of Object.keys(counts) as (keyof typeof counts)[]) {
    counts[key] = done.reduce((sum, receipt) => sum + receipt.counts[key], 0);
  }
  const refused = parts.slice(done.length).flatMap(blocksOf);
  counts.rejected += refused.length;
  const leftOut = done.reduce((sum, receipt) => sum + (receipt.blocks_left_out ?? 0), 0);
  const held = done.flatMap((receipt) => receipt.held ?? []);
  const { reason } = last;
  const why = reason === undefined ? {} : { reason };
  const isOk = refused.length === 0 && done.every(({ status }) => status === "ok");
  const { duplicate: _own, ...latest } = done.at(-1)!;
  const joined: Receipt = {
    ...latest,
    ...(done.every(({ duplicate }) => duplicate) ? { duplicate: true as const } : {}),
    ...why,
    status: isOk ? "ok" : "partial",
    counts,
    blocks: [
      ...done.flatMap(({ blocks }) => blocks),
      ...refused.map((block) => ({ block, outcome: "rejected" as const, ...why })),
    ],
    ...(leftOut === 0 ? {} : { blocks_left_out: leftOut }),
    ...(held.length === 0 ? {} : { held }),
    bytes: done.reduce((sum, { bytes = 0 }) => sum + bytes, 0),
    durable: done.every(({ durable }) => durable === true),
    elapsed_ms: receipts.reduce((sum, receipt) => sum + receipt.elapsed_ms, 0),
  };
  return withId(joined, parts);
}

/** Returns the receipt with the command's own id instead of the part's id. */
function withId(receipt: Receipt, parts: readonly WireCommand[]): Receipt {
  if (parts.length === 1 || receipt.id === null) return receipt;
  return { ...receipt, id: receipt.id.replace(/\.\d+$/, "") };
}

function blocksOf(part: WireCommand): Receipt["blocks"][number]["block"][] {
  const list = LISTS.map((name) => part[name]).find(Array.isArray) ?? [];
  return list as Receipt["blocks"][number]["block"][];
}
