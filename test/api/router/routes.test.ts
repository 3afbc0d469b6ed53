import { describe, expect, test } from "bun:test";
import { type Access, Tokens } from "../../../src/api/index.ts";
import { describeNative } from "../../support/index.ts";
import { MODEL, serveRouter, spec } from "./serve.ts";

const TOKENS = Array.from({ length: 64 }, (_, at) => at + 1);
const json = async (answer: Response | Promise<Response>) =>
  JSON.parse(await (await answer).text());

describeNative("POST /v1/route", () => {
  const served = serveRouter();
  const workers = ["w-1", "w-2"].map((worker) => served.table.put(spec(worker)));

  test("a decision has worker, rank, overlap and cost terms", async () => {
    const answer = await served.post("/v1/route", { model: MODEL, tokens: TOKENS });
    expect(answer.status).toBe(200);
    const body = await json(answer);
    expect(body).toMatchObject({ request_id: null, rank: 0, prompt_tokens: 64, prefill: null });
    expect(body.terms).toMatchObject({ device_blocks: 0, additional_blocks: 4, cost: 8 });
    expect(served.load.requests).toBe(0);
  });

  test("held blocks lower a worker's cost, by tokens and by hashes", async () => {
    const body = { model: MODEL, tokens: TOKENS, request_id: "seen", overrides: { worker: "w-2" } };
    let hashes = new BigUint64Array(0);
    using _watch = served.router.listen({
      routed: (_request, _decision, own) => {
        hashes = own.slice();
      },
    });
    await served.post("/v1/route", body);
    const change = { kind: "stored", tier: "device", parent: null, hashes } as const;
    served.index.apply([{ target: workers[1]!.id, change: { ...change, tokenHashes: null } }]);
    served.table.setKnown(workers[1]!.id, true);
    served.router.free("seen");
    const found = await json(served.post("/v1/route", { model: MODEL, tokens: TOKENS }));
    expect(found).toMatchObject({ worker: "w-2", terms: { device_blocks: 4 } });
    const block_hashes = [...hashes].map((hash, at) => (at % 2 === 0 ? `${hash}` : hexOf(hash)));
    const byHash = await json(
      served.post("/v1/route", { model: MODEL, block_hashes, block_tokens: 16 }),
    );
    expect(byHash).toMatchObject({ worker: "w-2", terms: { device_blocks: 4 } });
    const query = { model_name: MODEL, token_ids: TOKENS };
    const instance = { longest_matched: 64, gpu: 64, dp: { 0: 64 }, cpu: 64, disk: 64 };
    const report = {
      scores: { "w-2": { 0: 64 } },
      ...{ frequencies: [], instances: { "w-2": instance } },
    };
    expect(await json(served.post("/query", query))).toEqual(report);
    const asked = { model_name: MODEL, block_hashes };
    expect(await json(served.post("/query_by_hash", asked))).toEqual(report);
    const numbers = `{"model":"m","block_hashes":[${[...hashes].join(",")}]}`;
    expect(await json(served.post("/v1/route", numbers))).toMatchObject({ worker: "w-2" });
  });

  test("a request id counts as load until it is freed", async () => {
    const body = { model: MODEL, tokens: TOKENS, request_id: "a b/c?", session_id: "s" };
    const { worker } = await json(served.post("/v1/route", { ...body, overrides: { seed: 3 } }));
    const path = `/v1/requests/${encodeURIComponent("a b/c?")}`;
    const loadOf = async () =>
      (await json(served.get("/v1/loads"))).loads.find(
        (one: { worker: string }) => one.worker === worker,
      );
    expect(await loadOf()).toMatchObject({ active_requests: 1, active_blocks: 4 });
    expect((await loadOf()).active_prefill_tokens).toBeGreaterThanOrEqual(0);
    expect((await served.post(`${path}/prefill-complete`, {})).status).toBe(200);
    expect(await loadOf()).toMatchObject({ active_prefill_tokens: 0 });
    expect((await served.post(`${path}/output`, { tokens: 33 })).status).toBe(200);
    expect(await loadOf()).toMatchObject({ active_blocks: 4 + 3 });
    expect((await served.post(`${path}/output`, { tokens: -1 })).status).toBe(422);
    expect(await json(served.get(`/v1/explain/${encodeURIComponent("a b/c?")}`))).toMatchObject({
      ...{ request_id: "a b/c?", model: MODEL, mode: "kv", prompt_blocks: 4 },
      ...{ chosen: { worker, rank: 0 }, actions: [] },
    });
    expect((await served.post(`${path}/free`, {})).status).toBe(200);
    const again = await served.post(`${path}/free`, {});
    expect([again.status, (await json(again)).code]).toEqual([404, "NOT_FOUND"]);
    expect(await loadOf()).toMatchObject({ active_requests: 0, active_blocks: 0 });
  });

  test("session events of clients reach the policies", async () => {
    const answer = await served.post("/v1/sessions/chat-9/returning", {});
    expect([answer.status, await json(answer)]).toEqual([200, { session_id: "chat-9" }]);
    await served.post("/v1/sessions/chat%2010/end", {});
    expect(served.told).toEqual(["chat-9 returns", "chat 10 ended"]);
    const long = await served.post(`/v1/sessions/${"x".repeat(300)}/end`, {});
    expect(long.status).toBe(422);
    expect(served.told).toHaveLength(2);
  });

  test("loads are listed for a prompt, and for one model", async () => {
    const { loads } = await json(served.post("/v1/loads", { model: MODEL, tokens: TOKENS }));
    expect(loads).toHaveLength(2);
    expect(loads[0]).toMatchObject({ worker: "w-1", potential_decode_blocks: 4 });
    expect(loads[0].potential_prefill_tokens).toBe(64);
    expect((await json(served.get("/v1/loads?model=other"))).loads).toEqual([]);
  });

  test("a missing worker and an invalid prompt are refused with a reason", async () => {
    const other = await served.post("/v1/route", { model: "x", tokens: [1] });
    expect([other.status, (await json(other)).code]).toEqual([503, "NO_WORKER"]);
    const direct = { model: MODEL, tokens: [1], overrides: { mode: "direct", worker: "w-9" } };
    const unknown = await served.post("/v1/route", direct);
    expect([unknown.status, (await json(unknown)).code]).toEqual([404, "UNKNOWN_WORKER"]);
    for (const body of ["", "{", "[]", '{"model":"m","tokens":[1.5]}', '{"model":"m"}']) {
      const refused = await served.post("/v1/route", body);
      expect([refused.status, (await json(refused)).code]).toEqual([422, "REQUEST_INVALID"]);
    }
    expect((await served.get("/v1/explain/nobody")).status).toBe(404);
    expect((await served.get("/v1/route")).status).toBe(405);
    expect((await served.get("/v1/rout")).status).toBe(404);
    expect(served.faults).toEqual([]);
  });

  test("the dump has one document per line and can be cancelled", async () => {
    const answer = await served.get("/v1/events/dump");
    expect(answer.headers.get("content-type")).toBe("application/x-ndjson");
    const lines = (await answer.text()).trim().split("\n");
    expect(lines.length).toBeGreaterThan(0);
    for (const line of lines) JSON.parse(line);
    const left = await served.get("/v1/events/dump");
    await left.body?.cancel();
  });
});

