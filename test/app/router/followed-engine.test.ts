import { expect, setDefaultTimeout, test } from "bun:test";
import { join } from "node:path";
import { chain, engine, tokensOf } from "../../events/scripted-engine.ts";
import { describeNative, tempDir, waitFor } from "../../support/index.ts";
import { FROM_CHECKOUT } from "../agent-process.ts";
import { RouterProcess } from "./router-process.ts";

/** Processes start slowly where many do. */
setDefaultTimeout(120_000);

type Engine = Awaited<ReturnType<typeof engine>>;

const places = (it: Engine) =>
  `events = "${it.publisher.endpoint}"\nreplay = "${it.router.endpoint}"\n`;
const BASE = "[router]\nblock_tokens = 4\n";

const worker = async (router: RouterProcess) => (await router.json("/v1/workers")).workers[0];
const isKnown = async (router: RouterProcess) => (await worker(router))?.known === true;

const hasHealth = async (router: RouterProcess, words: string) =>
  (await (await router.get("/healthz")).text()).includes(words);

/** Blocks of the prompt that the router says the worker has, and whether that is all. */
async function overlap(router: RouterProcess, ...blocks: number[]) {
  const tokens = [...blocks.flatMap((block) => [...tokensOf(block)]), 1];
  const answer = await router.post("/v1/route", { model: "m", tokens });
  const { terms, known } = (await answer.json()) as {
    terms: { device_blocks: number };
    known: boolean;
  };
  return [terms.device_blocks, known];
}

/** The HTTP API of a vLLM, as far as the router asks it. */
function api(it: Engine, gpuBlocks: number) {
  const port = (endpoint: string) => endpoint.split(":").at(-1);
  const source = {
    ...{ enable_kv_cache_events: true, publisher: "zmq", topic: "", buffer_steps: 100 },
    endpoint: `tcp://*:${port(it.publisher.endpoint)}`,
    replay_endpoint: `tcp://*:${port(it.router.endpoint)}`,
  };
  const info = `block_size="4",num_gpu_blocks="${gpuBlocks}",num_gpu_blocks_override="None"`;
  const answers: Readonly<Record<string, () => Response>> = {
    "/v1/models": () => Response.json({ object: "list", data: [{ id: "m", parent: null }] }),
    "/kv_event_sources": () => Response.json({ "0": source }),
    "/metrics": () => new Response(`vllm:cache_config_info{engine="0",${info}} 1.0\n`),
  };
  return Bun.serve({
    ...{ hostname: "127.0.0.1", port: 0 },
    fetch: (request) => {
      const answer = answers[new URL(request.url).pathname];
      return answer?.() ?? new Response("", { status: 404 });
    },
  });
}

