import { assert, type Clock, messageOf, type NamespaceIndex } from "../../core/index.ts";
import { Tier } from "../../store/blocks/index.ts";
import type { Lent, Loan, PeerBlocks } from "../../store/index.ts";
import type { ItemRefusal, PeerRequest, PullItem } from "../messages.ts";
import type { Served, TransportLog } from "../transport.ts";
import type { PeerIdentity } from "../trust.ts";
import type { Backlog } from "./backlog.ts";
import { frameHeader } from "./frame-header.ts";
import type { ServeCounts } from "./serve-stats.ts";

export type PullRequest = Extract<PeerRequest, { op: "pull" }>;

/** What a pull is served from. */
export interface ServedPullParts {
  readonly blocks: PeerBlocks;
  readonly backlog: Backlog;
  readonly counts: ServeCounts;
  /** Pulls that have begun and not ended; this one adds itself. */
  readonly open: Set<ServedPull>;
  readonly clock: Clock;
  readonly log: TransportLog;
  readonly peer: PeerIdentity;
  readonly pull: PullRequest;
  /** Null: not served to this peer, or not known; then no block is here. */
  readonly namespace: NamespaceIndex | null;
  readonly model: string;
  readonly signal: AbortSignal;
}

/** An item that is probably here, and the bytes that are counted for it while it is lent. */
interface Wanted {
  readonly index: number;
  readonly item: PullItem;
  bytes: number;
}

/**
 * The items of one pull, as they are to be had: what is not here at once, then blocks in RAM, while
 * those on SSD are brought up a few at a time. A block in RAM is lent only when it is asked for.
 *
 * Where there is no room for a block, the pull waits for its own to come back; one that has none
 * under way is told `busy`. What the transport did not get yet is let go of when the pull ends
 * (`return` or the signal), or as soon as it has arrived.
 */
export class ServedPull implements AsyncIterator<Served> {
  readonly #parts: ServedPullParts;
  readonly #endsMs: number;
  readonly #refusals: (ItemRefusal & { readonly index: number })[] = [];
  readonly #inRam: Wanted[] = [];
  readonly #onSsd: Wanted[] = [];
  /** On their way up, by index. One that is not in it any more is let go of when it arrives. */
  readonly #reading = new Map<number, Wanted>();
  readonly #ready: { readonly wanted: Wanted; readonly loan: Loan }[] = [];
  readonly #cleanup = new DisposableStack();
  /** Items that were not answered yet. */
  #left: number;
  /** Blocks that the transport has. */
  #lent = 0;
  #state: "fresh" | "open" | "over" = "fresh";
  /** Resolved as soon as `#step` may find something. */
  #changed: PromiseWithResolvers<void> | null = null;

  constructor(parts: ServedPullParts) {
    const { clock, backlog, pull } = parts;
    this.#parts = parts;
    this.#left = pull.items.length;
    const longestMs = Math.min(pull.deadlineMs, backlog.limits.deadlineMaxMs);
    this.#endsMs = clock.monotonicMs() + longestMs;
  }

