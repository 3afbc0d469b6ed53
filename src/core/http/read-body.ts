import type { Clock } from "../index.ts";
import type { BodyBudget, BodyShare } from "./body-budget.ts";

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
