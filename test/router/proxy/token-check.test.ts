import { expect, test } from "bun:test";
import { Tokenizer } from "@huggingface/tokenizers";
import type { ProxyModel, ProxyOptions, TokenDifference } from "../../../src/router/proxy/index.ts";
import { describeNative, tempDir } from "../../support/index.ts";
import { POLITE } from "./mock-engine.ts";
import { MODEL, Rig } from "./rig.ts";
import { tokenizerConfig, tokenizerJson, writeTokenizer } from "./tokenizer-files.ts";

const CHAT = "/v1/chat/completions";
const reference = new Tokenizer(tokenizerJson(), tokenizerConfig());
const SECRET = "The launch code is 0000.";

function countOf(text: string): number {
  const prompt = `<|im_start|>user\n${text}<|im_end|>\n<|im_start|>assistant\n`;
  return reference.encode(prompt, { add_special_tokens: false }).ids.length;
}

function collect() {
  const differences: TokenDifference[] = [];
  const failures: string[] = [];
  const onTokens: NonNullable<ProxyOptions["onTokens"]> = {
    failed: (model, why) => failures.push(`${model}: ${why}`),
    differ: (difference) => differences.push(difference),
  };
  return { differences, failures, onTokens };
}

const post = (body: unknown) => ({ method: "POST", body: JSON.stringify(body) });

async function openRig(
  promptTokens: number | null,
  onTokens: ProxyOptions["onTokens"],
  model: Partial<ProxyModel> = {},
) {
  const rig = await Rig.open({
    model: { tokenizer: writeTokenizer(tempDir()), ...model },
    ...(onTokens === undefined ? {} : { onTokens }),
  });
  rig.engine("a").manners = { ...POLITE, promptTokens };
  return rig;
}

const ask = (content: unknown, more: object = {}) => {
  return { model: MODEL, messages: [{ role: "user", content }], max_tokens: 4, ...more };
};

describeNative("the proxy's check of its own tokens", () => {
  test("a different token count is reported with a shape hash and no text", async () => {
    const { differences, onTokens } = collect();
    const here = countOf(SECRET);
    await using rig = await openRig(here + 3, onTokens);
    await (await rig.post(CHAT, ask(SECRET))).text();
    await (await rig.post(CHAT, ask(SECRET.toUpperCase()))).text();
    await (await rig.post(CHAT, ask(SECRET, { reasoning_effort: "low" }))).text();
    expect(differences[0]).toMatchObject({ model: MODEL, here, engine: here + 3 });
    expect(JSON.stringify(differences)).not.toContain("launch");
    const [first, same, other] = differences.map(({ shape }) => shape);
    expect(first).toMatch(/^[0-9a-f]{16}$/);
    expect(same).toBe(first);
    expect(other).not.toBe(first);
    expect(rig.proxy.snapshot().checks).toEqual({ equal: 0, different: 3 });
  });

  test("equal token counts are counted, also for streams with usage", async () => {
    const { differences, onTokens } = collect();
    await using rig = await openRig(countOf("Hi"), onTokens);
    await (await rig.post(CHAT, ask("Hi"))).text();
    const streamed = { stream: true, stream_options: { include_usage: true } };
    await (await rig.post(CHAT, ask("Hi", streamed))).text();
    expect(rig.proxy.snapshot().checks).toEqual({ equal: 2, different: 0 });
    expect(differences).toEqual([]);
  });

  for (const [path, request] of [
    ["/v1/messages", { messages: [{ role: "user", content: "Hi" }] }],
    ["/v1/responses", { input: "Hi" }],
  ] as const) {
    test(`answers of ${path} are compared including cached tokens`, async () => {
      const { differences, onTokens } = collect();
      const here = countOf("Hi");
      await using rig = await openRig(here, onTokens);
      for (const stream of [false, true]) {
        const body = { model: MODEL, max_tokens: 4, stream, ...request };
        await (await rig.post(path, body)).text();
      }
      expect(rig.proxy.snapshot().checks).toEqual({ equal: 2, different: 0 });
      expect(differences).toEqual([]);
      rig.engines[0]!.manners = { ...POLITE, promptTokens: here + 1 };
      await (await rig.post(path, { model: MODEL, max_tokens: 4, ...request })).text();
      expect(differences).toMatchObject([{ here, engine: here + 1 }]);
    });
  }

  test("a stream is compared although its client requested no usage and gets none", async () => {
    const { differences, onTokens } = collect();
    const here = countOf("Hi");
    await using rig = await openRig(here, onTokens);
    const engine = rig.engines[0]!;
    const continuous = { stream_options: { continuous_usage_stats: true } };
    for (const [options, sent] of [
      [{}, {}],
      [continuous, { continuous_usage_stats: false }],
    ]) {
      const body = ask("Hi", { stream: true, ...options });
      const direct = await (await fetch(`${engine.url}${CHAT}`, post(body))).text();
      expect(direct).not.toContain("usage");
      expect(await (await rig.post(CHAT, body)).text()).toBe(direct);
      expect(engine.seen.at(-1)!.body.stream_options).toEqual({
        ...sent,
        include_usage: true,
      });
    }
    const asked = ask("Hi", { stream: true, stream_options: { include_usage: true } });
    const direct = await (await fetch(`${engine.url}${CHAT}`, post(asked))).text();
    expect(await (await rig.post(CHAT, asked)).text()).toBe(direct);
    expect(rig.proxy.snapshot().checks).toEqual({ equal: 3, different: 0 });
    expect(differences).toEqual([]);
  });

  test("an engine whose strip_fields name stream_options is not asked for the usage", async () => {
    const { onTokens } = collect();
    await using rig = await openRig(countOf("Hi"), onTokens, { stripFields: ["stream_options"] });
    await (await rig.post(CHAT, ask("Hi", { stream: true }))).text();
    expect(rig.engines[0]!.seen[0]!.body.stream_options).toBeUndefined();
  });

  test("requests with several conversations are not compared", async () => {
    const { differences, onTokens } = collect();
    await using rig = await openRig(9_999, onTokens);
    const [one, two] = [ask("Hi").messages, ask("Ho").messages];
    const path = "/v1/chat/completions/batch";
    await (await rig.post(path, { ...ask("Hi"), messages: [one, two] })).text();
    expect(differences).toEqual([]);
    await (await rig.post(path, { ...ask("Hi"), messages: [one] })).text();
    expect(differences).toHaveLength(1);
  });

  test("prompts whose count the proxy cannot know are not compared", async () => {
    const { differences, onTokens } = collect();
    await using rig = await openRig(9_999, onTokens);
    const picture = { type: "image_url", image_url: { url: "data:A" } };
    await (await rig.post(CHAT, ask([picture]))).text();
    const several = { model: MODEL, prompt: ["one", "two"], max_tokens: 4 };
    await (await rig.post("/v1/completions", several)).text();
    expect(rig.proxy.snapshot().checks).toEqual({ equal: 0, different: 0 });
    expect(differences).toEqual([]);
  });

  test("a prompt that cannot be tokenised is reported with its reason", async () => {
    const { failures, onTokens } = collect();
    await using rig = await openRig(null, onTokens);
    await (await rig.post(CHAT, ask("Hi", { chat_template: "{{ 1 }}" }))).text();
    expect(failures).toEqual([`${MODEL}: the request brings its own chat template`]);
  });
});
