import { t } from "elysia";
import {
  COMMAND_LIMITS,
  encodeReceipt,
  JSON_TYPE,
  type MediaType,
  MSGPACK_TYPE,
  type Receipt,
  type RefusalCode,
} from "../control/index.ts";
import { COMMAND_OUTCOMES } from "../core/index.ts";
import type { AnswerOptions } from "./body.ts";
import { bytes, count, nullable, oneOf, seconds } from "./fields.ts";

const STATUS_OF_WORD = {
  malformed: 422,
  unknown_type: 422,
  too_large: 413,
  too_deep: 422,
  forbidden: 403,
  unproven: 403,
  replayed: 409,
  implausible: 422,
  broadcast_refused: 403,
  expired: 409,
  rate_limited: 429,
  id_reused: 409,
  stale: 409,
  fenced: 409,
  busy: 503,
  internal: 500,
} as const satisfies Record<RefusalCode, number>;

/**
 * HTTP status of commands refused because of the host's state: a budget, or blocks that are not
 * transient.
 */
const CONFLICT = 409;

/** Statuses of refused commands, for the OpenAPI description. */
const REJECTED_STATUSES: readonly number[] = [
  ...new Set([CONFLICT, ...Object.values(STATUS_OF_WORD)]),
].sort((a, b) => a - b);

/**
 * Returns the HTTP status of a receipt: 200 unless the whole command was refused, otherwise the
 * status for the code at the start of the reason.
 */
export function statusOfReceipt({ status, reason = "" }: Receipt): number {
  if (status !== "rejected") return 200;
  const word = /^\w+/.exec(reason)?.[0] ?? "";
  return Object.hasOwn(STATUS_OF_WORD, word) ? STATUS_OF_WORD[word as RefusalCode] : CONFLICT;
}

/** Returns the response with the receipt as body, even if the command was refused. */
export function answerReceipt(
  receipt: Receipt,
  type: MediaType,
  options: AnswerOptions = {},
): Response {
  const { status = statusOfReceipt(receipt), headers = {} } = options;
  return new Response(encodeReceipt(receipt, type), {
    status,
    headers: { "content-type": type, ...headers },
  });
}

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
  id: t.Optional(
    name("Idempotency key: a repeated command changes nothing and gets the same receipt"),
  ),
  issuer: t.Optional(name("Sender; default: the caller's name")),
  epoch: t.Optional(count("Refused if this issuer has sent a higher epoch")),
  seq: t.Optional(count("Refused unless greater than the last one of this issuer and epoch")),
  not_after: t.Optional(
    t.Number({ description: "Unix time in seconds; the command is refused from then on" }),
  ),
  owner: t.Optional(name("Owner of the pins; default: the issuer")),
};

function command<Fields extends Parameters<typeof t.Object>[0]>(type: string, fields: Fields) {
  return t.Object({ type: t.Literal(type), ...fields, ...envelope }, { title: type });
}

const leaseId = name("Lease id");

/** Schema of all commands in their wire form. Unknown fields are ignored. */
export const commandSchema = t.Union([
  command("Warm", {
    block_keys: blocks,
    target_tier: t.Optional(oneOf(["CPU_TIER1", "GPU"])),
    sources: t.Optional(
      t.Array(name("A worker that may have the blocks"), { maxItems: sourcesMax }),
    ),
  }),
  command("Prune", { after_block_hash: blockName }),
  command("Cache", {
    block_hashes: blocks,
    pin: t.Boolean({
      description: "`true` pins the blocks, `false` removes the owner's pins on them",
    }),
    ttl_seconds: t.Optional(nullable(seconds("Lifetime of the pins"))),
  }),
  command("Cache", {
    block_hashes: blocks,
    retain: t.Integer({
      minimum: 0,
      maximum: 99,
      description: "Priority; the blocks may still be evicted",
    }),
    retain_seconds: t.Optional(seconds("Idle time after which the priority halves")),
  }),
  command("Think", { block_hashes: blocks, transient: t.Boolean() }),
  command("Pause", {
    block_hashes: blocks,
    ttl_seconds: t.Optional(nullable(seconds("Null: control.lease_ttl_max"))),
    lease_id: leaseId,
  }),
  command("RenewLease", { lease_id: leaseId, new_ttl_seconds: seconds("Lifetime from now on") }),
  command("RevokeLease", { lease_id: leaseId }),
  command("Flush", {}),
]);