function hexOf(hash: bigint): string {
  return `0x${hash.toString(16)}`;
}

describeNative("workers over HTTP", () => {
  const served = serveRouter();

  test("workers are registered, updated, listed and removed", async () => {
    const worker = { worker: "gpu-7", model: MODEL, url: "http://10.0.0.7:8000", ranks: 2 };
    const added = await json(served.post("/v1/workers", worker));
    expect(added.workers.map((one: { rank: number }) => one.rank)).toEqual([0, 1]);
    const { workers } = await json(served.get("/v1/workers"));
    expect(workers[0]).toMatchObject({
      ...{ worker: "gpu-7", model: MODEL, role: "both", state: "live", known: false },
      spaces: [{ kind: "tokens", block_tokens: 16 }],
      load: { active_requests: 0 },
    });
    const gone = await served.get("/v1/workers/gpu-7", { method: "DELETE" });
    expect(await json(gone)).toEqual({ removed: 2 });
    expect((await served.get("/v1/workers/gpu-7", { method: "DELETE" })).status).toBe(404);
  });

  test.each([
    [{ model: MODEL }, "worker is missing"],
    [{ worker: "a b", model: MODEL }, "not a valid worker id"],
    [{ worker: "a" }, "model is missing"],
    [{ worker: "a", model: MODEL, ulr: "x" }, "did you mean url"],
    [{ worker: "a", model: MODEL, url: "ftp://x" }, "not a valid URL"],
    [{ worker: "a", model: MODEL, ranks: 0 }, "too small"],
  ])("the worker %j is refused", async (body, why) => {
    const answer = await served.post("/v1/workers", body);
    expect(answer.status).toBe(422);
    expect((await json(answer)).detail).toContain(why);
  });
});

