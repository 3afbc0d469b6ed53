import { type Clock, HearthError, messageOf } from "../../../core/index.ts";
import type { QuicLimits } from "./limits.ts";

export type QuicModule = typeof import("node:quic");
export type Endpoint = import("node:quic").QuicEndpoint;
export type Session = import("node:quic").QuicSession;
export type Stream = import("node:quic").QuicStream;
export type SessionOptions = import("node:quic").SessionOptions;

let loading: Promise<QuicModule> | undefined;

/**
 * The runtime's QUIC, loaded when it is first needed. Importing it prints a warning that it is
 * experimental, which is no news to an operator: that one is left out, all others pass. Throws
 * UNSUPPORTED where the runtime has none.
 */
export function loadQuic(): Promise<QuicModule> {
  loading ??= load();
  return loading;
}

async function load(): Promise<QuicModule> {
  const emit = process.emitWarning;
  const pass = (...args: Parameters<typeof emit>) => {
    if (!String(args[0]).startsWith("quic is an experimental feature")) emit.apply(process, args);
  };
  process.emitWarning = pass as typeof emit;
  try {
    return await import("node:quic");
  } catch (cause) {
    const message = `this runtime has no QUIC: ${messageOf(cause)}`;
    throw new HearthError("UNSUPPORTED", message, { cause });
  } finally {
    process.emitWarning = emit;
  }
}

/** What the runtime keeps of any finished stream. */
const STREAM_BYTES = 8 * 1024;

/**
 * The runtime keeps memory outside of its heap for each finished stream until it collects garbage,
 * and that memory does not make it collect. This counts what is outstanding, and makes it collect
 * where that is more than `bytesMax`.
 */
export class GcPressure {
  readonly #bytesMax: number;
  readonly #collect: () => void;
  readonly #streams = new FinalizationRegistry<number>((bytes) => {
    this.#bytes -= bytes;
  });
  /** Of streams that are finished and not collected. */
  #bytes = 0;
  /** Of streams that finished since the last collection of ours. */
  #fresh = 0;

  constructor(bytesMax: number, collect: () => void = () => Bun.gc(true)) {
    this.#bytesMax = bytesMax;
    this.#collect = collect;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** A stream is finished. `waitingBytes`: the most that waited to be sent on it. */
  add(stream: Stream, waitingBytes: number): void {
    const bytes = STREAM_BYTES + waitingBytes;
    this.#streams.register(stream, bytes);
    this.#bytes += bytes;
    this.#fresh += bytes;
    if (this.#bytes <= this.#bytesMax || this.#fresh <= this.#bytesMax) return;
    this.#fresh = 0;
    this.#collect();
  }
}

/**
 * Ends a connection so that the other side hears of it, with `code`; one whose streams do not end
 * within `ms` is torn down.
 */
export async function closeSession(
  session: Session,
  code: number,
  clock: Clock,
  ms: number,
): Promise<void> {
  if (session.destroyed) return;
  const options = { code, type: "application" } as const;
  const closed = session.close(options).catch(() => {});
  const { promise: late, resolve } = Promise.withResolvers<void>();
  using _timer = clock.after(ms, resolve);
  await Promise.race([closed, late]);
  if (!session.destroyed) session.destroy(undefined, options);
}

/** Ends a stream in both directions so that the other side learns the code. */
export function tearStream(stream: Stream, code: number): void {
  if (stream.destroyed) return;
  const { resetStream, stopSending } = stream as Stream & {
    resetStream?(code: number): void;
    stopSending?(code: number): void;
  };
  // What `destroy` does with the code depends on what the stream was used for.
  resetStream?.call(stream, code);
  stopSending?.call(stream, code);
  stream.destroy(undefined, { code });
}

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
