import { type Clock, messageOf, type NodeId, yieldToLoop } from "../../core/index.ts";
import type { BlockTable } from "../blocks/index.ts";
import type { HoldLedger } from "../index/index.ts";
import { type Pin, type PinTable, WORTH_MIN } from "./pin-table.ts";
import { type EndedHold, type HoldInfo, PIN_BLOCKS_PER_CALL } from "./pins.ts";

/** Also after the machine slept, which timers do not notice, nothing ends later than this. */
const LOOK_MS = 1_000;
/** As finely as the boot clock tells the time. */
const LOOK_MIN_MS = 10;
/** While a hold has an end, the time is written down this often. */
const SEEN_MS = 10_000;
/** Blocks let go of before the event loop turns again: about a millisecond. */
const BLOCKS_AT_ONCE = 4_096;

export interface PinTimerOptions {
  readonly pinTable: PinTable;
  readonly clock: Clock;
  readonly ledger: HoldLedger | null;
  /** Its time is over, or a soft pin is worth nothing any more. */
  readonly onEnd: (pin: Pin) => void;
}

/** Ends holds whose time is over, within a second. One timer, only while any hold has an end. */
export class PinTimer implements Disposable {
  readonly #parts: PinTimerOptions;
  #timer: Disposable | null = null;
  #armedForBootMs = 0;
  #seenMs = 0;
  #isOver = false;

  constructor(parts: PinTimerOptions) {
    this.#parts = parts;
    this.#seenMs = parts.clock.monotonicMs();
  }

  /** Times have changed. */
  arm(): void {
    const { pinTable, clock } = this.#parts;
    const next = pinTable.due.next();
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
    const { pinTable, clock } = this.#parts;
    const bootMs = clock.bootMs();
    let blocks = 0;
    while (blocks < BLOCKS_AT_ONCE) {
      const pin = pinTable.due.take(bootMs);
      if (pin === null) break;
      blocks += pin.nodes.size + 1;
      if (this.#isOverdue(pin, bootMs)) this.#parts.onEnd(pin);
      else pinTable.schedule(pin);
    }
    this.#writeTime(bootMs);
    this.arm();
  }

  #isOverdue(pin: Pin, bootMs: number): boolean {
    if (pin.deadlineBootMs !== null && pin.deadlineBootMs <= bootMs) return true;
    return pin.kind === "retain" && this.#parts.pinTable.worthOf(pin)! < WORTH_MIN;
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

interface EndingPin {
  readonly pin: Pin;
  readonly info: HoldInfo;
  readonly nodes: NodeId[];
  /** The generation of each. */
  readonly born: number[];
  readonly then: (ended: EndedHold) => void;
}

/**
 * Ends holds: they are out of force at once and let go of their blocks, the first 2,048 at once and
 * as many in each turn of the event loop after that, however many end at the same time.
 */
export class EndingPins {
  readonly #table: BlockTable;
  readonly #pinTable: PinTable;
  readonly #queue: EndingPin[] = [];
  #running: Promise<void> | null = null;

  constructor(table: BlockTable, pinTable: PinTable) {
    this.#table = table;
    this.#pinTable = pinTable;
  }

  /** Calls `then` when it has let go of all: before this returns where that is one slice. */
  end(pin: Pin, then: (ended: EndedHold) => void): HoldInfo {
    const info = this.#pinTable.infoOf(pin);
    this.#pinTable.close(pin);
    const ending = { pin, info, nodes: [], born: [], then };
    if (!this.#release(ending)) {
      this.#queue.push(ending);
      this.#running ??= this.#run();
    }
    return info;
  }

  /** Lets go of some more at once; false where nothing is left of holds that ended. */
  step(): boolean {
    const first = this.#queue[0];
    if (first === undefined) return false;
    if (this.#release(first)) this.#queue.shift();
    return true;
  }

  /** Resolves when all have let go of their blocks. */
  async drained(): Promise<void> {
    await this.#running;
  }

  async #run(): Promise<void> {
    do await yieldToLoop();
    while (this.step());
    this.#running = null;
  }

  /** True where that was the rest. */
  #release({ pin, info, nodes, born, then }: EndingPin): boolean {
    const table = this.#table;
    let left = PIN_BLOCKS_PER_CALL;
    for (const part of pin.nodes.parts) {
      for (const node of part.nodes) {
        if (left-- === 0) return false;
        nodes.push(node);
        born.push(table.generationOf(node));
        this.#pinTable.leave(pin, node);
      }
    }
    this.#pinTable.drop(pin);
    then({ info, nodes: nodes.filter((node, at) => table.isLive(node, born[at]!)) });
    return true;
  }
}

/** What became of the blocks of a lease that expired. */
export interface Purged {
  /** How many blocks nothing else wanted. */
  readonly purged: number;
  /** What was to go is gone for good, also after a crash. */
  readonly isDurable: boolean;
}

interface ExpiredLeasesOptions {
  readonly table: BlockTable;
  readonly clock: Clock;
  /** Removes what nothing else wants. */
  readonly purge: (ended: EndedHold) => Promise<Purged>;
  /** The first answer, or the reason why there was none. */
  readonly onReported: (ended: EndedHold, purged: number, failure: string | null) => void;
  /** All of it is gone: the lease can be forgotten. */
  readonly onPurged: (ended: EndedHold) => void;
}

/** Purges at the same time; each has thousands of removals under way by itself. */
const AT_ONCE = 4;
const RETRY_FIRST_MS = 1_000;
const RETRY_MAX_MS = 300_000;

interface ExpiredLease {
  readonly ended: EndedHold;
  /** Of each of its nodes. */
  readonly born: readonly number[];
  isReported: boolean;
}

/**
 * Leases that expired, until their blocks are gone: a few at a time, again after a growing wait
 * where that could not be done. Nothing is held meanwhile.
 */
export class ExpiredLeases implements AsyncDisposable {
  readonly #parts: ExpiredLeasesOptions;
  readonly #waiting = new Set<ExpiredLease>();
  readonly #running = new Set<Promise<void>>();
  readonly #failed: ExpiredLease[] = [];
  #retryMs = RETRY_FIRST_MS;
  #timer: Disposable | null = null;
  #isOver = false;

