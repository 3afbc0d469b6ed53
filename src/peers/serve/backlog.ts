import { assert, type Clock, type WorkerId } from "../../core/index.ts";
import type { ServeLimits } from "./serve-limits.ts";

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
