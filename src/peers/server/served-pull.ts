import {
  assert,
  type Clock,
  messageOf,
  type NamespaceIndex,
  type WorkerId,
} from "../../core/index.ts";
import { Tier } from "../../store/blocks/index.ts";
import type { Lent, Loan, PeerBlocks } from "../../store/index.ts";
import type { FrameHeader, ItemRefusal, PeerRequest, PullItem } from "../messages.ts";
import type { Served, TransportLog } from "../transport.ts";
import type { PeerIdentity } from "../trust.ts";
import { ALIASES_MAX, MODEL_BYTES_MAX } from "../wire/index.ts";
import type { ServeCounts, ServeLimits } from "./block-server.ts";

/** What stands before the bytes of a block that is lent. */
function frameHeader(loan: Loan, namespace: Uint8Array, model: string): FrameHeader {
  const { digest, layer, bytes, generation, checksum, mac, parent, transient } = loan;
  const aliases = loan.aliases.slice(0, ALIASES_MAX);
  const told = { digest, layer, bytes, generation, checksum, mac, parent, transient };
  return { ...told, aliases, namespace, model };
}

/** A model's name as frames may carry it; empty where it is no short line of text. */
export function modelOnWire(model: string): string {
  const fits = model.isWellFormed() && Buffer.byteLength(model) <= MODEL_BYTES_MAX;
  return fits && !/\p{Cc}/u.test(model) ? model : "";
}

const RETRY_MIN_MS = 20;
const RETRY_MAX_MS = 2_000;
/** Over which what left is counted. */
const WINDOW_MS = 1_000;
/** Assumed before anything has left. */
const BYTES_PER_S_MIN = 50 * 2 ** 20;

interface PeerShare {
  bytes: number;
  requests: number;
}

/** What is under way for peers, and whether there is room for more. */
export class Backlog {
  limits: ServeLimits;
  readonly #clock: Clock;
  /** Only peers for which something is under way. */
  readonly #peers = new Map<WorkerId, PeerShare>();
  /** Called whenever there may be room that was not there before. */
  readonly #waiting = new Set<() => void>();
  #bytes = 0;
  #blocks = 0;
  #reads = 0;
  /** Bytes that left in this window and in the one before. */
  #left = 0;
  #leftBefore = 0;
  #windowMs: number;

  constructor(clock: Clock, limits: ServeLimits) {
    this.#clock = clock;
    this.limits = limits;
    this.#windowMs = clock.monotonicMs();
  }

  /** For which something is under way. */
  get peers(): number {
    return this.#peers.size;
  }

  get lentBytes(): number {
    return this.#bytes;
  }

  get lentBlocks(): number {
    return this.#blocks;
  }

  get reads(): number {
    return this.#reads;
  }

  /** A request of this peer begins; false: it has too many already. */
  enter(worker: WorkerId): boolean {
    const share = this.#shareOf(worker);
    if (share.requests >= this.limits.peerRequestsMax) return false;
    share.requests++;
    return true;
  }

  leave(worker: WorkerId): void {
    const share = this.#shareOf(worker);
    share.requests--;
    assert(share.requests >= 0, "a request that ends had begun");
    this.#forget(worker, share);
  }

  /** Counts a block as lent to the peer; false: there is no room for it. */
  take(worker: WorkerId, bytes: number): boolean {
    const share = this.#shareOf(worker);
    const { bytesMax, peerBytesMax } = this.limits;
    const fits = (used: number, max: number) => used === 0 || used + bytes <= max;
    const taken = fits(this.#bytes, bytesMax) && fits(share.bytes, peerBytesMax);
    if (taken) this.#count(share, bytes, 1);
    this.#forget(worker, share);
    return taken;
  }

  /** The block turned out to be of another length than was believed. */
  correct(worker: WorkerId, from: number, to: number): void {
    this.#count(this.#shareOf(worker), to - from, 0);
  }

  /** The block was given back; `sent`: after its last byte was out. */
  give(worker: WorkerId, bytes: number, sent: boolean): void {
    const share = this.#shareOf(worker);
    this.#count(share, -bytes, -1);
    assert(share.bytes >= 0 && this.#blocks >= 0, "a block that comes back was lent");
    this.#turnWindow();
    if (sent) this.#left += bytes;
    this.#forget(worker, share);
    this.#wake();
  }

  /** Whether one more block may be brought up from SSD. */
  get mayRead(): boolean {
    return this.#reads < this.limits.readsMax;
  }

  beginRead(): void {
    this.#reads++;
  }

  endRead(): void {
    this.#reads--;
    assert(this.#reads >= 0, "a read that ends had begun");
    this.#wake();
  }

  onRoom(listener: () => void): Disposable {
    this.#waiting.add(listener);
    return { [Symbol.dispose]: () => void this.#waiting.delete(listener) };
  }

  /** How long what is lent now takes to leave, at the pace of the last second or two. */
  get retryAfterMs(): number {
    this.#turnWindow();
    const perS = Math.max(BYTES_PER_S_MIN, this.#left, this.#leftBefore);
    const ms = Math.ceil((this.#bytes / perS) * 1_000);
    return Math.min(RETRY_MAX_MS, Math.max(RETRY_MIN_MS, ms));
  }

  #turnWindow(): void {
    const nowMs = this.#clock.monotonicMs();
    const passedMs = nowMs - this.#windowMs;
    if (passedMs < WINDOW_MS) return;
    this.#leftBefore = passedMs < 2 * WINDOW_MS ? this.#left : 0;
    this.#left = 0;
    this.#windowMs = nowMs;
  }

  #shareOf(worker: WorkerId): PeerShare {
    const known = this.#peers.get(worker);
    if (known !== undefined) return known;
    const share = { bytes: 0, requests: 0 };
    this.#peers.set(worker, share);
    return share;
  }

  #forget(worker: WorkerId, share: PeerShare): void {
    if (share.bytes === 0 && share.requests === 0) this.#peers.delete(worker);
  }

  #count(share: PeerShare, bytes: number, blocks: number): void {
    share.bytes += bytes;
    this.#bytes += bytes;
    this.#blocks += blocks;
  }

  #wake(): void {
    for (const listener of [...this.#waiting]) listener();
  }
}

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