  async next(): Promise<IteratorResult<Served>> {
    try {
      if (this.#state === "fresh") this.#begin();
      while (this.#state === "open" && this.#left > 0) {
        const served = this.#step();
        if (served !== null) {
          this.#left--;
          return { done: false, value: served };
        }
        await this.#change();
      }
    } catch (thrown) {
      // Who iterates does not call `return` then.
      this.end();
      throw thrown;
    }
    return this.return();
  }

  /** Ends the pull, also while `next` waits. */
  async return(): Promise<IteratorResult<Served>> {
    this.end();
    return { done: true, value: undefined };
  }

  end(): void {
    if (this.#state === "over") return;
    this.#state = "over";
    this.#reading.clear();
    for (const { wanted, loan } of this.#ready.splice(0)) this.#letGo(wanted, loan);
    this.#cleanup.dispose();
    this.#wake();
  }

  #begin(): void {
    const { backlog, peer, signal, counts, pull, open } = this.#parts;
    if (signal.aborted) {
      this.end();
      return;
    }
    this.#state = "open";
    counts.pulls++;
    open.add(this);
    this.#cleanup.defer(() => void open.delete(this));
    const abort = () => this.end();
    signal.addEventListener("abort", abort, { once: true });
    this.#cleanup.defer(() => signal.removeEventListener("abort", abort));
    if (!backlog.enter(peer.worker)) {
      for (const index of pull.items.keys()) this.#putOff(index);
      return;
    }
    this.#cleanup.defer(() => backlog.leave(peer.worker));
    this.#cleanup.use(backlog.onRoom(() => this.#wake()));
    this.#sort();
  }

  /** Looks at all items once. Whether they are still here is seen when they are lent. */
  #sort(): void {
    const { blocks, namespace, pull } = this.#parts;
    const copies = namespace === null ? [] : blocks.has(namespace, pull.items);
    for (const [index, item] of pull.items.entries()) {
      const copy = copies[index];
      if (copy === undefined || copy.tiers === 0 || isAnother(item, copy.generation)) {
        this.#refusals.push({ index, kind: "absent" });
      } else if (copy.bytes > item.bytesMax) {
        this.#refusals.push({ index, kind: "tooLong", bytes: copy.bytes });
      } else {
        const list = (copy.tiers & Tier.ram) !== 0 ? this.#inRam : this.#onSsd;
        list.push({ index, item, bytes: copy.bytes });
      }
    }
    // Taken from the end, so that they go in the order in which they were asked for.
    this.#inRam.reverse();
    this.#onSsd.reverse();
  }

  /** What is to be had now; null: nothing, until something that is under way has changed. */
  #step(): Served | null {
    if (this.#parts.clock.monotonicMs() >= this.#endsMs) this.#putOffAll();
    this.#beginReads();
    if (this.#ready.length === 0 && this.#refusals.length === 0) this.#lendNext();
    const ready = this.#ready.shift();
    if (ready !== undefined) return this.#serve(ready.wanted, ready.loan);
    const refusal = this.#refusals.pop();
    if (refusal === undefined) return null;
    this.#parts.counts[refusal.kind]++;
    return refusal;
  }

  /** Lends a block from RAM, or gives one up that cannot be had and that nothing makes room for. */
  #lendNext(): void {
    const next = this.#inRam.at(-1);
    if (next !== undefined && this.#take(next)) {
      this.#inRam.pop();
      this.#lend(next);
    } else if (this.#reading.size === 0 && this.#lent === 0) {
      const shed = this.#inRam.pop() ?? this.#onSsd.pop();
      assert(shed !== undefined, "an item that was not answered is somewhere");
      this.#putOff(shed.index);
    }
  }

  #beginReads(): void {
    const { backlog } = this.#parts;
    const { pullReadsMax } = backlog.limits;
    while (this.#reading.size + this.#ready.length < pullReadsMax && backlog.mayRead) {
      const next = this.#onSsd.at(-1);
      if (next === undefined || !this.#take(next)) return;
      this.#onSsd.pop();
      this.#lend(next);
    }
  }

  #take(wanted: Wanted): boolean {
    return this.#parts.backlog.take(this.#parts.peer.worker, wanted.bytes);
  }

  /** Its bytes are counted already. What comes of it is in `#ready`, `#refusals` or `#reading`. */
  #lend(wanted: Wanted): void {
    const { blocks, namespace, clock } = this.#parts;
    const { digest, layer } = wanted.item;
    assert(namespace !== null, "what is lent is of a namespace that is served");
    const deadlineMs = Math.max(0, this.#endsMs - clock.monotonicMs());
    let lent: Lent | Promise<Lent>;
    try {
      lent = blocks.lend(namespace, digest, layer, { deadlineMs, warm: true });
    } catch (thrown) {
      this.#failed(wanted, thrown);
      return;
    }
    if (lent instanceof Promise) void this.#read(wanted, lent);
    else this.#arrived(wanted, lent);
  }

