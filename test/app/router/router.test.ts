import { beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { systemClock, systemRandom } from "../../../src/core/index.ts";
import { type EngineEvent, encodeEngineBatch } from "../../../src/events/index.ts";
import { bindPublisher } from "../../../src/events/zmtp/index.ts";
import { MockEngine, POLITE, wordsFor } from "../../router/proxy/mock-engine.ts";
import { chain } from "../../store/names.ts";
import {
  describeNative,
  describeNats,
  hearthExecutable,
  NatsServer,
  tempDir,
  waitFor,
} from "../../support/index.ts";
import { AgentProcess, FROM_CHECKOUT } from "../agent-process.ts";
import { RouterProcess } from "./router-process.ts";

/** Processes start slowly where many do. */
setDefaultTimeout(30_000);

const BUILD_MS = 60_000;
const COMMANDS: [string, () => Promise<readonly string[]>][] = [
  ["from the checkout", async () => FROM_CHECKOUT],
  ["the executable", async () => [await hearthExecutable()]],
];

describeNative("a router", () => {
  describe.each(COMMANDS)("%s", (_name, words) => {
    let command: readonly string[] = [];
    beforeAll(async () => {
      command = await words();
    }, BUILD_MS);

    test("a router without workers starts, then routes for registered ones", async () => {
      await using router = await RouterProcess.start({ command });
      const health = await waitFor(async () => {
        const text = await (await router.get("/healthz")).text();
        return text.includes("ROUTER_NO_WORKERS") ? text : null;
      });
      expect(health).toStartWith("ok\nwarn ROUTER_NO_WORKERS: ");
      expect((await router.get("/readyz")).status).toBe(200);
      const tokens = Array.from({ length: 100 }, (_, at) => at);
      const body = { model: "m", tokens, request_id: "r" };
      expect((await router.post("/v1/route", body)).status).toBe(503);
      await router.post("/v1/workers", { worker: "w-1", model: "m" });
      const routed = await router.post("/v1/route", body);
      expect(await routed.json()).toMatchObject({ worker: "w-1", request_id: "r" });
      expect(await router.metric("hearth_router_active_requests")).toBe(1);
      expect(await router.metric("cgn_router_cache_hit_ratio")).toBe(0);
      await router.post("/v1/requests/r/free", {});
      // What was routed there a moment ago counts as held: 96 of the 100 tokens.
      await router.post("/v1/route", { ...body, request_id: "s" });
      expect(await router.metric("cgn_router_cache_hit_ratio")).toBeCloseTo(96 / 200, 5);
      await waitFor(async () => (await (await router.get("/healthz")).text()) === "ok\n");
      router.process.kill("SIGTERM");
      expect(await router.exited()).toBe(0);
      expect(router.log.at(-1)!.message).toBe("router stopped");
    });
  });

  test("an invalid file refuses the start and lists each position", async () => {
    await using router = new RouterProcess({
      config: '[router]\nmode = "best"\nttl = "2 weeks"\n[workers.a]\nmodle = "m"\n',
    });
    expect(await router.exited()).toBe(3);
    const words = router.words.join("\n");
    expect(words).toContain('router.toml:4:8 router.mode: is the string "best"; use one of');
    expect(words).toContain("router.toml:5:7 router.ttl:");
    expect(words).toContain("router.toml:7:1 workers.a.modle: unknown key; did you mean model");
  });

  test("flags override the file and invalid flags are refused", async () => {
    const config = '[router]\nmode = "random"\n[workers.a]\nmodel = "m"\n';
    const words = ["--mode", "round-robin", "--no-kv-events", "--temperature", "0.5"];
    await using router = await RouterProcess.start({ config, words });
    await router.post("/v1/route", { model: "m", tokens: [1], request_id: "r" });
    expect(await router.json("/v1/explain/r")).toMatchObject({ mode: "round-robin" });
    await using wrong = new RouterProcess({ words: ["--replica-sync"] });
    expect(await wrong.exited()).toBe(3);
    expect(wrong.words.join("\n")).toContain("nats.url is not set");
  });

  test("SIGHUP adds and removes workers; an invalid file changes nothing", async () => {
    const worker = (name: string) => `[workers.${name}]\nmodel = "m"\n`;
    await using router = await RouterProcess.start({ config: worker("a") + worker("b") });
    const names = async () =>
      (await router.json("/v1/workers")).workers.map((one: { worker: string }) => one.worker);
    expect(await names()).toEqual(["a", "b"]);
    await router.post("/v1/workers", { worker: "registered", model: "m" });
    router.configure(`${worker("b")}ranks = 2\n${worker("c")}`);
    router.process.kill("SIGHUP");
    await router.logged("configuration reloaded");
    expect((await names()).sort()).toEqual(["b", "b", "c", "registered"]);
    router.configure("[workers.b]\n");
    router.process.kill("SIGHUP");
    await router.logged("configuration reload failed");
    expect((await names()).sort()).toEqual(["b", "b", "c", "registered"]);
  });
});

describeNative("a router that stops", () => {
  const config = (url: string) =>
    `[proxy]\nlisten = "127.0.0.1:0"\n[workers.w]\nmodel = "m"\nurl = "${url}"\n`;
  const ask = async (router: RouterProcess) => {
    const { address } = await router.logged("proxy listening");
    const messages = [{ role: "user", content: "hello" }];
    const body = { model: "m", stream: true, max_tokens: 40, messages };
    const answer = await fetch(`${address}/v1/chat/completions`, {
      method: "POST",
      body: JSON.stringify(body),
    });
    return { answer, body };
  };

  test("a stopping router finishes streams and accepts no new requests", async () => {
    using engine = new MockEngine("vllm", "m");
    engine.manners = { ...POLITE, tokenMs: 25 };
    await using router = await RouterProcess.start({ config: config(engine.url) });
    const { answer, body } = await ask(router);
    const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
    let text = (await reader.read()).value ?? "";
    expect(await router.metric("hearth_router_proxy_active_requests")).toBe(1);
    router.process.kill("SIGTERM");
    await router.logged("router stopping");
    expect((await router.get("/readyz")).status).toBe(503);
    const late = await ask(router).then(
      ({ answer: { status } }) => status,
      () => "refused",
    );
    expect(["refused", 529]).toContain(late);
    for (let read = await reader.read(); !read.done; read = await reader.read()) text += read.value;
    expect(text).toEndWith("data: [DONE]\n\n");
    const got = [...text.matchAll(/"content":("(?:[^"\\]|\\.)*")/g)].map(([, json]) =>
      JSON.parse(json!),
    );
    expect(got.join("")).toBe(wordsFor(body).join(""));
    expect(await router.exited()).toBe(0);
  });

  test("a second signal cuts streams off", async () => {
    using engine = new MockEngine("vllm", "m");
    engine.manners = { ...POLITE, tokenMs: 60_000 };
    await using router = await RouterProcess.start({ config: config(engine.url) });
    const { answer } = await ask(router);
    const text = answer.text().catch(() => "cut");
    router.process.kill("SIGTERM");
    await router.logged("router stopping");
    router.process.kill("SIGTERM");
    expect(await router.exited()).toBe(0);
    await text;
    await waitFor(() => engine.live === 0, 5_000, "the engine to hear of it");
  });
});

describeNats("a router over NATS", () => {
  const config = (url: string, more = "") => `[nats]\nurl = "${url}"\n[events]\n${more}`;

  test("a router over NATS is ready once it knows what agents hold", async () => {
    await using nats = await NatsServer.start();
    const natsUrl = { url: nats.tcpUrl };
    await using agent = await AgentProcess.start({
      config: { nats: natsUrl, node: { id: "gpu-01" } },
    });
    await using engine = await agent.connect();
    await engine.put(...chain("a/b/c"));
    await using router = await RouterProcess.start({
      config: config(nats.tcpUrl),
    });
    expect((await router.get("/readyz")).status).toBe(503);
    await waitFor(async () => (await router.get("/readyz")).status === 200, 20_000, "readiness");
    const { workers } = await router.json("/v1/workers");
    expect(workers).toHaveLength(1);
    expect(workers[0]).toMatchObject({ worker: "gpu-01", known: true, state: "live" });
    expect(await router.metric("hearth_router_index_blocks")).toBe(3);
    const dump = await (await router.get("/v1/events/dump")).text();
    const events = dump
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line));
    const blocks = events.flatMap(({ event }) => event.data.stored.blocks);
    expect(blocks).toHaveLength(3);
    const hashes = dump.match(/"block_hash":(\d+)/g)!.map((one) => one.slice(13));
    const { model } = workers[0];
    const text = `{"model":"${model}","block_hashes":[${hashes}],"block_tokens":16}`;
    const answer = await router.get("/v1/route", { method: "POST", body: text });
    expect(await answer.json()).toMatchObject({ worker: "gpu-01", terms: { host_blocks: 3 } });
    await engine.put(...chain("a/b/d"));
    await waitFor(async () => (await router.metric("hearth_router_index_blocks")) === 4);
  });

  test("a router without a broker waits, then serves what it can", async () => {
    await using router = await RouterProcess.start({ config: config("nats://127.0.0.1:1") });
    await waitFor(async () => (await router.get("/readyz")).status === 200, 20_000, "readiness");
    expect(await (await router.get("/healthz")).text()).toContain("ROUTER_NATS");
    router.process.kill("SIGTERM");
    expect(await router.exited()).toBe(0);
  });

  test("two replicas count the load of both", async () => {
    await using nats = await NatsServer.start();
    const text = `${config(nats.tcpUrl)}[workers.w]\nmodel = "m"\n`;
    const words = ["--replica-sync"];
    await using one = await RouterProcess.start({ config: `[router]\nid = "a"\n${text}`, words });
    await using two = await RouterProcess.start({ config: `[router]\nid = "b"\n${text}`, words });
    const tokens = Array.from({ length: 64 }, (_, at) => at);
    let number = 0;
    await waitFor(async () => {
      // The first ones may go out before the other listens.
      await one.post("/v1/route", { model: "m", tokens, request_id: `r-${number++}` });
      return (await two.json("/v1/loads")).loads[0].active_requests > 0;
    });
    for (let at = 0; at < number; at++) await one.post(`/v1/requests/r-${at}/free`, {});
    const left = async () => (await two.json("/v1/loads")).loads[0].active_requests;
    await waitFor(async () => (await left()) === 0, 20_000, "both to forget them");
    await one.post("/busy_threshold", { model: "m", active_decode_blocks_threshold: 0.5 });
    await waitFor(async () => {
      const { thresholds } = await two.json("/busy_threshold");
      return thresholds[0]?.active_decode_blocks_threshold === 0.5;
    });
  });

  test("begins with the picture it had", async () => {
    const folder = tempDir();
    await using nats = await NatsServer.start();
    const more = `state_dir = "${folder}/state"\n`;
    const settings = { config: config(nats.tcpUrl, more) };
    const agentConfig = { nats: { url: nats.tcpUrl } };
    await using agent = await AgentProcess.start({ config: agentConfig });
    await using engine = await agent.connect();
    await engine.put(...chain("a/b/c"));
    {
      await using before = await RouterProcess.start(settings);
      await waitFor(async () => (await before.metric("hearth_router_index_blocks")) === 3, 20_000);
      before.process.kill("SIGTERM");
      expect(await before.exited()).toBe(0);
    }
    await using after = await RouterProcess.start(settings);
    await after.logged("restored index snapshot");
    expect(await after.metric("hearth_router_index_blocks")).toBe(3);
  });
});

