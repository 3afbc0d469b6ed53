import { expect, test } from "bun:test";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Tokenizer } from "@huggingface/tokenizers";
import fc from "fast-check";
import { systemClock } from "../../../src/core/index.ts";
import { checkModels, PROXY_MODEL_DEFAULTS } from "../../../src/router/proxy/index.ts";
import {
  roughTokens,
  type TokenPoolOptions,
  Tokens,
} from "../../../src/router/proxy/tokens/index.ts";
import { tempDir, waitFor } from "../../support/index.ts";
import {
  CHAT_TEMPLATE,
  PARTS_TEMPLATE,
  SPECIAL,
  tokenizerConfig,
  tokenizerJson,
  writeTokenizer,
} from "./tokenizer-files.ts";

const reference = new Tokenizer(tokenizerJson(), tokenizerConfig());

function idsOf(text: string, add_special_tokens = false): number[] {
  return reference.encode(text, { add_special_tokens }).ids;
}

interface Opened {
  readonly template?: string;
  readonly threads?: number;
  readonly cacheTokens?: number;
  readonly separator?: string;
  readonly kwargs?: string;
  readonly reasoning?: { start: string; end: string };
}

async function openModel(options: Opened = {}) {
  const tokenizer = writeTokenizer(tempDir(), options.template ?? CHAT_TEMPLATE);
  const all: TokenPoolOptions = {
    clock: systemClock,
    models: [
      {
        name: "m",
        tokenizer,
        chatTemplate: null,
        templateKwargs: options.kwargs ?? null,
        partSeparator: options.separator ?? "\n",
        reasoning: options.reasoning ?? null,
      },
    ],
    threads: options.threads ?? 0,
    cacheTokens: options.cacheTokens ?? 1_000_000,
    timeMs: 5_000,
  };
  return Tokens.open(all);
}

const SPECIAL_AROUND = { addSpecial: true, truncation: null } as const;
const user = (content: unknown) => ({ role: "user", content });

test("a conversation is rendered by the template and tokenised", async () => {
  using tokens = await openModel();
  const messages = [{ role: "system", content: "Be brief." }, user("What — is ü that, then?")];
  const seen = await tokens.chat("m", JSON.stringify({ messages }));
  const text =
    "<|im_start|>system\nBe brief.<|im_end|>\n" +
    "<|im_start|>user\nWhat — is ü that, then?<|im_end|>\n<|im_start|>assistant\n";
  expect([...seen!.tokens]).toEqual(idsOf(text));
  // Special tokens are single tokens, and no token is added in front of the template's text.
  const marks = [...seen!.tokens].filter((id) => SPECIAL[1] === reference.id_to_token(id));
  expect(marks).toHaveLength(3);
});

test("a plain prompt has the tokenizer's special tokens, output has none", async () => {
  using tokens = await openModel();
  const prompt = await tokens.text("m", "Once upon a time", SPECIAL_AROUND);
  expect([...prompt!.tokens]).toEqual(idsOf("Once upon a time", true));
  expect(reference.id_to_token(prompt!.tokens[0]!)).toBe("<|endoftext|>");
  const output = await tokens.output("m", "Once upon a time");
  expect([...output!.tokens]).toEqual([...prompt!.tokens].slice(1));
});

test("tools, tool calls and template kwargs reach the text", async () => {
  using tokens = await openModel();
  const tool = { function: { parameters: { type: "object" }, name: "f" }, type: "function" };
  const call = { id: "1", type: "function", function: { name: "f", arguments: '{"a":[1, 2]}' } };
  const messages = [user("go"), { role: "assistant", content: null, tool_calls: [call] }];
  const chat_template_kwargs = { enable_thinking: true };
  const body = { messages, tools: [tool], chat_template_kwargs };
  const seen = await tokens.chat("m", JSON.stringify(body));
  // Python's json puts blanks after commas and colons.
  const json =
    '{"type": "function", "function": ' +
    '{"name": "f", "description": null, "parameters": {"type": "object"}}}';
  const text =
    `<|im_start|>tools\n${json}<|im_end|>\n<|im_start|>user\ngo<|im_end|>\n` +
    '<|im_start|>assistant\n\nf {"a": [1, 2]}<|im_end|>\n<|im_start|>assistant\n<think>\n';
  expect([...seen!.tokens]).toEqual(idsOf(text));
});

