import { Elysia, type Static, t } from "elysia";
import { type BlockName, type Json, LAYER_ALL, readBlockName } from "../core/index.ts";
import {
  DEPARTURES,
  type ExplainQuery,
  type Explanation,
  type MissReason,
} from "../store/index.ts";
import { answerJson, isInteger, readObject } from "./body.ts";
import { blockName } from "./command-schema.ts";
import { jsonBody, jsonContent } from "./description.ts";
import { count, nullable, oneOf, seconds } from "./fields.ts";
import { refuse } from "./problem.ts";
import type { ControlServices } from "./services.ts";
import { refuseName, TIERS } from "./tree-routes.ts";

const QUERY_CHARACTERS_MAX = 64 * 1024;
const BLOCK_TOKENS_MAX = 65_536;
const TOKEN_MAX = 0xffff_ffff;
const NAMESPACE = /^[0-9a-fA-F]{64}$/;

const namesQuery = t.Object({
  names: t.String({
    minLength: 1,
    maxLength: QUERY_CHARACTERS_MAX,
    description: "Hashes, digests and page keys, separated by commas",
    examples: ["111,222"],
  }),
});

type Body = Readonly<Record<string, Json>>;

/** Returns the route that explains which part of a prompt is resident, and why the rest is not. */
export function explainRoutes(control: ControlServices) {
  const explain = async (query: ExplainQuery) =>
    answerJson(explanationOf(await control.inspector.explain(query), control.store.nowSeconds()));
  const summary = "Shows which blocks hit on which tier, and the cause of the first miss";
  return new Elysia()
    .get(
      "/v1/explain",
      async ({ query: { names } }) => {
        const read = namesOf(names.split(","));
        return read instanceof Response ? read : explain({ names: read });
      },
      { query: namesQuery, response: explainReport, detail: { summary } },
    )
    .post(
      "/v1/explain",
      async ({ request }) => {
        const body = await readObject(request);
        if (body instanceof Response) return body;
        const query = Object.hasOwn(body, "names") ? namesIn(body) : promptIn(body);
        return query instanceof Response ? query : explain(query);
      },
      // The framework does not validate this body: validating 15,000 tokens would take ten times as
      // long as handling the request.
      {
        parse: "none",
        detail: {
          summary,
          requestBody: explainRequest,
          responses: {
            200: { description: "Tier of each block", content: jsonContent(explainReport) },
            422: { description: "Problem: the body is invalid" },
          },
        },
      },
    );
}

function namesIn({ names }: Body): ExplainQuery | Response {
  if (!Array.isArray(names) || names.length === 0 || names.length > NAMES_MAX) {
    return refuse("REQUEST_INVALID", `names must be a list of 1 to ${NAMES_MAX} blocks`);
  }
  const read = namesOf(names);
  return read instanceof Response ? read : { names: read };
}

function namesOf(given: readonly Json[]): BlockName[] | Response {
  const names: BlockName[] = [];
  for (const [index, one] of given.entries()) {
    const name = readBlockName(one);
    if (name === null) return refuseName(`names[${index}]`, String(one));
    names.push(name);
  }
  return names;
}

function promptIn(body: Body): ExplainQuery | Response {
  const { tokens, namespace, block_tokens: blockTokens, layer = LAYER_ALL } = body;
  const no = (what: string) => refuse("REQUEST_INVALID", what, { fix: "see /openapi" });
  if (typeof namespace !== "string" || !NAMESPACE.test(namespace)) {
    return no("namespace must be 64 hex digits");
  }
  if (!isInteger(blockTokens, 1, BLOCK_TOKENS_MAX)) {
    return no(`block_tokens must be an integer from 1 to ${BLOCK_TOKENS_MAX}`);
  }
  if (!isInteger(layer, 0, LAYER_ALL)) return no(`layer must be an integer from 0 to ${LAYER_ALL}`);
  const read = tokensOf(tokens);
  if (read === null) return no(`tokens must be a list of integers from 0 to ${TOKEN_MAX}`);
  return { tokens: read, namespace: Uint8Array.fromHex(namespace), blockTokens, layer };
}

function tokensOf(list: Json | undefined): Uint32Array | null {
  if (!Array.isArray(list)) return null;
  const tokens = new Uint32Array(list.length);
  for (let i = 0; i < list.length; i++) {
    const token = list[i];
    if (!isInteger(token, 0, TOKEN_MAX)) return null;
    tokens[i] = token;
  }
  return tokens;
}

const NAMES_MAX = 65_536;

const MISSES = [
  "never_stored",
  "departed",
  "being_written",
  "gpu_only",
  "other_namespace",
  "ssd_unavailable",
] as const satisfies readonly MissReason["kind"][];

