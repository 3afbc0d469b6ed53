import { expect, test } from "bun:test";
import { proxyModels, proxySettings } from "../../../src/app/index.ts";
import {
  formatProblem,
  parseRouterConfig,
  ROUTER_BOOK,
  type RouterConfig,
  renderRouterConfig,
} from "../../../src/config/index.ts";
import { PROXY_DEFAULTS, PROXY_MODEL_DEFAULTS } from "../../../src/router/proxy/index.ts";

const FACTS = { hostname: "router", memoryBytes: null };
const MODEL = '[models.llama]\nmodel = "meta/llama"\n';

function configOf(text: string): RouterConfig {
  const result = parseRouterConfig(text, "router.toml", FACTS);
  if (!result.ok) throw new Error(result.problems.map(formatProblem).join("\n"));
  return result.config;
}

function problemsOf(text: string): string[] {
  const result = parseRouterConfig(text, "r.toml", FACTS);
  return result.ok ? [] : result.problems.map(formatProblem);
}

test("the file's defaults are the proxy's own", () => {
  expect(proxySettings(configOf(""), false)).toMatchObject(PROXY_DEFAULTS);
  const { models } = configOf(MODEL);
  expect(proxyModels(models)).toEqual([{ ...PROXY_MODEL_DEFAULTS, name: "meta/llama" }]);
});

test("a model's table says what the proxy is to know of it", () => {
  const more =
    'tokenizer = "/models/llama"\nloras = "a, b,a"\nstrip_fields = "nvext"\nengine = "sglang"\n' +
    'fallback = "load"\nreasoning_start = "<think>"\nreasoning_end = "</think>"\n' +
    'kv_hints = "kv_hints"\nkv_hint_actions = "pin, transient"\n';
  const config = configOf(MODEL + more);
  expect(proxyModels(config.models)[0]).toEqual({
    ...PROXY_MODEL_DEFAULTS,
    name: "meta/llama",
    tokenizer: "/models/llama",
    loras: ["a", "b"],
    stripFields: ["nvext"],
    engine: "sglang",
    fallback: "load",
    kvHints: "kv_hints",
    kvHintActions: ["pin", "transient"],
    reasoning: { start: "<think>", end: "</think>" },
  });
  expect(configOf(renderRouterConfig(config)).models).toEqual(config.models);
});

test("what is wrong in a model's table is told", () => {
  expect(problemsOf("[models.llama]\n")[0]).toContain("models.llama.model: is missing");
  expect(problemsOf(`${MODEL}loras = "a b"\n`)[0]).toContain("is not a valid model name");
  expect(problemsOf(`${MODEL}kv_hint_actions = "pin,warm"\n`)[0]).toContain("warm");
  expect(problemsOf(`${MODEL}tokenizer = "here"\n`)[0]).toContain("absolute path");
  expect(problemsOf(`${MODEL}tokenzier = "/x"\n`)[0]).toContain("did you mean tokenizer");
  for (const spec of Object.values(ROUTER_BOOK.named.models!.keys)) {
    expect(spec.kind.read(spec.example).ok).toBe(true);
  }
});

test("clients' tokens for this router are not shown to workers", () => {
  const auto = configOf("");
  expect(proxySettings(auto, true).authorization).toBe("drop");
  expect(proxySettings(auto, false).authorization).toBe("pass");
  const pass = configOf('[proxy]\nauthorization = "pass"\n');
  expect(proxySettings(pass, true).authorization).toBe("pass");
  const missing = configOf('[proxy]\nengine_token_file = "/nowhere/token"\n');
  expect(() => proxySettings(missing, true)).toThrow(/engine_token_file cannot be read/);
});
