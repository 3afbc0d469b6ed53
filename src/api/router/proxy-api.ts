import { ASK_PATHS, errorBody, type OpenAiProxy, shapeOf } from "../../router/proxy/index.ts";
import { type Api, type ApiOptions, createGuarded } from "../api.ts";
import { type Problem, refuse } from "../problem.ts";
import { createRouteRules, type RouteRole } from "../route-rules.ts";

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
