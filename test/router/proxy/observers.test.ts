import { expect, test } from "bun:test";
import { Tokenizer } from "@huggingface/tokenizers";
import type { PromptSeen, ProxyObserver, RequestEnd } from "../../../src/router/proxy/index.ts";
import { describeNative, tempDir, waitFor } from "../../support/index.ts";
import { POLITE, wordsFor } from "./mock-engine.ts";
import { deadUrl } from "./raw-engine.ts";
import { MODEL, Rig } from "./rig.ts";
import { tokenizerConfig, tokenizerJson, writeTokenizer } from "./tokenizer-files.ts";

const CHAT = "/v1/chat/completions";
const reference = new Tokenizer(tokenizerJson(), tokenizerConfig());
const idsOf = (text: string) => reference.encode(text, { add_special_tokens: false }).ids;
const [THINK, THOUGHT] = ["<think>", "</think>"].map((text) => reference.token_to_id(text)!);

/** Records the calls that an observer and the router receive, in order. */
function observe(rig: Rig) {
  const prompts: PromptSeen[] = [];
  const outputs: number[][] = [];
  const ends: RequestEnd[] = [];
  const observer: ProxyObserver = {
    prompt(seen) {
      prompts.push(seen);
      rig.told.push(`prompt ${seen.requestId}`);
    },
    answered(requestId, output) {
      outputs.push([...output]);
      rig.told.push(`answered ${requestId}`);
    },
    ended(requestId, end) {
      ends.push(end);
      rig.told.push(`ended ${requestId}`);
    },
  };
  const listening = rig.proxy.listen(observer);
  return { prompts, outputs, ends, listening };
}

const folder = writeTokenizer(tempDir());
const ASK = { model: MODEL, messages: [{ role: "user", content: "Hello?" }], max_tokens: 8 };

describeNative("observers of the proxy", () => {
  test("observers get a prompt with its tokens, marks and session", async () => {
    await using rig = await Rig.open({ model: { tokenizer: folder } });
    rig.engine("a");
    const { prompts } = observe(rig);
    const cache_control = { type: "ephemeral", ttl: "5m" };
    const content = [{ type: "text", text: "A book.", cache_control }];
    const messages = [{ role: "user", content }];
    const headers = { "x-dynamo-session-id": "s", "x-dynamo-session-final": "true" };
    await (await rig.post(CHAT, { ...ASK, messages }, { headers })).text();
    const text = "<|im_start|>user\nA book.<|im_end|>\n";
    expect([...prompts[0]!.tokens!]).toEqual(idsOf(`${text}<|im_start|>assistant\n`));
    expect(prompts[0]).toMatchObject({
      model: MODEL,
      sessionId: "s",
      isSessionEnd: true,
      reasoning: { start: THINK, end: THOUGHT },
      marks: [{ tokens: idsOf(text).length, type: "ephemeral", ttlSeconds: 300 }],
      decision: { target: { worker: "a" }, promptTokens: prompts[0]!.tokens!.length },
    });
  });

  for (const stream of [true, false]) {
    test(`observers get the output in time, ${stream ? "as a stream" : "at once"}`, async () => {
      await using rig = await Rig.open({ model: { tokenizer: folder } });
      rig.engine("a").manners = { ...POLITE, reasoning: "Hm, the" };
      const { outputs, ends } = observe(rig);
      await (await rig.post(CHAT, { ...ASK, stream })).text();
      await waitFor(() => ends.length === 1);
      const content = idsOf(wordsFor(ASK).join(""));
      expect(outputs).toEqual([[THINK, ...idsOf("Hm, the"), THOUGHT, ...content]]);
      const words = rig.told.map((line) => line.split(" ")[0]);
      expect(words).toEqual(["routed", "prompt", "prefilled", "answered", "freed", "ended"]);
      expect(ends[0]?.how).toBe("done");
    });
  }

  test("observers get the tokens that the worker reports", async () => {
    await using rig = await Rig.open();
    using engine = Bun.serve({
      port: 0,
      fetch: () => Response.json({ choices: [{ index: 0, text: "ab", token_ids: [7, 8] }] }),
    });
    rig.worker("a", `http://127.0.0.1:${engine.port}`);
    const { outputs, ends } = observe(rig);
    await (await rig.post("/v1/completions", { model: MODEL, prompt: [1] })).text();
    await waitFor(() => ends.length === 1);
    expect(outputs).toEqual([[7, 8]]);
  });

  test("observers get the end of a request once, and nothing after disposal", async () => {
    await using rig = await Rig.open({ settings: { retriesMax: 0 } });
    const engine = rig.engine("a");
    const { ends, prompts, listening } = observe(rig);
    engine.manners = { ...POLITE, diesAfter: 2 };
    await (await rig.post(CHAT, { ...ASK, stream: true })).text();
    rig.worker("a", deadUrl());
    await (await rig.post(CHAT, ASK)).text();
    await waitFor(() => ends.length === 2);
    expect(ends.map(({ how }) => how)).toEqual(["worker", "refused"]);
    listening[Symbol.dispose]();
    await (await rig.post(CHAT, ASK)).text();
    expect([ends.length, prompts.length]).toEqual([2, 2]);
  });
});