  async #read(wanted: Wanted, coming: Promise<Lent>): Promise<void> {
    this.#reading.set(wanted.index, wanted);
    this.#parts.backlog.beginRead();
    const outcome = await coming.then(
      (lent) => ({ ok: true as const, lent }),
      (thrown: unknown) => ({ ok: false as const, thrown }),
    );
    const isWanted = this.#reading.delete(wanted.index);
    if (!isWanted) this.#letGo(wanted, outcome.ok ? outcome.lent : "absent");
    else if (outcome.ok) this.#arrived(wanted, outcome.lent);
    else this.#failed(wanted, outcome.thrown);
    this.#parts.backlog.endRead();
  }

  #arrived(wanted: Wanted, lent: Lent): void {
    const { index, item } = wanted;
    if (typeof lent === "string") {
      this.#letGo(wanted, lent);
      if (lent === "absent") this.#refusals.push({ index, kind: "absent" });
      else this.#putOff(index);
    } else if (isAnother(item, lent.generation)) {
      this.#letGo(wanted, lent);
      this.#refusals.push({ index, kind: "absent" });
    } else if (lent.bytes > item.bytesMax) {
      this.#letGo(wanted, lent);
      this.#refusals.push({ index, kind: "tooLong", bytes: lent.bytes });
    } else {
      this.#parts.backlog.correct(this.#parts.peer.worker, wanted.bytes, lent.bytes);
      wanted.bytes = lent.bytes;
      this.#ready.push({ wanted, loan: lent });
    }
  }

  #failed(wanted: Wanted, thrown: unknown): void {
    const { log, peer } = this.#parts;
    const fields = { peer: peer.worker, digest: wanted.item.digest.toHex() };
    log("error", `a block could not be lent: ${messageOf(thrown)}`, fields);
    this.#letGo(wanted, "absent");
    const why = "the block could not be read";
    this.#refusals.push({ index: wanted.index, kind: "refused", why });
  }

  #serve(wanted: Wanted, loan: Loan): Served {
    const { counts, backlog, peer, pull, model } = this.#parts;
    const { index, bytes } = wanted;
    counts.blocks++;
    counts.bytes += bytes;
    this.#lent++;
    let isOut = true;
    const release = () => {
      assert(isOut, "a block is released once");
      isOut = false;
      loan.release();
      this.#lent--;
      backlog.give(peer.worker, bytes, true);
    };
    const header = frameHeader(loan, pull.namespace, model);
    return { index, kind: "block", header, offset: loan.offset, release };
  }

  /** Gives back what was lent and what was counted for it. */
  #letGo(wanted: Wanted, lent: Lent): void {
    if (typeof lent !== "string") lent.release();
    this.#parts.backlog.give(this.#parts.peer.worker, wanted.bytes, false);
  }

  #putOff(index: number): void {
    const { retryAfterMs } = this.#parts.backlog;
    this.#refusals.push({ index, kind: "busy", retryAfterMs });
  }

  /** The time is over: what is left is answered, so that the asker knows that nothing comes. */
  #putOffAll(): void {
    for (const { wanted, loan } of this.#ready.splice(0)) {
      this.#letGo(wanted, loan);
      this.#putOff(wanted.index);
    }
    const rest = [...this.#inRam.splice(0), ...this.#onSsd.splice(0), ...this.#reading.values()];
    this.#reading.clear();
    for (const { index } of rest) this.#putOff(index);
  }

  /** Waits until a read has ended, room was made, time is over or the pull is. */
  async #change(): Promise<void> {
    const { clock } = this.#parts;
    this.#changed ??= Promise.withResolvers();
    const leftMs = Math.max(0, this.#endsMs - clock.monotonicMs());
    using _timer = clock.after(leftMs, () => this.#wake());
    await this.#changed.promise;
  }

  #wake(): void {
    this.#changed?.resolve();
    this.#changed = null;
  }
}

/** Whether a certain copy was meant, and it is not this one. */
function isAnother(item: PullItem, generation: bigint): boolean {
  return item.generation !== 0n && item.generation !== generation;
}
