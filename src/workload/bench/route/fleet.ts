import type { WorkerId } from "../../../core/index.ts";
import type { IndexChange, PrefixIndex, Target, WorkerTable } from "../../../router/index.ts";
import { LeafLru, type Served } from "./leaf-lru.ts";
import type { SimulatedRequest, SimulatedTrace } from "./requests.ts";

export const MODEL = "simulated";

/** How long a simulated worker takes. */
export interface ServiceTimes {
  /** One prompt after the other; infinite: there are no queues. */
  readonly prefillTokensPerSecond: number;
  /** Of each request, whatever the others do. */
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

/** Tells the index what serving a prompt changed, as the worker's own events would. */
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

/** When a worker has computed what it must of a prompt, and when it has answered. */
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