test("a continued conversation ends with its last message", async () => {
  using tokens = await openModel();
  const messages = [user("go"), { role: "assistant", content: "I would" }];
  const body = { messages, add_generation_prompt: false, continue_final_message: true };
  const seen = await tokens.chat("m", JSON.stringify(body));
  const text = "<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\nI would";
  expect([...seen!.tokens]).toEqual(idsOf(text));
});

test("parts of a message are joined as the engine does, or stay parts", async () => {
  const body = JSON.stringify({
    messages: [
      user([
        { type: "text", text: "one" },
        { type: "text", text: "two" },
      ]),
    ],
  });
  for (const separator of ["\n", " "]) {
    using tokens = await openModel({ separator });
    const text = `<|im_start|>user\none${separator}two<|im_end|>\n<|im_start|>assistant\n`;
    expect([...(await tokens.chat("m", body))!.tokens]).toEqual(idsOf(text));
  }
  using tokens = await openModel({ template: PARTS_TEMPLATE });
  const text = "<|im_start|>user\n[one][two]<|im_end|>\n";
  expect([...(await tokens.chat("m", body))!.tokens]).toEqual(idsOf(text));
  const plain = JSON.stringify({ messages: [user("one")] });
  const alone = idsOf("<|im_start|>user\n[one]<|im_end|>\n");
  expect([...(await tokens.chat("m", plain))!.tokens]).toEqual(alone);
});

test("different images change the prompt from their position on", async () => {
  using tokens = await openModel();
  const ask = async (url: string) => {
    const picture = { type: "image_url", image_url: { url } };
    const messages = [user([{ type: "text", text: "What is this?" }, picture])];
    return [...(await tokens.chat("m", JSON.stringify({ messages })))!.tokens];
  };
  const [one, same, other] = [await ask("data:A"), await ask("data:A"), await ask("data:B")];
  expect(one).toEqual(same);
  expect(one).not.toEqual(other);
  const before = idsOf("<|im_start|>user\nWhat is this?\n").length;
  expect(other.slice(0, before)).toEqual(one.slice(0, before));
});

test("marks reach to the end of the marked part", async () => {
  using tokens = await openModel();
  const control = { cache_control: { type: "ephemeral", ttl: "1h" } };
  const messages = [
    { role: "system", content: [{ type: "text", text: "Long rules.", ...control }] },
    user([{ type: "text", text: "A book.", cache_control: { type: "ephemeral" } }]),
    user("Well?"),
  ];
  const seen = await tokens.chat("m", JSON.stringify({ messages }));
  const first = idsOf("<|im_start|>system\nLong rules.<|im_end|>\n");
  const second = [...first, ...idsOf("<|im_start|>user\nA book.<|im_end|>\n")];
  expect(seen!.marks).toEqual([
    { tokens: first.length, type: "ephemeral", ttlSeconds: 3_600 },
    { tokens: second.length, type: "ephemeral", ttlSeconds: null },
  ]);
  expect([...seen!.tokens].slice(0, second.length)).toEqual(second);
});

test("a mark within a message reaches to the end of the common prefix", async () => {
  using tokens = await openModel();
  const cache_control = { type: "ephemeral" };
  const parts = [
    { type: "text", text: "kept", cache_control },
    { type: "text", text: "new" },
  ];
  const seen = await tokens.chat("m", JSON.stringify({ messages: [user(parts)] }));
  const kept = idsOf("<|im_start|>user\nkept");
  expect(seen!.marks).toEqual([{ tokens: kept.length, type: "ephemeral", ttlSeconds: null }]);
});

