import { seededRandom } from "../../core/index.ts";
import { loadNative } from "../../native/index.ts";
import { createPrefixIndex, ROUTER_DEFAULTS, type RouterSettings } from "../../router/index.ts";
import { benchRoute, ROUTE_POLICIES } from "../../workload/bench/index.ts";
import { bundledTrace, openTrace } from "../../workload/traces/index.ts";
import { defineCommand } from "../command.ts";
import { jsonFlag, optional, withDefault } from "../flags.ts";
import { choice, decimal, integer, list, text } from "../kinds.ts";
import { printRows } from "../output.ts";
import { createProgress } from "../progress.ts";

const INDEX_BYTES = 2 ** 30;

export const command = defineCommand({
  description: [
    "Sends a trace through simulated workers, each a leaf-first LRU cache, once for each policy: " +
      "the share of blocks that were there, and how evenly prompt tokens were spread.",
    `Policies: ${ROUTE_POLICIES.join(", ")}. The first four are the router as it ships, fed by ` +
      "the workers' events; kv-defaults has its default costs, kv those of the flags. " +
      "longest-prefix knows every cache and takes the deepest prefix within a band of load; " +
      "pooled is one cache with the room of all.",
    "A request is active until its answer is out. Without --prefill-tokens-per-second prompts " +
      "take no time, as in the traces' own figures; with it a worker computes one prompt after " +
      "the other, and the router trades hits for shorter queues.",
  ],
  arguments: {},
  flags: {
    trace: optional(text("FILE"), "a trace; the bundled one where left out"),
    workers: withDefault(integer({ min: 1, max: 1024 }), 10, "how many workers"),
    capacity: withDefault(
      integer({ min: 1, max: 2 ** 24 }),
      5_859,
      "blocks of the trace that one worker holds",
    ),
    policy: optional(list(choice(ROUTE_POLICIES)), "how workers are chosen; all if left out"),
    overlapCredit: withDefault(decimal({ min: 0 }), 2, "of kv: overlap_credit"),
    prefillLoadScale: withDefault(decimal({ min: 0 }), 32, "of kv: prefill_load_scale"),
    temperature: withDefault(decimal({ min: 0 }), 0, "of kv: temperature"),
    prefillTokensPerSecond: optional(integer({ min: 1 }), "of one worker; no queues if left out"),
    decodeTokensPerSecond: withDefault(integer({ min: 1 }), 30, "of one request"),
    seed: withDefault(integer({ min: 0, max: 2 ** 32 - 1 }), 1, "of what is drawn"),
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
    const progress = createProgress({ io, clock, json: flags.json });
    const { overlapCredit, prefillLoadScale, temperature } = flags;
    const cost = { ...ROUTER_DEFAULTS.cost, kind: "credits", overlapCredit, prefillLoadScale };
    const rows = await benchRoute({
      trace: flags.trace === null ? await bundledTrace() : await openTrace(flags.trace),
      workers: flags.workers,
      capacity: flags.capacity,
      policies: flags.policy ?? ROUTE_POLICIES,
      settings: { ...ROUTER_DEFAULTS, cost: cost as RouterSettings["cost"], temperature },
      service: {
        prefillTokensPerSecond: flags.prefillTokensPerSecond ?? Number.POSITIVE_INFINITY,
        decodeTokensPerSecond: flags.decodeTokensPerSecond,
      },
      seed: flags.seed,
      makeIndex: () => {
        const native = loadNative();
        return createPrefixIndex({ native, random: seededRandom(1), bytesMax: INDEX_BYTES });
      },
      signal,
      onProgress: (policy, done, total) => progress.update(`${policy}: ${done} of ${total}`),
    });
    progress.end();
    printRows(
      io,
      rows.map((row) => ({ ...row })),
      flags.json,
    );
    return "ok";
  },
});
