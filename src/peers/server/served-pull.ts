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

/** Creates the header of a block to be sent. */
function frameHeader(loan: Loan, namespace: Uint8Array, model: string): FrameHeader {
  const { digest, layer, bytes, generation, checksum, mac, parent, transient } = loan;
  const aliases = loan.aliases.slice(0, ALIASES_MAX);
  const told = { digest, layer, bytes, generation, checksum, mac, parent, transient };
  return { ...told, aliases, namespace, model };
}

/**
 * Returns a model name that fits the wire format: unchanged, or empty if it is too long or contains
 * control characters.
 */
export function modelOnWire(model: string): string {
  const fits = model.isWellFormed() && Buffer.byteLength(model) <= MODEL_BYTES_MAX;
  return fits && !/\p{Cc}/u.test(model) ? model : "";
}

const RETRY_MIN_MS = 20;
const RETRY_MAX_MS = 2_000;
/** Length in milliseconds of the intervals in which the send rate is measured. */
const WINDOW_MS = 1_000;
/** Minimum assumed send rate in bytes per second. */
const BYTES_PER_S_MIN = 50 * 2 ** 20;

interface PeerShare {
  bytes: number;
  requests: number;
}

/** Counts the bytes, blocks and requests in progress for peers, and enforces the limits on them. */
export class Backlog {
  limits: ServeLimits;
  readonly #clock: Clock;
  /** Peers with a request or block in progress. */
  readonly #peers = new Map<WorkerId, PeerShare>();
  /** Listeners to call when a block or an SSD read has ended. */
  readonly #waiting = new Set<() => void>();
  #bytes = 0;
  #blocks = 0;
  #reads = 0;
  /** Bytes sent in the current interval (`#left`) and in the previous one (`#leftBefore`). */
  #left = 0;
  #leftBefore = 0;
  #windowMs: number;

  constructor(clock: Clock, limits: ServeLimits) {
    this.#clock = clock;
    this.limits = limits;
    this.#windowMs = clock.monotonicMs();
  }

  /** Number of peers with a request or block in progress. */
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

  /** Counts a request of the peer. Returns false, without counting, if the peer has too many. */
  enter(worker: WorkerId): boolean {
    const share = this.#shareOf(worker);
    if (share.requests >= this.limits.peerRequestsMax) return false;
    share.requests++;
    return true;
  }

  leave(worker: WorkerId): void {
    const share = this.#shareOf(worker);
    share.requests--;
    assert(share.requests >= 0, "a request that ends was counted");
    this.#forget(worker, share);
  }

