import { expect, test } from "bun:test";
import OpenAI from "openai";
import { describeNative, tempDir, waitFor } from "../../support/index.ts";
import { wordsFor } from "./mock-engine.ts";
import { MODEL, Rig } from "./rig.ts";
import { writeTokenizer } from "./tokenizer-files.ts";

const folder = writeTokenizer(tempDir());

function clientOf(rig: Rig, maxRetries = 0): OpenAI {
  return new OpenAI({ baseURL: `${rig.url}/v1`, apiKey: "sk-test", maxRetries });
}

const MESSAGES = [
  { role: "system" as const, content: "You are terse. ".repeat(20) },
  { role: "user" as const, content: "What is a KV cache?" },
];

describeNative("the proxy, with OpenAI's client", () => {
  for (const kind of ["vllm", "sglang"] as const) {
    test(`streams the chat of ${kind} unchanged`, async () => {
      await using rig = await Rig.open({ model: { tokenizer: folder, engine: kind } });
      const engine = rig.engine("a", kind);
      const body = { model: MODEL, messages: MESSAGES, max_tokens: 40 };
      const stream = await clientOf(rig).chat.completions.create({
        ...body,
        stream: true,
        stream_options: { include_usage: true },
      });
      let [text, tokens] = ["", 0];
      for await (const chunk of stream) {
        text += chunk.choices[0]?.delta.content ?? "";
        tokens = chunk.usage?.completion_tokens ?? tokens;
      }
      expect(text).toBe(wordsFor(body).join(""));
      expect(tokens).toBe(40);
      expect(engine.seen).toHaveLength(1);
      await waitFor(() => rig.told.length === 3);
      expect(rig.told.map((line) => line.split(" ")[0])).toEqual(["routed", "prefilled", "freed"]);
      expect(rig.proxy.snapshot()).toMatchObject({ active: 0, outputTokens: 40 });
      expect(rig.faults).toEqual([]);
    });
  }

  test("answers that are not streams arrive complete", async () => {
    await using rig = await Rig.open({ model: { tokenizer: folder } });
    rig.engine("a");
    const body = { model: MODEL, messages: MESSAGES, max_tokens: 12 };
    const { data, response } = await clientOf(rig).chat.completions.create(body).withResponse();
    expect(data.choices[0]?.message.content).toBe(wordsFor(body).join(""));
    expect(data.usage?.completion_tokens).toBe(12);
    expect(response.headers.get("x-hearth-worker")).toBe("a");
    const id = response.headers.get("x-hearth-request-id") ?? "";
    expect(rig.router.explain(id)?.chosen?.worker).toBe("a" as never);
    const prompt = "Once upon a time";
    const completion = await clientOf(rig).completions.create({ model: MODEL, prompt });
    expect(completion.choices[0]?.text).toBe(wordsFor({ prompt }).join(""));
    await waitFor(() => rig.told.length === 6);
  });
});
