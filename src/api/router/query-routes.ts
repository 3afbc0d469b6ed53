import { Elysia, t } from "elysia";
import type { PolicyMarks, PotentialLoad, Router } from "../../router/index.ts";
import { answerJson } from "../body.ts";
import { jsonBody } from "../description.ts";
import { refuse } from "../problem.ts";
import { requestIn } from "./decide-routes.ts";

const held = t.Object({
  longest_matched: t.Number(),
  gpu: t.Number(),
  dp: t.Record(t.String(), t.Number()),
  cpu: t.Number({ description: "Tokens on the GPU" }),
  disk: t.Number({ description: "Tokens on GPU and CPU" }),
});

const hash = t.Union([t.Number(), t.String({ description: "Decimal, or hex with 0x" })]);

const queryReport = t.Object({
  scores: t.Record(t.String(), t.Record(t.String(), t.Number())),
  frequencies: t.Array(t.Number(), { description: "Not counted by this router" }),
  instances: t.Record(t.String(), held),
});

const queryBody = t.Object({
  model_name: t.String(),
  token_ids: t.Optional(t.Array(t.Number())),
  block_hashes: t.Optional(t.Array(hash)),
  lora_name: t.Optional(t.String()),
  cache_salt: t.Optional(t.String()),
});

/**
 * Returns routes with the names of Dynamo's indexer: how many tokens of a prompt each worker has.
 */
export function queryRoutes(router: Router) {
  const answer = async (request: Request) => {
    const prompt = requestIn(await request.bytes());
    if (prompt instanceof Response) return prompt;
    return answerJson(reportOf(router.getPotentialLoads(prompt)));
  };
  const described = (summary: string, example: object) => {
    const requestBody = jsonBody(queryBody, { model_name: "m", ...example });
    return { parse: "none", response: queryReport, detail: { summary, requestBody } } as const;
  };
  return new Elysia()
    .post(
      "/query",
      ({ request }) => answer(request),
      described("Shows how many tokens of a prompt each worker holds", { token_ids: [1, 2, 3] }),
    )
    .post(
      "/query_by_hash",
      ({ request }) => answer(request),
      described("Shows how many tokens of a prompt, given as block hashes, each worker holds", {
        block_hashes: ["0x7b0bf7bf7fd01682"],
      }),
    );
}

/** Returns the best rank of each worker. `dp` in the result lists all ranks. */
function reportOf(loads: readonly PotentialLoad[]) {
  const scores: Record<string, Record<string, number>> = {};
  const instances: Record<string, ReturnType<typeof nothing>> = {};
  for (const { worker, rank, heldTokens } of loads) {
    const cpu = heldTokens.device + heldTokens.host;
    const disk = cpu + heldTokens.disk;
    if (disk === 0) continue;
    instances[worker] ??= nothing();
    const instance = instances[worker];
    instance.dp[rank] = heldTokens.device;
    instance.gpu = Math.max(instance.gpu, heldTokens.device);
    instance.cpu = Math.max(instance.cpu, cpu);
    instance.disk = Math.max(instance.disk, disk);
    instance.longest_matched = instance.disk;
    scores[worker] = instance.dp;
  }
  return { scores, frequencies: [], instances };
}

function nothing() {
  const dp: Record<string, number> = {};
  return { longest_matched: 0, gpu: 0, dp, cpu: 0, disk: 0 };
}

const CHUNK_CHARACTERS = 256 * 1024;

/** Example of an event: one stored block without a parent. */
const EVENT =
  '{"worker_id":1,"storage_tier":"device","event":{"event_id":1,"data":{"stored":' +
  '{"parent_hash":null,"start_position":null,"blocks":[{"block_hash":7,"tokens_hash":7}]}},' +
  '"dp_rank":0}}\n';

/**
 * Returns the route that streams the whole index, one event per line, as fast as the client reads.
 */
export function dumpRoutes(router: Router) {
  return new Elysia().get("/v1/events/dump", () => dump(router.dumpEvents()), {
    detail: {
      summary: "Lists all workers' blocks as Dynamo's router events, one JSON document per line",
      responses: {
        200: {
          description: "Parents before their children",
          content: {
            "application/x-ndjson": {
              schema: { type: "string" },
              examples: { line: { value: EVENT } },
            },
          },
        },
      },
    },
  });
}

function dump(events: Iterable<string>): Response {
  const iterator = events[Symbol.iterator]();
  const body = new ReadableStream<Uint8Array>({
    pull(controller) {
      let text = "";
      while (text.length < CHUNK_CHARACTERS) {
        const { done, value } = iterator.next();
        if (done === true) {
          if (text !== "") controller.enqueue(UTF8.encode(text));
          controller.close();
          return;
        }
        text += `${value}\n`;
      }
      controller.enqueue(UTF8.encode(text));
    },
    cancel: () => void iterator.return?.(),
  });
  return new Response(body, { headers: { "content-type": "application/x-ndjson" } });
}

const UTF8 = new TextEncoder();

/** Maximum characters of a session id, which agents use in lease names. */
const SESSION_CHARS_MAX = 256;

const params = t.Object({
  id: t.String({ description: "The `session_id` of /v1/route", examples: ["chat-9"] }),
});
const sessionReport = t.Object({ session_id: t.String() });

/**
 * Returns the route by which clients report session events, which policies use. Unknown sessions
 * are ignored.
 */
export function sessionRoutes(marks: PolicyMarks) {
  const notify = (id: string, mark: (id: string) => void) => {
    if (id.length > SESSION_CHARS_MAX) {
      return refuse(
        "REQUEST_INVALID",
        `a session id must have at most ${SESSION_CHARS_MAX} characters`,
      );
    }
    mark(id);
    return { session_id: id };
  };
  return new Elysia()
    .post(
      "/v1/sessions/:id/returning",
      ({ params: { id } }) => notify(id, (session) => marks.returning(session)),
      {
        parse: "none",
        params,
        response: sessionReport,
        detail: {
          summary: "Announces the next request of a session: its paused blocks are loaded now",
        },
      },
    )
    .post(
      "/v1/sessions/:id/end",
      ({ params: { id } }) => notify(id, (session) => marks.sessionEnded(session)),
      {
        parse: "none",
        params,
        response: sessionReport,
        detail: { summary: "Ends a session: the leases of its paused blocks are revoked" },
      },
    );
}
