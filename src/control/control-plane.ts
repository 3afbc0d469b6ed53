import type { Sender } from "./command.ts";
import type { Receipt } from "./receipt.ts";

/** Why commands were refused, by its stable word; and what became of the others. */
export interface ControlStats {
  readonly commands: Readonly<Record<string, number>>;
  readonly refused: Readonly<Record<string, number>>;
  readonly duplicates: number;
  readonly running: number;
  readonly auditDropped: number;
}

/**
 * The one way in for commands, whatever brought them: decodes, authorises, limits, deduplicates,
 * fences, carries out, remembers, and writes the audit log. Promises:
 *
 * - It never throws for what a command holds, and answers each with one receipt.
 * - A command with an id that was carried out is not carried out again, also after a restart; one
 *   that is at work answers all its repetitions when it is done.
 * - Commands of one issuer are carried out in the order in which they came where they touch what
 *   pins and leases hold; long ones (Warm, Prune) do not hold up those behind them.
 * - What is beyond a limit is refused, not queued.
 */
export interface ControlPlane extends AsyncDisposable {
  /** `contentType`: of the body; JSON unless it says MessagePack. */
  submit(body: Uint8Array, contentType: string | null, sender: Sender): Promise<Receipt>;
  /** What is known of a command with this id (of this issuer, unless null), also while it runs. */
  find(id: string, issuer: string | null): Receipt | null;
  flush(sender: Sender): Promise<Receipt>;
  stats(): ControlStats;
}
