import type { QuicLimits } from "./limits.ts";
import type { Stream } from "./module.ts";

const DRAIN = Symbol.for("Stream.drainableProtocol");

interface Writer {
  writevSync(chunks: readonly Uint8Array[]): boolean;
  endSync(): number;
  /** Null: there is room, or never will be. */
  [DRAIN](): Promise<unknown> | null;
}

const NOTHING = new Uint8Array(0);

/**
 * Writes to a stream in pieces, each when there is room for it: what waits in the runtime is dealt
 * with in quadratic time. Every piece is copied as it is written, so its source is free at once.
 */
export class StreamOut {
  readonly #writer: Writer;
  readonly #pieceBytes: number;
  #isStopped = false;
  /** Somebody waits for room. */
  #wake: ((isRoom: boolean) => void) | null = null;
  /** Pieces that were taken: who waits at the same number for long is not listened to. */
  taken = 0;

  constructor(stream: Stream, limits: Pick<QuicLimits, "pieceBytes" | "waitingBytes">) {
    this.#writer = stream.writer as unknown as Writer;
    this.#pieceBytes = limits.pieceBytes;
    stream.highWaterMark = limits.waitingBytes;
  }

  get isWaiting(): boolean {
    return this.#wake !== null;
  }

  /** Writes a few bytes, and `bytes` behind them. False: nobody will read it. */
  async write(bytes: Uint8Array, head: Uint8Array = NOTHING): Promise<boolean> {
    const piece = this.#pieceBytes;
    let chunks = [head, bytes.subarray(0, piece)];
    for (let at = piece; ; at += piece) {
      // Each call sends what it can: a head of its own would be a packet of its own.
      while (!this.#writer.writevSync(chunks)) if (!(await this.#room())) return false;
      this.taken++;
      if (this.#isStopped) return false;
      if (at >= bytes.length) return true;
      chunks = [bytes.subarray(at, at + piece)];
    }
  }

  async end(): Promise<boolean> {
    while (this.#writer.endSync() < 0) if (!(await this.#room())) return false;
    return true;
  }

  /** The stream is over, or what is written is not wanted any more. */
  stop(): void {
    this.#isStopped = true;
    this.#wake?.(false);
  }

  /** Waits until something may be written; false: it never will be. */
  #room(): Promise<boolean> | boolean {
    if (this.#isStopped) return false;
    const drained = this.#writer[DRAIN]();
    if (drained === null) return false;
    return new Promise((resolve) => {
      const wake = (isRoom: boolean) => {
        this.#wake = null;
        resolve(isRoom && !this.#isStopped);
      };
      this.#wake = wake;
      drained.then(
        () => wake(true),
        () => wake(false),
      );
    });
  }
}
