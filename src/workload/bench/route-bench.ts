import { HearthError, SimulatedClock, seededRandom } from "../../core/index.ts";
import { loadNative } from "../../native/index.ts";
import { mixHash } from "../../observability/activity/index.ts";
import {
  ActiveLoad,
  type PrefixIndex,
  ROUTER_DEFAULTS,
  Router,
  type RouterMode,
  type RouterSettings,
  WorkerTable,
} from "../../router/index.ts";
import type { Trace } from "../traces/index.ts";
import { flattenTrace } from "./flat-trace.ts";
import { quantile, rounded, yieldOrAbort } from "./measure.ts";
import {
  hashesOf,
  LeafLru,
  MODEL,
  makeWorkers,
  type ServiceTimes,
  type SimulatedWorker,
  serviceOf,
  tell,
} from "./route-fleet.ts";

export const ROUTE_POLICIES = [
  "round-robin",
  "random",
  "kv-defaults",
  "kv",
  "longest-prefix",
  "pooled",
] as const;
export type RoutePolicy = (typeof ROUTE_POLICIES)[number];

export interface RouteBenchOptions {
  readonly trace: Trace;
  readonly workers: number;
  /** Capacity of each worker's cache, in blocks of the trace. */
  readonly capacity: number;
  readonly policies: readonly RoutePolicy[];
  /** Router settings for the policy `kv`, with the block size of the trace. */
  readonly settings: RouterSettings;
  readonly service: ServiceTimes;
  readonly seed: number;
  /** Creates an empty prefix index; called for each run. */
  readonly makeIndex: () => PrefixIndex;
  readonly onProgress?: (policy: RoutePolicy, done: number, total: number) => void;
  readonly signal?: AbortSignal;
}

/** Result of one policy, under the names in the printed JSON. */
export type RouteRow = ReturnType<typeof rowOf>;

interface Tally {
  asked: number;
  hit: number;
  askedTokens: number;
  hitTokens: number;
  readonly prefilledMs: number[];
}

/** Returns the index of the worker for request `number`. */
type Place = (request: SimulatedRequest, hashes: BigUint64Array, number: number) => number;

const SLICE_REQUESTS = 200;

/**
 * Replays a trace on simulated workers, each a cache that evicts leaves first (LRU), once for each
 * policy, from empty caches. `round-robin`, `random` and `kv` are modes of the real router, which
 * receives the workers' events (`kv-defaults`: with its default costs). The other two are the rules
 * with which the traces' publishers measured: longest prefix within a range of load, and one cache
 * with the capacity of all workers. A partial last block counts as a whole one.
 */
export async function benchRoute(options: RouteBenchOptions) {
  const trace = await readRequests(options.trace, options.signal);
  const rows: RouteRow[] = [];
  for (const policy of options.policies) rows.push(await runPolicy(options, trace, policy));
  const pooled = rows.find(({ policy }) => policy === "pooled")?.hit_ratio ?? null;
  if (pooled === null || pooled === 0) return rows;
  return rows.map((row) => ({ ...row, of_pooled: rounded(row.hit_ratio / pooled, 4) }));
}

async function runPolicy(options: RouteBenchOptions, trace: SimulatedTrace, policy: RoutePolicy) {
  const tally = newTally();
  if (policy === "pooled") {
    const cache = new LeafLru(options.capacity * options.workers, trace.distinct);
    for (const request of trace.requests) {
      count(tally, trace, request, cache.serve(request.blocks).hits);
    }
    return rowOf(options, trace, policy, tally, null);
  }
  const clock = new SimulatedClock();
  const table = new WorkerTable();
  const workers = makeWorkers(table, trace, options.workers, options.capacity);
  using index = options.makeIndex();
  using router =
    policy === "longest-prefix"
      ? null
      : openRouter(options, trace, { clock, table, index }, policy);
  const place = router === null ? longestPrefix(workers) : placeBy(router);
  await simulate(options, trace, policy, { clock, index, router, workers, tally, place });
  return rowOf(options, trace, policy, tally, workers);
}