describeNative("a router that follows an engine", () => {
  test("uses the engine's block size, and names both if another is configured", async () => {
    await using it = await engine();
    it.add("stored", 1, null);
    it.add("stored", 2, 1);
    const config = `${BASE}[workers.w]\nmodel = "m"\nblock_tokens = 2\n${places(it)}`;
    await using router = await RouterProcess.start({ config });
    await waitFor(() => isKnown(router), 60_000);
    expect(await overlap(router, 1, 2)).toEqual([2, true]);
    const both = "w/0: block_tokens is 2, its engine's blocks have 4";
    await waitFor(() => hasHealth(router, "error ROUTER_BLOCK_TOKENS"), 60_000);
    expect(
      await router.logged("an engine's block size differs from the configured one"),
    ).toMatchObject({
      details: both,
    });
    const size = (source: string) =>
      router.metric(`hearth_router_engine_block_tokens{worker="w",rank="0",source="${source}"}`);
    expect([await size("engine"), await size("configured")]).toEqual([4, 2]);
    const held = `hearth_router_worker_blocks{worker="w",rank="0",tier="device"}`;
    expect(await router.metric(held)).toBe(2);
    const { url } = await router.logged("api listening");
    const words = [...FROM_CHECKOUT, "ctl", "loads", "--api", `${url}`];
    const shown = await Bun.$`${words}`.text();
    expect(shown).toContain(both);
  });

  test("is not ready while none of its engines was ever reached", async () => {
    await using it = await engine();
    const lost = '[workers.lost]\nmodel = "m"\nevents = "tcp://127.0.0.1:1"\n';
    await using router = await RouterProcess.start({ config: BASE + lost });
    const reason = "worker lost rank 0: tcp://127.0.0.1:1 was never reached";
    const unready = { ready: false, reasons: [reason] };
    await waitFor(async () => Bun.deepEquals(await router.json("/readyz"), unready), 60_000);
    expect((await router.get("/readyz")).status).toBe(503);
    expect(await worker(router)).toMatchObject({ state: "stale", known: false });
    await router.post("/v1/workers", {
      ...{ worker: "w", model: "m", events: it.publisher.endpoint },
    });
    const isReady = async () => (await router.get("/readyz")).status === 200;
    await waitFor(isReady, 60_000);
    expect((await router.json("/readyz")).reasons).toEqual([reason]);
    await waitFor(() => hasHealth(router, "warn ROUTER_ENGINE"), 60_000);
    const line = await router.logged("engines or their KV events are unreachable");
    expect(line.details).toBe("lost/0 at tcp://127.0.0.1:1");
  });

  test("logs a killed engine, counts its restart and forgets what it held", async () => {
    const before = await engine();
    const [publish, replay] = [before.publisher.endpoint, before.router.endpoint];
    before.add("stored", 1, null);
    before.add("stored", 2, 1);
    const config = `${BASE}[workers.w]\nmodel = "m"\n${places(before)}`;
    await using router = await RouterProcess.start({ config });
    await waitFor(() => isKnown(router), 60_000);
    expect(await overlap(router, 1, 2)).toEqual([2, true]);
    await before[Symbol.asyncDispose]();
    await router.logged("engine events lost");
    await waitFor(async () => (await worker(router)).state === "stale", 60_000);
    expect(await isKnown(router)).toBe(false);
    await using after = await engine({ publish, replay });
    after.add("stored", 1, null);
    await router.logged("engine restarted");
    await waitFor(() => isKnown(router), 60_000);
    expect(await overlap(router, 1, 2)).toEqual([1, true]);
    expect(await router.metric('hearth_router_resyncs_total{kind="incarnation"}')).toBe(1);
  });

  test("a router restores saved engine state and discards state of another run", async () => {
    await using it = await engine(undefined, 2);
    for (const block of [1, 2, 3]) it.add("stored", block, block === 1 ? null : block - 1);
    const state = join(tempDir(), "state");
    const events = `[events]\nstate_dir = "${state}"\n`;
    const config = `${BASE}${events}[workers.w]\nmodel = "m"\n${places(it)}`;
    {
      await using router = await RouterProcess.start({ config });
      await waitFor(async () => (await worker(router)).events.orphan_blocks === 2, 60_000);
      expect(await overlap(router, 1, 2, 3)).toEqual([0, false]);
      it.send(it.batch({ kind: "cleared", ownership: null }));
      it.send(it.add("stored", 1, null));
      await waitFor(() => isKnown(router), 60_000);
      router.process.kill("SIGTERM");
      expect(await router.exited()).toBe(0);
    }
    it.add("stored", 2, 1);
    {
      await using router = await RouterProcess.start({ config });
      await router.logged("restored blocks of engine");
      await waitFor(() => isKnown(router), 60_000);
      expect(await overlap(router, 1, 2, 3)).toEqual([2, true]);
      router.process.kill("SIGTERM");
      expect(await router.exited()).toBe(0);
    }
    for (const block of [5, 6, 7]) it.add("stored", block, null);
    await using router = await RouterProcess.start({ config });
    await router.logged("discarded saved blocks of engine");
    await waitFor(async () => (await worker(router)).held_blocks.device === 2, 60_000);
    expect(await overlap(router, 1, 2)).toEqual([0, false]);
    expect(chain(6).size).toBe(1);
  });

  test("an engine URL alone is enough to follow it", async () => {
    await using it = await engine(undefined, 3);
    for (const block of [1, 2, 3, 4]) it.add("stored", block, block === 1 ? null : block - 1);
    // Four blocks, and one that vLLM keeps for itself.
    using served = api(it, 5);
    const state = `[events]\nstate_dir = "${join(tempDir(), "state")}"\n`;
    const config = `${BASE}${state}[workers.w]\nurl = "http://127.0.0.1:${served.port}/v1"\n`;
    await using router = await RouterProcess.start({ config });
    await waitFor(async () => (await worker(router))?.events?.orphan_blocks === 3, 60_000);
    expect(await worker(router)).toMatchObject({ model: "m", known: false, state: "live" });
    expect((await worker(router)).spaces).toEqual([{ kind: "tokens", block_tokens: 4 }]);
    it.send(it.add("stored", 1, null));
    // Its four blocks are the whole cache: nothing else can be there.
    await waitFor(() => isKnown(router), 60_000);
    expect(await overlap(router, 1, 2, 3, 4)).toEqual([4, true]);
    router.process.kill("SIGTERM");
    expect(await router.exited()).toBe(0);
    await using again = await RouterProcess.start({ config });
    await again.logged("restored blocks of engine");
    await waitFor(() => isKnown(again), 60_000);
    expect(await overlap(again, 1, 2, 3, 4)).toEqual([4, true]);
  });
});
