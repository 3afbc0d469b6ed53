import type { WorkerId } from "../../core/index.ts";
import type { IndexChange, PrefixIndex, Target, WorkerTable } from "../../router/index.ts";
import { createLists, type Lists } from "./policy-bench.ts";
import type { SimulatedRequest, SimulatedTrace } from "./route-bench.ts";

export const MODEL = "simulated";

/** Speeds of a simulated worker. */
export interface ServiceTimes {
  /**
   * Tokens per second of prompts, which are computed one after another. Infinite: there are no
   * queues.
   */
  readonly prefillTokensPerSecond: number;
  /** Tokens per second of each answer, independent of other requests. */
  readonly decodeTokensPerSecond: number;
}

export interface SimulatedWorker {
  readonly cache: LeafLru;
  target: Target;
  promptTokens: number;
  requests: number;
  /** Time at which the worker will have computed all its prompts, in milliseconds. */
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
  return BigUint64Array.from(request.blocks, (block) => trace.hashes[block]);
}

/** Applies the changes caused by serving a prompt to the index, as the worker's events would. */
export function tell(
  index: PrefixIndex,
  { id }: Target,
  trace: SimulatedTrace,
  hashes: BigUint64Array,
  { stored, evicted }: ReturnType<LeafLru["serve"]>,
): void {
  const changes: IndexChange[] = [];
  if (evicted.length > 0) {
    const gone = BigUint64Array.from(evicted, (block) => trace.hashes[block]);
    changes.push({ target: id, change: { kind: "removed", tier: "device", hashes: gone } });
  }
  for (let from = 0; from < stored.length; ) {
    let to = from + 1;
    while (to < stored.length && stored[to] === stored[to - 1] + 1) to++;
    const first = stored[from];
    const run = hashes.slice(first, stored[to - 1] + 1);
    const parent = first === 0 ? null : hashes[first - 1];
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

/**
 * Returns the times at which a worker has computed the rest of a prompt, and has completed its
 * answer.
 */
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

/**
 * A worker's LRU cache of whole blocks. The blocks of a prompt are used from the last to the first,
 * so that leaves are evicted first (the rule of the traces' publishers).
 */
export class LeafLru {
  readonly #capacity: number;
  readonly #lists: Lists;
  #size = 0;

  /** `distinct`: number of distinct blocks; every block number is lower. */
  constructor(capacity: number, distinct: number) {
    this.#capacity = capacity;
    this.#lists = createLists(distinct, 1);
  }

  leading(blocks: Uint32Array): number {
    return this.#lists.leading(blocks, 0, blocks.length);
  }

  /** Uses the blocks of a prompt. Evictions come first, then the stored blocks. */
  serve(blocks: Uint32Array) {
    const lists = this.#lists;
    const hits = this.leading(blocks);
    const stored: number[] = [];
    const evicted: number[] = [];
    for (let at = blocks.length - 1; at >= 0; at--) {
      const block = blocks[at];
      if (lists.has(block)) lists.remove(block);
      else {
        stored.push(at);
        if (this.#size < this.#capacity) this.#size++;
        else {
          evicted.push(lists.first(0));
          lists.remove(lists.first(0));
        }
      }
      lists.append(0, block);
    }
    // A prompt that is longer than the cache may evict its own blocks.
    return {
      /** Leading blocks that were there. */
      hits,
      /** Places in the prompt, rising. */
      stored: stored.reverse().filter((at) => lists.has(blocks[at])),
      evicted: evicted.filter((block) => !lists.has(block)),
    };
  }
}
