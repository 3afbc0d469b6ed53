import { expect, setDefaultTimeout, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { engine } from "../../events/scripted-engine.ts";
import { deadUrl } from "../../router/proxy/raw-engine.ts";
import { describeNative, tempDir, waitFor } from "../../support/index.ts";
import { FROM_CHECKOUT } from "../agent-process.ts";
import { RouterProcess } from "./router-process.ts";

/** Processes start slowly where many do. */
setDefaultTimeout(120_000);
const WAIT_MS = 60_000;

type Engine = Awaited<ReturnType<typeof engine>>;

const BASE = "[router]\nblock_tokens = 4\n";

/** The HTTP API of a vLLM, which a test changes as it runs. */
class EngineApi implements Disposable {
  model = "m";
  health = 200;
  /** Instead of an answer to `/v1/models`; null: it answers. */
  refuses: number | null = null;
  key: string | null = null;
  events: Engine | null = null;
  readonly #server: Bun.Server<undefined>;

  constructor(port = 0) {
    const fetch = (request: Request) => this.#answer(request);
    this.#server = Bun.serve({ hostname: "127.0.0.1", port, fetch });
  }

  get url(): string {
    return `http://127.0.0.1:${this.#server.port}`;
  }

  [Symbol.dispose](): void {
    void this.#server.stop(true);
  }

  #answer({ url, headers }: Request): Response {
    const { pathname } = new URL(url);
    if (pathname === "/health") return new Response(null, { status: this.health });
    if (pathname === "/kv_event_sources" && this.events !== null) {
      return Response.json({ "0": sourceOf(this.events) });
    }
    if (pathname !== "/v1/models") return new Response(null, { status: 404 });
    const isLetIn = this.key === null || headers.get("authorization") === `Bearer ${this.key}`;
    const status = this.refuses ?? (isLetIn ? 200 : 401);
    if (status !== 200) return Response.json({ error: "refused" }, { status });
    return Response.json({ object: "list", data: [{ id: this.model, parent: null }] });
  }
}

function sourceOf({ publisher, router }: Engine) {
  const at = (endpoint: string) => `tcp://*:${endpoint.split(":").at(-1)}`;
  return {
    ...{ enable_kv_cache_events: true, publisher: "zmq", topic: "" },
    ...{ endpoint: at(publisher.endpoint), replay_endpoint: at(router.endpoint) },
  };
}

const isReady = async (router: RouterProcess) => (await router.get("/readyz")).status === 200;
const first = async (router: RouterProcess) => (await router.json("/v1/workers")).workers[0];

describeNative("a router whose workers have URLs", () => {
  test("is not ready, and shows each worker as stale, until one of them answers", async () => {
    const url = deadUrl();
    const named = `[workers.named]\nmodel = "m"\nurl = "${url}"\n`;
    const config = `${BASE}[workers.bare]\nurl = "${url}"\n${named}`;
    await using router = await RouterProcess.start({ config });
    const reasons = ["bare", "named"].map((name) => `worker ${name}: ${url} was never reached`);
    await waitFor(async () => {
      const { reasons: found } = await router.json("/readyz");
      return Bun.deepEquals(found, reasons);
    }, WAIT_MS);
    expect(await isReady(router)).toBe(false);
    const { workers } = await router.json("/v1/workers");
    expect(workers).toMatchObject([
      { worker: "named", model: "m", state: "stale", known: false },
      { worker: "bare", model: null, state: "stale", known: false, url },
    ]);
    expect((await router.json("/v1/loads")).loads[1]).toMatchObject({
      worker: "bare",
      model: null,
    });
    for (const worker of ["bare", "named"]) {
      expect(await router.metric(`hearth_router_worker_reached{worker="${worker}"}`)).toBe(0);
    }
    const { url: api } = await router.logged("api listening");
    const shown = await Bun.$`${[...FROM_CHECKOUT, "ctl", "loads", "--api", `${api}`]}`.text();
    expect(shown).toContain(`bare/0: its API at ${url} has not reported its model`);
    const { details } = await waitFor(
      () => router.log.find(({ message }) => message.startsWith("engines or their KV events")),
      WAIT_MS,
    );
    // The line is written for the first of them; /readyz names all.
    expect(details).toMatch(new RegExp(`^(bare|named): ${url} was never reached`));
    using _served = new EngineApi(Number(new URL(url).port));
    await waitFor(() => isReady(router), WAIT_MS);
    await waitFor(async () => {
      const { workers: all } = await router.json("/v1/workers");
      return all.every(({ state, model }: Record<string, string>) => {
        return state === "live" && model === "m";
      });
    }, WAIT_MS);
    expect(await router.metric(`hearth_router_worker_reached{worker="bare"}`)).toBe(1);
  });

  test("a router queries with the engines' token and retries after an error status", async () => {
    using served = new EngineApi();
    served.key = "sesame";
    served.refuses = 503;
    const file = join(tempDir(), "token");
    writeFileSync(file, "sesame\n");
    const proxy = `[proxy]\nengine_token_file = "${file}"\n`;
    const config = `${BASE}${proxy}[workers.w]\nurl = "${served.url}"\n`;
    await using router = await RouterProcess.start({ config });
    await router.logged("worker API answered 503, retrying");
    const reason = `worker w: ${served.url} answered 503 to GET /v1/models`;
    const unready = { ready: false, reasons: [reason] };
    await waitFor(async () => Bun.deepEquals(await router.json("/readyz"), unready), WAIT_MS);
    served.refuses = null;
    await waitFor(async () => (await first(router))?.model === "m", WAIT_MS);
    expect(await first(router)).toMatchObject({ state: "live" });
    const refused = router.log.filter(({ message }) => message.includes("answered"));
    expect(refused).toHaveLength(1);
  });

  test("a worker with a configured model is used if its API names no models", async () => {
    using served = new EngineApi();
    served.key = "sesame";
    const config = `${BASE}[workers.w]\nmodel = "m"\nurl = "${served.url}"\n`;
    await using router = await RouterProcess.start({ config });
    await waitFor(async () => (await first(router)).state === "live", WAIT_MS);
    await waitFor(() => isReady(router), WAIT_MS);
  });

  test("an engine that returns with another port and model is followed again", async () => {
    using served = new EngineApi();
    const before = await engine();
    served.events = before;
    const config = `${BASE}[workers.w]\nurl = "${served.url}"\n`;
    await using router = await RouterProcess.start({ config });
    await waitFor(async () => (await first(router))?.state === "live", WAIT_MS);
    // Its API answers as before for a moment: what it says then is not the last word.
    await before[Symbol.asyncDispose]();
    await router.logged("engine events lost");
    await using after = await engine();
    expect(after.publisher.endpoint).not.toBe(before.publisher.endpoint);
    [served.events, served.model] = [after, "other"];
    await waitFor(async () => {
      const { model, state, events } = await first(router);
      return model === "other" && state === "live" && events.endpoint === after.publisher.endpoint;
    }, WAIT_MS);
  });

  test("an engine without events is queried again after it recovers", async () => {
    using served = new EngineApi();
    const proxy = '[proxy]\nlisten = "127.0.0.1:0"\n';
    const config = `${BASE}${proxy}[workers.w]\nurl = "${served.url}"\n`;
    await using router = await RouterProcess.start({ config });
    await waitFor(async () => (await first(router))?.model === "m", WAIT_MS);
    served.health = 500;
    await router.logged("worker excluded");
    [served.health, served.model] = [200, "other"];
    await waitFor(async () => (await first(router)).model === "other", WAIT_MS);
  });
});
