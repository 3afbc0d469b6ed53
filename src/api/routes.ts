import { Elysia } from "elysia";
import type { Access, Callers } from "./authorization.ts";
import { blockRoutes } from "./block-routes.ts";
import { commandRoutes, unfenceRoutes } from "./command-routes.ts";
import {
  answerOf,
  documentation,
  everyRouteHasRole,
  handled,
  healthRoutes,
  type RouteList,
} from "./common-routes.ts";
import { eventRoutes } from "./event-routes.ts";
import { explainRoutes } from "./explain-routes.ts";
import { hicacheRoutes } from "./hicache-routes.ts";
import { peerRoutes } from "./peer-routes.ts";
import { pinRoutes } from "./pin-routes.ts";
import { AGENT_RULES } from "./route-rules.ts";
import type { ApiServices, ControlServices } from "./services.ts";
import { sessionRoutes } from "./session-routes.ts";
import { statusReport } from "./status-report.ts";
import { treeRoutes } from "./tree-routes.ts";

export interface RouteOptions {
  readonly version: string;
  readonly access: Access;
  readonly callers: Callers;
  /** True if GET /flush_cache empties the cache. */
  readonly flushByGet: boolean;
  /** Called with each internal error and the path of its request. */
  readonly onFault: (path: string, thrown: unknown) => void;
}

/** Handles authorized requests. */
export interface Routes {
  handle(request: Request): Promise<Response>;
}

/**
 * Creates the routes, without authorization. Paths are matched literally, so that authorization and
 * framework always select the same route.
 */
export function createRoutes(services: ApiServices, options: RouteOptions): Routes {
  const { onFault } = options;
  const routed = (): RouteList => app.routes;
  const app = new Elysia({ strictPath: true, precompile: true })
    .onError((fault) => answerOf(fault, { routes: routed(), rules: AGENT_RULES, onFault }))
    .use(documentation("Hearth agent", options.version))
    .use(healthRoutes(services))
    .get("/v1/status", () => services.status(), {
      response: statusReport,
      detail: { summary: "Shows the agent's state and contents" },
    })
    .use(sessionRoutes(services))
    .use(blockRoutes(services, options.callers))
    .use(peerRoutes(services.peers))
    .use(controlRoutes(services.control, options));
  everyRouteHasRole(app.routes, AGENT_RULES);
  const description = { access: options.access, rules: AGENT_RULES };
  return { handle: (request: Request) => handled(app, request, description) };
}

function controlRoutes(control: ControlServices, options: RouteOptions) {
  const { callers, onFault } = options;
  return new Elysia()
    .use(commandRoutes(control, callers, onFault))
    .use(hicacheRoutes(control, options))
    .use(unfenceRoutes(control, callers))
    .use(pinRoutes(control))
    .use(treeRoutes(control))
    .use(explainRoutes(control))
    .use(eventRoutes(control));
}