test("cached pieces have the tokens of the whole text", async () => {
  // A tiny cache, so that pieces are evicted all the time.
  using tokens = await openModel({ cacheTokens: 60 });
  const piece = fc.oneof(
    fc.constantFrom(...SPECIAL, " ", "\n", "the", " the", "tion ", "<|im_", "|>", "'s", "ü"),
    fc.string({ unit: "grapheme", maxLength: 6 }),
  );
  await fc.assert(
    fc.asyncProperty(fc.array(piece, { maxLength: 12 }), async (pieces) => {
      const text = pieces.join("");
      const seen = await tokens.output("m", text);
      expect([...seen!.tokens]).toEqual(text === "" ? [] : idsOf(text));
    }),
    { numRuns: 400 },
  );
});

test("reasoning tokens come from the configuration or the vocabulary", async () => {
  using found = await openModel();
  const think = { start: reference.token_to_id("<think>"), end: reference.token_to_id("</think>") };
  expect(found.reasoning("m")).toEqual(think as never);
  using named = await openModel({ reasoning: { start: "<|im_start|>", end: "<|im_end|>" } });
  expect(named.reasoning("m")?.start).toBe(reference.token_to_id("<|im_start|>"));
  using missing = await openModel({ reasoning: { start: "<nothing>", end: "</nothing>" } });
  expect(missing.reasoning("m")).toBeNull();
});

test("a prompt that cannot be tokenised is reported, and the next one succeeds", async () => {
  using tokens = await openModel({ template: "{{ raise_exception('no') }}" });
  expect(await tokens.chat("m", JSON.stringify({ messages: [user("x")] }))).toBeNull();
  expect(await tokens.chat("m", '{"messages": "x"}')).toBeNull();
  expect(await tokens.chat("other", '{"messages": []}')).toBeNull();
  expect(await tokens.text("m", "x", SPECIAL_AROUND)).not.toBeNull();
  expect(tokens.counts).toMatchObject({ prompts: 3, failed: 2, late: 0 });
});

test("threads give the same tokens, each conversation on one thread", async () => {
  using tokens = await openModel({ threads: 2 });
  using local = await openModel();
  const bodies = Array.from({ length: 40 }, (_, i) => {
    return JSON.stringify({ messages: [user(`number ${i} `.repeat(50))] });
  });
  const seen = await Promise.all(bodies.map((body) => tokens.chat("m", body)));
  for (const [i, body] of bodies.entries()) {
    expect(seen[i]!.tokens).toEqual((await local.chat("m", body))!.tokens);
  }
});

/** A template whose duration depends on a message. */
const SLOW =
  "{%- for i in range(steps) %}{% for j in range(steps) %}{% set x = j %}" +
  "{% endfor %}{% endfor %}slow";

test("a hung thread is replaced, and the next prompt is answered", async () => {
  const tokenizer = writeTokenizer(tempDir(), SLOW);
  const files = { tokenizer, chatTemplate: null, templateKwargs: null };
  const model = { name: "m", ...files, partSeparator: "\n", reasoning: null };
  const clock = systemClock;
  const limits = { threads: 1, cacheTokens: 1_000, timeMs: 20 };
  using tokens = await Tokens.open({ clock, models: [model], ...limits });
  const steps = (count: number) =>
    JSON.stringify({ messages: [user("x")], chat_template_kwargs: { steps: count } });
  // Templates stop after some million steps. These keep the thread busy one after another.
  const slow = await Promise.all(
    Array.from({ length: 20 }, () => tokens.chat("m", steps(100_000))),
  );
  expect(slow).toEqual(Array(20).fill(null));
  expect(tokens.counts.late).toBeGreaterThan(0);
  await waitFor(() => tokens.counts.restarts > 0);
  await waitFor(async () => (await tokens.chat("m", steps(1))) !== null);
});

