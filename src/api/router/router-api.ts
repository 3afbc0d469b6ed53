import { Elysia } from "elysia";
import { type Api, type ApiOptions, createGuarded } from "../api.ts";
import {
  answerOf,
  documentation,
  everyRouteHasRole,
  handled,
  healthRoutes,
  type RouteList,
} from "../common-routes.ts";
import { problemOf } from "../problem.ts";
import { decideRoutes, requestRoutes, route } from "./decide-routes.ts";
import { dumpRoutes } from "./dump-routes.ts";
import { queryRoutes } from "./query-routes.ts";
import { ROUTER_DESCRIPTION, ROUTER_RULES } from "./rules.ts";
import type { RouterServices } from "./services.ts";
import { sessionRoutes } from "./session-routes.ts";
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
