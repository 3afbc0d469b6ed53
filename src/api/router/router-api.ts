import { Elysia } from "elysia";
import type { ListedWorker } from "../../config/index.ts";
import type { WorkerId } from "../../core/index.ts";
import type {
  ActiveLoad,
  PolicyMarks,
  PrefixIndex,
  Router,
  Target,
  WorkerTable,
} from "../../router/index.ts";
import { errorBody, FORWARDED_PATHS, type OpenAiProxy, shapeOf } from "../../router/proxy/index.ts";
import { type Api, type ApiOptions, createServer } from "../api.ts";
import {
  answerOf,
  documentation,
  everyRouteHasRole,
  type HealthServices,
  handled,
  healthRoutes,
  type RouteList,
} from "../common-routes.ts";
import type { DescriptionTexts } from "../description.ts";
import { type Problem, refuse } from "../problem.ts";
import { createRouteRules, type RouteRole } from "../route-rules.ts";
import { decideRoutes, requestRoutes } from "./decide-routes.ts";
import { dumpRoutes, queryRoutes, sessionRoutes } from "./query-routes.ts";
import { thresholdRoutes } from "./threshold-routes.ts";
import { loadRoutes, workerRoutes } from "./worker-routes.ts";

export interface RouterApiOptions extends ApiOptions {
  /** HTTP status if all workers are busy. */
  readonly busyStatus: number;
}

/** A prompt of a million tokens as JSON, with reserve. */
const BODY_BYTES_MAX = 16 * 1024 * 1024;

/** The HTTP API of a router. */
export function createRouterApi(services: RouterServices, options: RouterApiOptions): Api {
  const { router, table } = services;
  const { version, access, onFault } = options;
  const decide = decideRoutes(router, options);
  const routed = (): RouteList => app.routes;
  const app = new Elysia({ strictPath: true })
    .onError((fault) => answerOf(fault, { routes: routed(), rules: ROUTER_RULES, onFault }))
    .use(documentation("Hearth router", version))
    .use(healthRoutes(services))
    .use(decide.routes)
    .use(requestRoutes(router))
    .use(sessionRoutes(services.marks))
    .use(workerRoutes(services))
    .use(loadRoutes(services))
    .use(dumpRoutes(router))
    .use(queryRoutes(router))
    .use(thresholdRoutes(router, table));
  everyRouteHasRole(app.routes, ROUTER_RULES);
  const description = { access, texts: ROUTER_DESCRIPTION };
  return createServer(
    { bodyBytesMax: BODY_BYTES_MAX, ...options },
    {
      rules: ROUTER_RULES,
      handle: (request) => handled(app, request, description),
      direct: decide.direct,
    },
  );
}

/** Roles that the router's routes require. */
const ROUTER_RULES = createRouteRules({
  // Probes carry no token. These routes reveal only health.
  "GET /healthz": "open",
  "GET /readyz": "open",
  "GET /metrics": "read",
  "GET /openapi": "read",
  "GET /openapi/json": "read",
  // With a request id the prompt counts as load from here on.
  "POST /v1/route": "operate",
  "POST /v1/requests/:id/prefill-complete": "operate",
  "POST /v1/requests/:id/output": "operate",
  "POST /v1/requests/:id/free": "operate",
  "POST /v1/sessions/:id/returning": "operate",
  "POST /v1/sessions/:id/end": "operate",
  "GET /v1/loads": "read",
  "POST /v1/loads": "read",
  "GET /v1/workers": "read",
  "POST /v1/workers": "operate",
  "DELETE /v1/workers/:id": "operate",
  "GET /v1/events/dump": "read",
  "GET /v1/explain/:id": "read",
  "POST /query": "read",
  "POST /query_by_hash": "read",
  "GET /busy_threshold": "read",
  "POST /busy_threshold": "operate",
});

const UNKNOWN_REQUEST = { 404: "The request is not live" };

