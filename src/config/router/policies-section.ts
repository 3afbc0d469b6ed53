import { choiceKind, durationKind, integerKind, sizeKind } from "../kinds.ts";
import { section, withDefault } from "../spec.ts";

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
