import type { Clock } from "../index.ts";

/** What the bodies of one server are held to. */
export interface BodyLimits {
  /** Bytes of one body. */
  readonly bytesMax: number;
  /** From the head of a request to the last byte of its body. */
  readonly timeoutMs: number;
  readonly budget: BodyBudget;
  readonly clock: Clock;
}

/**
 * Why there is no body: longer than allowed, no room for it among the other bodies, not there in
 * time, or its connection ended early.
 */
export type BodyRefusal = "too_long" | "crowded" | "late" | "broken";

type Body = Uint8Array<ArrayBuffer>;

/** A body of up to so many announced bytes is read in one call, which is faster. */
const ONE_CALL_BYTES_MAX = 64 * 1024;

/**
 * Reads a body piece by piece and stops at the first byte too many. Its bytes count against the
 * budget until the caller disposes `share`.
 */
export async function readBody(
  request: Request,
  { bytesMax, timeoutMs, clock }: Omit<BodyLimits, "budget">,
  share: BodyShare,
): Promise<Body | BodyRefusal> {
  const header = request.headers.get("content-length");
  const announced = header === null ? null : Number(header);
  if (announced !== null && announced > bytesMax) return "too_long";
  const isEmpty = announced === null ? request.body === null : announced === 0;
  if (isEmpty) return new Uint8Array(0);
  const isShort = announced !== null && announced <= ONE_CALL_BYTES_MAX;
  if (isShort ? !share.take(announced) : !share.hasRoom()) return "crowded";
  const over = Promise.withResolvers<BodyRefusal>();
  using _deadline = clock.after(timeoutMs, () => over.resolve("late"));
  share.onEvicted = () => over.resolve("crowded");
  const reading = isShort ? new WholeReading(request) : new PieceReading(request, bytesMax, share);
  try {
    const body = await Promise.race([reading.done, over.promise]);
    if (typeof body !== "string") share.whole();
    return body;
  } catch {
    return "broken";
  } finally {
    reading.stop();
  }
}

/** A body that is read in one call. */
class WholeReading {
  readonly done: Promise<Body>;

  constructor(request: Request) {
    this.done = request.arrayBuffer().then((buffer) => new Uint8Array(buffer));
    // The loser of the race must not reject unheard.
    this.done.catch(() => undefined);
  }

  /** The runtime drops what arrives behind an answer. */
  stop(): void {}
}

/** A body of unknown or great length. */
class PieceReading {
  readonly done: Promise<Body | BodyRefusal>;
  readonly #reader: Pick<ReadableStreamDefaultReader<Uint8Array>, "read" | "cancel">;
  #isOver = false;

  constructor(request: Request, bytesMax: number, share: BodyShare) {
    this.#reader = request.body!.getReader();
    this.done = this.#read(bytesMax, share);
    this.done.catch(() => undefined);
  }

  async #read(bytesMax: number, share: BodyShare): Promise<Body | BodyRefusal> {
    const pieces: Uint8Array[] = [];
    let length = 0;
    while (!this.#isOver) {
      const { done, value } = await this.#reader.read();
      if (done) break;
      length += value.length;
      if (length > bytesMax) return "too_long";
      if (!share.take(value.length)) return "crowded";
      pieces.push(value);
    }
    return joined(pieces, length);
  }

  /** Drops what has been read and whatever still arrives. */
  stop(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    void this.#reader.cancel().catch(() => undefined);
  }
}

function joined(pieces: readonly Uint8Array[], length: number): Body {
  if (pieces.length === 1) return pieces[0] as Body;
  const whole = new Uint8Array(length);
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}

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
