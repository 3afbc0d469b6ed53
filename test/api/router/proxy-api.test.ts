import { describe, expect, test } from "bun:test";
import { createProxyApi, OPEN_ACCESS } from "../../../src/api/index.ts";
import type { OpenAiProxy } from "../../../src/router/proxy/index.ts";
import { ManualClock } from "../../support/index.ts";
import { oneToken } from "../serve.ts";

const PAGE = "https://chat.example.org";
const CHAT = "http://localhost/v1/chat/completions";

/** The API of a proxy that gives every request the same answer. */
function apiOf({ origins = [], token = null }: { origins?: string[]; token?: string | null } = {}) {
  const asked: Request[] = [];
  const proxy = {
    fetch: async (request: Request) => {
      asked.push(request);
      return new Response("{}", { headers: { "access-control-allow-origin": "http://engine" } });
    },
  } as unknown as OpenAiProxy;
  const access = token === null ? OPEN_ACCESS : oneToken(token);
  const options = { clock: new ManualClock(), access, onFault: () => undefined };
  const api = createProxyApi(proxy, { ...options, corsOrigins: origins });
  return {
    asked,
    ask: (url: string, headers: Record<string, string> = {}, method = "POST") =>
      api.fetch(new Request(url, { method, headers: { host: "localhost", ...headers } })),
  };
}

const PREFLIGHT = {
  origin: PAGE,
  "access-control-request-method": "POST",
  "access-control-request-headers": "authorization,x-stainless-os",
};

describe("pages of another origin", () => {
  test("pages of another origin are refused by default, in preflights too", async () => {
    const { ask, asked } = apiOf();
    expect((await ask(CHAT, { origin: PAGE })).status).toBe(403);
    const preflight = await ask(CHAT, PREFLIGHT, "OPTIONS");
    expect(preflight.headers.get("access-control-allow-origin")).not.toBe(PAGE);
    expect(asked.filter(({ method }) => method === "POST")).toHaveLength(0);
  });

  for (const origins of [[PAGE], ["*"]]) {
    test(`pages are served if cors_origins is ${origins}`, async () => {
      const { ask } = apiOf({ origins });
      const answer = await ask(CHAT, { origin: PAGE });
      expect(answer.status).toBe(200);
      expect(answer.headers.get("access-control-allow-origin")).toBe(PAGE);
      expect(answer.headers.get("access-control-expose-headers")).toContain("x-hearth-worker");
      expect(answer.headers.get("vary")).toContain("Origin");
    });
  }

  test("a preflight needs no token, a request needs one", async () => {
    const { ask, asked } = apiOf({ origins: [PAGE], token: "secret" });
    const preflight = await ask(CHAT, PREFLIGHT, "OPTIONS");
    expect(preflight.status).toBe(204);
    expect(Object.fromEntries(preflight.headers)).toMatchObject({
      "access-control-allow-origin": PAGE,
      "access-control-allow-headers": "authorization,x-stainless-os",
      "access-control-allow-methods": "GET, POST, OPTIONS",
    });
    expect(asked).toHaveLength(0);
    const refused = await ask(CHAT, { origin: PAGE });
    expect(refused.status).toBe(401);
    expect(refused.headers.get("access-control-allow-origin")).toBe(PAGE);
    const headers = { origin: PAGE, authorization: "Bearer secret" };
    expect((await ask(CHAT, headers)).status).toBe(200);
  });

  test("pages of unlisted origins are refused", async () => {
    const { ask } = apiOf({ origins: [PAGE] });
    const other = "https://chat.example.org.evil.example";
    const answer = await ask(CHAT, { origin: other });
    expect(answer.status).toBe(403);
    expect(answer.headers.get("access-control-allow-origin")).toBeNull();
  });
});

describe("callers with a token", () => {
  test("a token is accepted in x-api-key", async () => {
    const { ask } = apiOf({ token: "secret" });
    const url = "http://localhost/v1/messages";
    expect((await ask(url, { "x-api-key": "secret" })).status).toBe(200);
    const refused = await ask(url, { "x-api-key": "other" });
    expect(refused.status).toBe(401);
    expect(await refused.json()).toMatchObject({
      type: "error",
      error: { type: "authentication_error" },
    });
  });

  test("a token is required for all routes except probes", async () => {
    const { ask } = apiOf({ token: "secret" });
    for (const path of ["/health", "/ping"]) {
      expect((await ask(`http://localhost${path}`, {}, "GET")).status).toBe(200);
    }
    for (const path of ["/version", "/load", "/v1/models", "/v1/responses/resp_1"]) {
      expect((await ask(`http://localhost${path}`, {}, "GET")).status).toBe(401);
    }
  });
});
