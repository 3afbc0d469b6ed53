import { describe, expect, test } from "bun:test";
import { AGENT_METRICS } from "../../src/api/index.ts";
import { HearthError, loopTurns } from "../../src/core/index.ts";
import { HEALTH_CODES, Health } from "../../src/observability/index.ts";
import { ManualClock, waitFor } from "../support/index.ts";
import { oneToken, problem, STATUS, serve, sessionOf } from "./serve.ts";

const served = serve();

describe("health", () => {
  test("health is ok while the event loop runs", async () => {
    const answer = await served.get("/healthz");
    expect(answer.status).toBe(200);
    expect(await answer.text()).toBe("ok\n");
  });

  test("the time of a handler counts as one event loop turn", async () => {
    const busy = serve();
    busy.told.status = () => {
      const endMs = performance.now() + 60;
      while (performance.now() < endMs);
      return STATUS;
    };
    const turns: number[] = [];
    using _listening = loopTurns.onTurn((ms) => turns.push(ms));
    expect((await busy.get("/v1/status")).status).toBe(200);
    await waitFor(() => Math.max(...turns) >= 60);
  });

  test("health lists problems and stays 200 and ready", async () => {
    const clock = new ManualClock();
    using health = new Health({ clock, log: { log: () => undefined } });
    health.raise("KV_SSD_FULL", "/mnt/nvme/secret: ENOSPC");
    health.raise("KV_SSD_HUNG", "no answer for 30 s");
    served.told.health = health.list();
    const answer = await served.get("/healthz");
    expect(answer.status).toBe(200);
    expect((await answer.text()).split("\n")).toEqual([
      "ok",
      `error KV_SSD_HUNG: ${HEALTH_CODES.KV_SSD_HUNG.meaning}`,
      `warn KV_SSD_FULL: ${HEALTH_CODES.KV_SSD_FULL.meaning}`,
      "",
    ]);
    expect((await served.get("/readyz")).status).toBe(200);
    served.told.health = [];
    expect(await (await served.get("/healthz")).text()).toBe("ok\n");
  });

  test("readiness follows the agent: starting, ready, draining", async () => {
    const ask = async () => {
      const answer = await served.get("/readyz");
      return { status: answer.status, body: await answer.json() };
    };
    served.told.readiness = { ready: false, reasons: ["the arena is not there yet"] };
    expect(await ask()).toEqual({
      status: 503,
      body: { ready: false, reasons: ["the arena is not there yet"] },
    });
    served.told.readiness = { ready: true, reasons: [] };
    expect(await ask()).toEqual({ status: 200, body: { ready: true, reasons: [] } });
    served.told.readiness = { ready: false, reasons: ["draining"] };
    expect((await ask()).status).toBe(503);
    expect((await served.get("/healthz")).status).toBe(200);
  });
});

test("metrics are in the Prometheus format", async () => {
  const answer = await served.get("/metrics");
  expect(answer.status).toBe(200);
  expect(answer.headers.get("content-type")).toStartWith("text/plain; version=0.0.4");
  const text = await answer.text();
  for (const name of Object.keys(AGENT_METRICS)) expect(text).toContain(`# HELP ${name} `);
});

describe("status", () => {
  test("status is the agent's report with an exact 64-bit incarnation", async () => {
    const answer = await served.get("/v1/status");
    expect(answer.status).toBe(200);
    expect(await answer.json()).toEqual(STATUS);
  });

  test("status answers HEAD without a body", async () => {
    const answer = await served.get("/v1/status", { method: "HEAD" });
    expect(answer.status).toBe(200);
    expect(await answer.text()).toBe("");
  });

  test("a status that violates its schema is answered 500", async () => {
    served.told.status = () => ({ ...STATUS, incarnation: "no number" });
    const found = await problem(await served.get("/v1/status"));
    expect(found).toMatchObject({ status: 500, code: "INTERNAL" });
    expect(served.told.faults.at(-1)?.path).toBe("/v1/status");
    served.told.status = () => STATUS;
  });
});

describe("sessions", () => {
  const ids = [5n, 2n ** 64n - 1n, 7n];
  // biome-ignore lint/suspicious/noExplicitAny: tests read the fields that they name
  const ask = async (path: string): Promise<any> => (await served.get(path)).json();

  test("sessions are listed page by page with numbers as text", async () => {
    served.told.sessions = ids.map(sessionOf);
    expect(await ask("/v1/sessions")).toEqual({ sessions: ids.map(sessionOf), next: null });
    const first = await ask("/v1/sessions?limit=2");
    expect(first).toEqual({ sessions: ids.slice(0, 2).map(sessionOf), next: 2 });
    expect(first.sessions[1].id).toBe("18446744073709551615");
    expect(await ask(`/v1/sessions?limit=2&after=${first.next}`)).toEqual({
      sessions: [sessionOf(7n)],
      next: null,
    });
  });

  test("a session is found by its number in each namespace", async () => {
    served.told.sessions = [sessionOf(5n), { ...sessionOf(5n), namespace: "cd".repeat(32) }];
    const found = await ask("/v1/sessions/5");
    expect(found).toEqual({ sessions: served.told.sessions });
    expect(await problem(await served.get("/v1/sessions/6"))).toMatchObject({
      status: 404,
      code: "NOT_FOUND",
      fix: expect.stringContaining("session_idle"),
    });
    expect((await served.get(`/v1/sessions/${"9".repeat(20)}`)).status).toBe(404);
  });

  test.each([
    ...["limit=0", "limit=1001", "limit=1.5", "limit=x", "limit=-1", "limit="],
    ...["after=-1", "after=x", "after=1e300", "after=9007199254740993000"],
  ])("the page %s is refused", async (query) => {
    expect(await problem(await served.get(`/v1/sessions?${query}`))).toMatchObject({
      status: 422,
      code: "REQUEST_INVALID",
    });
  });

  test.each(["x", "-1", "1.5", "0x10", "9".repeat(21), "%00"])(
    "the session number %s is refused",
    async (id) => {
      const answer = await served.get(`/v1/sessions/${id}`);
      expect(await problem(answer)).toMatchObject({ status: 422, code: "REQUEST_INVALID" });
    },
  );

  test("sessions cannot be ended over HTTP", async () => {
    const answer = await served.get("/v1/sessions/5", { method: "DELETE" });
    expect(answer.headers.get("allow")).toBe("GET, HEAD");
    expect(await problem(answer)).toMatchObject({ status: 405 });
  });
});

