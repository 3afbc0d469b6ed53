import { openapi } from "@elysiajs/openapi";
import { Elysia, t } from "elysia";
import { assert, HearthError } from "../core/index.ts";
import type { HealthProblem } from "../observability/index.ts";
import { blockRoutes } from "./block-routes.ts";
import { answerJson } from "./body.ts";
import type { Callers } from "./callers.ts";
import { commandRoutes } from "./command-routes.ts";
import { completeDescription, type Description } from "./description.ts";
import { eventRoutes } from "./event-routes.ts";
import { explainRoutes } from "./explain-routes.ts";
import type { Access } from "./gate.ts";
import { hicacheRoutes } from "./hicache-routes.ts";
import { holdRoutes } from "./hold-routes.ts";
import { whatIsWrong } from "./invalid.ts";
import { peerRoutes } from "./peer-routes.ts";
import { problemOf, refuse } from "./problem.ts";
import { changes, pathOf, ROUTE_RULES, serves } from "./route-rules.ts";
import type { ApiServices, ControlServices } from "./services.ts";
import { sessionRoutes } from "./session-routes.ts";
import { STATUS_EXAMPLE } from "./status-example.ts";
import { statusReport } from "./status-report.ts";
import { treeRoutes } from "./tree-routes.ts";

/**
 * The page at /openapi loads its script from the network; a fixed version, so that it is what it
 * was.
 */
const SCALAR_VERSION = "1.72.1";

const DESCRIPTION_PATH = "/openapi/json";

const readiness = (example: object) =>
  t.Object(
    {
      ready: t.Boolean(),
      reasons: t.Array(t.String(), { description: "Why not, one line each" }),
    },
    { examples: [example] },
  );

export interface RouteOptions {
  readonly version: string;
  readonly access: Access;
  readonly callers: Callers;
  /** Told of every fault that is no answer to the request. */
  readonly onFault: (path: string, thrown: unknown) => void;
}

/**
 * The routes, and nothing about who may call them. Paths are matched as they are, so that the gate
 * and the router mean the same one.
 */
export function createRoutes(services: ApiServices, options: RouteOptions) {
  const routed = (): Routed => app;
  const app = new Elysia({ strictPath: true })
    .onError(({ code, error, path, request }) => {
      if (code === "NOT_FOUND") return notFound(routed(), request.method, path);
      const isAnswer = code === "VALIDATION" && error.type === "response";
      if (code === "PARSE") return refuse("REQUEST_INVALID", "the body is not what its type says");
      if (!isAnswer && code === "VALIDATION") {
        return refuse("REQUEST_INVALID", whatIsWrong(error, request.url));
      }
      const fault = isAnswer ? misshapen(error) : error;
      options.onFault(path, fault);
      return problemOf(fault);
    })
    .use(documentation(options))
    .get("/healthz", () => healthText(services.health()), {
      response: t.String({ examples: ["ok\n", "ok\nwarn KV_SSD_FULL: the SSD is full\n"] }),
      detail: {
        summary: "The process lives and answers; below it the codes of what is the matter",
        security: [],
      },
    })
    .get(
      "/readyz",
      ({ status }) => {
        const { ready, reasons } = services.readiness();
        return status(ready ? 200 : 503, { ready, reasons: [...reasons] });
      },
      {
        response: {
          200: readiness({ ready: true, reasons: [] }),
          503: readiness({ ready: false, reasons: ["the agent is draining"] }),
        },
        detail: { summary: "Whether engines are served now, and if not why", security: [] },
      },
    )
    .get(
      "/metrics",
      async ({ set }) => {
        set.headers["content-type"] = services.metricsContentType;
        return services.metricsText();
      },
      {
        response: t.String({ examples: ['cgn_kvcached_blocks{tier="ram"} 6400\n'] }),
        detail: { summary: "Metrics in the Prometheus text format" },
      },
    )
    .get("/v1/status", () => services.status(), {
      response: t.Object(statusReport.properties, { examples: [STATUS_EXAMPLE] }),
      detail: { summary: "What the agent is and holds" },
    })
    .use(sessionRoutes(services))
    .use(blockRoutes(services, options.callers))
    .use(peerRoutes(services.peers))
    .use(controlRoutes(services.control, options));
  for (const { method, path } of app.routes) {
    assert(Object.hasOwn(ROUTE_RULES, `${method} ${path}`), "every route has its role");
  }
  return { handle: (request: Request) => handled(app, request, options.access) };
}

type Handler = { handle(request: Request): Response | Promise<Response> };

/** The description as the framework makes it knows neither the gate nor what a problem is. */
async function handled(app: Handler, request: Request, access: Access): Promise<Response> {
  const answer = await app.handle(request);
  const isDescription = answer.ok && request.method === "GET";
  if (!isDescription || pathOf(request.url) !== DESCRIPTION_PATH) return answer;
  return answerJson(completeDescription((await answer.json()) as Description, access));
}

function controlRoutes(control: ControlServices, { callers, onFault }: RouteOptions) {
  return new Elysia()
    .use(commandRoutes(control, callers, onFault))
    .use(hicacheRoutes(control, callers))
    .use(holdRoutes(control))
    .use(treeRoutes(control))
    .use(explainRoutes(control))
    .use(eventRoutes(control));
}

/** No details: whoever asks need not have shown a token. */
function healthText(problems: readonly HealthProblem[]): string {
  const lines = problems.map(({ code, severity, meaning }) => `${severity} ${code}: ${meaning}\n`);
  return `ok\n${lines.join("")}`;
}

function documentation({ version }: RouteOptions) {
  return openapi({
    scalar: { version: SCALAR_VERSION },
    documentation: {
      info: {
        title: "Hearth agent",
        version,
        description:
          "Errors are application/problem+json with a stable `code` and, often, a `fix`. " +
          "Integers of 64 bits are read and written digit for digit.",
      },
    },
  });
}

/** A service gave something else than its schema promises. */
function misshapen(cause: Error): HearthError {
  return new HearthError("INTERNAL", "the answer is not what its schema promises", { cause });
}

interface Routed {
  readonly routes: readonly { readonly method: string; readonly path: string }[];
}

/** 405 where the path is served for another method, else 404. */
function notFound({ routes }: Routed, method: string, path: string): Response {
  const methods = routes.filter((route) => serves(route.path, path)).map((route) => route.method);
  if (methods.length === 0) {
    return refuse("NOT_FOUND", `there is no ${path.slice(0, 200)}`, { fix: "see /openapi" });
  }
  const hasHead = methods.includes("GET") && !changes("HEAD", path);
  const allow = hasHead ? [...methods, "HEAD"] : methods;
  return refuse("METHOD_NOT_ALLOWED", `${path} does not answer ${method}`, {
    headers: { allow: [...new Set(allow)].join(", ") },
  });
}
