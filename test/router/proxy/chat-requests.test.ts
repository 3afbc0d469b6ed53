import { describe, expect, test } from "bun:test";
import {
  type ChatRequest,
  chatOfMessages,
  chatOfResponses,
  exactFields,
  type Fields,
} from "../../../src/router/proxy/index.ts";
import golden from "./golden/chat-requests.json" with { type: "json" };

/** Drops fields that mean absent, and parses tool arguments. */
function seenByTemplate(chat: ChatRequest | Record<string, unknown> | null): unknown {
  const { messages, tools, reasoning_effort, chat_template_kwargs } = chat as Fields;
  const text = JSON.stringify({
    messages,
    tools: tools ?? null,
    effort: reasoning_effort ?? null,
    kwargs: chat_template_kwargs ?? null,
    isOpen: (chat as Fields).continue_final_message ?? false,
  });
  return JSON.parse(text, (key, value) => {
    return key === "arguments" && typeof value === "string" ? JSON.parse(value) : value;
  });
}

/** Recorded from vLLM 0.32 by golden/record_chat_requests.py. */
describe("the chat request that vLLM makes is made here too", () => {
  for (const [number, { body, merges, effort, chat }] of golden.messages.entries()) {
    test(`of /v1/messages, number ${number}`, () => {
      const fields = exactFields(JSON.stringify(body), body as unknown as Fields);
      const disabledEffort = effort as "none" | "low";
      const made = chatOfMessages(fields, { mergesSystem: merges, disabledEffort });
      expect(seenByTemplate(made)).toEqual(seenByTemplate(chat));
    });
  }

  for (const [number, { body, chat }] of golden.responses.entries()) {
    test(`of /v1/responses, number ${number}`, () => {
      const fields = exactFields(JSON.stringify(body), body as unknown as Fields);
      expect(seenByTemplate(chatOfResponses(fields))).toEqual(seenByTemplate(chat));
    });
  }
});
