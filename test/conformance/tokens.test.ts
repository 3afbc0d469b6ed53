import { describe, expect, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { systemClock } from "../../src/core/index.ts";
import { Tokens } from "../../src/router/proxy/tokens/index.ts";
import { Template } from "../../src/router/proxy/tokens/jinja/index.ts";
import { readJson, type Value } from "../../src/router/proxy/tokens/python/index.ts";
import { tempDir } from "../support/index.ts";
import { compareTemplate, readGolden, templateNames } from "./tokens/compare.ts";

const FOLDER = join(import.meta.dir, "tokens");

const golden = readGolden();

test("the golden files cover at least thirty templates and a thousand conversations", () => {
  expect(templateNames().length).toBeGreaterThanOrEqual(30);
  expect(golden.bodies.length).toBeGreaterThanOrEqual(1_000);
  const seen = new Set(Object.values(golden.golden.answers).flatMap((one) => Object.keys(one)));
  expect(seen.size).toBe(golden.bodies.length);
});

describe("prompts have the tokens that vLLM renders", () => {
  // All of them: `./dev test:conformance --tokens`.
  for (const template of templateNames()) {
    test(template, async () => {
      const { compared, fault } = await compareTemplate(golden, template, 8);
      expect(compared).toBeGreaterThan(0);
      expect(fault).toBeNull();
    });
  }
});

interface Cases {
  readonly templates: Readonly<Record<string, string>>;
  readonly bodies: Readonly<Record<string, unknown>>;
}
type Answers = Readonly<Record<string, Readonly<Record<string, readonly number[] | null>>>>;

test("each member of a request has the effect that it has in vLLM", async () => {
  const cases = (await Bun.file(join(FOLDER, "cases.json")).json()) as Cases;
  const answers = (await Bun.file(join(FOLDER, "golden/cases.json")).json()) as Answers;
  const made: Record<string, Record<string, readonly number[] | null>> = {};
  for (const [form, template] of Object.entries(cases.templates)) {
    const chatTemplate = join(tempDir(), "template.jinja");
    writeFileSync(chatTemplate, template);
    const files = { tokenizer: join(FOLDER, "golden/tokenizer"), chatTemplate };
    const model = { name: "m", ...files, templateKwargs: null, partSeparator: "\n" };
    using tokens = await Tokens.open({
      clock: systemClock,
      models: [{ ...model, reasoning: null }],
      ...{ threads: 0, cacheTokens: 1_000, timeMs: 60_000 },
    });
    made[form] = {};
    for (const [name, body] of Object.entries(cases.bodies)) {
      const seen = await tokens.chat("m", JSON.stringify(body));
      made[form][name] = seen === null ? null : [...seen.tokens];
    }
  }
  expect(made).toEqual(answers as typeof made);
});

test("snippets of templates give the text that transformers gives", async () => {
  const file = readJson(await Bun.file(join(FOLDER, "golden/snippets.json")).text());
  const { variables, snippets } = Object.fromEntries(file as Map<string, Value>);
  for (const snippet of snippets as Map<string, Value>[]) {
    const source = String(snippet.get("source"));
    const wanted = snippet.get("text") ?? null;
    expect({ source, text: rendered(source, variables as Map<string, Value>) }).toEqual({
      source,
      text: wanted as string | null,
    });
  }
});

/** Null: it is refused. */
function rendered(source: string, variables: Map<string, Value>): string | null {
  try {
    return new Template(source).render(variables, { now: () => new Date(0) });
  } catch {
    return null;
  }
}
