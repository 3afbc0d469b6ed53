import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Random, randomBelow, systemClock } from "../../../src/core/index.ts";
import { Tokens } from "../../../src/router/proxy/tokens/index.ts";
import { must, type Saw, shapeOf, type Target } from "../target.ts";
import { bytesOf, oneOf } from "./text-input.ts";

const GOLDEN = join(import.meta.dir, "../../conformance/tokens/golden");

const TEMPLATE =
  "{% for m in messages %}<|{{ m.role }}|>{{ m | tojson }}{% endfor %}{{ tools | tojson }}" +
  "{{ documents }}{{ enable_thinking }}";

const USER = '{"role":"user","content":"a"}';

const SEEDS = [
  `{"messages":[${USER}]}`,
  '{"messages":[{"role":"developer","content":[{"type":"text","text":"a"}]}],' +
    '"tools":[{"function":{"name":"f","parameters":{"x":1.0}}}]}',
  `{"messages":[${USER},{"role":"assistant","content":"b "}],` +
    '"continue_final_message":true,"add_generation_prompt":false}',
  '{"messages":[{"role":"assistant","tool_calls":[{"id":"a","type":"function",' +
    '"function":{"name":"f","arguments":"{\\"a\\": 1e5}"}}]}],"reasoning_effort":"low"}',
  `{"messages":[${USER}],"truncate_prompt_tokens":3,"add_special_tokens":true}`,
  `{"messages":[{"role":"user","content":${"[".repeat(300)}${"]".repeat(300)}}]}`,
  '{"messages":[{"role":"user","content":"\\ud800"}],"chat_template_kwargs":{"a":NaN}}',
];
const VALUES = [
  ...["null", "true", "0", "-1", "1e999", '"x"', '"auto"', "[]", "{}", '{"role":"user"}'],
  ...['[{"type":"text"}]', '[{"type":"image_url"}]', "12345678901234567890", '"\\u0000"'],
];
const KEYS = [
  ...["messages", "tools", "content", "role", "name", "tool_calls", "arguments", "function"],
  ...["chat_template_kwargs", "documents", "add_special_tokens", "truncate_prompt_tokens"],
  ...["truncation_side", "continue_final_message", "add_generation_prompt", "cache_control"],
];

/** One member of a seed gets another value. */
function generate(random: Random): Uint8Array {
  const seed = oneOf(SEEDS, random);
  const member = `"${oneOf(KEYS, random)}":${oneOf(VALUES, random)}`;
  const places = [...seed.matchAll(/\{/g)].map(({ index }) => index + 1);
  const at = oneOf(places, random);
  const comma = seed[at] === "}" ? "" : ",";
  const isTwice = randomBelow(random, 2) === 0;
  const twice = isTwice ? `${member},` : "";
  return bytesOf(seed.slice(0, at) + twice + member + comma + seed.slice(at));
}

async function open(folder: string, onFailed: (model: string, why: string) => void) {
  const chatTemplate = join(folder, "template.jinja");
  writeFileSync(chatTemplate, TEMPLATE);
  const files = { tokenizer: join(GOLDEN, "tokenizer"), chatTemplate, templateKwargs: null };
  return Tokens.open({
    clock: systemClock,
    models: [{ name: "m", ...files, partSeparator: "\n", reasoning: null }],
    ...{ threads: 0, cacheTokens: 10_000, timeMs: 60_000 },
    onFailed,
  });
}

/** Bodies of requests for chat completions, as the proxy tokenises them. */
export function chatBodies(): Target {
  const folder = mkdtempSync(join(tmpdir(), "hearth-fuzz-"));
  let why = "";
  let opened: Promise<Tokens> | null = null;
  const openOnce = () => {
    opened ??= open(folder, (_model, reason) => {
      why = reason;
    });
    return opened;
  };
  const run = async (input: Uint8Array, saw: Saw) => {
    const tokens = await openOnce();
    const before = tokens.counts.failed;
    why = "";
    const seen = await tokens.chat("m", new TextDecoder().decode(input));
    if (seen === null) {
      must(tokens.counts.failed === before + 1 && why !== "", "a refusal has a reason");
      must(!why.includes("undefined is not"), "a refusal is meant, and no slip of ours");
      return saw(`refused ${shapeOf(why)}`);
    }
    saw(`tokens ${seen.tokens.length > 0} ${seen.marks.length} ${seen.hasMedia}`);
  };
  const close = async () => {
    if (opened !== null) (await opened)[Symbol.dispose]();
    if (existsSync(folder)) rmSync(folder, { recursive: true });
  };
  const corpus = SEEDS.map(bytesOf);
  const inputBytesMax = 8 * 1024;
  return { name: "chat-bodies", corpus, inputBytesMax, stallMs: 20, generate, run, close };
}
