import type { ListedHold, Listing } from "./agent-door.ts";
import type { CommandTally } from "./command-tally.ts";
import { GRACE_MS, type HoldModel, keyOf, type ModelHold, type Span } from "./hold-model.ts";

/** Between two looks, at most, for when something ended to be known. */
const BLUR_MS = 400;

export interface TimesParts {
  readonly model: HoldModel;
  readonly tally: CommandTally;
  readonly complain: (text: string) => void;
  /** When this run of the agent was ready: what ended while none ran is over soon after that. */
  readonly readyMs: number;
}

/** Compares when holds end with when they must, in one run of the agent. */
export class HoldTimes {
  readonly #parts: TimesParts;
  /** When each kind was listed last. */
  readonly #askedMs = new Map<string, number>();

  constructor(parts: TimesParts) {
    this.#parts = parts;
  }

  /** Keys of holds that commands may have changed meanwhile are left out: see `before`. */
  look(listing: Listing, before: (key: string) => boolean = () => true): void {
    const { model } = this.#parts;
    const listed = new Set<string>();
    for (const hold of listing.holds) {
      const key = keyOf(hold.kind, hold.owner, hold.name);
      if (hold.remaining_seconds === null) continue;
      listed.add(key);
      if (before(key)) this.#listed(hold, key, listing);
    }
    for (const hold of model.all()) {
      const key = keyOf(hold.kind, hold.owner, hold.name);
      if (hold.kind !== listing.kind || hold.ends === null || listed.has(key)) continue;
      if (before(key)) this.#gone(hold, hold.ends, key, listing);
    }
    this.#askedMs.set(listing.kind, listing.askedMs);
  }

  #listed({ remaining_seconds, blocks }: ListedHold, key: string, listing: Listing): void {
    const { model, tally, complain, readyMs } = this.#parts;
    const hold = model.timed(key);
    const leftMs = remaining_seconds! * 1_000;
    const { askedMs, answeredMs } = listing;
    if (hold === null) {
      // It ended; until that is on disk a kill brings it back, to end again at once.
      const isStale = model.over.has(key) && leftMs === 0 && askedMs < readyMs + GRACE_MS;
      // Or its blocks went between this list and the tree: it ended just then.
      if (isStale || model.lapsedBlocks(key) > 0) return;
      const again = model.over.has(key) ? " again" : "";
      const sinceMs = Math.round(askedMs - readyMs);
      complain(`${key} is there${again}, with ${leftMs} ms, ${sinceMs} ms after the start`);
      return;
    }
    const more = blocks - hold.blocks.size;
    if (more < 0 || more > model.lapsedBlocks(key)) {
      complain(`${key} has ${blocks} blocks, not ${hold.blocks.size}`);
    }
    const { lo, hi } = hold.ends!;
    const offMs = Math.max(lo - answeredMs - leftMs, leftMs - Math.max(0, hi - askedMs));
    tally.remainingOffMs = Math.max(tally.remainingOffMs, offMs);
    if (offMs > GRACE_MS) complain(`${key} has ${leftMs} ms left, wrong by ${offMs}`);
    const lateMs = askedMs - Math.max(hi, readyMs);
    if (lateMs > GRACE_MS) complain(`${key} is there ${lateMs} ms after its end`);
  }

  #gone(hold: ModelHold, { lo, hi }: Span, key: string, { kind, answeredMs }: Listing): void {
    const { model, tally, complain, readyMs } = this.#parts;
    const earlyMs = lo - answeredMs;
    if (earlyMs > GRACE_MS) complain(`${key} is gone ${earlyMs} ms before its end`);
    tally.earlyMs = Math.max(tally.earlyMs, earlyMs);
    // Where this process did not get to look for long, it may have ended as soon as it had looked.
    const lookedMs = this.#askedMs.get(kind) ?? readyMs;
    const seenMs = answeredMs - lookedMs > BLUR_MS ? lookedMs : answeredMs;
    const lateMs = seenMs - Math.max(hi, readyMs);
    if (lateMs > GRACE_MS) complain(`${key} was there ${lateMs} ms after its end`);
    tally.lateMs = Math.max(tally.lateMs, lateMs);
    tally.expiries++;
    model.end(hold);
  }
}