describeNative("busy thresholds", () => {
  const served = serveRouter({ settings: { queue: { requestsMax: 0, waitMs: 1 } } });
  served.table.put(spec("w-1"));
  const post = (body: unknown) => served.post("/busy_threshold", body);

  test("thresholds are set, read and listed as in Dynamo", async () => {
    expect(await json(served.get("/busy_threshold"))).toEqual({ thresholds: [] });
    const unset = {
      model: MODEL,
      active_decode_blocks_threshold: null,
      active_prefill_tokens_threshold: null,
    };
    expect(await json(post({ model: MODEL }))).toEqual(unset);
    const blocks = { ...unset, active_decode_blocks_threshold: 0.85 };
    expect(await json(post({ model: MODEL, active_decode_blocks_threshold: 0.85 }))).toEqual(
      blocks,
    );
    const both = { ...blocks, active_prefill_tokens_threshold: 1000 };
    expect(await json(post({ model: MODEL, active_prefill_tokens_threshold: 1000 }))).toEqual(both);
    expect(await json(served.get("/busy_threshold"))).toEqual({ thresholds: [both] });
  });

  test("the prefill threshold may be a fraction of a worker's step", async () => {
    served.table.put(spec("w-1", { batchTokensMax: 100 }));
    const set = { model: MODEL, active_prefill_tokens_threshold_frac: 0.5 };
    expect(await json(post(set))).toMatchObject(set);
    const body = { model: MODEL, overrides: { temperature: 0 } };
    const route = (request_id: string, from: number) =>
      served.post("/v1/route", { ...body, request_id, tokens: TOKENS.map((one) => one + from) });
    await post({ model: MODEL, active_prefill_tokens_threshold: null });
    expect((await route("frac-1", 1e6)).status).toBe(200);
    expect((await route("frac-2", 2e6)).status).toBe(529);
    await served.post("/v1/requests/frac-1/free", {});
    const off = { model: MODEL, active_prefill_tokens_threshold_frac: null };
    expect(await json(post(off))).not.toHaveProperty("active_prefill_tokens_threshold_frac");
    await post({ model: MODEL, active_prefill_tokens_threshold: 1000 });
    expect((await post({ ...set, active_prefill_tokens_threshold_frac: -1 })).status).toBe(400);
  });

  test("null disables a threshold", async () => {
    const off = { model: MODEL, active_prefill_tokens_threshold: null };
    const left = { active_decode_blocks_threshold: 0.85, active_prefill_tokens_threshold: null };
    expect(await json(post(off))).toEqual({ model: MODEL, ...left });
  });

  test("an unknown model is answered 404, a value out of range 400", async () => {
    expect((await post({ model: "x" })).status).toBe(404);
    expect((await post({ model: "x", active_decode_blocks_threshold: 0.5 })).status).toBe(404);
    for (const wrong of [1.5, -0.1, "0.5"]) {
      const answer = await post({ model: MODEL, active_decode_blocks_threshold: wrong });
      expect([answer.status, (await json(answer)).code]).toEqual([400, "REQUEST_INVALID"]);
    }
    expect((await post({ model: MODEL, active_prefill_tokens_threshold: 1.5 })).status).toBe(400);
    expect((await post({})).status).toBe(400);
  });

  test("all workers busy is answered 529, or the configured status", async () => {
    await post({ model: MODEL, active_prefill_tokens_threshold: 10 });
    const body = { model: MODEL, tokens: TOKENS, request_id: "first" };
    expect((await served.post("/v1/route", body)).status).toBe(200);
    const busy = await served.post("/v1/route", { ...body, request_id: "second" });
    expect([busy.status, (await json(busy)).code]).toEqual([529, "ALL_BUSY"]);
    expect(busy.headers.get("retry-after")).toBe("1");
  });
});