describeNative("a router without agents", () => {
  test("engine events over ZMQ are followed until the worker leaves", async () => {
    const options = { clock: systemClock, random: systemRandom };
    await using engine = await bindPublisher({ ...options, endpoint: "tcp://127.0.0.1:0" });
    const port = Number(engine.endpoint.split(":").at(-1));
    const events = `events = "tcp://127.0.0.1:${port}"\n`;
    const worker = `[workers.w]\nmodel = "m"\nblock_tokens = 4\n${events}`;
    await using router = await RouterProcess.start({
      config: `[router]\nblock_tokens = 4\n${worker}[workers.other]\nmodel = "m"\n`,
    });
    await waitFor(() => engine.subscribers === 1, 10_000, "the router to subscribe");
    const stored: EngineEvent = {
      ...{ kind: "stored", hashes: [7n, 8n], parent: null, blockTokens: 4, medium: "GPU" },
      tokens: Uint32Array.of(1, 2, 3, 4, 5, 6, 7, 8),
      ...{ loraName: null, loraId: null, extras: null, group: null, cacheSalt: null },
      ...{ locality: null, ownership: null, sessionId: null, eagleNext: null },
    };
    const payload = encodeEngineBatch({ seconds: 1, rank: 0, events: [stored] });
    const number = new Uint8Array(8);
    await waitFor(async () => {
      // Who subscribes gets nothing of what was published just before: the same number again.
      engine.publish([new Uint8Array(0), number, payload]);
      return (await router.metric("hearth_router_index_blocks")) === 2;
    });
    const body = { model: "m", tokens: [1, 2, 3, 4, 5, 6, 7, 8, 9] };
    const routed = await (await router.post("/v1/route", body)).json();
    expect(routed).toMatchObject({ worker: "w", terms: { device_blocks: 2 } });
    await router.get("/v1/workers/w", { method: "DELETE" });
    await waitFor(() => engine.subscribers === 0, 10_000, "the router to leave");
    expect(await router.metric("hearth_router_index_blocks")).toBe(0);
  });
});
