import { Elysia, t } from "elysia";
import { type ListedWorker, readListedWorker } from "../../config/index.ts";
import { isWorkerId, type WorkerId } from "../../core/index.ts";
import type { KeySpace, ResidencyDigest } from "../../observability/activity/index.ts";
import type { PotentialLoad, Target, TargetLoad } from "../../router/index.ts";
import { answerJson, readObject } from "../body.ts";
import { described, jsonBody } from "../description.ts";
import { count, nullable, snakeCase } from "../fields.ts";
import { refuse } from "../problem.ts";
import { requestIn, routeRequestBody } from "./decide-routes.ts";
import type { RouterServices } from "./router-api.ts";
import type { EngineReport } from "./router-metrics.ts";

const modelQuery = t.Object({
  model: t.Optional(t.String({ description: "Only workers of this model" })),
});

const registerBody = t.Object({
  worker: t.String({ description: "Worker id" }),
  model: t.Optional(t.String({ description: "Default: the model that the API at `url` reports" })),
  url: t.Optional(t.String({ description: "URL of its OpenAI-compatible API" })),
  role: t.Optional(t.String({ description: "`both`, `prefill` or `decode`" })),
  ranks: t.Optional(t.Number({ description: "Data parallel ranks" })),
  total_blocks: t.Optional(t.Number({ description: "KV blocks on one rank's GPU" })),
  batch_tokens_max: t.Optional(t.Number()),
  block_tokens: t.Optional(t.Number()),
  hash_seed: t.Optional(t.String()),
  namespace: t.Optional(t.String({ description: "Namespace of the agent's blocks, in hex" })),
  events: t.Optional(t.String({ description: "ZMQ endpoint of the engine's KV events" })),
  replay: t.Optional(t.String({ description: "ZMQ replay endpoint of the engine's KV events" })),
});

/** Example of a registered worker whose engine publishes KV events. */
const REGISTERED = {
  worker: "gpu-07",
  model: "m",
  events: "tcp://10.0.0.7:5557",
  block_tokens: 16,
};

function targetsOf(table: RouterServices["table"], model: string | undefined) {
  return table.targets.filter((target) => model === undefined || target.model === model);
}

/**
 * Returns the workers whose model is not known yet. Empty if the request is for one model, because
 * it is unknown whether they serve it.
 */
function pendingIn(services: RouterServices, model: string | undefined) {
  return model === undefined ? services.workers.pending : [];
}

/** Returns the routes that list, register and remove workers. */
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
        detail: { summary: "Lists all workers, each data parallel rank separately" },
      },
    )
    .post(
      "/v1/workers",
      async ({ request }) => {
        const body = await readObject(request);
        if (body instanceof Response) return body;
        const read = readListedWorker(body);
        if (!read.ok) return refuse("REQUEST_INVALID", `body: ${read.what}; ${read.instead}`);
        const added = services.workers.register(read.value);
        const pending = services.workers.pending.filter(({ name }) => name === read.value.name);
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
          ...described("Registers or updates a worker", {
            503: "The router has the maximum number of workers",
          }),
          requestBody: jsonBody(registerBody, REGISTERED),
        },
      },
    )
    .delete(
      "/v1/workers/:id",
      ({ params: { id } }) => {
        const removed = isWorkerId(id) ? services.workers.unregister(id) : 0;
        if (removed > 0) return { removed };
        return refuse("NOT_FOUND", `unknown worker ${id.slice(0, 100)}`);
      },
      {
        params: t.Object({ id: t.String({ description: "Worker id", examples: ["gpu-01"] }) }),
        response: t.Object({ removed: t.Number() }),
        detail: described("Removes a worker and its blocks; its next events would add it again", {
          404: "The worker is not known",
        }),
      },
    );
}

/** Returns the routes that report the load of workers. */
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
        detail: { summary: "Lists the load of each worker as this router knows it" },
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
          summary: "Lists the load of each worker if it got this prompt; nothing is counted",
          requestBody: routeRequestBody,
        },
      },
    );
}

const load = {
  active_blocks: count("Blocks of the worker's live requests"),
  active_prefill_tokens: count("Prompt tokens waiting for prefill"),
  active_requests: count("Live requests"),
};

const place = { worker: t.String(), rank: count("Data parallel rank") };

const engineReport = {
  endpoint: t.String({ description: "Endpoint where the engine publishes" }),
  reached: t.Boolean({ description: "Whether it is connected now" }),
  ever_reached: t.Boolean({ description: "Whether it was ever connected" }),
  block_tokens: nullable(count("Tokens per block according to the events")),
  configured_block_tokens: nullable(count("Tokens per block as configured")),
  orphan_blocks: count("Blocks with unknown prefixes"),
  events: count("Events read"),
  applied_blocks: count("Blocks stored, announced again or removed"),
  dropped: t.Record(t.String(), t.Number(), {
    description: "Events ignored, by reason; for removals, blocks",
  }),
  gaps: count("Gaps between batches"),
  restarts: count("Restarts of the engine"),
  lost_batches: count("Batches that could not be replayed"),
};

