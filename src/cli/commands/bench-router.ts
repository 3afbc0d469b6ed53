import {
  type Clock,
  choiceKind,
  integerKind,
  listKind,
  numberKind,
  seededRandom,
  sizeKind,
} from "../../core/index.ts";
import { loadNative } from "../../native/index.ts";
import { NativeIndex, ROUTER_DEFAULTS, type RouterSettings } from "../../router/index.ts";
import {
  benchDecide,
  benchPrefix,
  benchRoute,
  loadHttp,
  ROUTE_POLICIES,
} from "../../workload/bench/index.ts";
import { PrivateRouter } from "../../workload/replay/index.ts";
import { bundledTrace, openTrace, type Trace } from "../../workload/traces/index.ts";
import { defineCommand, fileKind, jsonFlag, optional, withDefault } from "../command.ts";
import { printMeasured, printRows } from "../terminal.ts";

const ROUTE_INDEX_BYTES = 2 ** 30;

export const benchRouteCommand = defineCommand({
  description: [
    "Routes a trace to simulated workers, each with a leaf-first LRU cache, once for each " +
      "policy. Reports the share of cached blocks, and the balance of prompt tokens.",
    `Policies: ${ROUTE_POLICIES.join(", ")}. The first four are the router as it ships, fed by ` +
      "the workers' events; kv-defaults has its default costs, kv those of the flags. " +
      "longest-prefix knows every cache and takes the deepest prefix within a band of load; " +
      "pooled is one cache with the room of all.",
    "A request is active until its answer is complete. Without --prefill-tokens-per-second " +
      "prompts take no time, as in the traces' own figures; with it, a worker computes one " +
      "prompt after the other, and the router trades hits for shorter queues.",
  ],
  arguments: {},
  flags: {
    trace: optional(fileKind, "a trace; defaults to the bundled trace"),
    workers: withDefault(integerKind({ min: 1, max: 1024 }), 10, "how many workers"),
    capacity: withDefault(
      integerKind({ min: 1, max: 2 ** 24 }),
      5_859,
      "blocks of the trace that one worker holds",
    ),
    policy: optional(
      listKind(choiceKind(ROUTE_POLICIES)),
      "how workers are chosen; all if left out",
    ),
    overlapCredit: withDefault(numberKind({ min: 0 }), 2, "of kv: overlap_credit"),
    prefillLoadScale: withDefault(numberKind({ min: 0 }), 32, "of kv: prefill_load_scale"),
    temperature: withDefault(numberKind({ min: 0 }), 0, "of kv: temperature"),
    prefillTokensPerSecond: optional(
      integerKind({ min: 1 }),
      "of one worker; no queues if left out",
    ),
    decodeTokensPerSecond: withDefault(integerKind({ min: 1 }), 30, "of one request"),
    seed: withDefault(integerKind({ min: 0, max: 2 ** 32 - 1 }), 1, "of the random numbers"),
    json: jsonFlag,
  },
  examples: [
    {
      words: "bench route --trace conversation.jsonl.gz --workers 10 --capacity 5859",
      what: "ten workers of 3 million tokens each",
    },
    {
      words: "bench route --prefill-tokens-per-second 8000 --policy kv,longest-prefix --json",
      what: "with queues: hits against the time to the first token",
    },
  ],
  exits: ["interrupted"],
  async run({ flags, io, clock, interrupt }) {
    const signal = interrupt();
    const { overlapCredit, prefillLoadScale, temperature, workers, capacity, seed } = flags;
    const cost = { ...ROUTER_DEFAULTS.cost, kind: "credits", overlapCredit, prefillLoadScale };
    await printMeasured({ flags, io, clock }, async (onProgress) =>
      benchRoute({
        ...{ workers, capacity, seed, signal },
        trace: await traceOf(flags.trace),
        policies: flags.policy ?? ROUTE_POLICIES,
        settings: { ...ROUTER_DEFAULTS, cost: cost as RouterSettings["cost"], temperature },
        service: {
          prefillTokensPerSecond: flags.prefillTokensPerSecond ?? Number.POSITIVE_INFINITY,
          decodeTokensPerSecond: flags.decodeTokensPerSecond,
        },
        makeIndex: () => {
          const native = loadNative();
          return new NativeIndex({ native, random: seededRandom(1), bytesMax: ROUTE_INDEX_BYTES });
        },
        onProgress: (policy, done, total) => onProgress(`${policy}: ${done} of ${total}`),
      }),
    );
    return "ok";
  },
});

function traceOf(path: string | null): Promise<Trace> {
  return path === null ? bundledTrace() : openTrace(path);
}

