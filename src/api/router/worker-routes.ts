import { Elysia, t } from "elysia";
import { readListedWorker } from "../../config/index.ts";
import { isWorkerId } from "../../core/index.ts";
import { answerJson, readObject } from "../body.ts";
import { refuse } from "../problem.ts";
import { requestIn } from "./decide-routes.ts";
import { routeRequestBody } from "./route-report.ts";
import type { RouterServices } from "./services.ts";
import {
  loadLineOf,
  loadsReport,
  pendingLoadOf,
  pendingOf,
  potentialOf,
  potentialReport,
  workerOf,
  workersReport,
} from "./worker-report.ts";

const modelQuery = t.Object({
  model: t.Optional(t.String({ description: "Of this model alone" })),
});

const registerBody = {
  required: true,
  content: {
    "application/json": {
      schema: t.Object({
        worker: t.String({ description: "Worker id" }),
        model: t.Optional(t.String({ description: "Left out: what the API at `url` says" })),
        url: t.Optional(t.String({ description: "Of its OpenAI-compatible API" })),
        role: t.Optional(t.String({ description: "`both`, `prefill` or `decode`" })),
        ranks: t.Optional(t.Number({ description: "Data parallel ranks" })),
        total_blocks: t.Optional(t.Number({ description: "KV blocks of one rank's GPU" })),
        batch_tokens_max: t.Optional(t.Number()),
        block_tokens: t.Optional(t.Number()),
        hash_seed: t.Optional(t.String()),
        namespace: t.Optional(t.String({ description: "Of its agent's blocks, in hex" })),
        events: t.Optional(t.String({ description: "Of its engine, over ZMQ" })),
        replay: t.Optional(t.String({ description: "Of its engine, over ZMQ" })),
      }) as object,
      examples: {
        worker: {
          summary: "A worker with an engine's own events",
          value: { worker: "gpu-07", model: "m", events: "tcp://10.0.0.7:5557", block_tokens: 16 },
        },
      },
    },
  },
};

function targetsOf(table: RouterServices["table"], model: string | undefined) {
  return table.targets.filter((target) => model === undefined || target.model === model);
}

/** They may turn out to serve any model, so that a question for one leaves them out. */
function pendingIn(services: RouterServices, model: string | undefined) {
  return model === undefined ? services.pending() : [];
}

/** Who there is, and who comes and goes. */
export function workerRoutes(services: RouterServices) {
  const { table } = services;
  return new Elysia()
    .get(
      "/v1/workers",
      ({ query }) => ({
        workers: [
          ...targetsOf(table, query.model).map((target) => workerOf(target, services)),
          ...pendingIn(services, query.model).map(pendingOf),
        ],
      }),
      {
        query: modelQuery,
        response: workersReport,
        detail: { summary: "Every worker that is known, each data parallel rank for itself" },
      },
    )
    .post(
      "/v1/workers",
      async ({ request }) => {
        const body = await readObject(request);
        if (body instanceof Response) return body;
        const read = readListedWorker(body);
        if (!read.ok) return refuse("REQUEST_INVALID", `body: ${read.what}; ${read.instead}`);
        const added = services.register(read.value);
        const pending = services.pending().filter(({ name }) => name === read.value.name);
        return answerJson({
          workers: [
            ...added.map((target) => workerOf(target, services)),
            ...pending.map(pendingOf),
          ],
        });
      },
      {
        parse: "none",
        response: workersReport,
        detail: {
          summary: "Registers a worker, or changes what is known of it",
          requestBody: registerBody,
        },
      },
    )
    .delete(
      "/v1/workers/:id",
      ({ params: { id } }) => {
        const removed = isWorkerId(id) ? services.unregister(id) : 0;
        if (removed > 0) return { removed };
        return refuse("NOT_FOUND", `no worker ${id.slice(0, 100)} is known`);
      },
      {
        params: t.Object({ id: t.String({ description: "Worker id" }) }),
        response: t.Object({ removed: t.Number() }, { examples: [{ removed: 1 }] }),
        detail: { summary: "Forgets a worker with all it held; its events would bring it back" },
      },
    );
}

/** What they are at work on. */
export function loadRoutes(services: RouterServices) {
  const { router, table, load } = services;
  return new Elysia()
    .get(
      "/v1/loads",
      ({ query }) => ({
        loads: [
          ...targetsOf(table, query.model).map((target) => loadLineOf(target, load.of(target.id))),
          ...pendingIn(services, query.model).map(pendingLoadOf),
        ],
      }),
      {
        query: modelQuery,
        response: loadsReport,
        detail: { summary: "What each worker is at work on, as far as this router knows" },
      },
    )
    .post(
      "/v1/loads",
      async ({ request }) => {
        const prompt = requestIn(await request.bytes());
        if (prompt instanceof Response) return prompt;
        return answerJson({ loads: router.getPotentialLoads(prompt).map(potentialOf) });
      },
      {
        parse: "none",
        response: potentialReport,
        detail: {
          summary: "What each worker would be at work on with this prompt; nothing is counted",
          requestBody: routeRequestBody,
        },
      },
    );
}
