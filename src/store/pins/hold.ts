import type { HoldBlocks } from "./hold-blocks.ts";
import type { Party } from "./hold-index.ts";
import type { HoldInfo, HoldKind } from "./holds.ts";

/** What a soft pin must be worth to go on. */
export const WORTH_MIN = 0.5;

/** A hold that is in force. */
export interface Hold {
  readonly id: number;
  readonly kind: HoldKind;
  readonly owner: string;
  readonly name: string | null;
  readonly party: Party;
  readonly nodes: HoldBlocks;
  /** Of its blocks, each as long as it was when it first came under a hold. */
  bytes: number;
  /** On the clock of this boot; null: none. */
  deadlineBootMs: number | null;
  readonly priority: number | null;
  /** Of a soft pin; null: it stays worth what it was. */
  readonly idleMs: number | null;
  readonly createdWallMs: number;
  /** On the monotonic clock, also where an earlier run made it. */
  readonly createdMs: number;
  /** Seconds of the store's clock. */
  readonly createdSeconds: number;
  /** When the timer looks at it next, on the clock of this boot; null: never. */
  dueBootMs: number | null;
  /** As in `HoldRequest`. */
  purges: boolean;
  /** It holds nothing any more, but for blocks that it is still letting go of. */
  ended: boolean;
  /** False while blocks are added in several turns: a crash must not leave a half. */
  isWhole: boolean;
}

/** Milliseconds until it ends by itself, zero where that is overdue. */
export function remainingMs(hold: Hold, bootMs: number): number | null {
  return hold.deadlineBootMs === null ? null : Math.max(0, hold.deadlineBootMs - bootMs);
}

/** What is left of a priority that halves with each `idleMs` without use, after the first one. */
export function worthAfter(priority: number, idleMs: number | null, unusedMs: number): number {
  if (idleMs === null) return priority;
  return priority * 0.5 ** Math.max(0, unusedMs / Math.max(1, idleMs) - 1);
}

/** Without use for longer than this, a soft pin is worth less than `WORTH_MIN`. */
export function fadesAfterMs(priority: number, idleMs: number): number {
  if (priority < WORTH_MIN) return 0;
  return Math.max(1, idleMs) * (1 + Math.log2(priority / WORTH_MIN));
}

export interface Moment {
  readonly monotonicMs: number;
  readonly bootMs: number;
}

export function infoOf(hold: Hold, now: Moment, priorityNow: number | null): HoldInfo {
  const { id, kind, owner, name, nodes, bytes, priority, idleMs } = hold;
  return {
    id,
    kind,
    owner,
    name,
    blocks: nodes.size,
    bytes,
    remainingMs: remainingMs(hold, now.bootMs),
    ageMs: Math.max(0, now.monotonicMs - hold.createdMs),
    priority,
    priorityNow,
    idleMs,
  };
}
