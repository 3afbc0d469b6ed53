import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { systemClock } from "../../../src/core/index.ts";
import { Tokens } from "../../../src/router/proxy/tokens/index.ts";
import type { Check } from "../conformance.ts";

const GOLDEN = join(import.meta.dir, "golden");

/** What vLLM made of conversations: a hash of the token ids, or null where it refused. */
interface Golden {
  readonly vllm: string;
  readonly answers: Readonly<Record<string, Readonly<Record<string, string | null>>>>;
  readonly examples: readonly {
    readonly template: string;
    readonly conversation: number;
    readonly tokens: readonly number[];
  }[];
}

function unzipped(name: string): string {
  return Buffer.from(Bun.gunzipSync(readFileSync(join(GOLDEN, name)))).toString("utf8");
}

export function templateNames(): string[] {
  return readdirSync(join(GOLDEN, "templates"))
    .filter((name) => name.endsWith(".jinja"))
    .map((name) => basename(name, ".jinja"))
    .sort();
}

function digest(tokens: Uint32Array): string {
  const bytes = new Uint8Array(tokens.buffer, tokens.byteOffset, tokens.byteLength);
  return createHash("sha256").update(bytes).digest("hex").slice(0, 12);
}

export interface TokenCheck extends Check {
  readonly different: number;
}

export interface TokenGolden {
  readonly golden: Golden;
  readonly bodies: readonly string[];
}

export function readGolden(): TokenGolden {
  const golden = JSON.parse(unzipped("vllm.json.gz")) as Golden;
  return { golden, bodies: unzipped("conversations.jsonl.gz").trimEnd().split("\n") };
}

/**
 * Renders and tokenises conversations with one template as the proxy does; `every`: one of so many.
 * A conversation that vLLM refuses must fail here as well.
 */
export async function compareTemplate(
  { golden, bodies }: TokenGolden,
  template: string,
  every: number,
): Promise<TokenCheck> {
  const startMs = performance.now();
  let why = "";
  const chatTemplate = join(GOLDEN, "templates", `${template}.jinja`);
  const files = { tokenizer: join(GOLDEN, "tokenizer"), chatTemplate, templateKwargs: null };
  using tokens = await Tokens.open({
    clock: systemClock,
    models: [{ name: "golden", ...files, partSeparator: "\n", reasoning: null }],
    threads: 0,
    cacheTokens: 1_000_000,
    timeMs: 600_000,
    onFailed: (_model, reason) => {
      why = reason;
    },
  });
  let [compared, different] = [0, 0];
  let fault: string | null = null;
  for (const [at, wanted] of Object.entries(golden.answers[template] ?? {})) {
    if (Number(at) % every !== 0) continue;
    const seen = await tokens.chat("golden", bodies[Number(at)]!);
    compared++;
    const made = seen === null ? null : digest(seen.tokens);
    if (made === wanted) continue;
    different++;
    const told = wanted === null ? "refused by vLLM" : `differs${made === null ? `: ${why}` : ""}`;
    fault ??= `conversation ${at} ${told}`;
  }
  const seconds = (performance.now() - startMs) / 1_000;
  return { name: `tokens: ${template}`, compared, different, fault, seconds };
}
