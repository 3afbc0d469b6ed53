import {
  type BroadcastResult,
  type ControlClient,
  newCommandId,
  type SendOptions,
  type SendResult,
  type WireCommand,
} from "../../control/client/index.ts";
import type { Receipt, ReceiptBlock } from "../../control/index.ts";
import {
  type Clock,
  COMMAND_OUTCOMES,
  formatBytes,
  formatDuration,
  HearthError,
} from "../../core/index.ts";
import type { ExitName, FlagValues } from "../command.ts";
import { createProgress, type Io, printJson, printRows } from "../terminal.ts";
import { type commandFlags, openControl, refusalText } from "./connect.ts";
import { holdersOf, nameOf, plain } from "./documents.ts";

/** Exit codes of a command that an agent executes, in addition to those of every command. */
export const CTL_EXITS: readonly ExitName[] = ["partly", "refused", "noAnswer", "interrupted"];

export type CommandFlags = FlagValues<typeof commandFlags>;

export interface CtlContext {
  /** Name of the command, for example `ctl pin`. */
  readonly name: string;
  readonly flags: CommandFlags;
  readonly io: Io;
  readonly clock: Clock;
  interrupt(): AbortSignal;
}

/** Milliseconds after which connecting to an agent that does not respond fails. */
const ABSENT_MS = 3_000;

/** Sends one control command, prints its receipt and returns the exit code's name. */
export async function sendCommand(context: CtlContext, given: WireCommand): Promise<ExitName> {
  const { flags, io, clock, interrupt } = context;
  const target = targetOf(flags);
  const id = flags.id ?? given.id ?? newCommandId();
  const command = { ...given, id, ...(flags.issuer === null ? {} : { issuer: flags.issuer }) };
  await using client = await openControl(flags, clock, flags);
  const progress = createProgress({ io, clock, json: flags.json });
  const options: SendOptions = {
    deadlineMs: flags.deadline,
    absentMs: Math.min(ABSENT_MS, flags.deadline),
    signal: interrupt(),
    onProgress: (receipt) => progress.update(progressText(receipt)),
  };
  try {
    if (target === null) return await broadcast(context, client, command, options);
    const result = await client.send(target, command, options);
    progress.end();
    return report(context, result, String(id));
  } finally {
    progress.end();
  }
}

/** Returns the worker's id; "" for the worker at the given address; null for all workers. */
function targetOf({ nats, worker, broadcast }: CommandFlags): string | null {
  if (nats === null) {
    if (!broadcast) return worker ?? "";
    throw new HearthError("USAGE", "--broadcast needs NATS", { fix: "give --nats URL" });
  }
  if (broadcast && worker === null) return null;
  if (broadcast) throw new HearthError("USAGE", "--broadcast and --worker exclude each other");
  if (worker !== null) return worker;
  throw new HearthError("USAGE", "--nats reaches many workers", {
    fix: "name one with --worker (see `hearth ctl workers`), or give --broadcast",
  });
}

async function broadcast(
  { name, flags, io }: CtlContext,
  client: ControlClient,
  command: WireCommand,
  options: SendOptions,
): Promise<ExitName> {
  const result = await client.broadcast(command, options);
  printBroadcast(io, result, flags.json);
  if (result.why !== null) io.err.write(`hearth ${name}: ${result.why}\n`);
  if (result.silent.length > 0 || result.receipts.length === 0) return "noAnswer";
  const exits = result.receipts.map(exitOfReceipt);
  return exits.find((exit) => exit === "refused") ?? exits.find((exit) => exit !== "ok") ?? "ok";
}

function report({ name, flags, io }: CtlContext, result: SendResult, id: string): ExitName {
  const fail = (why: string) => io.err.write(`hearth ${name}: ${why}\n`);
  switch (result.kind) {
    case "receipt":
      printReceipt(io, result.receipt, flags.json);
      return exitOfReceipt(result.receipt);
    case "refused":
      fail(refusalText(flags, result.status ?? null, result.why));
      return "refused";
    case "unreachable":
      fail(result.why);
      return "noAnswer";
    case "unanswered":
      fail(
        `${result.why} within ${formatDuration(flags.deadline)}; it may have been executed: ` +
          `send the same command with --id ${id} to find out`,
      );
      return "noAnswer";
    default:
      return result satisfies never;
  }
}

function exitOfReceipt({ status }: Receipt): ExitName {
  switch (status) {
    case "ok":
      return "ok";
    case "partial":
    case "running":
      return "partly";
    case "rejected":
      return "refused";
    default:
      return status satisfies never;
  }
}

function progressText({ type, worker_id, progress }: Receipt): string {
  const start = `${type} on ${worker_id}`;
  if (progress === undefined) return `${start}: at work`;
  const { done_blocks, total_blocks, bytes } = progress;
  const of = total_blocks === null ? "" : ` of ${total_blocks}`;
  return `${start}: ${done_blocks}${of} blocks, ${formatBytes(bytes)}`;
}

/** If a receipt lists more blocks than this, only the failed ones are printed. */
const BLOCKS_SHOWN_MAX = 20;

/** Prints a receipt: as JSON on one line, or as a table of blocks and a summary. */
function printReceipt(io: Io, receipt: Receipt, json: boolean): void {
  if (json) {
    printJson(io, receipt);
    return;
  }
  printBlocks(io, receipt.blocks, "block", receipt.blocks_left_out ?? 0);
  printBlocks(io, receipt.held ?? [], "held block", 0);
  io.out.write(`${summaryOf(receipt)}\n`);
  for (const line of detailsOf(receipt)) io.out.write(`  ${line}\n`);
}

/**
 * Prints a table with one row per worker; with `json`, the receipts and then the workers that sent
 * none.
 */
function printBroadcast(io: Io, result: BroadcastResult, json: boolean): void {
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

/**
 * Prints the blocks of a receipt. `leftOut` is the number of blocks that the receipt does not list.
 */
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

/** Formats the summary of a receipt: `Cache on node-1: 2 done, 1 missing; durable; 1.2 ms`. */
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

/** Formats the used and total pin budgets: `host 4.06MiB of 8MiB; owner 1MiB of 2MiB`. */
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