  constructor(parts: ExpiredLeasesOptions) {
    this.#parts = parts;
  }

  /** Its nodes are those of the table as it is now. */
  add(ended: EndedHold): void {
    const born = ended.nodes.map((node) => this.#parts.table.generationOf(node));
    this.#waiting.add({ ended, born, isReported: false });
    this.#next();
  }

  /** Resolves when what is at work is over; the rest is left to the next start. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#isOver = true;
    this.#timer?.[Symbol.dispose]();
    await Promise.all(this.#running);
  }

  #next(): void {
    for (const expired of this.#waiting) {
      if (this.#isOver || this.#running.size >= AT_ONCE) return;
      this.#waiting.delete(expired);
      const running = this.#purge(expired).finally(() => {
        this.#running.delete(running);
        this.#next();
      });
      this.#running.add(running);
    }
  }

  async #purge(expired: ExpiredLease): Promise<void> {
    const { table, purge, onReported, onPurged } = this.#parts;
    const { ended, born } = expired;
    const nodes = ended.nodes.filter((node, at) => table.isLive(node, born[at]!));
    let [purged, isDurable, failure]: [number, boolean, string | null] = [0, false, null];
    try {
      ({ purged, isDurable } = await purge({ ...ended, nodes }));
      if (!isDurable) failure = "not all of them could be removed for good";
    } catch (thrown) {
      failure = messageOf(thrown);
    }
    if (!expired.isReported) onReported(ended, purged, failure);
    expired.isReported = true;
    if (!isDurable) {
      this.#again(expired);
      return;
    }
    this.#retryMs = RETRY_FIRST_MS;
    onPurged(ended);
  }

  #again(expired: ExpiredLease): void {
    this.#failed.push(expired);
    if (this.#isOver || this.#timer !== null) return;
    this.#timer = this.#parts.clock.after(this.#retryMs, () => {
      this.#timer = null;
      for (const failed of this.#failed.splice(0)) this.#waiting.add(failed);
      this.#next();
    });
    this.#retryMs = Math.min(RETRY_MAX_MS, 2 * this.#retryMs);
  }
}
