import type { Role } from "../control/index.ts";

/**
 * Role that a route requires. `open`: no credentials. Commands additionally require roles of their
 * own.
 */
export type RouteRole = "open" | Role;

/** Rules per route: the required role, and whether it changes anything. */
export interface RouteRules {
  /** Required roles by method and path, with paths as in `GET /v1/sessions/:id`. */
  readonly roles: Readonly<Record<string, RouteRole>>;
  /**
   * Returns the role that a request requires. Unknown paths require `read`, so that only authorized
   * callers get status 404.
   */
  roleOf(method: string, path: string): RouteRole;
  /**
   * Returns true if the route changes something. A browser's request to it must then come from a
   * page of this server.
   */
  changes(method: string, path: string): boolean;
}

const AGENT_ROLES: Readonly<Record<string, RouteRole>> = {
  // Probes of load balancers and service managers send no token. These routes reveal only the
  // health.
  "GET /healthz": "open",
  "GET /readyz": "open",
  "GET /metrics": "read",
  "GET /openapi": "read",
  "GET /openapi/json": "read",
  "GET /v1/status": "read",
  "GET /v1/sessions": "read",
  "GET /v1/sessions/:id": "read",
  "GET /v1/pins": "read",
  "GET /v1/leases": "read",
  "GET /v1/tree": "read",
  "GET /v1/explain": "read",
  "POST /v1/explain": "read",
  "GET /v1/events": "read",
  "GET /v1/peers": "read",
  "GET /v1/pulls": "read",
  "GET /v1/commands/:id": "read",
  // The control plane checks the role of each command, so that a refusal has a receipt and an audit
  // entry.
  "POST /v1/commands": "read",
  "POST /hicache/pin_blocks": "read",
  "POST /hicache/unpin_blocks": "read",
  "GET /flush_cache": "purge",
  "POST /flush_cache": "purge",
  "POST /v1/purge": "purge",
  "POST /v1/persist": "operate",
  "POST /v1/unfence": "purge",
};

/** Returns the path of a URL exactly as the framework matches it: not decoded, not normalised. */
export function pathOf(url: string): string {
  const start = url.indexOf("/", 8);
  const end = url.indexOf("?", start + 1);
  return end < 0 ? url.slice(start) : url.slice(start, end);
}

/** Returns true if a path matches a route. A segment that begins with a colon matches any value. */
export function serves(route: string, path: string): boolean {
  const pieces = route.split("/");
  const given = path.split("/");
  return (
    pieces.length === given.length &&
    pieces.every((piece, i) => piece === given[i] || (piece.startsWith(":") && given[i] !== ""))
  );
}

/** Creates the rules. `changingGets` lists the paths whose GET changes something. */
export function createRouteRules(
  roles: Readonly<Record<string, RouteRole>>,
  changingGets: readonly string[] = [],
): RouteRules {
  const patterns = Object.keys(roles).filter((route) => route.includes("/:"));
  return {
    roles,
    roleOf(method, path) {
      const route = `${method === "HEAD" ? "GET" : method} ${path}`;
      if (Object.hasOwn(roles, route)) return roles[route];
      const pattern = patterns.find((one) => serves(one, route));
      return pattern === undefined ? "read" : roles[pattern];
    },
    changes: (method, path) =>
      (method !== "GET" && method !== "HEAD") || changingGets.includes(path),
  };
}

/** Rules of the agent's API. */
export const AGENT_RULES = createRouteRules(AGENT_ROLES, ["/flush_cache"]);