const outcome = oneOf(COMMAND_OUTCOMES, "Outcome of the block");

export const heldBy = t.Object({
  kind: t.String({ description: "`pin`, `lease`, `session`, `engine`, ..." }),
  owner: t.Optional(t.String({ description: "Owner of a pin or lease" })),
  name: t.Optional(t.String({ description: "Id of a lease, number of a session" })),
});

const blockResult = {
  block: blockName,
  outcome,
  reason: t.Optional(t.String({ description: "A stable word, a colon, a message" })),
  by: t.Optional(t.Array(heldBy)),
};

export const receiptSchema = t.Object(
  {
    id: nullable(t.String()),
    type: t.String(),
    worker_id: t.String(),
    incarnation: t.String({ description: "64 bits in decimal; differs after each start" }),
    issuer: t.String(),
    status: oneOf(["ok", "partial", "rejected", "running"]),
    reason: t.Optional(
      t.String({ description: "Reason of the refusal: a stable word, then a message" }),
    ),
    duplicate: t.Optional(
      t.Literal(true, { description: "Whether the command had been executed before" }),
    ),
    counts: t.Object(
      Object.fromEntries(COMMAND_OUTCOMES.map((word) => [word, count("Blocks")] as const)),
    ),
    blocks: t.Array(
      t.Object({ ...blockResult, layer: t.Optional(count("Digest of the listed blocks")) }),
    ),
    blocks_left_out: t.Optional(count("Number of blocks that are not listed")),
    held: t.Optional(
      t.Array(t.Object({ ...blockResult, layer: count("Layer") }), {
        maxItems: 1_000,
        description: "Blocks that were kept, the first 1,000",
      }),
    ),
    bytes: t.Optional(bytes("Size of blocks moved or removed")),
    durable: t.Optional(t.Boolean({ description: "Whether the result survives a power loss" })),
    lease_id: t.Optional(t.String()),
    ttl_seconds: t.Optional(seconds("Granted")),
    budget: t.Optional(t.Record(t.String(), t.Number(), { description: "Bytes" })),
    progress: t.Optional(
      t.Object({
        done_blocks: count("Blocks"),
        total_blocks: nullable(count("Number of blocks; null: not known yet")),
        bytes: bytes("Done"),
      }),
    ),
    elapsed_ms: t.Number({ minimum: 0 }),
  },
  { title: "Receipt" },
);

const KEY = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
const NONE = { done: 0, already: 0, missing: 0, held: 0, deferred: 0, rejected: 0 };
const FROM = { worker_id: "gpu-01", incarnation: "17040398372918264832", issuer: "router-1" };

type Members = Readonly<Record<string, unknown>>;

/**
 * Returns an example of a command and its receipt: the receipt's counts, and additional members.
 */
function example(
  summary: string,
  command: { readonly type: string; readonly id?: string; readonly [member: string]: unknown },
  { counts = {}, ...members }: { readonly counts?: Members; readonly [member: string]: unknown },
) {
  const { type, id = null } = command;
  const named = { ...FROM, id, type, status: "ok", counts: { ...NONE, ...counts }, blocks: [] };
  return { summary, command, receipt: { ...named, ...members, elapsed_ms: 4.1 } };
}

const done = (block: unknown) => ({ block, outcome: "done" });
const held = (by: object) => [{ block: KEY, layer: 0xffff_ffff, outcome: "held", by: [by] }];