  /**
   * Counts a block that is to be sent to the peer. Returns false, without counting, if a limit
   * would be exceeded.
   */
  take(worker: WorkerId, bytes: number): boolean {
    const share = this.#shareOf(worker);
    const { bytesMax, peerBytesMax } = this.limits;
    const fits = (used: number, max: number) => used === 0 || used + bytes <= max;
    const taken = fits(this.#bytes, bytesMax) && fits(share.bytes, peerBytesMax);
    if (taken) this.#count(share, bytes, 1);
    this.#forget(worker, share);
    return taken;
  }

  /** Changes the counted bytes of a block whose size turned out to differ from the expected one. */
  correct(worker: WorkerId, from: number, to: number): void {
    this.#count(this.#shareOf(worker), to - from, 0);
  }

  /** Ends the count of a block that was released. `sent`: true if its last byte was sent. */
  give(worker: WorkerId, bytes: number, sent: boolean): void {
    const share = this.#shareOf(worker);
    this.#count(share, -bytes, -1);
    assert(share.bytes >= 0 && this.#blocks >= 0, "a released block was counted");
    this.#turnWindow();
    if (sent) this.#left += bytes;
    this.#forget(worker, share);
    this.#wake();
  }

  /** Returns whether another SSD read may start. */
  get mayRead(): boolean {
    return this.#reads < this.limits.readsMax;
  }

  beginRead(): void {
    this.#reads++;
  }

  endRead(): void {
    this.#reads--;
    assert(this.#reads >= 0, "a read that ends was counted");
    this.#wake();
  }

  onRoom(listener: () => void): Disposable {
    this.#waiting.add(listener);
    return { [Symbol.dispose]: () => void this.#waiting.delete(listener) };
  }

  /**
   * Estimated milliseconds until the bytes in progress are sent, at the rate of the current or
   * previous interval, whichever was higher.
   */
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

/** Objects that a pull uses, and the request. */
export interface ServedPullParts {
  readonly blocks: PeerBlocks;
  readonly backlog: Backlog;
  readonly counts: ServeCounts;
  /** Running pulls. A pull adds itself when it starts. */
  readonly open: Set<ServedPull>;
  readonly clock: Clock;
  readonly log: TransportLog;
  readonly peer: PeerIdentity;
  readonly pull: PullRequest;
  /**
   * Index of the requested namespace. Null if it is unknown or peers may not read it; all its
   * blocks are then absent.
   */
  readonly namespace: NamespaceIndex | null;
  readonly model: string;
  readonly signal: AbortSignal;
}

/**
 * A requested block that this host probably has. `bytes` are counted while the block is in
 * progress.
 */
interface Wanted {
  readonly index: number;
  readonly item: PullItem;
  bytes: number;
}

/**
 * Serves the blocks of one pull. First reports absent blocks, then sends blocks that are in RAM,
 * while a few SSD reads run at a time. Takes a reference to a slot in RAM only when the transport
 * asks for the next block.
 *
 * If a limit is reached, the pull waits until some of its own blocks have been sent. If it has none
 * in progress, the block is refused as `busy`. When the pull ends (by `return` or the signal),
 * blocks that the transport has not taken are released; blocks being read from SSD are released
 * when the read ends.
 */
export class ServedPull implements AsyncIterator<Served> {
  readonly #parts: ServedPullParts;
  readonly #endsMs: number;
  readonly #refusals: (ItemRefusal & { readonly index: number })[] = [];
  readonly #inRam: Wanted[] = [];
  readonly #onSsd: Wanted[] = [];
  /**
   * Running SSD reads by item index. If an entry was removed, the block is released when its read
   * ends.
   */
  readonly #reading = new Map<number, Wanted>();
  readonly #ready: { readonly wanted: Wanted; readonly loan: Loan }[] = [];
  readonly #cleanup = new DisposableStack();
  /** Number of requested blocks without a reply. */
  #left: number;
  /** Number of blocks that the transport is sending. */
  #lent = 0;
  #state: "fresh" | "open" | "over" = "fresh";
  /** Resolves when `#step` may have a reply that it did not have before. */
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
      // The caller of an iterator that throws does not call `return`.
      this.end();
      throw thrown;
    }
    return this.return();
  }

  /** Ends the pull, even while a call of `next` waits. */
  async return(): Promise<IteratorResult<Served>> {
    this.end();
    return { done: true, value: undefined };
  }

  end(): void {
    if (this.#state === "over") return;
    this.#state = "over";
    this.#reading.clear();
    for (const { wanted, loan } of this.#ready.splice(0)) this.#releaseBlock(wanted, loan);
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
      for (const index of pull.items.keys()) this.#refuseBusy(index);
      return;
    }
    this.#cleanup.defer(() => backlog.leave(peer.worker));
    this.#cleanup.use(backlog.onRoom(() => this.#wake()));
    this.#sort();
  }

  /**
   * Sorts the requested blocks into absent, too long, in RAM, and on SSD. Whether this host still
   * has a block is checked again when it is sent.
   */
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
    // Blocks are taken from the end of the lists, so reverse the lists to keep the request's order.
    this.#inRam.reverse();
    this.#onSsd.reverse();
  }

  /** Returns the next reply. Null if there is none until something in progress changes. */
  #step(): Served | null {
    if (this.#parts.clock.monotonicMs() >= this.#endsMs) this.#refuseAllBusy();
    this.#beginReads();
    if (this.#ready.length === 0 && this.#refusals.length === 0) this.#lendNext();
    const ready = this.#ready.shift();
    if (ready !== undefined) return this.#serve(ready.wanted, ready.loan);
    const refusal = this.#refusals.pop();
    if (refusal === undefined) return null;
    this.#parts.counts[refusal.kind]++;
    return refusal;
  }

  /**
   * Takes a reference to the next block in RAM. If a limit prevents it and nothing is in progress,
   * refuses one block as busy.
   */
  #lendNext(): void {
    const next = this.#inRam.at(-1);
    if (next !== undefined && this.#take(next)) {
      this.#inRam.pop();
      this.#lend(next);
    } else if (this.#reading.size === 0 && this.#lent === 0) {
      const shed = this.#inRam.pop() ?? this.#onSsd.pop();
      assert(shed !== undefined, "every unanswered item is queued");
      this.#refuseBusy(shed.index);
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

  /**
   * Takes a reference to a block whose bytes are already counted, or starts its SSD read. The
   * result goes to `#ready`, `#refusals` or `#reading`.
   */
  #lend(wanted: Wanted): void {
    const { blocks, namespace, clock } = this.#parts;
    const { digest, layer } = wanted.item;
    assert(namespace !== null, "a served namespace is known");
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
    if (!isWanted) this.#releaseBlock(wanted, outcome.ok ? outcome.lent : "absent");
    else if (outcome.ok) this.#arrived(wanted, outcome.lent);
    else this.#failed(wanted, outcome.thrown);
    this.#parts.backlog.endRead();
  }

  #arrived(wanted: Wanted, lent: Lent): void {
    const { index, item } = wanted;
    if (typeof lent === "string") {
      this.#releaseBlock(wanted, lent);
      if (lent === "absent") this.#refusals.push({ index, kind: "absent" });
      else this.#refuseBusy(index);
    } else if (isAnother(item, lent.generation)) {
      this.#releaseBlock(wanted, lent);
      this.#refusals.push({ index, kind: "absent" });
    } else if (lent.bytes > item.bytesMax) {
      this.#releaseBlock(wanted, lent);
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
    log("error", `taking a slot reference failed: ${messageOf(thrown)}`, fields);
    this.#releaseBlock(wanted, "absent");
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

  /** Releases a block that is not sent, and ends the count of its bytes. */
  #releaseBlock(wanted: Wanted, lent: Lent): void {
    if (typeof lent !== "string") lent.release();
    this.#parts.backlog.give(this.#parts.peer.worker, wanted.bytes, false);
  }

  #refuseBusy(index: number): void {
    const { retryAfterMs } = this.#parts.backlog;
    this.#refusals.push({ index, kind: "busy", retryAfterMs });
  }

  /**
   * Refuses all remaining blocks as busy because the deadline has passed, so that the client does
   * not wait for them.
   */
  #refuseAllBusy(): void {
    for (const { wanted, loan } of this.#ready.splice(0)) {
      this.#releaseBlock(wanted, loan);
      this.#refuseBusy(wanted.index);
    }
    const rest = [...this.#inRam.splice(0), ...this.#onSsd.splice(0), ...this.#reading.values()];
    this.#reading.clear();
    for (const { index } of rest) this.#refuseBusy(index);
  }

  /**
   * Waits until an SSD read or a block in progress has ended, the deadline has passed, or the pull
   * has ended.
   */
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

/** Returns whether the client asked for another generation of the block than this one. */
function isAnother(item: PullItem, generation: bigint): boolean {
  return item.generation !== 0n && item.generation !== generation;
}
