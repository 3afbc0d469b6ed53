import { DIGEST_BYTES, LAYER_ALL, sleep, systemClock } from "../../core/index.ts";
import { encodeManifest, type NamespaceManifest, namespaceKey } from "../../identity/index.ts";
import type { Native } from "../../native/index.ts";
import type { Trace, TraceRequest } from "../traces/index.ts";
import { MockEngine } from "./mock-engine.ts";
import { Durations, Feed, ReplayTally, replayManifest, summarise } from "./replay.ts";

/** Chooses the worker of each request. */
export interface Dispatcher {
  /**
   * Returns the id of the worker for a prompt. The request counts as load of this worker until
   * `ended`.
   */
  route(prompt: RoutedPrompt): Promise<string>;
  /** Reports that the request's prompt was computed and that the request has ended. */
  ended(requestId: string): Promise<void>;
}

export interface RoutedPrompt {
  readonly requestId: string;
  /** Name of the model, as in the workers' events. */
  readonly model: string;
  /** Sequence hashes of the prompt's blocks, as in the agents' events. */
  readonly hashes: BigUint64Array;
  readonly blockTokens: number;
  readonly promptTokens: number;
}

export interface ClusterReplayOptions {
  readonly trace: Trace;
  /** Path of each agent's engine socket, by worker id. */
  readonly sockets: ReadonlyMap<string, string>;
  readonly dispatcher: Dispatcher;
  readonly blockBytes: number;
  /** Maximum number of concurrent requests. */
  readonly clients: number;
  readonly requestsMax: number;
  readonly signal?: AbortSignal;
  readonly onProgress?: (tally: ReplayTally) => void;
  /** Called before the first request, when engines are connected to all agents. */
  readonly onConnected?: () => Promise<void>;
}

export type ClusterSummary = Awaited<ReturnType<typeof replayCluster>>;

/** Mock engines by worker id, which serve one request at a time. */
type Engines = ReadonlyMap<string, MockEngine>;

/** Sends the requests of a trace, in order, to the workers that the dispatcher chooses. */
export async function replayCluster(native: Native, options: ClusterReplayOptions) {
  const { trace, clients, blockBytes } = options;
  const manifest = replayManifest(trace, blockBytes);
  const tally = new ReplayTally(trace.blockTokens);
  const feed = new Feed({ ...options, speed: 0 });
  const player = new Player(native, options, manifest, tally);
  const startMs = systemClock.monotonicMs();
  await using all = new AsyncDisposableStack();
  const fleets: Engines[] = [];
  for (let number = 0; number < clients; number++) {
    fleets.push(await player.connect(number, all));
  }
  await options.onConnected?.();
  const run = async (engines: Engines) => {
    for (let request = await feed.next(); request !== null; request = await feed.next()) {
      await player.serve(request, engines);
    }
  };
  await Promise.all(fleets.map(run));
  const seconds = (systemClock.monotonicMs() - startMs) / 1_000;
  return {
    ...summarise(tally, { trace: trace.name, blockBytes, seconds, clients }),
    ...player.summary(),
  };
}

class Player {
  readonly #native: Native;
  readonly #options: ClusterReplayOptions;
  readonly #manifest: NamespaceManifest;
  readonly #namespaceKey: Uint8Array;
  readonly #tally: ReplayTally;
  readonly #routeNs = new Durations();
  readonly #tokens = new Map<string, number>();
  #nextId = 1;

  constructor(
    native: Native,
    options: ClusterReplayOptions,
    manifest: NamespaceManifest,
    tally: ReplayTally,
  ) {
    this.#native = native;
    this.#options = options;
    this.#manifest = manifest;
    this.#namespaceKey = namespaceKey(native, manifest);
    this.#tally = tally;
  }

  async connect(number: number, all: AsyncDisposableStack): Promise<Engines> {
    const { sockets, blockBytes } = this.#options;
    const engines = new Map<string, MockEngine>();
    for (const [worker, socketPath] of sockets) {
      const engine = await MockEngine.connect(
        this.#native,
        {
          ...{ blockBytes, socketPath, storeTimeoutMs: 0, name: `cluster-${number}` },
          manifest: encodeManifest(this.#manifest),
          namespaceKey: this.#namespaceKey,
        },
        this.#tally,
      );
      engines.set(worker, all.use(engine));
      this.#tokens.set(worker, 0);
    }
    return engines;
  }

  async serve(request: TraceRequest, engines: Engines): Promise<void> {
    const { dispatcher, trace, onProgress, signal } = this.#options;
    const requestId = `trace-${this.#nextId++}`;
    const hashes = traceHashes(this.#native, this.#namespaceKey, request.blocks);
    const { blockTokens } = trace;
    const start = Bun.nanoseconds();
    const worker = await dispatcher.route({
      ...{ requestId, model: this.#manifest.model, hashes, blockTokens },
      promptTokens: request.inputTokens,
    });
    this.#routeNs.add(Bun.nanoseconds() - start);
    this.#tokens.set(worker, this.#tokens.get(worker)! + request.inputTokens);
    await engines.get(worker)!.serve(request);
    await dispatcher.ended(requestId);
    onProgress?.(this.#tally);
    // Yield to the event loop, so that signals are handled.
    if (signal !== undefined) await sleep(systemClock, 0, signal);
  }

  summary() {
    return {
      /** Number of prompt tokens of each worker. */
      tokens_by_worker: Object.fromEntries(this.#tokens),
      route_p50_us: Math.round(this.#routeNs.quantileUs(0.5)),
      route_p99_us: Math.round(this.#routeNs.quantileUs(0.99)),
    };
  }
}

/**
 * Returns the sequence hashes of blocks as in agents' events: the first eight bytes of each block's
 * key.
 */
export function traceHashes(native: Native, key: Uint8Array, blocks: Uint32Array): BigUint64Array {
  const ids = new BigUint64Array(blocks.length);
  for (const [at, id] of blocks.entries()) ids[at] = BigInt(id);
  const digests = new Uint8Array(blocks.length * DIGEST_BYTES);
  native.chainDigests(key, new Uint8Array(ids.buffer), 8, digests);
  const keys = new Uint8Array(digests.length);
  if (blocks.length > 0) native.blockKeys(digests, LAYER_ALL, keys);
  const words = new DataView(keys.buffer);
  return BigUint64Array.from(ids, (_, at) => words.getBigUint64(at * DIGEST_BYTES, true));
}
