import { type Clock, yieldToLoop } from "../../../core/index.ts";
import { openLine } from "../open-line.ts";
import type { Answer, IndexOwner, OpenLedgerOrder } from "../protocol.ts";
import type {
  CommandRow,
  HoldLedger,
  HoldRow,
  IssuerRow,
  LedgerContents,
  PartRow,
} from "./hold-ledger.ts";
import { RecordReader } from "./records.ts";
import { WriteBehindLedger } from "./write-behind-ledger.ts";

export interface HoldLedgerOptions {
  /** That of the index of blocks; made where it is missing. */
  readonly folder: string;
  /** Names this run of the agent; never used by another. */
  readonly incarnation: bigint;
  readonly owner: Pick<IndexOwner, "worker" | "machine">;
  readonly clock: Clock;
  /** Gives up waiting for a disk that hangs. */
  readonly signal?: AbortSignal;
  /** How long another program may keep the file locked before it is set aside. */
  readonly busyMs?: number;
  /** Bytes of changes that may wait to be committed. */
  readonly pendingBytesMax?: number;
}

const BUSY_MS = 2_000;
/** Rows read without letting others run. */
const SLICE_ROWS = 500;

/**
 * Opens the ledger in a folder, or makes one. A ledger that cannot be used is set aside
 * (`state.setAside`) and the new one is empty; where the disk does not even allow that, the ledger
 * is `failing`, keeps changes waiting and opens as soon as it can; a file that it finds then is set
 * aside, because this run was told of none. Throws HearthError INDEX_IN_USE where another agent has
 * it, INDEX_FOREIGN where it belongs to another worker or machine, ABORTED.
 */
export async function openHoldLedger(options: HoldLedgerOptions): Promise<HoldLedger> {
  const { folder, incarnation, owner, clock, signal, pendingBytesMax } = options;
  const openOrder: OpenLedgerOrder = {
    kind: "openLedger",
    folder,
    owner: { worker: owner.worker, machine: owner.machine },
    incarnation,
    wallMs: clock.wallMs(),
    busyMs: options.busyMs ?? BUSY_MS,
    isLate: false,
  };
  const { line, answer } = await openLine(openOrder, "ledgerOpened", signal);
  const contents = await contentsOf(answer);
  const limits = pendingBytesMax === undefined ? {} : { pendingBytesMax };
  return new WriteBehindLedger(line, answer, { clock, openOrder, contents, ...limits });
}

async function contentsOf(
  answer: Extract<Answer, { kind: "ledgerOpened" | "failed" }>,
): Promise<LedgerContents> {
  const [holds, parts, issuers]: [HoldRow[], PartRow[], IssuerRow[]] = [[], [], []];
  const commands = new Map<string, CommandRow>();
  if (answer.kind === "failed") return { holds, parts, commands: [], issuers, lastSeen: null };
  const records = new RecordReader(answer.contents, answer.length);
  let read = 0;
  for (let next = records.next(); next !== null; next = records.next()) {
    if (next.kind === "hold") holds.push(next.row);
    if (next.kind === "part") parts.push(next.row);
    if (next.kind === "issuer") issuers.push(next.row);
    if (next.kind === "command") enter(commands, next.row);
    if (++read % SLICE_ROWS === 0) await yieldToLoop();
  }
  const { lastSeen } = answer;
  return { holds, parts, commands: [...commands.values()], issuers, lastSeen };
}

/** A command that was put again counts as it was put last. */
function enter(commands: Map<string, CommandRow>, row: CommandRow): void {
  const key = JSON.stringify([row.issuer, row.id]);
  commands.delete(key);
  commands.set(key, row);
}
