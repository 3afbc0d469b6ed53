import { describe, expect, test } from "bun:test";
import { parseJson, stringifyJson } from "../../../src/core/index.ts";
import {
  chatOfMessages,
  chatOfResponses,
  exactFields,
  type Fields,
} from "../../../src/router/proxy/index.ts";

const PLAIN = { mergesSystem: false, disabledEffort: "none" } as const;

function messages(body: unknown, options: Parameters<typeof chatOfMessages>[1] = PLAIN) {
  return chatOfMessages(body as Fields, options);
}

function responses(body: unknown) {
  return chatOfResponses(body as Fields);
}

/** Expectations from `AnthropicServingMessages.to_chat_completion_request` of vLLM 0.32. */
describe("a request to /v1/messages", () => {
  test("the system text comes first, without Claude Code's billing line", () => {
    const system = [
      { type: "text", text: "x-anthropic-billing-header: hash" },
      { type: "text", text: "Be terse. ", cache_control: { type: "ephemeral" } },
      { type: "text", text: "Use tools." },
    ];
    const chat = messages({ system, messages: [{ role: "user", content: "Hi" }] });
    expect(chat).toEqual({
      messages: [
        { role: "system", content: "Be terse. Use tools." },
        { role: "user", content: "Hi" },
      ],
    });
  });

  test("tool results become messages before the rest of their turn", () => {
    const chat = messages({
      messages: [
        { role: "user", content: "List" },
        {
          role: "assistant",
          content: [
            { type: "thinking", thinking: "Hm.", signature: "s" },
            { type: "redacted_thinking", data: "x" },
            { type: "text", text: "I look." },
            { type: "tool_use", id: "t1", name: "ls", input: { path: "/" } },
            { type: "tool_use", id: "t2", name: "pwd", input: {} },
          ],
        },
        {
          role: "user",
          content: [
            { type: "text", text: "Here" },
            { type: "tool_result", tool_use_id: "t1", content: "a b" },
            {
              type: "tool_result",
              tool_use_id: "t2",
              content: [
                { type: "text", text: "one" },
                { type: "text", text: "two" },
                { type: "image", source: { type: "url", url: "http://i" } },
              ],
            },
          ],
        },
      ],
    });
    const call = (id: string, name: string, args: string) => {
      return { id, type: "function", function: { name, arguments: args } };
    };
    expect(chat?.messages).toEqual([
      { role: "user", content: "List" },
      {
        role: "assistant",
        reasoning: "Hm.",
        tool_calls: [call("t1", "ls", '{"path":"/"}'), call("t2", "pwd", "{}")],
        content: "I look.",
      },
      { role: "tool", tool_call_id: "t1", content: "a b" },
      { role: "tool", tool_call_id: "t2", content: "one\ntwo" },
      { role: "user", content: [{ type: "image_url", image_url: { url: "http://i" } }] },
      { role: "user", content: "Here" },
    ]);
  });

  test("tools have the form of the chat API without null fields", () => {
    const tools = [
      { name: "ls", description: "Lists", input_schema: { properties: {} }, strict: true },
      { name: "pwd", input_schema: { type: "object" } },
    ];
    const chat = messages({ messages: [], tools });
    expect(chat).toEqual({
      messages: [],
      tools: [
        {
          type: "function",
          function: {
            name: "ls",
            description: "Lists",
            parameters: { properties: {}, type: "object" },
            strict: true,
          },
        },
        {
          type: "function",
          function: { name: "pwd", description: null, parameters: { type: "object" } },
        },
      ],
      tool_choice: "auto",
    });
  });

  test("an inline system message stays in place, or moves to the front on request", () => {
    const body = {
      system: "A",
      messages: [
        { role: "user", content: "1" },
        { role: "system", content: [{ type: "text", text: "B" }] },
        { role: "user", content: "2" },
      ],
    };
    const roles = (merges: boolean) =>
      messages(body, { ...PLAIN, mergesSystem: merges })?.messages.map((one) => {
        const { role, content } = one as { role: string; content: string };
        return `${role}:${content}`;
      });
    expect(roles(false)).toEqual(["system:A", "user:1", "system:B", "user:2"]);
    expect(roles(true)).toEqual(["system:AB", "user:1", "user:2"]);
  });

  test("disabled thinking takes precedence over the output effort", () => {
    const body = { messages: [], output_config: { effort: "high" } };
    expect(messages(body)).toMatchObject({ reasoning_effort: "high" });
    const disabled = { ...body, thinking: { type: "disabled" } };
    expect(messages(disabled)).toMatchObject({ reasoning_effort: "none" });
    const low = messages(disabled, { ...PLAIN, disabledEffort: "low" });
    expect(low).toMatchObject({ reasoning_effort: "low" });
    const thinking = { type: "enabled", budget_tokens: 2_048 };
    expect(messages({ messages: [], thinking })).toEqual({ messages: [] });
  });

  test("the prompt is unknown if vLLM refuses the request or renders it specially", () => {
    for (const body of [
      {},
      { messages: "x" },
      { messages: [{ role: "tool", content: "x" }] },
      { messages: [{ role: "user", content: [{ type: "video" }] }] },
      { messages: [{ role: "assistant", content: [{ type: "tool_result", content: [] }] }] },
      { messages: [], tools: [{ type: "web_search_20250305", name: "web_search" }] },
      { messages: [{ role: "system", content: [{ type: "tool_removal" }] }], tools: [] },
    ]) {
      expect([body, messages(body)]).toEqual([body, null]);
    }
  });
});