export const COMMAND_EXAMPLES = {
  Warm: example(
    "Load blocks from SSD into RAM",
    { type: "Warm", block_keys: [KEY], target_tier: "CPU_TIER1", id: "w-1", issuer: "router-1" },
    { counts: { done: 1 }, blocks: [done(KEY)], bytes: 10_485_760 },
  ),
  Prune: example(
    "Remove the descendants of a block",
    { type: "Prune", after_block_hash: 1_234_567_890, id: "p-1", issuer: "router-1" },
    {
      ...{ status: "partial", counts: { done: 31, held: 1 }, bytes: 325_058_560, durable: true },
      held: held({ kind: "pin", owner: "tools" }),
    },
  ),
  Cache: example(
    "Pin blocks for an hour; `pin` false removes the pins",
    {
      ...{ type: "Cache", block_hashes: [111, 222, 333], pin: true, ttl_seconds: 3600 },
      ...{ owner: "system-prompts", id: "c-1", issuer: "router-1" },
    },
    {
      ...{ status: "partial", counts: { done: 2, missing: 1 }, durable: true, ttl_seconds: 3600 },
      blocks: [done(111), done(222), { block: 333, outcome: "missing" }],
    },
  ),
  Retain: example(
    "Soft-pin blocks",
    { type: "Cache", block_hashes: [111], retain: 60, retain_seconds: 600 },
    { counts: { done: 1 }, blocks: [done(111)], durable: true },
  ),
  Think: example(
    "Keep reasoning off the SSD; `transient` false purges it",
    { type: "Think", block_hashes: [444, 555], transient: true },
    {
      counts: { done: 1, already: 1 },
      blocks: [done(444), { block: 555, outcome: "already" }],
    },
  ),
  Pause: example(
    "Move an idle session to SSD",
    { type: "Pause", block_hashes: [666, 777], ttl_seconds: 3600, lease_id: "session-abc" },
    {
      ...{ counts: { done: 2 }, blocks: [done(666), done(777)], durable: true },
      ...{ lease_id: "session-abc", ttl_seconds: 3600 },
    },
  ),
  RenewLease: example(
    "Extend a lease to one hour from now",
    { type: "RenewLease", lease_id: "session-abc", new_ttl_seconds: 3600 },
    { durable: true, lease_id: "session-abc", ttl_seconds: 3600 },
  ),
  RevokeLease: example(
    "Revoke a lease and purge the blocks that only it protected",
    { type: "RevokeLease", lease_id: "session-abc" },
    { counts: { done: 2 }, durable: true, lease_id: "session-abc" },
  ),
  Flush: example(
    "Remove all blocks without pins, leases and readers",
    { type: "Flush" },
    {
      ...{ status: "partial", counts: { done: 97, held: 1 }, bytes: 1_017_118_720, durable: true },
      held: held({ kind: "lease", name: "s-1" }),
    },
  ),
};

/** Example of the response to `wait=false`: the receipt of a running command. */
const RUNNING = example(
  "Running",
  { type: "Warm", id: "w-2" },
  { status: "running", progress: { done_blocks: 12, total_blocks: 233, bytes: 125_829_120 } },
);

/** Example of the receipt of a refused command, which changed nothing. */
const REFUSED = example(
  "Refused",
  { type: "Cache", id: "c-2" },
  { status: "rejected", reason: "rate_limited: 20000 commands a second are allowed" },
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

/** Request body of a command in the OpenAPI description. */
export const commandBody = {
  required: true,
  content: {
    [JSON_TYPE]: { schema: commandSchema as object, examples: mapExamples("command") },
    [MSGPACK_TYPE]: { schema: commandSchema as object },
  },
};

const REJECTED = receiptAnswer("The whole command was refused; see `reason`", {
  rejected: { value: REFUSED.receipt },
});

export const receiptAnswers = {
  200: receiptAnswer("Executed; `results` has the outcome of each block", mapExamples("receipt")),
  202: receiptAnswer("Running; `Location` is the path of its receipt", {
    running: { value: RUNNING.receipt },
  }),
  ...Object.fromEntries(REJECTED_STATUSES.map((status) => [status, REJECTED])),
};