describe("internal faults", () => {
  test("a fault is answered with its code and its fix", async () => {
    served.told.status = () => {
      throw new HearthError("LIMIT", "too many readers", { fix: "ask later" });
    };
    expect(await problem(await served.get("/v1/status"))).toEqual({
      type: "about:blank",
      title: "Too Many Requests",
      status: 429,
      detail: "too many readers",
      code: "LIMIT",
      fix: "ask later",
    });
    served.told.status = () => STATUS;
  });

  test("an internal fault is logged in full and hidden from the caller", async () => {
    const bug = new TypeError("secret inside");
    served.told.status = () => {
      throw bug;
    };
    const found = await problem(await served.get("/v1/status"));
    expect(found).toMatchObject({ status: 500, code: "INTERNAL", fix: "see the agent's log" });
    expect(JSON.stringify(found)).not.toContain("secret");
    expect(served.told.faults.at(-1)).toEqual({ path: "/v1/status", thrown: bug });
    served.told.status = () => STATUS;
  });
});

describe("unknown paths", () => {
  test.each(["/", "/nope", "/v1", "/v1/status/more", "/openapi/json/x", "/%00", "/healthz%2f"])(
    "%s",
    async (path) => {
      expect(await problem(await served.get(path))).toMatchObject({
        status: 404,
        code: "NOT_FOUND",
        fix: "see /openapi",
      });
    },
  );

  test.each(["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])(
    "%s on a path that reads",
    async (method) => {
      const answer = await served.get("/v1/status", { method });
      expect(answer.headers.get("allow")).toBe("GET, HEAD");
      expect(await problem(answer)).toMatchObject({ status: 405, code: "METHOD_NOT_ALLOWED" });
    },
  );
});

test("a body that is too long is not taken", async () => {
  const small = serve({ bodyBytesMax: 1_000 });
  const fits = await small.get("/v1/status", { method: "POST", body: "x".repeat(1_000) });
  expect(fits.status).toBe(405);
  const long = await small.get("/v1/status", { method: "POST", body: "x".repeat(1_001) });
  expect(long.status).toBe(413);
});

describe("the description of the API", () => {
  interface Operation {
    readonly summary?: string;
    readonly security?: unknown;
    readonly responses: Record<string, { content?: Record<string, { schema: Schema }> }>;
  }
  interface Schema {
    readonly required?: string[];
    readonly properties?: Record<string, { type?: string; enum?: string[] }>;
  }
  interface Description {
    readonly info: { readonly title: string; readonly version: string };
    readonly paths: Record<string, { readonly get?: Operation; readonly post?: Operation }>;
    readonly security?: unknown;
  }
  const describeApi = async (from = served, init?: RequestInit) =>
    (await (await from.get("/openapi/json", init)).json()) as Description;

  test("has every route with a summary and its answers", async () => {
    const { info, paths, security } = await describeApi();
    expect(info).toMatchObject({ title: "Hearth agent", version: "1.2.3" });
    expect(Object.keys(paths).sort()).toEqual([
      ...["/flush_cache", "/healthz", "/hicache/pin_blocks", "/hicache/unpin_blocks"],
      ...["/metrics", "/readyz", "/v1/commands", "/v1/commands/{id}", "/v1/events"],
      ...["/v1/explain", "/v1/leases", "/v1/peers", "/v1/persist", "/v1/pins", "/v1/pulls"],
      ...[
        "/v1/purge",
        "/v1/sessions",
        "/v1/sessions/{id}",
        "/v1/status",
        "/v1/tree",
        "/v1/unfence",
      ],
    ]);
    for (const { get, post } of Object.values(paths)) {
      expect((get ?? post)?.summary).toMatch(/^[A-Z]/);
    }
    expect(Object.keys(paths["/readyz"]!.get!.responses)).toEqual([
      ...["200", "403", "503", "default"],
    ]);
    expect(security).toBeUndefined();
  });

  test("has the status field by field", async () => {
    const { paths } = await describeApi();
    const schema = paths["/v1/status"]!.get!.responses["200"]!.content!["application/json"]!.schema;
    expect(schema.required?.sort()).toEqual(Object.keys(STATUS).sort());
    expect(schema.properties?.state).toMatchObject({ enum: ["starting", "ready", "draining"] });
  });

  test("a configured token is required on every path except health", async () => {
    const token = "0123456789abcdef";
    const { paths, security } = await describeApi(serve({ access: oneToken(token) }), {
      headers: { authorization: `Bearer ${token}` },
    });
    expect(security).toEqual([{ bearer: [] }]);
    expect(paths["/healthz"]!.get!.security).toEqual([]);
    expect(paths["/v1/status"]!.get!.security).toBeUndefined();
  });

  test("has a page for people", async () => {
    const answer = await served.get("/openapi");
    expect(answer.headers.get("content-type")).toStartWith("text/html");
    const page = await answer.text();
    expect(page).toContain("Hearth agent");
    expect(page).toMatch(/@scalar\/api-reference@\d+\.\d+\.\d+\//);
  });
});
