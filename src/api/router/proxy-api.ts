import type { OpenAiProxy } from "../../proxy/index.ts";
import { type Api, type ApiOptions, createGuarded } from "../api.ts";
import { refuse } from "../problem.ts";
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
  });
}
