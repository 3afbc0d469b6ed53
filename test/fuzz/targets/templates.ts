import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { type Random, randomBelow } from "../../../src/core/index.ts";
import { Template, TemplateSyntaxError } from "../../../src/router/proxy/tokens/jinja/index.ts";
import {
  PythonError,
  readJson,
  type Value,
} from "../../../src/router/proxy/tokens/python/index.ts";
import { must, type Saw, shapeOf, type Target } from "../target.ts";
import { bytesOf, oneOf } from "./text-input.ts";

const FOLDER = join(import.meta.dir, "../../conformance/tokens/golden");
const LIMITS = { steps: 5_000, made: 100_000 };

const VARIABLES = readJson(`{
  "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"text": "y"}]}],
  "tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": 1.0}}}],
  "add_generation_prompt": true, "n": 9, "l": [3, 1, 2], "s": " text ", "bos_token": "<s>"
}`) as Map<string, Value>;

const PIECES = [
  ..."{{ }} {% %} {# #} {%- -%} {{- -}} {%+ if for set macro call filter else elif endif".split(
    " ",
  ),
  ..."endfor endset endmacro in is not and or true none loop messages n l s ( ) [ ] { }".split(" "),
  ..."| tojson | join | map('trim') | sort | batch(2) | indent(9) | list .x [0] [::-1]".split(" "),
  ..."range(99999) 'a'*99999 2**9999 loop(l) caller() ~ , = == < + - * / // % ** 1 2.5".split(" "),
  ...["{% for i in range(9999) %}", "{% endfor %}", "{% macro m() %}{{ m() }}{% endmacro %}"],
  ...["{{ m() }}", "{% set s = s ~ s %}", "{% generation %}", "{% endgeneration %}", "\n", " "],
];

function run(input: Uint8Array, saw: Saw): void {
  const source = new TextDecoder().decode(input);
  let template: Template;
  try {
    template = new Template(source);
  } catch (thrown) {
    if (!(thrown instanceof TemplateSyntaxError)) throw thrown;
    saw(`refused ${shapeOf(thrown.message)}`);
    return;
  }
  try {
    const text = template.render(VARIABLES, { limits: LIMITS, now: () => new Date(0) });
    must(text.length <= LIMITS.made, "the text is bounded");
    saw(`rendered ${template.wantsParts} ${Math.min(20, text.length)}`);
  } catch (thrown) {
    if (!(thrown instanceof PythonError)) throw thrown;
    saw(`raised ${shapeOf(thrown.message)}`);
  }
}

function generate(random: Random): Uint8Array {
  const count = 1 + randomBelow(random, 40);
  return bytesOf(Array.from({ length: count }, () => oneOf(PIECES, random)).join(" "));
}

/** Chat templates, which operators copy from repositories of others. */
export function templates(): Target {
  const folder = join(FOLDER, "templates");
  const sources = readdirSync(folder).map((name) => readFileSync(join(folder, name), "utf8"));
  const corpus = sources.filter((source) => source.length < 6_000).map(bytesOf);
  return { name: "templates", corpus, inputBytesMax: 8 * 1024, stallMs: 20, generate, run };
}
