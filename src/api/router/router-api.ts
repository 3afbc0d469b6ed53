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
  handled,
  healthRoutes,
  type RouteList,
} from "../common-routes.ts";
import { type Problem, refuse } from "../problem.ts";
import { createRouteRules, type RouteRole } from "../route-rules.ts";
import type { HealthServices } from "../services.ts";
import { decideRoutes, requestRoutes } from "./decide-routes.ts";
import { dumpRoutes, queryRoutes, sessionRoutes } from "./query-routes.ts";
import type { EngineReport } from "./router-metrics.ts";
import { thresholdRoutes } from "./threshold-routes.ts";
import { loadRoutes, workerRoutes } from "./worker-routes.ts";

export interface RouterApiOptions extends ApiOptions {
  /** HTTP status of the response if all workers are busy. */
  readonly busyStatus: number;
}

/** Maximum bytes of a body: enough for a prompt of a million tokens as JSON. */
const BODY_BYTES_MAX = 16 * 1024 * 1024;

/** Creates the HTTP API of a router. */
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
  const description = { access, rules: ROUTER_RULES };
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
  // Probes send no token. These routes reveal only the health.
  "GET /healthz": "open",
  "GET /readyz": "open",
  "GET /metrics": "read",
  "GET /openapi": "read",
  "GET /openapi/json": "read",
  // `operate`, because a prompt with a request id counts as load of a worker from then on.
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

/**
 * The router's functions that HTTP handlers use. Each handler translates a request and calls one
 * function.
 */
export interface RouterServices extends HealthServices {
  readonly router: Router;
  readonly table: WorkerTable;
  readonly load: Pick<ActiveLoad, "of">;
  readonly index: Pick<PrefixIndex, "stats" | "digests">;
  readonly workers: {
    /** Workers whose API has not reported a model yet, so that they get no requests. */
    readonly pending: readonly ListedWorker[];
    /** Adds or updates a worker and returns its ranks. Throws ROUTER_FULL if there are too many. */
    register(worker: ListedWorker): readonly Target[];
    /** Removes all ranks of a worker and returns their number. */
    unregister(worker: WorkerId): number;
  };
  readonly engines: {
    /**
     * Returns the state of following a worker's engine without an agent. Null if the router does
     * not follow its events.
     */
    find(worker: WorkerId, rank: number): EngineReport | null;
  };
  /** Receives session events, which policies use. */
  readonly marks: PolicyMarks;
}

/**
 * Roles that the proxy's routes require: `operate` to generate, as for routing; `read` for models
 * and load.
 */
const PROXY_RULES = createRouteRules({
  // Probes send no token. These routes reveal only the health.
  "GET /health": "open",
  "GET /ping": "open",
  "POST /ping": "open",
  "GET /version": "read",
  "GET /load": "read",
  "GET /v1/models": "read",
  "GET /v1/models/:id": "read",
  // `operate`, because a stored response contains a user's conversation.
  "GET /v1/responses/:id": "operate",
  "POST /v1/responses/:id/cancel": "operate",
  ...(Object.fromEntries(FORWARDED_PATHS.map((path) => [`POST ${path}`, "operate"])) as Record<
    string,
    RouteRole
  >),
});

/**
 * Creates a server for the proxy with the same authorization as the router's API. The proxy reads
 * and limits bodies itself.
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

/** Returns the caller's token: the bearer token, or `x-api-key`, which Anthropic's clients send. */
function credentialOf(headers: Headers): string | null {
  const key = headers.get("x-api-key");
  return headers.get("authorization") ?? (key === null ? null : `Bearer ${key}`);
}

/**
 * Converts a refusal to the error format of the API that the client uses, so that the client shows
 * its message.
 */
async function clientsRefusal(answer: Response, { url }: Request): Promise<Response> {
  const { detail, code, fix, status } = (await answer.json()) as Problem;
  const message = fix === undefined ? detail : `${detail}: ${fix}`;
  const type = status === 401 ? "authentication_error" : "permission_error";
  const error = errorBody({ status, message, type, code: code.toLowerCase() }, shapeOf(url));
  const headers = new Headers(answer.headers);
  headers.set("content-type", "application/json");
  return new Response(JSON.stringify(error), { status, headers });
}