const miss = t.Object(
  {
    index: count("Index of the block in the list"),
    kind: oneOf(MISSES),
    text: t.String({ description: "Message" }),
    reason: t.Optional(oneOf(DEPARTURES, "Why the block was removed")),
    by: t.Optional(
      nullable(t.String({ description: "Issuer or owner that requested it; null: none" })),
    ),
    tier: t.Optional(oneOf(["ram", "ssd"])),
    seconds_ago: t.Optional(seconds("Time since the block was removed")),
    namespace: t.Optional(
      t.String({ description: "Namespace in which the same prompt is resident, in hex" }),
    ),
    why: t.Optional(t.String({ description: "Why the SSD is not available" })),
  },
  { description: "The first block that is not resident" },
);

const peers = t.Object(
  {
    promised: count("Consecutive blocks that a request would fetch from peers"),
    why_not: nullable(t.String({ description: "Why no blocks, or no more" })),
  },
  { description: "Blocks that peers probably have, from the first miss on" },
);

/** Response body of `GET` and `POST /v1/explain`. */
const explainReport = t.Object({
  leading: count("Consecutive resident blocks, from the first block on"),
  blocks: t.Array(
    t.Object({
      name: t.String(),
      tier: t.Union([...[...TIERS, "peer"].map((tier) => t.Literal(tier)), t.Null()]),
    }),
    {
      description: "The fastest tier of each block; `peer`: a peer probably has it; null: a miss",
    },
  ),
  miss: nullable(miss),
  peers: t.Optional(peers),
});
type ExplainReport = Static<typeof explainReport>;

/** Request body: a list of block names, or the tokens of a prompt. */
const explainBody = t.Union([
  t.Object({ names: t.Array(blockName, { minItems: 1, maxItems: NAMES_MAX }) }),
  t.Object({
    tokens: t.Array(t.Number({ minimum: 0, maximum: 0xffff_ffff, multipleOf: 1 })),
    namespace: t.String({ pattern: "^[0-9a-fA-F]{64}$", description: "Namespace key, in hex" }),
    block_tokens: t.Number({ minimum: 1, multipleOf: 1, description: "Tokens of one block" }),
    layer: t.Optional(count("Layer; default: all layers in one block")),
  }),
]);

const explainRequest = jsonBody(
  explainBody,
  { names: [111, "ab".repeat(32)] },
  { tokens: [1, 2, 3, 4], namespace: "ab".repeat(32), block_tokens: 2 },
);

function explanationOf(explanation: Explanation, nowSeconds: number): ExplainReport {
  const { leading, blocks, miss, peers } = explanation;
  return {
    leading,
    blocks: blocks.map(({ name, tier }) => ({ name, tier })),
    miss: miss === null ? null : { index: miss.index, ...missOf(miss.why, nowSeconds) },
    ...(peers && { peers: { promised: peers.promised, why_not: peers.whyNot } }),
  };
}

type Miss = Omit<NonNullable<ExplainReport["miss"]>, "index">;

function missOf(why: MissReason, nowSeconds: number): Miss {
  switch (why.kind) {
    case "departed":
      return departed(why.departure, nowSeconds);
    case "other_namespace": {
      const { kind, namespace } = why;
      return { kind, text: `the same prompt is resident under namespace ${namespace}`, namespace };
    }
    case "ssd_unavailable":
      return { ...why, text: `it is on SSD, which is not available now: ${why.why}` };
    default:
      return { kind: why.kind, text: PLAIN_MISSES[why.kind] };
  }
}

const PLAIN_MISSES = {
  never_stored: "this host has never stored it",
  being_written: "it is being written now",
  gpu_only: "it is only on a GPU",
};

function departed(
  { reason, by, tier, atSeconds }: Extract<MissReason, { kind: "departed" }>["departure"],
  nowSeconds: number,
): Miss {
  const seconds_ago = Math.max(0, nowSeconds - atSeconds);
  const who = by === null ? "" : `, by ${by}`;
  const text = `${WORDS[reason]} (${tier}, ${seconds_ago} s ago${who})`;
  return { kind: "departed", text, reason, by, tier, seconds_ago };
}

const WORDS = {
  evicted: "it was evicted to make room",
  expired: "it was unused for longer than the idle limit",
  purged: "it was purged",
  pruned: "it was pruned",
  flushed: "the cache was flushed",
  lease_ended: "the lease that protected it ended",
  transient: "it was transient and was purged",
  quarantined: "its bytes were damaged",
  lost: "its file was missing or unreadable",
  replaced: "it was replaced by other bytes with the same name",
} as const satisfies Record<(typeof DEPARTURES)[number], string>;
