import {
  booleanKind,
  choiceKind,
  durationKind,
  integerKind,
  orOff,
  ratioKind,
  sizeKind,
} from "../kinds.ts";
import { workerIdKind, workerIdOfHostname } from "../sections/node.ts";
import { type KeySpec, optional, section, withDefault } from "../spec.ts";

const DAY_MS = 86_400_000;
const WEIGHT_MAX = 1_000;

/** A number without a unit. */
function weight(key: string, standard: number, doc: string, max = WEIGHT_MAX) {
  const kind = { ...ratioKind({ min: 0, max }), name: "number" };
  return withDefault({ key, kind, standard, reload: false, doc });
}

const id: KeySpec<string> = {
  key: "id",
  kind: workerIdKind,
  standard: {
    is: "derived",
    words: "the host name, with every other character replaced by -",
    needs: [],
    from: ({ facts }) => workerIdOfHostname(facts.hostname) ?? undefined,
  },
  reload: false,
  doc:
    "The name of this router in logs and among its replicas. Two routers of one host need " +
    "different ones.",
  example: "router-01",
};

const mode = withDefault({
  key: "mode",
  kind: choiceKind(["kv", "round-robin", "random", "direct", "least-loaded"]),
  standard: "kv",
  reload: false,
  doc:
    "How a worker is chosen. `kv`: the lowest cost of what is cached, what is to be computed and " +
    "what is at work. `direct`: the worker that the request names. A request may override it.",
});

const cost = withDefault({
  key: "cost",
  kind: choiceKind(["credits", "classic"]),
  standard: "credits",
  reload: false,
  doc:
    "The formula of `kv`. `credits`: prefill less a credit for each cached block, plus active " +
    "blocks (Dynamo's today). `classic`: overlap_score_weight x prefill blocks + decode blocks.",
});

const kvEvents = withDefault({
  key: "kv_events",
  kind: booleanKind,
  standard: true,
  reload: false,
  doc:
    "Whether what workers hold is known from their events. Off: it is predicted from where " +
    "requests went (`ttl`, `max_tree_size`, `prune_target_ratio`).",
});

const shareKind = ratioKind({ min: 0, max: 1 });

const activeDecodeBlocksThreshold = optional({
  key: "active_decode_blocks_threshold",
  kind: shareKind,
  reload: false,
  doc:
    "Share of a worker's KV blocks in use above which it is busy and gets no requests. Unset: " +
    "none is busy by blocks. `/busy_threshold` changes it at run time, model by model.",
  example: 0.85,
});

const activePrefillTokensThreshold = optional({
  key: "active_prefill_tokens_threshold",
  kind: integerKind({ min: 0, max: Number.MAX_SAFE_INTEGER }),
  reload: false,
  doc:
    "Prompt tokens that wait for a worker's prefill, above which it is busy. Unset: none is busy " +
    "by prefill. `/busy_threshold` changes it at run time, model by model.",
  example: 10_000,
});

function duration(key: string, standard: string, doc: string) {
  const kind = durationKind({ min: 1, max: 365 * DAY_MS, example: standard });
  return withDefault({ key, kind, standard, reload: false, doc });
}

function count(key: string, standard: number, doc: string, min = 1, max = 2 ** 31) {
  const kind = integerKind({ min, max });
  return withDefault({ key, kind, standard, reload: false, doc });
}

function toggle(key: string, standard: boolean, doc: string) {
  return withDefault({ key, kind: booleanKind, standard, reload: false, doc });
}

