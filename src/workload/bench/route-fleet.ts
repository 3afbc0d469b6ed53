import type { WorkerId } from "../../core/index.ts";
import type { IndexChange, PrefixIndex, Target, WorkerTable } from "../../router/index.ts";
import type { SimulatedRequest, SimulatedTrace } from "./route-bench.ts";

export const MODEL = "simulated";

/** How long a simulated worker takes. */
export interface ServiceTimes {
  /** One prompt after the other; infinite: there are no queues. */
  readonly prefillTokensPerSecond: number;
  /** Decode speed of each request, independent of other requests. */
  readonly decodeTokensPerSecond: number;
}

export interface SimulatedWorker {
  readonly cache: LeafLru;
  target: Target;
  promptTokens: number;
  requests: number;
  /** When it has computed all prompts it was given. */
  idleFromMs: number;
}

export function makeWorkers(
  table: WorkerTable,
  trace: SimulatedTrace,
  count: number,
  capacity: number,
): SimulatedWorker[] {
  return Array.from({ length: count }, (_, number) => {
    const target = table.put({
      worker: `worker-${number}` as WorkerId,
      rank: 0,
      model: MODEL,
      role: "both",
      url: null,
      totalBlocks: capacity,
      batchTokensMax: null,
      spaces: [{ kind: "tokens", model: MODEL, blockTokens: trace.blockTokens }],
    });
    const cache = new LeafLru(capacity, trace.distinct);
    return { cache, target, promptTokens: 0, requests: 0, idleFromMs: 0 };
  });
}

export function hashesOf(trace: SimulatedTrace, request: SimulatedRequest): BigUint64Array {
  return BigUint64Array.from(request.blocks, (block) => trace.hashes[block]!);
}

/** Publishes the changes of serving a prompt to the index, as the worker's events would. */
export function tell(
  index: PrefixIndex,
  { id }: Target,
  trace: SimulatedTrace,
  hashes: BigUint64Array,
  { stored, evicted }: Served,
): void {
  const changes: IndexChange[] = [];
  if (evicted.length > 0) {
    const gone = BigUint64Array.from(evicted, (block) => trace.hashes[block]!);
    changes.push({ target: id, change: { kind: "removed", tier: "device", hashes: gone } });
  }
  for (let from = 0; from < stored.length; ) {
    let to = from + 1;
    while (to < stored.length && stored[to] === stored[to - 1]! + 1) to++;
    const first = stored[from]!;
    const run = hashes.slice(first, stored[to - 1]! + 1);
    const parent = first === 0 ? null : hashes[first - 1]!;
    const change = {
      kind: "stored",
      tier: "device",
      parent,
      hashes: run,
      tokenHashes: null,
    } as const;
    changes.push({ target: id, change });
    from = to;
  }
  if (changes.length > 0) index.apply(changes);
}

/** Times at which a worker has computed the rest of a prompt, and completed its answer. */
export function serviceOf(
  worker: SimulatedWorker,
  request: SimulatedRequest,
  uncachedTokens: number,
  nowMs: number,
  times: ServiceTimes,
): { readonly prefilledMs: number; readonly endMs: number } {
  const startMs = Math.max(nowMs, worker.idleFromMs);
  const prefilledMs = startMs + (uncachedTokens * 1_000) / times.prefillTokensPerSecond;
  worker.idleFromMs = prefilledMs;
  const endMs = prefilledMs + (request.outputTokens * 1_000) / times.decodeTokensPerSecond;
  return { prefilledMs, endMs };
}

/** Changes that one prompt made in a cache: first the evicted blocks, then the stored ones. */
interface Served {
  /** Leading blocks that were there. */
  readonly hits: number;
  /** Places in the prompt, rising. */
  readonly stored: readonly number[];
  readonly evicted: readonly number[];
}

/**
 * A worker's cache of whole blocks: least recently used, a prompt used from its last block to its
 * first, so that leaves go first (the rule of the traces' own figures).
 */
export class LeafLru {
  readonly #capacity: number;
  readonly #older: Int32Array;
  readonly #newer: Int32Array;
  readonly #isHeld: Uint8Array;
  #oldest = -1;
  #newest = -1;
  #size = 0;

  /** `distinct`: every block's number is below it. */
  constructor(capacity: number, distinct: number) {
    this.#capacity = capacity;
    this.#older = new Int32Array(distinct);
    this.#newer = new Int32Array(distinct);
    this.#isHeld = new Uint8Array(distinct);
  }

  leading(blocks: Uint32Array): number {
    let hits = 0;
    while (hits < blocks.length && this.#isHeld[blocks[hits]!] === 1) hits++;
    return hits;
  }

  serve(blocks: Uint32Array): Served {
    const hits = this.leading(blocks);
    const stored: number[] = [];
    const evicted: number[] = [];
    for (let at = blocks.length - 1; at >= 0; at--) {
      const block = blocks[at]!;
      if (this.#isHeld[block] === 1) {
        this.#unlink(block);
      } else {
        if (this.#size === this.#capacity) evicted.push(this.#evict());
        this.#isHeld[block] = 1;
        this.#size++;
        stored.push(at);
      }
      this.#append(block);
    }
    // A prompt may push out its own blocks.
    return {
      hits,
      stored: stored.reverse().filter((at) => this.#isHeld[blocks[at]!] === 1),
      evicted: evicted.filter((block) => this.#isHeld[block] === 0),
    };
  }

  #evict(): number {
    const block = this.#oldest;
    this.#unlink(block);
    this.#isHeld[block] = 0;
    this.#size--;
    return block;
  }

  #append(block: number): void {
    this.#older[block] = this.#newest;
    this.#newer[block] = -1;
    if (this.#newest === -1) this.#oldest = block;
    else this.#newer[this.#newest] = block;
    this.#newest = block;
  }

  #unlink(block: number): void {
    const [older, newer] = [this.#older[block]!, this.#newer[block]!];
    if (older === -1) this.#oldest = newer;
    else this.#newer[older] = newer;
    if (newer === -1) this.#newest = older;
    else this.#older[newer] = older;
  }
}
