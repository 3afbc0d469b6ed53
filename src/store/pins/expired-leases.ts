import { type Clock, messageOf } from "../../core/index.ts";
import type { BlockTable } from "../blocks/index.ts";
import type { EndedHold } from "./holds.ts";

/** What became of the blocks of a lease that expired. */
export interface Purged {
  /** How many blocks nothing else wanted. */
  readonly purged: number;
  /** What was to go is gone for good, also after a crash. */
  readonly isDurable: boolean;
}

export interface ExpiredLeasesParts {
  readonly table: BlockTable;
  readonly clock: Clock;
  /** Removes what nothing else wants. */
  readonly purge: (ended: EndedHold) => Promise<Purged>;
  /** The first answer, or the reason why there was none. */
  readonly onTold: (ended: EndedHold, purged: number, failure: string | null) => void;
  /** All of it is gone: the lease can be forgotten. */
  readonly onGone: (ended: EndedHold) => void;
}

/** Purges at the same time; each has thousands of removals under way by itself. */
const AT_ONCE = 4;
const RETRY_FIRST_MS = 1_000;
const RETRY_MAX_MS = 300_000;

interface Expired {
  readonly ended: EndedHold;
  /** Of each of its nodes. */
  readonly born: readonly number[];
  isTold: boolean;
}

/**
 * Leases that expired, until their blocks are gone: a few at a time, again after a growing wait
 * where that could not be done. Nothing is held meanwhile.
 */
export class ExpiredLeases implements AsyncDisposable {
  readonly #parts: ExpiredLeasesParts;
  readonly #waiting = new Set<Expired>();
  readonly #running = new Set<Promise<void>>();
  readonly #failed: Expired[] = [];
  #retryMs = RETRY_FIRST_MS;
  #timer: Disposable | null = null;
  #isOver = false;

  constructor(parts: ExpiredLeasesParts) {
    this.#parts = parts;
  }

  /** Its nodes are those of the table as it is now. */
  add(ended: EndedHold): void {
    const born = ended.nodes.map((node) => this.#parts.table.generationOf(node));
    this.#waiting.add({ ended, born, isTold: false });
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

  async #purge(expired: Expired): Promise<void> {
    const { table, purge, onTold, onGone } = this.#parts;
    const { ended, born } = expired;
    const nodes = ended.nodes.filter((node, at) => table.isLive(node, born[at]!));
    let [purged, isDurable, failure]: [number, boolean, string | null] = [0, false, null];
    try {
      ({ purged, isDurable } = await purge({ ...ended, nodes }));
      if (!isDurable) failure = "not all of them could be removed for good";
    } catch (thrown) {
      failure = messageOf(thrown);
    }
    if (!expired.isTold) onTold(ended, purged, failure);
    expired.isTold = true;
    if (!isDurable) {
      this.#again(expired);
      return;
    }
    this.#retryMs = RETRY_FIRST_MS;
    onGone(ended);
  }

  #again(expired: Expired): void {
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
