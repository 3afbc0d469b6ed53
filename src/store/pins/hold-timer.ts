import type { Clock } from "../../core/index.ts";
import type { HoldLedger } from "../index/index.ts";
import { type Hold, WORTH_MIN } from "./hold.ts";
import type { HoldBook } from "./hold-book.ts";

/** Also after the machine slept, which timers do not notice, nothing ends later than this. */
const LOOK_MS = 1_000;
/** As finely as the boot clock tells the time. */
const LOOK_MIN_MS = 10;
/** While a hold has an end, the time is written down this often. */
const SEEN_MS = 10_000;
/** Blocks let go of before the event loop turns again: about a millisecond. */
const BLOCKS_AT_ONCE = 4_096;

export interface HoldTimerParts {
  readonly book: HoldBook;
  readonly clock: Clock;
  readonly ledger: HoldLedger | null;
  /** Its time is over, or a soft pin is worth nothing any more. */
  readonly onEnd: (hold: Hold) => void;
}

/** Ends holds whose time is over, within a second. One timer, only while any hold has an end. */
export class HoldTimer implements Disposable {
  readonly #parts: HoldTimerParts;
  #timer: Disposable | null = null;
  #armedForBootMs = 0;
  #seenMs = 0;
  #isOver = false;

  constructor(parts: HoldTimerParts) {
    this.#parts = parts;
    this.#seenMs = parts.clock.monotonicMs();
  }

  /** Times have changed. */
  arm(): void {
    const { book, clock } = this.#parts;
    const next = book.due.next();
    if (next === null || this.#isOver) {
      this.#disarm();
      return;
    }
    const bootMs = clock.bootMs();
    const leftMs = Math.min(LOOK_MS, next - bootMs);
    const inMs = leftMs <= 0 ? 0 : Math.max(LOOK_MIN_MS, leftMs);
    if (this.#timer !== null && this.#armedForBootMs <= bootMs + inMs) return;
    this.#disarm();
    this.#armedForBootMs = bootMs + inMs;
    this.#timer = clock.after(inMs, () => this.#look());
  }

  [Symbol.dispose](): void {
    this.#isOver = true;
    this.#disarm();
  }

  #disarm(): void {
    this.#timer?.[Symbol.dispose]();
    this.#timer = null;
  }

  #look(): void {
    this.#disarm();
    const { book, clock } = this.#parts;
    const bootMs = clock.bootMs();
    let blocks = 0;
    while (blocks < BLOCKS_AT_ONCE) {
      const hold = book.due.take(bootMs);
      if (hold === null) break;
      blocks += hold.nodes.size + 1;
      if (this.#isOverdue(hold, bootMs)) this.#parts.onEnd(hold);
      else book.schedule(hold);
    }
    this.#writeTime(bootMs);
    this.arm();
  }

  #isOverdue(hold: Hold, bootMs: number): boolean {
    if (hold.deadlineBootMs !== null && hold.deadlineBootMs <= bootMs) return true;
    return hold.kind === "retain" && this.#parts.book.worthOf(hold)! < WORTH_MIN;
  }

  #writeTime(bootMs: number): void {
    const { ledger, clock } = this.#parts;
    const nowMs = clock.monotonicMs();
    if (ledger === null || nowMs - this.#seenMs < SEEN_MS) return;
    this.#seenMs = nowMs;
    ledger.seen(clock.bootId, bootMs);
    // A ledger that fails says so in its state.
    void ledger.commit();
  }
}
