import { Elysia, t } from "elysia";
import type { PotentialLoad, Router } from "../../router/index.ts";
import { answerJson } from "../body.ts";
import { requestIn } from "./decide-routes.ts";

const held = t.Object({
  longest_matched: t.Number(),
  gpu: t.Number(),
  dp: t.Record(t.String(), t.Number()),
  cpu: t.Number({ description: "With what is on the GPU" }),
  disk: t.Number({ description: "With what is on GPU and CPU" }),
});

const hash = t.Union([t.Number(), t.String({ description: "In decimal, or in hex behind 0x" })]);

const queryReport = t.Object(
  {
    scores: t.Record(t.String(), t.Record(t.String(), t.Number())),
    frequencies: t.Array(t.Number(), { description: "Not counted here" }),
    instances: t.Record(t.String(), held),
  },
  {
    examples: [
      {
        scores: { "gpu-01": { "0": 32 } },
        frequencies: [],
        instances: {
          "gpu-01": { longest_matched: 48, gpu: 32, dp: { "0": 32 }, cpu: 48, disk: 48 },
        },
      },
    ],
  },
);

function detail(summary: string, value: object) {
  const schema = t.Object({
    model_name: t.String(),
    token_ids: t.Optional(t.Array(t.Number())),
    block_hashes: t.Optional(t.Array(hash)),
    lora_name: t.Optional(t.String()),
    cache_salt: t.Optional(t.String()),
  }) as object;
  const content = { "application/json": { schema, examples: { query: { value } } } };
  return { summary, requestBody: { required: true, content } };
}

/** Dynamo's indexer has routes of these names: who holds how much of a prompt, in tokens. */
export function queryRoutes(router: Router) {
  const answer = async (request: Request) => {
    const prompt = requestIn(await request.bytes());
    if (prompt instanceof Response) return prompt;
    return answerJson(reportOf(router.getPotentialLoads(prompt)));
  };
  return new Elysia()
    .post("/query", ({ request }) => answer(request), {
      parse: "none",
      response: queryReport,
      detail: detail("Who holds how much of a prompt, in tokens", {
        model_name: "m",
        token_ids: [1, 2, 3],
      }),
    })
    .post("/query_by_hash", ({ request }) => answer(request), {
      parse: "none",
      response: queryReport,
      detail: detail("The same of a prompt as hashes of its blocks", {
        model_name: "m",
        block_hashes: ["0x7b0bf7bf7fd01682"],
      }),
    });
}

/** Worker by worker, by its best rank; ranks of it one by one in `dp`. */
function reportOf(loads: readonly PotentialLoad[]) {
  const scores: Record<string, Record<string, number>> = {};
  const instances: Record<string, ReturnType<typeof nothing>> = {};
  for (const { worker, rank, heldTokens } of loads) {
    const cpu = heldTokens.device + heldTokens.host;
    const disk = cpu + heldTokens.disk;
    if (disk === 0) continue;
    instances[worker] ??= nothing();
    const instance = instances[worker]!;
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
