import { expect, test } from "bun:test";
import { Tokenizer } from "@huggingface/tokenizers";
import type { ProxyOptions, TokenDifference } from "../../src/proxy/index.ts";
import { describeNative, tempDir } from "../support/index.ts";
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

async function openRig(promptTokens: number | null, onTokens: ProxyOptions["onTokens"]) {
  const rig = await Rig.open({
    model: { tokenizer: writeTokenizer(tempDir()) },
    ...(onTokens === undefined ? {} : { onTokens }),
  });
  rig.engine("a").manners = { ...POLITE, promptTokens };
  return rig;
}

const ask = (content: unknown, more: object = {}) => {
  return { model: MODEL, messages: [{ role: "user", content }], max_tokens: 4, ...more };
};

describeNative("the proxy's check of its own tokens", () => {
  test("an answer that counts other tokens is reported by a shape and no text", async () => {
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

  test("equal counts are counted, in streams that tell their usage too", async () => {
    const { differences, onTokens } = collect();
    await using rig = await openRig(countOf("Hi"), onTokens);
    await (await rig.post(CHAT, ask("Hi"))).text();
    const streamed = { stream: true, stream_options: { include_usage: true } };
    await (await rig.post(CHAT, ask("Hi", streamed))).text();
    expect(rig.proxy.snapshot().checks).toEqual({ equal: 2, different: 0 });
    expect(differences).toEqual([]);
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

  test("a prompt that cannot be tokenised is told with its reason", async () => {
    const { failures, onTokens } = collect();
    await using rig = await openRig(null, onTokens);
    await (await rig.post(CHAT, ask("Hi", { chat_template: "{{ 1 }}" }))).text();
    expect(failures).toEqual([`${MODEL}: the request brings its own chat template`]);
  });
});
