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

/** Shared by all connections of a QUIC transport. */
export interface QuicContext {
  readonly trust: Trust;
  readonly clock: Clock;
  readonly log: TransportLog;
  readonly limits: QuicLimits;
  readonly gcPressure: GcPressure;
  readonly trusted: TrustedConnections;
  /** Inbound requests. */
  readonly requests: RequestLimit;
  /** The memory of all blocks. */
  readonly region: Region;
}

let loading: Promise<QuicModule> | undefined;

/**
 * Loads the runtime's QUIC on first use. The runtime's warning that QUIC is experimental is
 * suppressed; other warnings pass. Throws UNSUPPORTED if the runtime has no QUIC.
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

/** Memory that the runtime keeps for a finished stream. */
const STREAM_BYTES = 8 * 1024;

/**
 * The runtime keeps native memory for each finished stream until its garbage collector runs, and
 * that memory does not trigger the collector. This class counts it, and forces a collection above
 * `bytesMax`.
 */
export class GcPressure {
  readonly #bytesMax: number;
  readonly #collect: () => void;
  readonly #streams = new FinalizationRegistry<number>((bytes) => {
    this.#bytes -= bytes;
  });
  /** Estimated memory of finished streams that were not collected. */
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

  /** A stream has finished. `waitingBytes`: the maximum that was queued on it. */
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

/** Closes a connection with `code`; tears it down if its streams do not end within `ms`. */
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

/** Resets a stream in both directions with this code. */
export function tearStream(stream: Stream, code: number): void {
  if (stream.destroyed) return;
  const { resetStream, stopSending } = stream as Stream & {
    resetStream?(code: number): void;
    stopSending?(code: number): void;
  };
  // The effect of `destroy` on the code depends on the stream's use, so reset it first.
  resetStream?.call(stream, code);
  stopSending?.call(stream, code);
  stream.destroy(undefined, { code });
}

const DRAIN = Symbol.for("Stream.drainableProtocol");

interface Writer {
  writevSync(chunks: readonly Uint8Array[]): boolean;
  endSync(): number;
  /** Null: there is space, or there never will be. */
  [DRAIN](): Promise<unknown> | null;
}

const NOTHING = new Uint8Array(0);

/**
 * Writes to a stream in pieces, each when there is space: the runtime's time for queued data grows
 * with its square. Each piece is copied as it is written, so its source can be reused at once.
 */
export class StreamOut {
  readonly #writer: Writer;
  readonly #pieceBytes: number;
  #isStopped = false;
  /** Wakes the caller that waits for space. */
  #wake: ((isRoom: boolean) => void) | null = null;
  /** Pieces accepted so far: a peer whose count does not change is not reading. */
  taken = 0;

  constructor(stream: Stream, limits: Pick<QuicLimits, "pieceBytes" | "waitingBytes">) {
    this.#writer = stream.writer as unknown as Writer;
    this.#pieceBytes = limits.pieceBytes;
    stream.highWaterMark = limits.waitingBytes;
  }

  get isWaiting(): boolean {
    return this.#wake !== null;
  }

  /** Writes `head` and `bytes`. False: nothing reads the stream any more. */
  async write(bytes: Uint8Array, head: Uint8Array = NOTHING): Promise<boolean> {
    const piece = this.#pieceBytes;
    let chunks = [head, bytes.subarray(0, piece)];
    for (let at = piece; ; at += piece) {
      // One call sends one packet if it can, so head and bytes are written together.
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

  /** The stream ended, or the data is no longer wanted. */
  stop(): void {
    this.#isStopped = true;
    this.#wake?.(false);
  }

  /** Waits for space; false: there never will be. */
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
