import { type Clock, HearthError, type Random } from "../../core/index.ts";
import { COMMAND_LIMITS, type Receipt } from "../index.ts";
import type { BroadcastResult, SendOptions, SendResult, WireCommand } from "./control-client.ts";
import { newCommandId } from "./control-client.ts";

/** Members that list blocks. */
const LISTS = ["block_hashes", "block_keys"] as const;

/**
 * Splits a command into parts of at most `COMMAND_LIMITS.blocksMax` blocks; a smaller command is
 * returned unchanged. The id of a part is the command's `id` with the part's number appended, so
 * that a repetition has the same parts. Throws LIMIT for a command with a `seq`, because each part
 * would need its own.
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

/** Returns the options of the next part with the remaining time. */
function remaining({ clock, options, deadlineMs }: Sending): () => SendOptions {
  const endMs = clock.monotonicMs() + (options.deadlineMs ?? deadlineMs);
  return () => ({ ...options, deadlineMs: Math.max(0, endMs - clock.monotonicMs()) });
}

export interface Sending {
  readonly clock: Clock;
  readonly options: SendOptions;
  /** Deadline of all parts together, unless the options set another. */
  readonly deadlineMs: number;
}

/** Sends the parts in order, up to the first without a receipt or with a rejected one. */
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

/** Sends the parts to all workers. A worker that missed one part counts as silent. */
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

/** Joins the receipts of the parts. Blocks of parts that were not carried out are `rejected`. */
function joinReceipts(parts: readonly WireCommand[], receipts: readonly Receipt[]): Receipt {
  const first = receipts[0]!;
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

/** Replaces a part's id by the command's own. */
function withId(receipt: Receipt, parts: readonly WireCommand[]): Receipt {
  if (parts.length === 1 || receipt.id === null) return receipt;
  return { ...receipt, id: receipt.id.replace(/\.\d+$/, "") };
}

function blocksOf(part: WireCommand): Receipt["blocks"][number]["block"][] {
  const list = LISTS.map((name) => part[name]).find(Array.isArray) ?? [];
  return list as Receipt["blocks"][number]["block"][];
}