function openRouter(
  { settings, seed }: RouteBenchOptions,
  { blockTokens }: SimulatedTrace,
  parts: { clock: SimulatedClock; table: WorkerTable; index: PrefixIndex },
  policy: RoutePolicy & (RouterMode | "kv-defaults"),
): Router & Disposable {
  const { clock } = parts;
  const { requestExpiryMs } = settings;
  const mode = policy === "kv-defaults" ? "kv" : policy;
  const cost = policy === "kv-defaults" ? ROUTER_DEFAULTS.cost : settings.cost;
  return new Router({
    ...parts,
    random: seededRandom(seed),
    native: loadNative(),
    settings: { ...settings, cost, blockTokens, mode },
    load: new ActiveLoad({ clock, blockTokens, requestExpiryMs }),
  });
}

function placeBy(router: Router): Place {
  return ({ inputTokens }, hashes, number) => {
    const outcome = router.bestWorkerNow({
      model: MODEL,
      prompt: { kind: "hashes", hashes, tokens: inputTokens },
      requestId: String(number),
    });
    if (outcome.kind !== "routed") throw new HearthError("INTERNAL", `not routed: ${outcome.why}`);
    return outcome.target.id;
  };
}

async function simulate(
  { service, signal, onProgress }: RouteBenchOptions,
  trace: SimulatedTrace,
  policy: RoutePolicy,
  run: {
    clock: SimulatedClock;
    index: PrefixIndex;
    router: Router | null;
    workers: readonly SimulatedWorker[];
    tally: Tally;
    place: Place;
  },
): Promise<void> {
  const { clock, index, router, workers, tally, place } = run;
  for (const [number, request] of trace.requests.entries()) {
    clock.moveTo(request.arrivalMs);
    const hashes = hashesOf(trace, request);
    const worker = workers[place(request, hashes, number)];
    const served = worker.cache.serve(request.blocks);
    const hitTokens = count(tally, trace, request, served.hits);
    worker.promptTokens += request.inputTokens;
    worker.requests++;
    tell(index, worker.target, trace, hashes, served);
    const uncached = request.inputTokens - hitTokens;
    const { prefilledMs, endMs } = serviceOf(
      worker,
      request,
      uncached,
      clock.monotonicMs(),
      service,
    );
    tally.prefilledMs.push(prefilledMs - request.arrivalMs);
    if (router !== null) {
      const id = String(number);
      clock.after(prefilledMs - clock.monotonicMs(), () => router.markPrefillComplete(id));
      clock.after(endMs - clock.monotonicMs(), () => router.free(id));
    }
    if (number % SLICE_REQUESTS !== 0) continue;
    onProgress?.(policy, number, trace.requests.length);
    await yieldOrAbort(signal);
  }
}

function newTally(): Tally {
  return { asked: 0, hit: 0, askedTokens: 0, hitTokens: 0, prefilledMs: [] };
}

/** Returns the tokens of the blocks that hit. */
function count(
  tally: Tally,
  { blockTokens }: SimulatedTrace,
  { inputTokens, blocks }: SimulatedRequest,
  hits: number,
): number {
  const hitTokens = Math.min(hits * blockTokens, inputTokens);
  tally.asked += blocks.length;
  tally.hit += hits;
  tally.askedTokens += inputTokens;
  tally.hitTokens += hitTokens;
  return hitTokens;
}

function rowOf(
  { workers: count, capacity }: RouteBenchOptions,
  trace: SimulatedTrace,
  policy: RoutePolicy,
  tally: Tally,
  workers: readonly SimulatedWorker[] | null,
) {
  const hasTimes = workers !== null;
  return {
    trace: trace.name,
    policy,
    workers: count,
    capacity,
    requests: trace.requests.length,
    hit_ratio: rounded(tally.hit / Math.max(tally.asked, 1), 4),
    /** Hit ratio of tokens instead of blocks. */
    hit_ratio_tokens: rounded(tally.hitTokens / Math.max(tally.askedTokens, 1), 4),
    /**
     * Hit ratio divided by the hit ratio of one cache with the capacity of all workers; null if
     * `pooled` was not run.
     */
    of_pooled: null,
    /**
     * Prompt tokens of the worker with the most divided by the mean of all; null if there is one
     * cache.
     */
    load_spread: workers === null ? null : rounded(spreadOf(workers), 4),
    /**
     * Median simulated milliseconds from a request's arrival to the end of its prefill; null
     * without times.
     */
    prefilled_p50_ms: hasTimes ? Math.round(quantile(tally.prefilledMs, 0.5)) : null,
    prefilled_p99_ms: hasTimes ? Math.round(quantile(tally.prefilledMs, 0.99)) : null,
  };
}

