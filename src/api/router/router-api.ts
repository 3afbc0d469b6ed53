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
import { ASK_PATHS, errorBody, type OpenAiProxy, shapeOf } from "../../router/proxy/index.ts";
import { type Api, type ApiOptions, createGuarded } from "../api.ts";
import {
  answerOf,
  documentation,
  everyRouteHasRole,
  type HealthServices,
  handled,
  healthRoutes,
  type RouteList,
} from "../common-routes.ts";
import type { DescriptionWords } from "../description.ts";
import { type Problem, problemOf, refuse } from "../problem.ts";
import { createRouteRules, type RouteRole } from "../route-rules.ts";
import { decideRoutes, requestRoutes, route } from "./decide-routes.ts";
import { dumpRoutes, queryRoutes, sessionRoutes } from "./query-routes.ts";
import { thresholdRoutes } from "./threshold-routes.ts";
import { loadRoutes, workerRoutes } from "./worker-routes.ts";

export interface RouterApiOptions extends ApiOptions {
  /** Status of an answer where all workers are busy. */
  readonly busyStatus: number;
}

/** A prompt of a million tokens as JSON, and room to spare. */
const BODY_BYTES_MAX = 16 * 1024 * 1024;

/** The HTTP API of a router. */
export function createRouterApi(services: RouterServices, options: RouterApiOptions): Api {
  const { router, table } = services;
  const { version, access, onFault, busyStatus } = options;
  const routed = (): RouteList => app.routes;
  const app = new Elysia({ strictPath: true })
    .onError((fault) => answerOf(fault, { routes: routed(), rules: ROUTER_RULES, onFault }))
    .use(documentation("Hearth router", version))
    .use(healthRoutes(services))
    .use(decideRoutes(router, busyStatus))
    .use(requestRoutes(router))
    .use(sessionRoutes(services.marks))
    .use(workerRoutes(services))
    .use(loadRoutes(services))
    .use(dumpRoutes(router))
    .use(queryRoutes(router))
    .use(thresholdRoutes(router, table));
  everyRouteHasRole(app.routes, ROUTER_RULES);
  const description = { access, words: ROUTER_DESCRIPTION };
  return createGuarded(
    { bodyBytesMax: BODY_BYTES_MAX, ...options },
    {
      rules: ROUTER_RULES,
      handle: (request) => handled(app, request, description),
      direct: {
        "POST /v1/route": (body, signal) =>
          route(router, body, { busyStatus, signal }).catch((fault) => {
            onFault("/v1/route", fault);
            return problemOf(fault);
          }),
      },
    },
  );
}

/** What a caller of a router must be allowed to. */
const ROUTER_RULES = createRouteRules({
  // Probes carry no token; these tell nothing but health.
  "GET /healthz": "open",
  "GET /readyz": "open",
  "GET /metrics": "read",
  "GET /openapi": "read",
  "GET /openapi/json": "read",
  // With a request id it is counted as load from here on.
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

const UNKNOWN_REQUEST = { 404: "No such request is live" };

/** What its description says beyond what the framework knows. */
const ROUTER_DESCRIPTION: DescriptionWords = {
  rules: ROUTER_RULES,
  examples: { id: "req-1", model: "meta-llama/Llama-3.1-8B-Instruct" },
  examplesOf: {
    "DELETE /v1/workers/:id": { id: "gpu-01" },
    "POST /v1/sessions/:id/returning": { id: "chat-9" },
    "POST /v1/sessions/:id/end": { id: "chat-9" },
  },
  answersOf: {
    "POST /v1/route": {
      404: "The worker that is named is not there",
      503: "No worker of that model is there",
      529: "All workers are busy (`api.busy_status` may name another status)",
    },
    "POST /v1/requests/:id/prefill-complete": UNKNOWN_REQUEST,
    "POST /v1/requests/:id/output": UNKNOWN_REQUEST,
    "POST /v1/requests/:id/free": UNKNOWN_REQUEST,
    "DELETE /v1/workers/:id": { 404: "No such worker is known" },
    "POST /v1/workers": { 503: "The router knows as many workers as it may" },
    "GET /v1/explain/:id": { 404: "No decision of that request is kept" },
    "POST /busy_threshold": {
      400: "A threshold is out of range",
      404: "No worker of that model is known",
    },
  },
};

/** How far the KV events of an engine are followed. */
export interface EngineState {
  readonly endpoint: string;
  readonly isReached: boolean;
  readonly wasReached: boolean;
  readonly configuredBlockTokens: number | null;
  /** As its events say. */
  readonly blockTokens: number | null;
  /** Blocks whose prefixes are not known. */
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
    /** Events, of removals blocks, by reason. */
    readonly dropped: Readonly<Record<string, number>>;
  };
}

/** What HTTP asks of a router. Every handler translates and calls one of these. */
export interface RouterServices extends HealthServices {
  readonly router: Router;
  readonly table: WorkerTable;
  readonly load: Pick<ActiveLoad, "of">;
  readonly index: Pick<PrefixIndex, "stats" | "digests">;
  /** Workers of which no model is known, because their APIs have not said it. */
  pending(): readonly ListedWorker[];
  /** The engine of a worker without an agent; null: it is not followed. */
  engine(worker: WorkerId, rank: number): EngineState | null;
  /** What is told to policies. */
  readonly marks: PolicyMarks;
  /** A worker as a file has it: adds it, or changes what is known. Throws ROUTER_FULL. */
  register(worker: ListedWorker): readonly Target[];
  /** Forgets all ranks of it; how many there were. */
  unregister(worker: WorkerId): number;
}

/** A caller who may route may have prompts answered; one who may look may see models and load. */
const PROXY_RULES = createRouteRules({
  // Probes carry no token; these tell nothing but health.
  "GET /health": "open",
  "GET /ping": "open",
  "POST /ping": "open",
  "GET /version": "read",
  "GET /load": "read",
  "GET /v1/models": "read",
  "GET /v1/models/:id": "read",
  // A stored response is somebody's conversation.
  "GET /v1/responses/:id": "operate",
  "POST /v1/responses/:id/cancel": "operate",
  ...(Object.fromEntries(ASK_PATHS.map((path) => [`POST ${path}`, "operate"])) as Record<
    string,
    RouteRole
  >),
});

/** The proxy behind the same gate as the router's API. Bodies are its own to limit and to read. */
export function createProxyApi(proxy: OpenAiProxy, options: Omit<ApiOptions, "version">): Api {
  return createGuarded(options, {
    rules: PROXY_RULES,
    handle: async () => refuse("NOT_FOUND", "there is nothing here"),
    own: (request, onBody) => proxy.fetch(request, { onBody }),
    refused: clientsRefusal,
    credential: credentialOf,
  });
}

/** A bearer token; Anthropic's clients send theirs as `x-api-key`. */
function credentialOf(headers: Headers): string | null {
  const key = headers.get("x-api-key");
  return headers.get("authorization") ?? (key === null ? null : `Bearer ${key}`);
}

/** Clients show the message of an error in the shape of their API. */
async function clientsRefusal(answer: Response, { url }: Request): Promise<Response> {
  const { detail, code, fix, status } = (await answer.json()) as Problem;
  const message = fix === undefined ? detail : `${detail}: ${fix}`;
  const type = status === 401 ? "authentication_error" : "permission_error";
  const error = errorBody({ status, message, type, code: code.toLowerCase() }, shapeOf(url));
  const headers = new Headers(answer.headers);
  headers.set("content-type", "application/json");
  return new Response(JSON.stringify(error), { status, headers });
}
