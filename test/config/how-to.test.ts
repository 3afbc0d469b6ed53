import { describe, expect, test } from "bun:test";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { formatProblem, parseConfig, parseRouterConfig } from "../../src/config/index.ts";

const HOW_TO = join(import.meta.dir, "../../docs/how-to");
const GPU_HOST = { hostname: "gpu", memoryBytes: 256 * 2 ** 30 };

/** The least that an agent's file needs. */
const AGENT = "[kv]\nram_gib = 8\n";

interface Block {
  readonly name: string;
  readonly source: string;
}

/** The blocks of TOML in a page, by page and line. */
function blocksOf(page: string): Block[] {
  const text = readFileSync(join(HOW_TO, page), "utf8");
  return [...text.matchAll(/^```toml\n([\s\S]*?)^```$/gm)].map(({ index, 1: source }) => {
    return { name: `${page}:${text.slice(0, index).split("\n").length}`, source: source! };
  });
}

const pages = readdirSync(HOW_TO).filter((name) => name.endsWith(".md"));
const blocks = pages.flatMap(blocksOf);

describe("the configurations of the how-to pages", () => {
  test.each(blocks.map(({ name, source }) => [name, source]))("%s is accepted", (name, source) => {
    // Routers have workers or models; everything else is a file of an agent, or an addition to one.
    const isRouter = /^\[(?:workers|models)\./m.test(source);
    const isAddition = !isRouter && !source.includes("[kv]");
    const parse = isRouter ? parseRouterConfig : parseConfig;
    const result = parse(isAddition ? `${source}\n${AGENT}` : source, name, GPU_HOST);
    expect(result.ok ? [] : result.problems.map(formatProblem)).toEqual([]);
  });

  test("the pages of vLLM, SGLang and LMCache have one each at least", () => {
    const found = pages.filter((page) => blocks.some(({ name }) => name.startsWith(page)));
    const engines = ["connect-lmcache.md", "connect-sglang.md", "connect-vllm.md"];
    expect(found).toEqual(expect.arrayContaining(engines));
  });

  test("sizes of RAM and SSD have one form", () => {
    const sizes = blocks.flatMap(({ source }) => source.match(/^(?:ram|ssd)\w* =/gm) ?? []);
    expect([...new Set(sizes)].sort()).toEqual(["ram_gib =", "ssd_dir =", "ssd_gib ="]);
  });
});