/** Texts of the OpenAPI description that the framework does not know. */
const ROUTER_DESCRIPTION: DescriptionTexts = {
  rules: ROUTER_RULES,
  examples: { id: "req-1", model: "meta-llama/Llama-3.1-8B-Instruct" },
  examplesOf: {
    "DELETE /v1/workers/:id": { id: "gpu-01" },
    "POST /v1/sessions/:id/returning": { id: "chat-9" },
    "POST /v1/sessions/:id/end": { id: "chat-9" },
  },
  answersOf: {
    "POST /v1/route": {
      404: "The named worker is not available",
      503: "No worker of that model is available",
      529: "All workers are busy (`api.busy_status` may name another status)",
    },
    "POST /v1/requests/:id/prefill-complete": UNKNOWN_REQUEST,
    "POST /v1/requests/:id/output": UNKNOWN_REQUEST,
    "POST /v1/requests/:id/free": UNKNOWN_REQUEST,
    "DELETE /v1/workers/:id": { 404: "The worker is not known" },
    "POST /v1/workers": { 503: "The router has the maximum number of workers" },
    "GET /v1/explain/:id": { 404: "No decision is kept for that request" },
    "POST /busy_threshold": {
      400: "A threshold is out of range",
      404: "No worker of that model is known",
    },
  },
};

/** Progress of following an engine's KV events. */
export interface EngineState {
  readonly endpoint: string;
  readonly isReached: boolean;
  readonly wasReached: boolean;
  readonly configuredBlockTokens: number | null;
  /** Tokens per block according to the events. */
  readonly blockTokens: number | null;
  /** Blocks with unknown prefixes. */
  readonly orphanBlocks: number;
  readonly counts: {
    readonly events: number;
    /** Blocks in events that were applied. */
    readonly stored: number;
    readonly reannounced: number;
    readonly removed: number;
    readonly gaps: number;
    readonly restarts: number;
    readonly lostBatches: number;
    /** Events ignored, by reason; for removals, blocks. */
    readonly dropped: Readonly<Record<string, number>>;
  };
}

/** Router functions used by HTTP. Each handler translates a request and calls one function. */
export interface RouterServices extends HealthServices {
  readonly router: Router;
  readonly table: WorkerTable;
  readonly load: Pick<ActiveLoad, "of">;
  readonly index: Pick<PrefixIndex, "stats" | "digests">;
  /** Workers whose API has not reported a model yet. */
  pending(): readonly ListedWorker[];
  /** The engine of a worker without an agent. Null: its events are not followed. */
  engine(worker: WorkerId, rank: number): EngineState | null;
  /** Session events for policies. */
  readonly marks: PolicyMarks;
  /** Adds or updates a worker. Throws ROUTER_FULL. */
  register(worker: ListedWorker): readonly Target[];
  /** Removes all ranks of a worker and returns their number. */
  unregister(worker: WorkerId): number;
}

/**
 * Roles of the proxy's routes: generating requires the role of routing; models and load require
 * `read`.
 */
const PROXY_RULES = createRouteRules({
  // Probes carry no token. These routes reveal only health.
  "GET /health": "open",
  "GET /ping": "open",
  "POST /ping": "open",
  "GET /version": "read",
  "GET /load": "read",
  "GET /v1/models": "read",
  "GET /v1/models/:id": "read",
  // A stored response contains a user's conversation.
  "GET /v1/responses/:id": "operate",
  "POST /v1/responses/:id/cancel": "operate",
  ...(Object.fromEntries(FORWARDED_PATHS.map((path) => [`POST ${path}`, "operate"])) as Record<
    string,
    RouteRole
  >),
});

/**
 * The proxy behind the same authorization as the router's API. The proxy reads and limits bodies
 * itself.
 */
export function createProxyApi(proxy: OpenAiProxy, options: Omit<ApiOptions, "version">): Api {
  return createServer(options, {
    rules: PROXY_RULES,
    handle: async () => refuse("NOT_FOUND", "unknown path"),
    own: (request, onBody) => proxy.fetch(request, { onBody }),
    refused: clientsRefusal,
    credential: credentialOf,
  });
}

/** The bearer token. Anthropic's clients send it as `x-api-key`. */
function credentialOf(headers: Headers): string | null {
  const key = headers.get("x-api-key");
  return headers.get("authorization") ?? (key === null ? null : `Bearer ${key}`);
}

/** Converts a refusal to the error shape of the client's API, so that clients show its message. */
async function clientsRefusal(answer: Response, { url }: Request): Promise<Response> {
  const { detail, code, fix, status } = (await answer.json()) as Problem;
  const message = fix === undefined ? detail : `${detail}: ${fix}`;
  const type = status === 401 ? "authentication_error" : "permission_error";
  const error = errorBody({ status, message, type, code: code.toLowerCase() }, shapeOf(url));
  const headers = new Headers(answer.headers);
  headers.set("content-type", "application/json");
  return new Response(JSON.stringify(error), { status, headers });
}
