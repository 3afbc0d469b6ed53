import { expect, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { describeNative, tempDir } from "../../support/index.ts";
import { MODEL, Rig } from "./rig.ts";
import { writeTokenizer } from "./tokenizer-files.ts";

const LATER = [
  { role: "user", content: "One" },
  { role: "system", content: "Be terse." },
  { role: "assistant", content: "Two" },
  { role: "user", content: "Three" },
];
const BEGINNING =
  "{% for message in messages %}{% if message.role == 'system' and not loop.first %}";
const REFUSAL = "{{ raise_exception('a system message comes first') }}{% endif %}";
const MESSAGE = "<{{ message.role }}>{{ message.content }}";
const END = "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

/** The tokens that the router sees for each request with this template. */
async function promptsOf(template: string, asks: readonly (readonly [string, object])[]) {
  const chatTemplate = join(tempDir(), "chat.jinja");
  writeFileSync(chatTemplate, template);
  await using rig = await Rig.open({
    model: { tokenizer: writeTokenizer(tempDir()), chatTemplate },
  });
  rig.engine("a");
  const seen: number[][] = [];
  rig.router.listen({
    routed: ({ prompt }) => void (prompt.kind === "tokens" && seen.push([...prompt.tokens])),
  });
  for (const [path, body] of asks) {
    const response = await rig.post(path, { model: MODEL, max_tokens: 4, ...body });
    expect(response.status).toBe(200);
  }
  return seen;
}

describeNative("an inline system message of /v1/messages", () => {
  test("an inline system message stays in place if the template accepts it", async () => {
    const [chat, messages] = await promptsOf(`{% for message in messages %}${MESSAGE}${END}`, [
      ["/v1/chat/completions", { messages: LATER }],
      ["/v1/messages", { messages: LATER }],
    ]);
    expect(chat?.length).toBeGreaterThan(5);
    expect(messages).toEqual(chat!);
  });

  test("an inline system message moves to the front if the template refuses it", async () => {
    const merged = [LATER[1]!, LATER[0]!, LATER[2]!, LATER[3]!];
    const [chat, messages] = await promptsOf(`${BEGINNING}${REFUSAL}${MESSAGE}${END}`, [
      ["/v1/chat/completions", { messages: merged }],
      ["/v1/messages", { messages: LATER }],
    ]);
    expect(chat?.length).toBeGreaterThan(5);
    expect(messages).toEqual(chat!);
  });
});