export const benchPrefixCommand = defineCommand({
  description: [
    "Fills the router's prefix index with the blocks of workers that serve the prompts of a " +
      "trace, for as many users as needed, each block of the trace split into four. Then looks " +
      "prompts up, one by one and in batches, and finally removes all blocks, from the ends of " +
      "prompts. Measures calls of the index from TypeScript on one thread.",
    "bytes_per_holder_block: memory in use, for each pair of a block and a worker. " +
      "lookup_p50_ns, lookup_p99_ns: of single lookups. batch_lookup_ns: of each in a batch, " +
      "median. targets_per_lookup: how many workers the answer names. store_blocks_per_s, " +
      "remove_blocks_per_s: pairs.",
  ],
  arguments: {},
  flags: {
    trace: optional(fileKind, "the trace; defaults to the bundled trace"),
    workers: withDefault(integerKind({ min: 1, max: 65_536 }), 128, "how many workers"),
    heldBlocks: withDefault(
      integerKind({ min: 1, max: 10 ** 9 }),
      10_000_000,
      "pairs of a block and a worker, at least",
    ),
    memory: withDefault(
      sizeKind({ min: 4096, max: 2 ** 37 }),
      400_000_000,
      "that the index may use",
    ),
    blocks: withDefault(integerKind({ min: 1, max: 4096 }), 69, "of each prompt that is looked up"),
    lookups: withDefault(integerKind({ min: 1, max: 10 ** 8 }), 200_000, "of each way"),
    batch: withDefault(integerKind({ min: 1, max: 4096 }), 64, "prompts in one call"),
    removalBlocks: withDefault(integerKind({ min: 1, max: 4096 }), 1, "that one removal names"),
    json: jsonFlag,
  },
  examples: [
    { words: "bench prefix", what: "ten million pairs on 128 workers" },
    { words: "bench prefix --json --held-blocks 1000000", what: "a tenth of it, as JSON" },
  ],
  exits: ["hostCannot", "interrupted"],
  async run({ flags, io, clock, interrupt }) {
    const { trace, memory: bytesMax, blocks: promptBlocks, json: _, ...own } = flags;
    const random = seededRandom(1);
    using index = new NativeIndex({ native: loadNative(), random, bytesMax });
    await printMeasured({ flags, io, clock }, async (onProgress) =>
      benchPrefix({
        ...{ ...own, index, random, promptBlocks, onProgress },
        trace: await traceOf(trace),
        signal: interrupt(),
      }),
    );
    return "ok";
  },
});

const DECIDE_INDEX_BYTES = 2 ** 32;

export const benchDecideCommand = defineCommand({
  description: [
    "Measures decisions of the router in this process, from a prompt's tokens to the worker: " +
      "hashing, prefix lookup for each worker, costs, the choice, and recording it.",
    "Then queries a router in a separate process over HTTP, as fast as it answers.",
  ],
  arguments: {},
  flags: {
    workers: withDefault(integerKind({ min: 1, max: 4096 }), 128, "how many workers"),
    tokens: withDefault(integerKind({ min: 16, max: 2 ** 20 }), 15_000, "of each prompt"),
    live: withDefault(
      integerKind({ min: 1, max: 2 ** 16 }),
      1_024,
      "requests that are live at a time",
    ),
    heldBlocks: withDefault(
      integerKind({ max: 2 ** 22 }),
      20_000,
      "blocks of other prompts that each worker holds",
    ),
    decisions: withDefault(integerKind({ min: 1, max: 2 ** 24 }), 3_000, "how many are measured"),
    httpTokens: withDefault(integerKind({ min: 1, max: 2 ** 20 }), 1_000, "of prompts over HTTP"),
    httpSeconds: withDefault(
      integerKind({ max: 600 }),
      5,
      "how long HTTP is measured; 0: not at all",
    ),
    json: jsonFlag,
  },
  examples: [
    { words: "bench decide --workers 128 --json", what: "prompts of 15,000 tokens" },
    { words: "bench decide --workers 1024 --tokens 100000", what: "a large fleet, long prompts" },
  ],
  exits: ["interrupted"],
  async run({ flags, io, clock, interrupt }) {
    const signal = interrupt();
    const { workers, tokens, httpTokens, httpSeconds, json, ...own } = flags;
    const result = await benchDecide({
      ...{ ...own, clock, workers, signal },
      promptTokens: tokens,
      makeIndex: (native) => {
        return new NativeIndex({ native, random: seededRandom(2), bytesMax: DECIDE_INDEX_BYTES });
      },
    });
    const load = { clock, workers, promptTokens: httpTokens, ms: httpSeconds * 1_000, signal };
    const http = httpSeconds === 0 ? null : await routeOverHttp(load);
    printRows(io, [{ ...result, ...http }], json);
    return "ok";
  },
});

interface RouteOverHttpOptions {
  readonly clock: Clock;
  readonly workers: number;
  /** Tokens of each prompt. */
  readonly promptTokens: number;
  /** Duration of the measurement in milliseconds. */
  readonly ms: number;
  readonly signal: AbortSignal;
}

const MODEL = "bench";
const PROMPTS = 256;
const LIVE = 1_024;
const CONNECTIONS = 8;
const WARM_UP_MS = 1_000;
const VOCABULARY = 128_000;

/**
 * Measures `POST /v1/route` of a router in a separate process with one thread. Each request counts
 * as load until its id is used again. The router assumes that a worker caches the prompts it was
 * sent.
 */
async function routeOverHttp(options: RouteOverHttpOptions) {
  const { clock, workers, promptTokens, ms, signal } = options;
  await using router = await PrivateRouter.start({ settings: {}, signal });
  for (let number = 0; number < workers; number++) {
    const worker = JSON.stringify({ worker: `w-${number}`, model: MODEL });
    await router.post("/v1/workers", worker);
  }
  const bodies = promptBodies(promptTokens);
  const load = { clock, url: router.apiUrl, path: "/v1/route", bodies, signal };
  await loadHttp({ ...load, connections: CONNECTIONS, ms: WARM_UP_MS });
  const result = await loadHttp({ ...load, connections: CONNECTIONS, ms });
  return {
    http_prompt_tokens: promptTokens,
    http_connections: CONNECTIONS,
    http_route_per_s: result.perSecond,
    http_p50_ms: Number(result.p50Ms.toFixed(3)),
    http_p99_ms: Number(result.p99Ms.toFixed(3)),
  };
}

function promptBodies(promptTokens: number): string[] {
  const random = seededRandom(1);
  const prompts = Array.from({ length: PROMPTS }, () =>
    Array.from({ length: promptTokens }, () => random.u32() % VOCABULARY).join(","),
  );
  return Array.from({ length: LIVE }, (_, at) => {
    const tokens = prompts[at % PROMPTS];
    return `{"model":"${MODEL}","request_id":"r-${at}","tokens":[${tokens}]}`;
  });
}
