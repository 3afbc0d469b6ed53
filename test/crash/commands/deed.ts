import { digestOf } from "../content.ts";
import type { Oracle } from "../oracle.ts";
import type { Receipt } from "./agent-door.ts";
import type { HoldModel, Span } from "./hold-model.ts";

/** What commands change besides the agent. */
export interface DeedRoom {
  readonly model: HoldModel;
  readonly oracle: Oracle;
  /** Whether soft pins may have been ended for want of room. */
  softMayGo: boolean;
  complain(text: string): void;
}

/** One command, and what it means for what the agent must answer from then on. */
export interface Deed {
  /** For counts. */
  readonly what: string;
  /** The command as it travels; `id` and `issuer` are added. */
  readonly body: { readonly type: string } & Readonly<Record<string, unknown>>;
  /** Whose holds it may change, as `keyOf` names them. */
  readonly keys: readonly string[];
  /** It is sent now. */
  sent?(nowMs: number): void;
  /**
   * It was carried out, some time in `at`; this is its receipt, which the agent gave then
   * (`acknowledged`), or remembers after a kill.
   */
  done(receipt: Receipt, at: Span, acknowledged: boolean): void;
  /**
   * The agent was killed and does not know the command. Where it may have been carried out all the
   * same, a repetition is carried out, too; `isHeld` says of a key whether its hold is there.
   */
  cutOff?(isHeld: (key: string) => boolean): void;
  /** Whether one could still tell what it does if it were sent now. */
  mayBeSent(nowMs: number): boolean;
}

export function hexOf(id: number): string {
  return digestOf(id).toHex();
}

export function hexesOf(ids: readonly number[]): string[] {
  return ids.map(hexOf);
}

/** Whether the command has changed what it names there. */
export function isChanged(outcome: string | undefined): boolean {
  return outcome === "done" || outcome === "deferred";
}

export function later(at: Span, ms: number): Span {
  return { lo: at.lo + ms, hi: at.hi + ms };
}

/** The outcome of each block of the command, in their order. */
export function outcomesOf(receipt: Receipt): string[] {
  return receipt.blocks.map(({ outcome }) => outcome);
}
