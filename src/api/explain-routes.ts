import { Elysia, t } from "elysia";
import { type BlockName, type Json, LAYER_ALL, readBlockName } from "../core/index.ts";
import type { ExplainQuery } from "../store/index.ts";
import { answerJson, isInteger, readObject } from "./body.ts";
import { explainReport, explainRequest, explanationOf, NAMES_MAX } from "./explain-report.ts";
import { refuse } from "./problem.ts";
import type { ControlServices } from "./services.ts";
import { refuseName } from "./tree-routes.ts";

const QUERY_CHARACTERS_MAX = 64 * 1024;
const BLOCK_TOKENS_MAX = 65_536;
const TOKEN_MAX = 0xffff_ffff;
const NAMESPACE = /^[0-9a-fA-F]{64}$/;

const namesQuery = t.Object({
  names: t.String({
    minLength: 1,
    maxLength: QUERY_CHARACTERS_MAX,
    description: "Hashes, digests and page keys, with commas between",
  }),
});

type Body = Readonly<Record<string, Json>>;

/** What of a prompt is here, and why the rest is not. */
export function explainRoutes(control: ControlServices) {
  const explain = async (query: ExplainQuery) =>
    answerJson(explanationOf(await control.explain(query), control.storeSeconds()));
  const summary = "What hits on which tier, and why the first miss is one";
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
      // Validation of an array of 15,000 tokens takes ten times as long as the answer.
      {
        parse: "none",
        detail: {
          summary,
          requestBody: explainRequest,
          responses: {
            200: {
              description: "What is where",
              content: { "application/json": { schema: explainReport as object } },
            },
            422: { description: "Problem: what is wrong with the body" },
          },
        },
      },
    );
}

function namesIn({ names }: Body): ExplainQuery | Response {
  if (!Array.isArray(names) || names.length === 0 || names.length > NAMES_MAX) {
    return refuse("REQUEST_INVALID", `names is a list of 1 to ${NAMES_MAX} blocks`);
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
    return no("namespace is 64 hex digits");
  }
  if (!isInteger(blockTokens, 1, BLOCK_TOKENS_MAX)) {
    return no(`block_tokens is an integer from 1 to ${BLOCK_TOKENS_MAX}`);
  }
  if (!isInteger(layer, 0, LAYER_ALL)) return no(`layer is an integer from 0 to ${LAYER_ALL}`);
  const read = tokensOf(tokens);
  if (read === null) return no(`tokens is a list of integers from 0 to ${TOKEN_MAX}`);
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