const prediction = {
  ttlMs: duration("ttl", "120s", "How long a predicted block counts as held; without events."),
  maxTreeSize: count(
    "max_tree_size",
    2 ** 20,
    "Predicted blocks above which the least recently used ones are forgotten; without events.",
  ),
  pruneTargetRatio: withDefault({
    key: "prune_target_ratio",
    kind: ratioKind({ min: 0.01, max: 1 }),
    standard: 0.8,
    reload: false,
    doc: "Down to this share of `max_tree_size` predicted blocks are then forgotten.",
  }),
  besideEventsMs: withDefault({
    key: "predict_beside_events",
    kind: orOff(durationKind({ min: 1, max: DAY_MS, example: "2s" })),
    standard: "2s",
    reload: false,
    doc:
      "How long a routed prompt counts as held before the worker's events say so, so that a " +
      'burst of equal prompts goes to one worker. "off": events alone count.',
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
    "Whether prompt tokens that are not computed yet count as load.",
  ),
  activeDecodeBlocksThreshold,
  activePrefillTokensThreshold,
  queueRequests: count(
    "queue_requests",
    1_024,
    "Requests that may wait while all workers are busy; 0: they are refused at once.",
    0,
    1_000_000,
  ),
  queueWaitMs: duration("queue_wait", "10s", "How long a request waits for a worker at most."),
  requestExpiryMs: duration(
    "request_expiry",
    "300s",
    "A request that nobody frees and nothing is heard of counts no longer than this.",
  ),
};

const affinity = {
  sessionAffinityTtlMs: withDefault({
    key: "session_affinity_ttl",
    kind: orOff(durationKind({ min: 1_000, max: 365 * DAY_MS, example: "10m" })),
    standard: "off",
    reload: false,
    doc:
      "How long after its latest request a session stays with its worker, where that is not much " +
      'dearer than the best one. "off": each request is decided by cost alone.',
  }),
  sessionAffinitySessions: count(
    "session_affinity_sessions",
    65_536,
    "Sessions whose worker is remembered; beyond it the one unused for longest is forgotten.",
  ),
  sessionAffinityExtraCost: weight(
    "session_affinity_extra_cost",
    64,
    "A session leaves its worker where that costs more than this above the best one, in blocks.",
    1_000_000,
  ),
};

export const routerSection = section("How a worker is chosen for a request.", {
  id,
  mode,
  cost,
  overlapScoreWeight: weight("overlap_score_weight", 1, "`classic`: weight of prefill blocks."),
  overlapCredit: weight("overlap_credit", 1, "`credits`: credit of a block held on the device."),
  creditDecay: weight(
    "credit_decay",
    0,
    "`credits`: how fast that credit fades on a worker with more prefill to do than the others.",
  ),
  hostCredit: weight("host_credit", 0.75, "`credits`: credit of a block held in host memory."),
  diskCredit: weight("disk_credit", 0.25, "`credits`: credit of a block held on disk."),
  prefillLoadScale: weight("prefill_load_scale", 1, "`credits`: weight of the prefill part."),
  activeRequestWeight: weight(
    "active_request_weight",
    0,
    "`credits`: what a request that a worker is at work on costs beside its blocks.",
  ),
  temperature: weight(
    "temperature",
    0,
    "0: the lowest cost wins. Above: chance decides, cheaper workers being likelier (softmax).",
  ),
  blockTokens: count(
    "block_tokens",
    16,
    "Tokens in a block of the cost formula. Workers may have others; overlap counts in tokens.",
    1,
    65_536,
  ),
  kvEvents,
  ...prediction,
  ...load,
  ...affinity,
  explanations: count(
    "explanations",
    4_096,
    "Decisions that are kept to be explained (`/v1/explain/ID`), the latest ones.",
    0,
    1_000_000,
  ),
});

const switchKind = choiceKind(["off", "dry-run", "on"]);

function policy(key: string, doc: string) {
  const more = "`dry-run` only says, in explanations and metrics, what it would send.";
  return withDefault({ key, kind: switchKind, standard: "off", reload: true, doc: doc + more });
}

export const policiesSection = section("What the router tells agents to do, by itself.", {
  coldWorker: policy(
    "cold_worker",
    "A worker that is new or empty is told to warm what its requests are likely to need. ",
  ),
  idleSession: policy(
    "idle_session",
    "A session from which nothing came for a while is paused: its blocks move to SSD. ",
  ),
  cacheControl: policy(
    "cache_control",
    "What API messages mark with `cache_control` is kept for a time, within a budget. ",
  ),
  reasoning: policy("reasoning", "Blocks of reasoning are marked as transient. "),
  contextRewrite: policy(
    "context_rewrite",
    "Where a session's next prompt departs from the one before, what it left is pruned. ",
  ),
  warmBytes: withDefault({
    key: "warm_bytes",
    kind: sizeKind({ min: 2 ** 20, max: 2 ** 42, example: "16GiB" }),
    standard: "16GiB",
    reload: false,
    doc: "What a cold worker is told to warm, in all.",
  }),
  idleAfterMs: withDefault({
    key: "idle_after",
    kind: durationKind({ min: 1_000, max: 86_400_000, example: "2m" }),
    standard: "2m",
    reload: false,
    doc: "A session without a request for so long is idle.",
  }),
  leaseTtlMs: withDefault({
    key: "lease_ttl",
    kind: durationKind({ min: 10_000, max: 604_800_000, example: "1h" }),
    standard: "1h",
    reload: false,
    doc: "How long an idle session's blocks are kept; agents may grant less (`lease_ttl_max`).",
  }),
  pinTtlMs: withDefault({
    key: "pin_ttl",
    kind: durationKind({ min: 1_000, max: 3_600_000, example: "5m" }),
    standard: "5m",
    reload: false,
    doc: "How long what a message marks is kept from its last use, where the mark does not say.",
  }),
  pinOwnerTokens: withDefault({
    key: "pin_owner_tokens",
    kind: integerKind({ min: 0, max: Number.MAX_SAFE_INTEGER }),
    standard: 2 ** 20,
    reload: false,
    doc: "Tokens that marks of one owner keep on one worker; what comes beyond it is declined.",
  }),
  pinWorkerTokens: withDefault({
    key: "pin_worker_tokens",
    kind: integerKind({ min: 0, max: Number.MAX_SAFE_INTEGER }),
    standard: 2 ** 22,
    reload: false,
    doc: "The same for all owners together.",
  }),
  rewriteAfterMs: withDefault({
    key: "rewrite_after",
    kind: durationKind({ min: 1_000, max: 86_400_000, example: "5m" }),
    standard: "5m",
    reload: false,
    doc: "What a session left is pruned when it was not taken up again for so long.",
  }),
});
