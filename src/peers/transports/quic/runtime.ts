import { type Clock, HearthError, messageOf } from "../../../core/index.ts";
import type { Region } from "../../../native/index.ts";
import type { TransportLog } from "../../transport.ts";
import type { Trust } from "../../trust.ts";
import type { RequestLimit, TrustedConnections } from "../connection-state.ts";
import type { QuicLimits } from "./limits.ts";

export type QuicModule = typeof import("node:quic");
export type Endpoint = import("node:quic").QuicEndpoint;
export type Session = import("node:quic").QuicSession;
export type Stream = import("node:quic").QuicStream;
export type SessionOptions = import("node:quic").SessionOptions;

/** Objects that all connections of a QUIC transport share. */
export interface QuicContext {
  readonly trust: Trust;
  readonly clock: Clock;
  readonly log: TransportLog;
  readonly limits: QuicLimits;
  readonly gcPressure: GcPressure;
  readonly trusted: TrustedConnections;
  /** Limit on the peers' requests that are served at once. */
  readonly requests: RequestLimit;
  /** Memory region that contains all blocks. */
  readonly region: Region;
}

let loading: Promise<QuicModule> | undefined;

/**
 * Loads the JavaScript runtime's QUIC on first use. Suppresses the warning that it is experimental,
 * but no other warnings. Throws UNSUPPORTED if the runtime has no QUIC.
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

/**
 * Estimated bytes of memory that the runtime keeps for a finished stream until it is
 * garbage-collected.
 */
const STREAM_BYTES = 8 * 1024;

/**
 * Forces garbage collections. The runtime keeps native memory for each finished stream until its
 * garbage collector runs, and does not count this memory when it decides to run. This class
 * estimates the memory, and forces a collection above `bytesMax`.
 */
export class GcPressure {
  readonly #bytesMax: number;
  readonly #collect: () => void;
  readonly #streams = new FinalizationRegistry<number>((bytes) => {
    this.#bytes -= bytes;
  });
  /** Estimated bytes of finished streams that were not collected yet. */
  #bytes = 0;
  /** Bytes added since the last forced collection. */
  #fresh = 0;

  constructor(bytesMax: number, collect: () => void = () => Bun.gc(true)) {
    this.#bytesMax = bytesMax;
    this.#collect = collect;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** Counts a finished stream. `waitingBytes`: maximum bytes that waited to be sent on it. */
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
 * Closes a connection with `code`. If its streams do not end within `ms` milliseconds, destroys it.
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

/** Resets a stream in both directions with an error code. */
export function tearStream(stream: Stream, code: number): void {
  if (stream.destroyed) return;
  const { resetStream, stopSending } = stream as Stream & {
    resetStream?(code: number): void;
    stopSending?(code: number): void;
  };
  // Reset the stream before `destroy`, which sends the code only in some states of the stream.
  resetStream?.call(stream, code);
  stopSending?.call(stream, code);
  stream.destroy(undefined, { code });
}

const DRAIN = Symbol.for("Stream.drainableProtocol");

interface Writer {
  writevSync(chunks: readonly Uint8Array[]): boolean;
  endSync(): number;
  /** Resolves when there is space. Null if there is space already, or never will be. */
  [DRAIN](): Promise<unknown> | null;
}

const NOTHING = new Uint8Array(0);

/**
 * Writes to a stream in pieces, each when there is space for it, because the runtime's time to
 * handle waiting data grows with the square of its size. Each piece is copied when it is written,
 * so the caller may reuse the memory afterwards.
 */
export class StreamOut {
  readonly #writer: Writer;
  readonly #pieceBytes: number;
  #isStopped = false;
  /** Wakes the call that waits for space. Null if none waits. */
  #wake: ((isRoom: boolean) => void) | null = null;
  /**
   * Number of pieces written. If it does not change while a write waits, the peer is not reading.
   */
  taken = 0;

  constructor(stream: Stream, limits: Pick<QuicLimits, "pieceBytes" | "waitingBytes">) {
    this.#writer = stream.writer as unknown as Writer;
    this.#pieceBytes = limits.pieceBytes;
    stream.highWaterMark = limits.waitingBytes;
  }

  get isWaiting(): boolean {
    return this.#wake !== null;
  }

  /** Writes `head`, then `bytes`. Returns false if the stream has ended. */
  async write(bytes: Uint8Array, head: Uint8Array = NOTHING): Promise<boolean> {
    const piece = this.#pieceBytes;
    let chunks = [head, bytes.subarray(0, piece)];
    for (let at = piece; ; at += piece) {
      // The runtime sends the data of one call in one packet if possible, so `head` is written
      // together with the first piece.
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

  /** Ends all writes, because the stream has ended or the data is not wanted any more. */
  stop(): void {
    this.#isStopped = true;
    this.#wake?.(false);
  }

  /** Waits for space. Returns false if there never will be any. */
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
