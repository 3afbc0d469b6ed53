import type { OpenAiProxy } from "../../proxy/index.ts";
import { type Api, type ApiOptions, createGuarded } from "../api.ts";
import { type Problem, refuse } from "../problem.ts";
import { createRouteRules } from "../route-rules.ts";

/** Whoever may route may have prompts answered; who may look may see which models there are. */
const PROXY_RULES = createRouteRules({
  "GET /v1/models": "read",
  "GET /v1/models/:id": "read",
  "POST /v1/chat/completions": "operate",
  "POST /v1/completions": "operate",
});

/** The proxy behind the same gate as the router's API. Bodies are its own to limit and to read. */
export function createProxyApi(proxy: OpenAiProxy, options: Omit<ApiOptions, "version">): Api {
  return createGuarded(options, {
    rules: PROXY_RULES,
    handle: async () => refuse("NOT_FOUND", "there is nothing here"),
    own: (request, onBody) => proxy.fetch(request, { onBody }),
    refused: openAiRefusal,
  });
}

/** Clients of OpenAI's API show `error.message` of what they are answered. */
async function openAiRefusal(answer: Response): Promise<Response> {
  const { detail, code, fix, status } = (await answer.json()) as Problem;
  const message = fix === undefined ? detail : `${detail}: ${fix}`;
  const type = status === 401 ? "authentication_error" : "permission_error";
  const error = { message, type, param: null, code: code.toLowerCase(), status };
  const headers = new Headers(answer.headers);
  headers.set("content-type", "application/json");
  return new Response(JSON.stringify({ error }), { status, headers });
}
