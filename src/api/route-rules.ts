import type { Role } from "../control/index.ts";

/** `open`: without credentials. What a command needs is decided command by command. */
export type RouteRole = "open" | Role;

/** What a caller must be allowed to, route by route. */
export const ROUTE_RULES: Readonly<Record<string, RouteRole>> = {
  // Probes of load balancers and service managers carry no token; these tell nothing but health.
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
  // The control plane refuses what a role may not do, with a receipt and a line in the audit log.
  "POST /v1/commands": "read",
  "POST /hicache/pin_blocks": "read",
  "POST /hicache/unpin_blocks": "read",
  "GET /flush_cache": "purge",
  "POST /flush_cache": "purge",
  "POST /v1/purge": "purge",
  "POST /v1/persist": "operate",
};

const PATTERNS = Object.keys(ROUTE_RULES).filter((route) => route.includes("/:"));

/** The path of an address exactly as the router takes it: nothing is decoded or put straight. */
export function pathOf(url: string): string {
  const start = url.indexOf("/", 8);
  const end = url.indexOf("?", start + 1);
  return end < 0 ? url.slice(start) : url.slice(start, end);
}

/** Whether a path is one of the route's, whose pieces behind a colon stand for any. */
export function serves(route: string, path: string): boolean {
  const pieces = route.split("/");
  const given = path.split("/");
  return (
    pieces.length === given.length &&
    pieces.every((piece, i) => piece === given[i] || (piece.startsWith(":") && given[i] !== ""))
  );
}

/** What a request needs. Paths that are not served tell so to whoever may read. */
export function roleOf(method: string, path: string): RouteRole {
  const route = `${method === "HEAD" ? "GET" : method} ${path}`;
  if (Object.hasOwn(ROUTE_RULES, route)) return ROUTE_RULES[route]!;
  const pattern = PATTERNS.find((one) => serves(one, route));
  return pattern === undefined ? "read" : ROUTE_RULES[pattern]!;
}

/** Whether a browser's request for it must come from a page of ours. */
export function changes(method: string, path: string): boolean {
  return (method !== "GET" && method !== "HEAD") || path === "/flush_cache";
}
