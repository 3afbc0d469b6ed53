import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { systemClock, systemRandom } from "../../../src/core/index.ts";
import { bindPublisher } from "../../../src/events/zmtp/index.ts";
import { MockEngine, POLITE } from "../../router/proxy/mock-engine.ts";
import { writeTokenizer } from "../../router/proxy/tokenizer-files.ts";
import { describeNative, tempDir, waitFor } from "../../support/index.ts";
import { RouterProcess } from "./router-process.ts";

const MODEL = "Qwen/Qwen3-8B";
const START_MS = 60_000;

describeNative("config/two-vllm.toml", () => {
  const file = new URL("../../../config/two-vllm.toml", import.meta.url);
  const text = readFileSync(file, "utf8");

  test("config/two-vllm.toml has at most ten effective lines and its how-to page shows it", () => {
    const lines = text.split("\n").filter((line) => line !== "" && !line.startsWith("#"));
    expect(lines.length).toBeLessThanOrEqual(10);
    const page = new URL("../../../docs/how-to/route-vllm.md", import.meta.url);
    expect(readFileSync(page, "utf8")).toContain(text.slice(text.indexOf("[proxy]")));
  });

  test("config/two-vllm.toml starts a router that serves and follows two servers", async () => {
    const zmtp = { clock: systemClock, random: systemRandom, endpoint: "tcp://127.0.0.1:0" };
    await using first = await bindPublisher(zmtp);
    await using second = await bindPublisher(zmtp);
    const publishers = [first, second];
    const engines = publishers.map(({ endpoint }) => {
      const engine = new MockEngine("vllm", MODEL);
      engine.manners = { ...POLITE, eventsEndpoint: endpoint.replace("127.0.0.1", "*") };
      return engine;
    });
    using stack = new DisposableStack();
    for (const engine of engines) stack.use(engine);
    const config = text
      .replace('"127.0.0.1:8000"', '"127.0.0.1:0"')
      .replace("/var/lib/hearth/models/Qwen3-8B", writeTokenizer(tempDir()))
      .replace("http://127.0.0.1:8001", engines[0]!.url)
      .replace("http://127.0.0.1:8002", engines[1]!.url);
    await using router = await RouterProcess.start({ config });
    const { address } = await router.logged("proxy listening");
    const areFollowed = () => publishers.every(({ subscribers }) => subscribers > 0);
    await waitFor(areFollowed, START_MS, "the router to follow both engines");
    await waitFor(
      async () => (await router.metric("hearth_router_proxy_engine_pulses")) === 2,
      START_MS,
      "the pulses of both engines",
    );
    const seen = new Set<string | null>();
    for (let i = 0; i < 20 && seen.size < 2; i++) {
      const body = JSON.stringify({ messages: [{ role: "user", content: `Hello ${i}` }] });
      const answer = await fetch(`${address}/v1/chat/completions`, { method: "POST", body });
      expect(answer.status).toBe(200);
      await answer.text();
      seen.add(answer.headers.get("x-hearth-worker"));
    }
    expect([...seen].sort()).toEqual(["one", "two"]);
  }, 180_000);
});