const workerReport = t.Object({
  ...place,
  model: nullable(t.String({ description: "Model; null: the worker's API has not reported it" })),
  role: t.String({ description: "`both`, `prefill`, `decode`" }),
  url: nullable(t.String()),
  state: t.String({ description: "`live`, `stale`, `draining`" }),
  known: t.Boolean({ description: "Whether all its blocks are known" }),
  held_blocks: nullable(
    t.Object(
      {
        device: count("Blocks on the GPU"),
        host: count("Blocks in RAM"),
        disk: count("Blocks on SSD"),
      },
      { description: "Known blocks of the worker; null: some were forgotten" },
    ),
  ),
  events: nullable(
    t.Object(engineReport, {
      description: "State of the engine's events; null: they are not followed directly",
    }),
  ),
  total_blocks: nullable(count("KV blocks of the GPU")),
  batch_tokens_max: nullable(count("Maximum tokens per step")),
  spaces: t.Array(
    t.Object({
      kind: t.String({ description: "Kind of block names: `tokens` or `blocks`" }),
      block_tokens: count("Tokens per block"),
      namespace: t.Optional(t.String({ description: "Namespace of `blocks`, in hex" })),
    }),
  ),
  load: t.Object(load),
});

/** Response body of `GET /v1/workers`. */
const workersReport = t.Object({ workers: t.Array(workerReport) });

const loadReport = t.Object({
  ...place,
  model: nullable(t.String({ description: "Model; null: the worker's API has not reported it" })),
  ...load,
  total_blocks: nullable(count("KV blocks of the GPU")),
});

/** Response body of `GET /v1/loads`. */
const loadsReport = t.Object({ loads: t.Array(loadReport) });

/** Response body of `POST /v1/loads`. */
const potentialReport = t.Object({
  loads: t.Array(
    t.Object({
      ...place,
      ...load,
      potential_prefill_tokens: count("Prefill tokens with this prompt added"),
      potential_decode_blocks: count("Blocks with this prompt added"),
      held_tokens: t.Object({
        device: count("Leading tokens of the prompt on the device"),
        host: count("Following tokens in host memory"),
        disk: count("Following tokens on disk"),
      }),
    }),
  ),
});

function loadOf({ activeBlocks, activePrefillTokens, activeRequests }: TargetLoad) {
  return snakeCase({ activeBlocks, activePrefillTokens, activeRequests });
}

function spaceOf(space: KeySpace) {
  const { kind, blockTokens: block_tokens } = space;
  if (kind === "tokens") return { kind, block_tokens };
  return { kind, block_tokens, namespace: space.namespaceKey.toHex() };
}

function heldOf(digests: readonly ResidencyDigest[] | null) {
  if (digests === null) return null;
  const [device, host, disk] = digests.map(({ blocks }) => blocks);
  return { device: device!, host: host!, disk: disk! };
}

function engineOf(engine: EngineReport | null) {
  if (engine === null) return null;
  const { endpoint, blockTokens, configuredBlockTokens, orphanBlocks, counts } = engine;
  const { events, gaps, restarts, lostBatches, stored, reannounced, removed } = counts;
  const sizes = { endpoint, blockTokens, configuredBlockTokens, orphanBlocks };
  return {
    ...snakeCase({ ...sizes, events, gaps, restarts, lostBatches }),
    reached: engine.isReached,
    ever_reached: engine.wasReached,
    applied_blocks: stored + reannounced + removed,
    dropped: Object.fromEntries(Object.entries(counts.dropped).filter(([, count]) => count > 0)),
  };
}

type About = Pick<Target, "worker" | "rank" | "role" | "url" | "totalBlocks" | "batchTokensMax"> & {
  readonly model: string | null;
};

/** Returns the properties of a worker, without its load. */
function aboutOf({ worker, rank, model, role, url, totalBlocks, batchTokensMax }: About) {
  return snakeCase({ worker, rank, model, role, url, totalBlocks, batchTokensMax });
}

function workerOf(target: Target, { load, index, engines }: RouterServices) {
  const { id, worker, rank, state, isKnown } = target;
  return {
    ...aboutOf(target),
    state,
    known: isKnown,
    held_blocks: heldOf(index.digests(id)),
    events: engineOf(engines.find(worker, rank)),
    spaces: target.spaces.map(spaceOf),
    load: loadOf(load.of(id)),
  };
}

const NO_LOAD = loadOf({ activeBlocks: 0, activePrefillTokens: 0, activeRequests: 0 });

/** Returns the JSON of a worker whose model is not known yet, so that it gets no requests. */
function pendingOf(listed: ListedWorker) {
  return {
    ...aboutOf({ ...listed, worker: listed.name as WorkerId, rank: 0, model: null }),
    ...{ state: "stale", known: false, held_blocks: null, events: null },
    ...{ spaces: [], load: NO_LOAD },
  };
}

function pendingLoadOf({ name, totalBlocks }: ListedWorker) {
  return { worker: name, rank: 0, model: null, ...NO_LOAD, total_blocks: totalBlocks };
}

function loadLineOf({ worker, rank, model, totalBlocks }: Target, load: TargetLoad) {
  return { worker, rank, model, ...loadOf(load), total_blocks: totalBlocks };
}

function potentialOf(load: PotentialLoad) {
  const { worker, rank, potentialPrefillTokens, potentialDecodeBlocks, heldTokens } = load;
  const potential = { worker, rank, potentialPrefillTokens, potentialDecodeBlocks, heldTokens };
  return { ...snakeCase(potential), ...loadOf(load) };
}