/** Expectations from `construct_input_messages` and `construct_tool_dicts` of vLLM 0.32. */
describe("a request to /v1/responses", () => {
  test("the instructions come before the input text", () => {
    expect(responses({ instructions: "Be terse.", input: "Hi" })).toEqual({
      messages: [
        { role: "system", content: "Be terse." },
        { role: "user", content: "Hi" },
      ],
      add_generation_prompt: true,
    });
  });

  test("items of one turn become one message", () => {
    const chat = responses({
      input: [
        { type: "message", role: "user", content: [{ type: "input_text", text: "List" }] },
        { type: "reasoning", summary: [], content: [{ type: "reasoning_text", text: "Hm." }] },
        { type: "message", role: "assistant", content: [{ type: "output_text", text: "I look." }] },
        { type: "function_call", call_id: "c1", name: "ls", arguments: '{"a":1.0}' },
        { type: "custom_tool_call", call_id: "c2", name: "sh", input: "ls -l" },
        { type: "function_call_output", call_id: "c1", output: "a b" },
        { role: "developer", content: "Go on" },
      ],
    });
    const call = (id: string, name: string, args: string) => {
      return { id, type: "function", function: { name, arguments: args } };
    };
    expect(chat?.messages).toEqual([
      { type: "message", role: "user", content: [{ type: "input_text", text: "List" }] },
      {
        role: "assistant",
        reasoning: "Hm.",
        content: "I look.",
        tool_calls: [call("c1", "ls", '{"a":1.0}'), call("c2", "sh", '{"input":"ls -l"}')],
      },
      { role: "tool", content: "a b", tool_call_id: "c1" },
      { role: "developer", content: "Go on" },
    ]);
  });

  test("an incomplete message is continued", () => {
    const item = { type: "message", role: "assistant", status: "incomplete" };
    const content = [{ type: "output_text", text: "Once" }];
    const chat = responses({
      input: [
        { role: "user", content: "Tell" },
        { ...item, content },
      ],
    });
    expect(chat).toMatchObject({ add_generation_prompt: false, continue_final_message: true });
  });

  test("only tools that the model sees are converted", () => {
    const chat = responses({
      input: "x",
      reasoning: { effort: "low" },
      tools: [
        { type: "function", name: "ls", parameters: { type: "object" }, strict: false },
        { type: "web_search" },
        { type: "custom", name: "sh", description: "A shell" },
        { type: "namespace", name: "git", tools: [{ type: "function", name: "log" }] },
      ],
    });
    expect(chat).toMatchObject({ reasoning_effort: "low" });
    const tools = (chat?.tools ?? []) as Fields[];
    expect(tools.map((one) => (one.function as Fields).name)).toEqual(["ls", "sh", "git__log"]);
    expect(tools[0]).toEqual({
      type: "function",
      function: { name: "ls", description: null, parameters: { type: "object" }, strict: false },
    });
  });

  test("the prompt is unknown if the request continues a stored response", () => {
    for (const body of [
      { input: "x", previous_response_id: "resp_1" },
      { input: "x", prompt: { id: "p" } },
      { input: [{ type: "item_reference", id: "m" }] },
      { input: [{ type: "reasoning", encrypted_content: "x", summary: [] }] },
      { input: 5 },
      {},
    ]) {
      expect([body, responses(body)]).toEqual([body, null]);
    }
  });
});

test("numbers of a translated body keep the client's spelling", () => {
  const input = '{"a":1.0,"b":1e5,"c":12345678901234567890,"d":-0.10}';
  const block = `{"type":"tool_use","input":${input}}`;
  const text = `{"messages":[{"role":"assistant","content":[${block}]}]}`;
  const fields = exactFields(text, parseJson(text) as Fields);
  const chat = stringifyJson(messages(fields));
  expect(chat).toContain(stringifyJson(input).slice(1, -1));
});