test("invalid tokenizer files refuse the start with their name", async () => {
  const folder = join(tempDir(), "broken");
  mkdirSync(folder);
  const open = () => {
    const kwargs = { chatTemplate: null, templateKwargs: null };
    const names = { name: "m", ...kwargs, partSeparator: "\n", reasoning: null };
    const limits = { threads: 0, cacheTokens: 1, timeMs: 1 };
    return Tokens.open({
      clock: systemClock,
      models: [{ ...names, tokenizer: folder }],
      ...limits,
    });
  };
  await expect(open()).rejects.toThrow(/tokenizer\.json/);
  writeFileSync(join(folder, "tokenizer.json"), "{}");
  await expect(open()).rejects.toThrow(/cannot be used/);
  writeFileSync(join(folder, "tokenizer.json"), "[");
  await expect(open()).rejects.toThrow(/tokenizer\.json/);
});

test("a broken template refuses the start with file and line", async () => {
  const open = openModel({ template: "{% for m in messages %}\n{{ m.content }" });
  await expect(open).rejects.toThrow(/tokenizer_config\.json: invalid chat template: line 2/);
});

test("a check of the configuration names a missing tokenizer and a broken template", () => {
  const model = { ...PROXY_MODEL_DEFAULTS, name: "m", tokenizer: join(tempDir(), "nothing") };
  expect(() => checkModels([model])).toThrow(/nothing\/tokenizer\.json/);
  const tokenizer = writeTokenizer(tempDir());
  const chatTemplate = join(tempDir(), "broken.jinja");
  writeFileSync(chatTemplate, "{% if %}");
  expect(() => checkModels([{ ...model, tokenizer }])).not.toThrow();
  expect(() => checkModels([{ ...model, tokenizer, chatTemplate }])).toThrow(
    /broken\.jinja: invalid chat template: line 1/,
  );
});

test("kwargs of the operator reach the template, and the request's take precedence", async () => {
  using tokens = await openModel({ kwargs: '{"enable_thinking": true}' });
  const text = "<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n";
  const seen = await tokens.chat("m", JSON.stringify({ messages: [user("go")] }));
  expect([...seen!.tokens]).toEqual(idsOf(`${text}<think>\n`));
  const chat_template_kwargs = { enable_thinking: false };
  const body = JSON.stringify({ messages: [user("go")], chat_template_kwargs });
  expect([...(await tokens.chat("m", body))!.tokens]).toEqual(idsOf(text));
  await expect(openModel({ kwargs: "[]" })).rejects.toThrow(/not a JSON object/);
});

test("an endless template is aborted with a reason", async () => {
  const tokenizer = writeTokenizer(tempDir(), SLOW);
  const reasons: string[] = [];
  const files = { tokenizer, chatTemplate: null, templateKwargs: '{"steps": 100000}' };
  using tokens = await Tokens.open({
    clock: systemClock,
    models: [{ name: "m", ...files, partSeparator: "\n", reasoning: null }],
    ...{ threads: 0, cacheTokens: 1_000, timeMs: 60_000 },
    onFailed: (model, why) => reasons.push(`${model}: ${why}`),
  });
  expect(await tokens.chat("m", JSON.stringify({ messages: [user("x")] }))).toBeNull();
  expect(reasons).toEqual(["m: the template exceeds the limit of steps"]);
});

test("prompts with images are marked as not countable", async () => {
  using tokens = await openModel();
  const picture = { type: "image_url", image_url: { url: "data:A" } };
  const ask = (content: unknown) => tokens.chat("m", JSON.stringify({ messages: [user(content)] }));
  expect((await ask([picture]))!.hasMedia).toBe(true);
  expect((await ask("data:A"))!.hasMedia).toBe(false);
});

test("rough tokens of a longer prompt start with those of its prefix", () => {
  fc.assert(
    fc.property(fc.string({ unit: "grapheme" }), fc.string(), (head, tail) => {
      const [short, long] = [roughTokens(head), roughTokens(head + tail)];
      const whole = Math.floor(new TextEncoder().encode(head).length / 4);
      expect(long.subarray(0, whole)).toEqual(short.subarray(0, whole));
    }),
  );
});
