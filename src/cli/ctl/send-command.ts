import {
  type ControlClient,
  type Encoding,
  newCommandId,
  type SendOptions,
  type SendResult,
  type WireCommand,
} from "../../control/client/index.ts";
import type { Receipt } from "../../control/index.ts";
import { type Clock, formatBytes, formatDuration, HearthError } from "../../core/index.ts";
import type { ExitName } from "../exit-codes.ts";
import type { Io } from "../io.ts";
import { createProgress } from "../progress.ts";
import { type ConnectionFlags, openControl } from "./connect.ts";
import { printBroadcast, printReceipt } from "./receipt-report.ts";
import { refusalText } from "./refusal-text.ts";

export interface CommandFlags extends ConnectionFlags {
  readonly worker: string | null;
  readonly deadline: number;
  readonly json: boolean;
  readonly broadcast: boolean;
  readonly issuer: string | null;
  readonly id: string | null;
  readonly sign: string | null;
  readonly ownSubject: boolean;
  readonly encoding: Encoding;
}

export interface CtlContext {
  /** As it was called: `ctl pin`. */
  readonly name: string;
  readonly flags: CommandFlags;
  readonly io: Io;
  readonly clock: Clock;
  interrupt(): AbortSignal;
}

/** How long somebody who is not there at all is waited for: a person sits in front of it. */
const ABSENT_MS = 3_000;

/** Sends one command, prints what became of it, and says how to end. */
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

/** The worker's name; empty for whoever is at the address; null for all. */
function targetOf({ nats, worker, broadcast }: CommandFlags): string | null {
  if (nats === null) {
    if (!broadcast) return worker ?? "";
    throw new HearthError("USAGE", "--broadcast goes through NATS", { fix: "give --nats URL" });
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
        `${result.why} within ${formatDuration(flags.deadline)}; it may have been carried out: ` +
          `with --id ${id} the same command again finds out`,
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
