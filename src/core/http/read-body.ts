import type { Clock } from "../index.ts";

/** Limits on the request bodies of one server. */
export interface BodyLimits {
  /** Maximum bytes of one body. */
  readonly bytesMax: number;
  /** Maximum ms from the head of a request to the last byte of its body. */
  readonly timeoutMs: number;
  readonly budget: BodyBudget;
  readonly clock: Clock;
}

/**
 * Reason why a body was not read. `too_long`: it exceeds the limit. `crowded`: all bodies together
 * use the whole budget. `late`: it was not complete in time. `broken`: the connection closed before
 * its end.
 */
export type BodyRefusal = "too_long" | "crowded" | "late" | "broken";

type Body = Uint8Array<ArrayBuffer>;

/**
 * Maximum announced length in bytes of a body that is read in one call, which is faster than
 * reading in pieces.
 */
const ONE_CALL_BYTES_MAX = 64 * 1024;

/**
 * Reads a body in pieces and stops at the first byte beyond the limit. The bytes count against the
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
  const reading = isShort ? readWhole(request) : readPieces(request, bytesMax, share);
  // If the other promise settles first, a rejection of this one must not count as unhandled.
  reading.done.catch(() => undefined);
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

interface Reading {
  readonly done: Promise<Body | BodyRefusal>;
  /** Discards the data read so far and data that still arrives. */
  stop(): void;
}

/**
 * Reads a body in one call. The runtime discards data that arrives when the response has been sent.
 */
function readWhole(request: Request): Reading {
  const done = request.arrayBuffer().then((buffer) => new Uint8Array(buffer));
  return { done, stop: () => undefined };
}

/** Reads a body of unknown or large length in pieces. */
function readPieces(request: Request, bytesMax: number, share: BodyShare): Reading {
  const reader = request.body!.getReader() as Pick<
    ReadableStreamDefaultReader<Uint8Array>,
    "read" | "cancel"
  >;
  let isOver = false;
  const read = async (): Promise<Body | BodyRefusal> => {
    const pieces: Uint8Array[] = [];
    let length = 0;
    while (!isOver) {
      const { done, value } = await reader.read();
      if (done) break;
      length += value.length;
      if (length > bytesMax) return "too_long";
      if (!share.take(value.length)) return "crowded";
      pieces.push(value);
    }
    return joined(pieces, length);
  };
  const stop = () => {
    isOver = true;
    void reader.cancel().catch(() => undefined);
  };
  return { done: read(), stop };
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

/** A body is slow if fewer than `PACE_BYTES` bytes of it arrive in `STALL_MS` ms. */
const PACE_BYTES = 16 * 1024;
const STALL_MS = 1_000;
/** Usual bytes of one piece of a body. */
const PIECE_BYTES = 64 * 1024;

/** The bytes of one body that count against the budget. Disposing this object returns them. */
export interface BodyShare extends Disposable {
  /** Called if the budget takes back the bytes of this body while it is still arriving. */
  onEvicted: (() => void) | null;
  /** Returns true if the budget has room for another piece. If not, the piece need not be read. */
  hasRoom(): boolean;
  /** Counts bytes that have arrived. Returns false if the budget has no room for them. */
  take(bytes: number): boolean;
  /**
   * Marks the body as complete. From then on, the budget does not take its bytes back; only the
   * owner returns them.
   */
  whole(): void;
}

/**
 * Limits the bytes of all request bodies of a server together. If a body does not fit, slow bodies
 * that are still arriving are cancelled, oldest first. If none is slow, the new body is refused,
 * because cancelling a body that arrives at normal speed would waste the data sent so far.
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

  /** Bytes of all bodies at this moment. 0 ≤ value ≤ bytesMax. */
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
  /** Bytes that arrived since the last `PACE_BYTES` were complete. */
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
