import {
  booleanKind,
  choiceKind,
  durationKind,
  integerKind,
  numberKind,
  orOff,
} from "../../core/index.ts";
import { idKey } from "../sections/node.ts";
import { optional, section, withDefault } from "../spec.ts";

const DAY_MS = 86_400_000;
const WEIGHT_MAX = 1_000;

/** A number without a unit. */
function weight(key: string, defaultValue: number, doc: string, max = WEIGHT_MAX) {
  const kind = numberKind({ min: 0, max });
  return withDefault({ key, kind, defaultValue, doc });
}

const cost = withDefault({
  key: "cost",
  kind: choiceKind(["credits", "classic"]),
  defaultValue: "credits",
  doc:
    "Cost formula of `kv`. `credits`: prefill minus a credit for each cached block, plus active " +
    "blocks (Dynamo's current formula). `classic`: overlap_score_weight x prefill blocks + " +
    "decode blocks.",
});

const shareKind = numberKind({ min: 0, max: 1 }, "ratio");

function duration(key: string, defaultValue: string, doc: string) {
  const kind = durationKind({ min: 1, max: 365 * DAY_MS, example: defaultValue });
  return withDefault({ key, kind, defaultValue, doc });
}

function count(key: string, defaultValue: number, doc: string, min = 1, max = 2 ** 31) {
  const kind = integerKind({ min, max });
  return withDefault({ key, kind, defaultValue, doc });
}

function toggle(key: string, defaultValue: boolean, doc: string) {
  return withDefault({ key, kind: booleanKind, defaultValue, doc });
}

const prediction = {
  ttlMs: duration("ttl", "120s", "Time to live of a predicted block; only without events."),
  maxTreeSize: count(
    "max_tree_size",
    2 ** 20,
    "Maximum predicted blocks; above it the least recently used ones are pruned. Only without " +
      "events.",
  ),
  pruneTargetRatio: withDefault({
    key: "prune_target_ratio",
    kind: numberKind({ min: 0.01, max: 1 }, "ratio"),
    defaultValue: 0.8,
    doc: "Share of `max_tree_size` at which pruning stops.",
  }),
};

const load = {
  trackActiveBlocks: toggle(
    "track_active_blocks",
    true,
    "Whether blocks of live requests count as load. Off for workers that only prefill.",
  ),
  trackPrefillTokens: toggle(
    "track_prefill_tokens",
    true,
    "Whether prompt tokens waiting for prefill count as load.",
  ),
  activeDecodeBlocksThreshold: optional({
    key: "active_decode_blocks_threshold",
    kind: shareKind,
    doc:
      "Share of a worker's KV blocks in use above which it is busy and gets no requests. If " +
      "unset, blocks never make a worker busy. `/busy_threshold` changes it at run time for each " +
      "model.",
    example: 0.85,
  }),
  activePrefillTokensThreshold: optional({
    key: "active_prefill_tokens_threshold",
    kind: integerKind({ min: 0, max: Number.MAX_SAFE_INTEGER }),
    doc:
      "Prompt tokens waiting for prefill above which a worker is busy. If unset, prefill never " +
      "makes a worker busy. `/busy_threshold` changes it at run time for each model.",
    example: 10_000,
  }),
  queueRequests: count(
    "queue_requests",
    1_024,
    "Maximum requests that wait while all workers are busy; 0: refuse them at once.",
    0,
    1_000_000,
  ),
};

const affinity = {
  sessionAffinityTtlMs: withDefault({
    key: "session_affinity_ttl",
    kind: orOff(durationKind({ min: 1_000, max: 365 * DAY_MS, example: "10m" })),
    defaultValue: "off",
    doc:
      "Time after its latest request that a session stays with its worker, if that is not much " +
      'dearer than the best one. "off": each request is decided by cost alone.',
  }),
};

export const routerSection = section("Choice of a worker for a request.", {
  id: idKey(
    "The id of this router in logs and among its replicas. Two routers on one host need " +
      "different ids.",
    "router-01",
  ),
  mode: withDefault({
    key: "mode",
    kind: choiceKind(["kv", "round-robin", "random", "direct", "least-loaded"]),
    defaultValue: "kv",
    doc:
      "How to choose a worker. `kv`: lowest cost of cached blocks, prefill work and load. " +
      "`direct`: the worker that the request names. A request may override it.",
  }),
  cost,
  overlapScoreWeight: weight("overlap_score_weight", 1, "`classic`: weight of prefill blocks."),
  overlapCredit: weight("overlap_credit", 1, "`credits`: credit of a block cached on the device."),
  hostCredit: weight("host_credit", 0.75, "`credits`: credit of a block cached in host memory."),
  diskCredit: weight("disk_credit", 0.25, "`credits`: credit of a block cached on disk."),
  prefillLoadScale: weight("prefill_load_scale", 1, "`credits`: weight of the prefill part."),
  temperature: weight(
    "temperature",
    0,
    "0: the lowest cost wins. Above 0: a random choice that prefers cheaper workers (softmax).",
  ),
  blockTokens: count(
    "block_tokens",
    16,
    "Tokens per block in the cost formula. Workers may have other block sizes; overlap is " +
      "counted in tokens.",
    1,
    65_536,
  ),
  kvEvents: withDefault({
    key: "kv_events",
    kind: booleanKind,
    defaultValue: true,
    doc:
      "Whether the blocks of workers are known from their events. Off: they are predicted from " +
      "routed requests (`ttl`, `max_tree_size`, `prune_target_ratio`).",
  }),
  ...prediction,
  ...load,
  ...affinity,
});

const switchKind = choiceKind(["off", "dry-run", "on"]);

function policy(key: string, doc: string) {
  const more = "`dry-run` only reports in explanations and metrics what it would send.";
  return withDefault({ key, kind: switchKind, defaultValue: "off", reload: true, doc: doc + more });
}

export const policiesSection = section("Commands that the router sends to agents automatically.", {
  coldWorker: policy(
    "cold_worker",
    "Warm new or empty workers with the blocks that their requests are likely to need. ",
  ),
  idleSession: policy("idle_session", "Pause idle sessions: move their blocks to SSD. "),
  cacheControl: policy(
    "cache_control",
    "Retain content that API messages mark with `cache_control`, for a time and within a budget. ",
  ),
  reasoning: policy("reasoning", "Mark blocks of reasoning as transient. "),
  contextRewrite: policy(
    "context_rewrite",
    "Prune the blocks of a session that its next prompt no longer contains. ",
  ),
});
