import type { Clock } from "../index.ts";

/** A body that brings fewer than `PACE_BYTES` in `STALL_MS` is slow. */
const PACE_BYTES = 16 * 1024;
const STALL_MS = 1_000;
/** A usual piece of a body. */
const PIECE_BYTES = 64 * 1024;

/** One body's part of a budget. Disposing it gives the bytes back. */
export interface BodyShare extends Disposable {
  /** Called when the budget needs the bytes of this body while it is still arriving. */
  onEvicted: (() => void) | null;
  /** Whether the budget has room for the next piece: without it none need be read. */
  hasRoom(): boolean;
  /** Counts bytes that arrived; false where the budget has no room for them. */
  take(bytes: number): boolean;
  /** The body has arrived as a whole: from now on only its owner gives the bytes back. */
  whole(): void;
}

/**
 * Bytes of all request bodies of a server together. A body that finds no room ends the slow bodies
 * that are still arriving, oldest first. Without a slow one the new body is refused, since ending
 * bodies that make progress would only waste what they have sent.
 */
export class BodyBudget {
  readonly bytesMax: number;
  readonly clock: Clock;
  /** Bodies that are still arriving, in the order in which they began. */
  readonly #arriving = new Set<Share>();
  #bytes = 0;

  constructor(bytesMax: number, clock: Clock) {
    [this.bytesMax, this.clock] = [bytesMax, clock];
  }

  /** Bytes of all bodies now. 0 ≤ value ≤ bytesMax. */
  get bytes(): number {
    return this.#bytes;
  }

  open(): BodyShare {
    const share = new Share(this);
    this.#arriving.add(share);
    return share;
  }

  hasRoom(share: Share, bytes: number): boolean {
    if (this.#bytes + bytes > this.bytesMax) this.#endSlow(share, bytes);
    return this.#bytes + bytes <= this.bytesMax;
  }

  reserve(share: Share, bytes: number): boolean {
    if (!this.hasRoom(share, bytes)) return false;
    this.#bytes += bytes;
    return true;
  }

  release(share: Share, bytes: number): void {
    this.#arriving.delete(share);
    this.#bytes -= bytes;
  }

  settle(share: Share): void {
    this.#arriving.delete(share);
  }

  #endSlow(except: Share, bytes: number): void {
    const nowMs = this.clock.monotonicMs();
    for (const share of this.#arriving) {
      if (this.#bytes + bytes <= this.bytesMax) return;
      if (share !== except && share.isSlow(nowMs)) share.evict();
    }
  }
}

class Share implements BodyShare {
  onEvicted: (() => void) | null = null;
  readonly #budget: BodyBudget;
  #isEvicted = false;
  #bytes = 0;
  /** Bytes since the pace was last kept. */
  #unpaced = 0;
  #paceMs: number;

  constructor(budget: BodyBudget) {
    this.#budget = budget;
    this.#paceMs = budget.clock.monotonicMs();
  }

  hasRoom(): boolean {
    return !this.#isEvicted && this.#budget.hasRoom(this, PIECE_BYTES);
  }
  take(bytes: number): boolean {
    if (this.#isEvicted || !this.#budget.reserve(this, bytes)) return false;
    this.#bytes += bytes;
    this.#unpaced += bytes;
    if (this.#unpaced >= PACE_BYTES) {
      this.#unpaced = 0;
      this.#paceMs = this.#budget.clock.monotonicMs();
    }
    return true;
  }

  isSlow(nowMs: number): boolean {
    return this.#bytes > 0 && nowMs - this.#paceMs > STALL_MS;
  }

  whole(): void {
    this.#budget.settle(this);
  }

  evict(): void {
    this.#isEvicted = true;
    this[Symbol.dispose]();
    this.onEvicted?.();
  }

  [Symbol.dispose](): void {
    this.#budget.release(this, this.#bytes);
    this.#bytes = 0;
  }
}
