import { type Clock, messageOf, type NodeId, yieldToLoop } from "../../core/index.ts";
import type { BlockTable } from "../blocks/index.ts";
import type { RetentionLedger } from "../index/index.ts";
import { type Pin, type PinTable, WORTH_MIN } from "./pin-table.ts";
import { type EndedPin, PIN_BLOCKS_PER_CALL, type PinInfo } from "./pins.ts";

/**
 * Maximum milliseconds between two checks for expired pins. Timers do not run while the machine
 * sleeps, so this bounds how late a pin ends after the machine wakes.
 */
const LOOK_MS = 1_000;
/** Minimum milliseconds between two checks: the resolution of the boot clock. */
const LOOK_MIN_MS = 10;
/** Milliseconds between writes of the current time to the ledger while a pin has a deadline. */
const SEEN_MS = 10_000;
/** Maximum number of blocks released in one turn of the event loop. Takes about a millisecond. */
const BLOCKS_AT_ONCE = 4_096;

interface PinTimerOptions {
  readonly pinTable: PinTable;
  readonly clock: Clock;
  readonly ledger: RetentionLedger | null;
  /**
   * Called for each pin whose deadline has passed, and for each soft pin whose priority has faded.
   */
  readonly onEnd: (pin: Pin) => void;
}

/**
 * Ends pins within a second after their deadline. Uses one timer, which runs only while a pin has a
 * time at which it is due.
 */
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

  /** Sets the timer. Call after any change of the times at which pins are due. */
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
    // Ignore the result: a ledger that fails reports the failure in its state.
    void ledger.commit();
  }
}

interface EndingPin {
  readonly pin: Pin;
  readonly info: PinInfo;
  readonly nodes: NodeId[];
  /**
   * Generation of each node in `nodes`. If it has changed, the node now belongs to another block.
   */
  readonly born: number[];
  readonly then: (ended: EndedPin) => void;
}

/**
 * Ends pins. An ended pin is out of force immediately, but its blocks are released in slices: the
 * first `PIN_BLOCKS_PER_CALL` blocks at once, then one slice per turn of the event loop, even if
 * many pins end at the same time.
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

  /**
   * Ends the pin. Calls `then` when all its blocks are released, before this method returns if they
   * fit into one slice.
   */
  end(pin: Pin, then: (ended: EndedPin) => void): PinInfo {
    const info = this.#pinTable.infoOf(pin);
    this.#pinTable.close(pin);
    const ending = { pin, info, nodes: [], born: [], then };
    if (!this.#release(ending)) {
      this.#queue.push(ending);
      this.#running ??= this.#run();
    }
    return info;
  }

  /** Releases one more slice of blocks of ended pins. Returns false if none is left. */
  step(): boolean {
    const first = this.#queue[0];
    if (first === undefined) return false;
    if (this.#release(first)) this.#queue.shift();
    return true;
  }

  /** Resolves when the blocks of all ended pins are released. */
  async drained(): Promise<void> {
    await this.#running;
  }

  async #run(): Promise<void> {
    do await yieldToLoop();
    while (this.step());
    this.#running = null;
  }

  /**
   * Releases one slice of blocks of an ended pin. Returns true if it was the last slice of this
   * pin.
   */
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
    then({ info, nodes: nodes.filter((node, at) => table.isLive(node, born[at])) });
    return true;
  }
}

/** Result of removing the blocks of an expired lease. */
export interface Purged {
  /** Number of blocks removed: those that no pin, lease or other use protects. */
  readonly purged: number;
  /** True if the removal of all blocks survives a crash. */
  readonly isDurable: boolean;
}

interface ExpiredLeasesOptions {
  readonly table: BlockTable;
  readonly clock: Clock;
  /** Removes the blocks of an ended lease that nothing else protects. */
  readonly purge: (ended: EndedPin) => Promise<Purged>;
  /**
   * Called once per lease, after the first attempt to remove its blocks. `failure`: why it failed,
   * or null.
   */
  readonly onReported: (ended: EndedPin, purged: number, failure: string | null) => void;
  /** Called when the removal is durable. The caller can then delete the lease's ledger record. */
  readonly onPurged: (ended: EndedPin) => void;
}

/**
 * Maximum number of leases whose blocks are removed at the same time. Each removes thousands of
 * blocks.
 */
const AT_ONCE = 4;
const RETRY_FIRST_MS = 1_000;
const RETRY_MAX_MS = 300_000;

interface ExpiredLease {
  readonly ended: EndedPin;
  /**
   * Generation of each node when the lease ended. If it has changed, the node now belongs to
   * another block.
   */
  readonly born: readonly number[];
  isReported: boolean;
}

/**
 * Removes the blocks of expired leases, a few leases at a time. Retries a failed removal after a
 * growing delay. The blocks are not pinned meanwhile.
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

  /**
   * Queues an ended lease for the removal of its blocks. The nodes of `ended` must be valid at the
   * call.
   */
  add(ended: EndedPin): void {
    const born = ended.nodes.map((node) => this.#parts.table.generationOf(node));
    this.#waiting.add({ ended, born, isReported: false });
    this.#next();
  }

  /**
   * Stops. Resolves when the removals in progress have ended. The agent removes the remaining
   * blocks after its next start.
   */
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
    const nodes = ended.nodes.filter((node, at) => table.isLive(node, born[at]));
    let [purged, isDurable, failure]: [number, boolean, string | null] = [0, false, null];
    try {
      ({ purged, isDurable } = await purge({ ...ended, nodes }));
      if (!isDurable) failure = "some blocks could not be removed durably";
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
