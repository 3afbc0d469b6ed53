import { assert, HearthError, sleep, systemClock } from "../../core/index.ts";
import {
  encodeManifest,
  manifestOf,
  type NamespaceManifest,
  namespaceKey,
} from "../../identity/index.ts";
import type { Native } from "../../native/index.ts";
import type { Trace, TraceRequest } from "../traces/index.ts";
import { MockEngine } from "./mock-engine.ts";
import { type ReplaySummary, ReplayTally, summarise } from "./tally.ts";

export interface ReplayOptions {
  readonly trace: Trace;
  readonly socketPath: string;
  readonly blockBytes: number;
  readonly clients: number;
  /** 0 = as fast as possible; else this multiple of the trace's own pace. */
  readonly speed: number;
  /** Stop after so many requests. */
  readonly requestsMax: number;
  /** See `MockEngineOptions`. */
  readonly patienceMs: number;
  readonly signal?: AbortSignal;
  /** Called after each request. */
  readonly onProgress?: (tally: ReplayTally) => void;
}

/**
 * The namespace in which a trace's blocks live: the trace is the model, block bytes are its layout.
 */
export function replayManifest(trace: Trace, blockBytes: number): NamespaceManifest {
  return manifestOf({
    model: `replay/${trace.name}`,
    dtype: "pattern",
    layout: `hearth:pattern-${blockBytes}`,
    blockTokens: trace.blockTokens,
  });
}

/**
 * Sends a trace's requests through mock engines, in the trace's order: the next request goes to the
 * first client that is free. Throws ENGINE_CLOSED, ENGINE_REFUSED, TRACE_INVALID, ABORTED.
 */
export async function replay(native: Native, options: ReplayOptions): Promise<ReplaySummary> {
  const { trace, clients, blockBytes } = options;
  assert(clients > 0 && blockBytes > 0, "a replay has clients and blocks have bytes");
  const manifest = replayManifest(trace, blockBytes);
  const tally = new ReplayTally(trace.blockTokens);
  const feed = new Feed(options);
  const startMs = systemClock.monotonicMs();
  const runClient = async (number: number) => {
    await using engine = await MockEngine.connect(
      native,
      {
        blockBytes,
        patienceMs: options.patienceMs,
        socketPath: options.socketPath,
        manifest: encodeManifest(manifest),
        namespaceKey: namespaceKey(native, manifest),
        name: `replay-${number}`,
      },
      tally,
    );
    for (let request = await feed.next(); request !== null; request = await feed.next()) {
      await engine.serve(request);
      options.onProgress?.(tally);
    }
  };
  await Promise.all(Array.from({ length: clients }, (_, number) => runClient(number)));
  const seconds = (systemClock.monotonicMs() - startMs) / 1_000;
  return summarise(tally, { trace: trace.name, blockBytes, seconds, clients });
}

type FeedOptions = Pick<ReplayOptions, "trace" | "requestsMax" | "speed" | "signal">;

/** Hands out a trace's requests one at a time, no sooner than they are due. */
export class Feed {
  readonly #options: FeedOptions;
  readonly #requests: AsyncIterator<TraceRequest>;
  #turn: Promise<unknown> = Promise.resolve();
  #startMs: number | null = null;
  #given = 0;

  constructor(options: FeedOptions) {
    this.#options = options;
    this.#requests = options.trace.requests()[Symbol.asyncIterator]();
  }

  /** The next request; null at the trace's end. */
  next(): Promise<TraceRequest | null> {
    const next = this.#turn.then(() => this.#take());
    this.#turn = next.catch(() => null);
    return next;
  }

  async #take(): Promise<TraceRequest | null> {
    const { requestsMax, speed, signal } = this.#options;
    if (signal?.aborted) throw new HearthError("ABORTED", "the replay was interrupted");
    if (this.#given === requestsMax) return null;
    const { done, value } = await this.#requests.next();
    if (done) return null;
    this.#given++;
    if (speed > 0) await this.#wait(value.arrivalMs / speed);
    return value;
  }

  async #wait(dueMs: number): Promise<void> {
    const now = systemClock.monotonicMs();
    this.#startMs ??= now - dueMs;
    const early = this.#startMs + dueMs - now;
    if (early > 0) await sleep(systemClock, early, this.#options.signal);
  }
}