function spreadOf(workers: readonly SimulatedWorker[]): number {
  const tokens = workers.map(({ promptTokens }) => promptTokens);
  const mean = tokens.reduce((sum, each) => sum + each, 0) / tokens.length;
  return mean === 0 ? 1 : Math.max(...tokens) / mean;
}

export interface SimulatedRequest {
  readonly arrivalMs: number;
  readonly inputTokens: number;
  readonly outputTokens: number;
  /** Block numbers from 0 without gaps. A number identifies a block and all blocks before it. */
  readonly blocks: Uint32Array;
}

export interface SimulatedTrace {
  readonly name: string;
  readonly blockTokens: number;
  readonly requests: readonly SimulatedRequest[];
  readonly distinct: number;
  /** A value for each block number that takes the place of its sequence hash. */
  readonly hashes: BigUint64Array;
}

/** Reads a whole trace. Throws TRACE_INVALID if it is broken, LIMIT if it is too large. */
async function readRequests(trace: Trace, signal?: AbortSignal): Promise<SimulatedTrace> {
  const seen: Omit<SimulatedRequest, "blocks">[] = [];
  const { blocks, ends, distinct } = await flattenTrace(trace, signal, (request) => {
    const { arrivalMs, inputTokens, outputTokens } = request;
    seen.push({ arrivalMs, inputTokens, outputTokens });
  });
  const requests = seen.map((request, at) => ({
    ...request,
    blocks: blocks.subarray(at === 0 ? 0 : ends[at - 1], ends[at]),
  }));
  const hashes = new BigUint64Array(distinct);
  for (let block = 0; block < distinct; block++) hashes[block] = mixHash(BigInt(block + 1));
  const { name, blockTokens } = trace;
  return { name, blockTokens, requests: spread(requests), distinct, hashes };
}

/**
 * Spreads requests with equal times evenly until the next time, because the traces' clocks are
 * coarse.
 */
function spread(requests: readonly SimulatedRequest[]): readonly SimulatedRequest[] {
  const even: SimulatedRequest[] = [];
  for (let from = 0; from < requests.length; ) {
    const { arrivalMs } = requests[from];
    let to = from + 1;
    while (to < requests.length && requests[to].arrivalMs === arrivalMs) to++;
    const stepMs = ((requests[to]?.arrivalMs ?? arrivalMs) - arrivalMs) / (to - from);
    for (let at = from; at < to; at++) {
      even.push({ ...requests[at], arrivalMs: arrivalMs + stepMs * (at - from) });
    }
    from = to;
  }
  return even;
}

const SHARE = 0.1;
const SLACK_TOKENS = 200_000;

/**
 * Returns the placement rule of the traces' publishers: the worker with the most leading blocks,
 * among those whose assigned prompt tokens are within 10 % and 200,000 tokens of the mean; on a tie
 * the one with the fewest assigned tokens.
 */
function longestPrefix(workers: readonly SimulatedWorker[]): (request: SimulatedRequest) => number {
  let assigned = 0;
  return ({ blocks, inputTokens }) => {
    const most = (assigned / workers.length) * (1 + SHARE) + SLACK_TOKENS;
    let [best, bestHits] = [-1, -1];
    for (const [place, worker] of workers.entries()) {
      if (worker.promptTokens > most) continue;
      const hits = worker.cache.leading(blocks);
      const isLess = best >= 0 && worker.promptTokens < workers[best].promptTokens;
      if (hits > bestHits || (hits === bestHits && isLess)) [best, bestHits] = [place, hits];
    }
    assigned += inputTokens;
    return best;
  };
}
