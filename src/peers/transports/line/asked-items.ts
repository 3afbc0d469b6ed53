import type { Clock } from "../../../core/index.ts";
import type { FrameHeader, ItemRefusal } from "../../messages.ts";
import type { ItemResult, Landed, LinkFault, OutgoingPull } from "../../transport.ts";
import { OpenItems, type Part } from "../../wire/index.ts";
import type { Patience } from "../patience.ts";

/** One side had more under way than it can, or no time: whoever asks again may have more luck. */
export const CROWDED: ItemRefusal = { kind: "busy", retryAfterMs: 50 };

export interface AskedItem extends Landed {
  readonly index: number;
  /** By which what may write to its place now is known; null: nothing writes there. */
  writer: number | null;
  /** What is done instead once nothing writes to its place any more. */
  next: (() => void) | null;
  header: FrameHeader | null;
  /** Bytes its caller was told of. */
  told: number;
  isDone: boolean;
}

/** What brings the bytes of a link's pulls. */
export interface Writers {
  /** Bytes that a writer has written; 0 for one that is over. */
  arrived(writer: number): number;
  /** It ends as soon as it can. */
  cancel(writer: number): void;
}

export interface AskedItemsOptions {
  readonly clock: Clock;
  readonly patience: Patience;
  readonly writers: Writers;
  /** Says to the other side that nothing more is wanted. */
  sayCancel(): void;
}

/**
 * The items of one pull as its asker sees them, whatever brings their bytes.
 *
 * States: asking → settled (all items answered, or a fault) → over (nothing writes any more).
 */
export class AskedItems {
  /** Resolves when it is over. */
  readonly over: Promise<LinkFault | null>;
  readonly all: readonly AskedItem[];
  readonly #open: OpenItems;
  readonly #pull: OutgoingPull;
  readonly #options: AskedItemsOptions;
  readonly #onAbort: () => void;
  #resolve!: (fault: LinkFault | null) => void;
  #unanswered: number;
  /** Writers that are not over. */
  #writing = 0;
  #fault: LinkFault | null = null;
  /** What the other side said when it gave up; the fault once the rest has come. */
  #end: LinkFault | null = null;
  #movedMs: number;
  #isOver = false;

  constructor(pull: OutgoingPull, options: AskedItemsOptions) {
    const { clock, patience } = options;
    this.#pull = pull;
    this.#options = options;
    this.#open = new OpenItems(pull.namespace, pull.items);
    this.#unanswered = pull.items.length;
    this.#movedMs = clock.monotonicMs();
    this.over = new Promise((resolve) => {
      this.#resolve = resolve;
    });
    this.all = pull.items.map((item, index) => ({
      ...item,
      index,
      writer: null,
      next: null,
      header: null,
      told: 0,
      isDone: false,
    }));
    this.#onAbort = () => this.giveUp(patience.fault);
    patience.signal.addEventListener("abort", this.#onAbort, { once: true });
  }

  /** Null: it goes on, or all is answered. */
  get fault(): LinkFault | null {
    return this.#fault;
  }

  /** Stops the sender and the writers. */
  giveUp(fault: LinkFault): void {
    if (this.#fault !== null || this.#unanswered === 0) return;
    this.#options.sayCancel();
    this.fail(fault);
  }

  /** The link is gone, or as good as gone. */
  fail(fault: LinkFault): void {
    if (this.#fault !== null || this.#unanswered === 0) return;
    this.#fault = fault;
    for (const { writer } of this.all) if (writer !== null) this.#options.writers.cancel(writer);
    this.#settle();
  }

  /** Tells its caller of what has arrived meanwhile; gives up where nothing does. */
  count(stallMs: number): void {
    if (this.#fault !== null) return;
    const { writers, clock } = this.#options;
    for (const item of this.all) {
      const { writer, next } = item;
      if (writer !== null && next === null) this.#tell(item, writers.arrived(writer));
    }
    if (clock.monotonicMs() - this.#movedMs < stallMs) return;
    this.giveUp({ kind: "stalled", why: `nothing came for ${stallMs} ms` });
  }

  #moved(): void {
    this.#movedMs = this.#options.clock.monotonicMs();
  }

  /** One item's answer, compared with what was asked for. In words what is wrong with it. */
  take(part: Part): string | null {
    const wrong = this.#open.take(part);
    if (wrong !== null) return wrong;
    this.#moved();
    const item = this.all[part.index]!;
    if (part.kind === "refusal") this.refuse(item, part.refusal);
    else item.header = part.header;
    return null;
  }

  /** A block whose header came does not come. */
  takeLost(index: number): string | null {
    const item = this.all[index];
    if (item === undefined || item.header === null) return "it lost what it never had";
    if (this.#fault === null && !item.isDone) this.refuse(item, CROWDED);
    return null;
  }

  /** The other side has too much to do to begin. */
  takeBusy(refusal: ItemRefusal): void {
    if (this.#fault !== null) return;
    this.#moved();
    for (const item of this.all) if (this.#open.has(item.index)) this.refuse(item, refusal);
  }

  /** No more headers will come; what was said to come still does. */
  takeEnd(fault: LinkFault): void {
    this.#end ??= fault;
    this.#failAtEnd();
  }

  #failAtEnd(): void {
    if (this.#end === null || this.#unanswered > this.#open.size) return;
    this.fail(this.#end);
  }

  /**
   * Something writes to the item's place until `coming` has resolved. Then `then` is called, unless
   * something else is to be done with the item by now.
   */
  write<Result>(
    item: AskedItem,
    writer: number,
    coming: Promise<Result>,
    then: (result: Result) => void,
  ): void {
    item.writer = writer;
    this.#writing++;
    void coming.then((result) => {
      item.writer = null;
      this.#writing--;
      const { next } = item;
      item.next = null;
      if (this.#fault !== null) this.#settle();
      else if (next !== null) next();
      else then(result);
    });
  }

  /** Does `next` as soon as nothing writes to the item's place. */
  retire(item: AskedItem, next: () => void): void {
    if (item.writer === null) {
      next();
      return;
    }
    item.next = next;
    this.#options.writers.cancel(item.writer);
  }

  refuse(item: AskedItem, refusal: ItemRefusal): void {
    this.retire(item, () => this.finish(item, refusal));
  }

  came(item: AskedItem, header: FrameHeader, checksum: bigint): void {
    this.#tell(item, header.bytes);
    this.finish(item, { kind: "came", header, checksum });
  }

  #tell(item: AskedItem, arrived: number): void {
    if (arrived <= item.told) return;
    const more = arrived - item.told;
    item.told = arrived;
    this.#moved();
    this.#pull.onBytes(item.index, more);
  }

  finish(item: AskedItem, result: ItemResult): void {
    if (item.isDone) return;
    item.isDone = true;
    this.#unanswered--;
    this.#pull.onItem(item.index, result);
    this.#failAtEnd();
    this.#settle();
  }

  #settle(): void {
    const isSettled = this.#fault !== null || this.#unanswered === 0;
    if (!isSettled || this.#writing > 0 || this.#isOver) return;
    this.#isOver = true;
    this.#options.patience.signal.removeEventListener("abort", this.#onAbort);
    this.#resolve(this.#fault);
  }
}
