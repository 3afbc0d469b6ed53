import { t } from "elysia";
import { COMMAND_LIMITS, JSON_TYPE, MSGPACK_TYPE } from "../control/index.ts";
import { COMMAND_OUTCOMES } from "../core/index.ts";
import { COMMAND_EXAMPLES, REJECTED_RECEIPT, RUNNING_RECEIPT } from "./command-examples.ts";
import { bytes, count, nullable, seconds } from "./fields.ts";
import { REJECTED_STATUSES } from "./receipt-answer.ts";

const { blocksMax, nameBytesMax, sourcesMax } = COMMAND_LIMITS;

const name = (description: string) =>
  t.String({ minLength: 1, maxLength: nameBytesMax, description });

export const blockName = t.Union(
  [
    t.Integer({ minimum: -(2 ** 63), maximum: 2 ** 64, description: "Engine hash of 64 bits" }),
    t.String({ description: "Page key or digest, 64 hex digits; `digest/layer`; an engine hash" }),
  ],
  { description: "A block" },
);
const blocks = t.Array(blockName, { maxItems: blocksMax });

const envelope = {
  id: t.Optional(name("A repetition changes nothing and gets the same receipt")),
  issuer: t.Optional(name("Who sends it; the caller's name unless given")),
  epoch: t.Optional(count("Refused where this issuer has shown a higher one")),
  seq: t.Optional(count("Refused unless above the last one of this issuer and epoch")),
  not_after: t.Optional(t.Number({ description: "Seconds since 1970; then it is refused" })),
  owner: t.Optional(name("Whose pins; the issuer unless given")),
};

function command<Members extends Parameters<typeof t.Object>[0]>(type: string, members: Members) {
  return t.Object({ type: t.Literal(type), ...members, ...envelope }, { title: type });
}

const leaseId = name("Of the lease");

/** Every command as it travels. Members that are not named here are ignored. */
export const commandSchema = t.Union([
  command("Warm", {
    block_keys: blocks,
    target_tier: t.Optional(t.Union([t.Literal("CPU_TIER1"), t.Literal("GPU")])),
    sources: t.Optional(t.Array(name("A worker that may have them"), { maxItems: sourcesMax })),
  }),
  command("Prune", { after_block_hash: blockName }),
  command("Cache", {
    block_hashes: blocks,
    pin: t.Boolean({ description: "Keep them, or let the owner's pins on them go" }),
    ttl_seconds: t.Optional(nullable(seconds("The pins end by themselves after"))),
  }),
  command("Cache", {
    block_hashes: blocks,
    retain: t.Integer({ minimum: 0, maximum: 99, description: "Priority; no promise" }),
    retain_seconds: t.Optional(seconds("The priority halves after each idle")),
  }),
  command("Think", { block_hashes: blocks, transient: t.Boolean() }),
  command("Pause", {
    block_hashes: blocks,
    ttl_seconds: t.Optional(nullable(seconds("Null: control.lease_ttl_max"))),
    lease_id: leaseId,
  }),
  command("RenewLease", { lease_id: leaseId, new_ttl_seconds: seconds("From now on") }),
  command("RevokeLease", { lease_id: leaseId }),
  command("Flush", {}),
]);

const outcome = t.Union(
  COMMAND_OUTCOMES.map((word) => t.Literal(word)),
  { description: "What became of it" },
);

export const heldBy = t.Object({
  kind: t.String({ description: "`pin`, `lease`, `session`, `engine`, ..." }),
  owner: t.Optional(t.String({ description: "Of a pin or lease" })),
  name: t.Optional(t.String({ description: "Of a lease its id, of a session its number" })),
});

const blockResult = {
  block: blockName,
  outcome,
  reason: t.Optional(t.String({ description: "A stable word, a colon, words for people" })),
  by: t.Optional(t.Array(heldBy)),
};

export const receiptSchema = t.Object(
  {
    id: nullable(t.String()),
    type: t.String(),
    worker_id: t.String(),
    incarnation: t.String({ description: "Decimal, 64 bits: differs after each start" }),
    issuer: t.String(),
    status: t.Union(["ok", "partial", "rejected", "running"].map((word) => t.Literal(word))),
    reason: t.Optional(t.String({ description: "Why it was refused: a stable word, then words" })),
    duplicate: t.Optional(t.Literal(true, { description: "It had been carried out before" })),
    counts: t.Object(
      Object.fromEntries(COMMAND_OUTCOMES.map((word) => [word, count("Blocks")] as const)),
    ),
    blocks: t.Array(t.Object({ ...blockResult, layer: t.Optional(count("With a digest")) })),
    blocks_left_out: t.Optional(count("Blocks that are not listed")),
    held: t.Optional(
      t.Array(t.Object({ ...blockResult, layer: count("Layer") }), {
        maxItems: 1_000,
        description: "Blocks that stayed, the first 1,000",
      }),
    ),
    bytes: t.Optional(bytes("Moved or removed")),
    durable: t.Optional(t.Boolean({ description: "It survives a loss of power" })),
    lease_id: t.Optional(t.String()),
    ttl_seconds: t.Optional(seconds("Granted")),
    budget: t.Optional(t.Record(t.String(), t.Number(), { description: "Bytes" })),
    progress: t.Optional(
      t.Object({
        done_blocks: count("Blocks"),
        total_blocks: nullable(count("Blocks; null: not known yet")),
        bytes: bytes("Done"),
      }),
    ),
    elapsed_ms: t.Number({ minimum: 0 }),
  },
  { title: "Receipt" },
);

function mapExamples(pick: "command" | "receipt") {
  return Object.fromEntries(
    Object.entries(COMMAND_EXAMPLES).map(([key, example]) => [
      key,
      { summary: example.summary, value: example[pick] },
    ]),
  );
}

type Examples = Record<string, { readonly summary?: string; readonly value: unknown }>;

function receiptAnswer(description: string, examples: Examples) {
  const content = { schema: receiptSchema as object, examples };
  return {
    description,
    content: { [JSON_TYPE]: content, [MSGPACK_TYPE]: { schema: receiptSchema as object } },
  };
}

/** The body of a request, for the description. */
export const commandBody = {
  required: true,
  content: {
    [JSON_TYPE]: { schema: commandSchema as object, examples: mapExamples("command") },
    [MSGPACK_TYPE]: { schema: commandSchema as object },
  },
};

const REJECTED = receiptAnswer("Refused as a whole; `reason` says why", {
  rejected: { value: REJECTED_RECEIPT },
});

export const receiptAnswers = {
  200: receiptAnswer("Carried out; each block says what became of it", mapExamples("receipt")),
  202: receiptAnswer("At work; `Location` says where its receipt is found", {
    running: { value: RUNNING_RECEIPT },
  }),
  ...Object.fromEntries(REJECTED_STATUSES.map((status) => [status, REJECTED])),
};