describeNative("waiting for a worker", () => {
  const served = serveRouter({
    settings: { activePrefillTokensThreshold: 10, queue: { requestsMax: 8, waitMs: 5_000 } },
    api: { busyStatus: 503 },
  });
  served.table.put(spec("w-1"));
  const route = (request_id: string, signal?: AbortSignal) =>
    served.get("/v1/route", {
      method: "POST",
      // Different prompts, since a routed prompt counts as cached and adds no load.
      body: JSON.stringify({
        model: MODEL,
        tokens: TOKENS.map((_, at) => at * 7 + 1e4 * request_id.charCodeAt(0)),
        request_id,
      }),
      ...(signal === undefined ? {} : { signal }),
    });

  test("a waiting request gets a worker when another one is freed", async () => {
    await route("a");
    const waiting = route("b");
    const path = "/v1/requests/a/free";
    // The second request is queued once this answer arrives, since requests are handled in order.
    await served.get("/healthz");
    expect((await served.post(path, {})).status).toBe(200);
    expect((await waiting).status).toBe(200);
    await served.post("/v1/requests/b/free", {});
  });

  test("a client that disconnects leaves the queue, and the next one gets the worker", async () => {
    await route("c");
    const left = new AbortController();
    const gone = route("d", left.signal).catch((thrown) => thrown.name);
    await served.get("/healthz");
    left.abort();
    expect(await gone).toBe("AbortError");
    const next = route("e");
    await served.get("/healthz");
    await served.post("/v1/requests/c/free", {});
    expect((await next).status).toBe(200);
    expect(served.load.find("d")).toBeNull();
    expect(served.faults).toEqual([]);
  });
});

describeNative("roles of the router API", () => {
  const token = (name: string, role: "read" | "operate") => ({ name, role, token: name.repeat(8) });
  const access: Access = {
    tokens: new Tokens([token("reader", "read"), token("runner", "operate")]),
    ...{ tls: null, loopbackRole: "purge", clientRole: "read" },
  };
  const served = serveRouter({ api: { access } });
  served.table.put(spec("w-1"));
  const ask = (method: string, path: string, name: string | null, body?: unknown) =>
    served.get(path, {
      method,
      headers: name === null ? {} : { authorization: `Bearer ${name.repeat(8)}` },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });

  test("probes need no token, reading needs read, routing needs operate", async () => {
    expect((await ask("GET", "/healthz", null)).status).toBe(200);
    expect((await ask("GET", "/readyz", null)).status).toBe(200);
    expect((await ask("GET", "/v1/workers", null)).status).toBe(401);
    expect((await ask("GET", "/v1/workers", "reader")).status).toBe(200);
    const body = { model: MODEL, tokens: [1] };
    expect((await ask("POST", "/v1/route", null, body)).status).toBe(401);
    expect((await ask("POST", "/v1/route", "reader", body)).status).toBe(403);
    expect((await ask("POST", "/v1/route", "runner", body)).status).toBe(200);
    expect((await ask("POST", "/v1/loads", "reader", body)).status).toBe(200);
    expect((await ask("DELETE", "/v1/workers/w-1", "reader")).status).toBe(403);
    expect((await ask("GET", "/metrics", "reader")).status).toBe(200);
  });

  test("a body over the limit is refused", async () => {
    const small = serveRouter({ api: { bodyBytesMax: 1_000 } });
    const answer = await small.post("/v1/route", { model: MODEL, tokens: Array(1_000).fill(1) });
    expect([answer.status, (await json(answer)).code]).toEqual([413, "TOO_LARGE"]);
  });
});

describe("the OpenAPI description", () => {
  const served = serveRouter();

  test("the description has every route, its errors and its body", async () => {
    const { paths, components } = await json(served.get("/openapi/json"));
    const route = paths["/v1/route"].post;
    const { schema } = route.requestBody.content["application/json"];
    expect(Object.keys(schema.properties)).toContain("block_hashes");
    expect(Object.keys(route.responses)).toEqual(
      expect.arrayContaining(["200", "404", "413", "422", "503", "529"]),
    );
    expect(Object.keys(paths)).toEqual(
      expect.arrayContaining([
        "/busy_threshold",
        "/v1/explain/{id}",
        "/v1/events/dump",
        "/metrics",
      ]),
    );
    expect(components.schemas.Problem).toBeDefined();
  });
});
