import { describe, expect, test } from "bun:test";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { METRICS } from "../../src/api/index.ts";
import { runCli } from "../../src/cli/index.ts";
import { parseConfig, SCHEMA_KEYS } from "../../src/config/index.ts";
import { REFUSALS } from "../../src/control/index.ts";
import { ERROR_CODES } from "../../src/core/index.ts";
import { HEALTH_CODES } from "../../src/observability/index.ts";
import { describeNative, tempDir } from "../support/index.ts";
import { memoryIo } from "./memory-io.ts";

async function hearth(...words: string[]) {
  const io = memoryIo();
  const code = await runCli(words, io);
  return { code, out: io.outText(), err: io.errText() };
}

function lastJson(out: string): Record<string, unknown> {
  return JSON.parse(out.trimEnd().split("\n").at(-1)!);
}

describe("check", () => {
  const folder = tempDir();
  const good = join(folder, "good.toml");
  const bad = join(folder, "bad.toml");
  writeFileSync(good, "[kv]\nram_gib = 0.0625\n");
  writeFileSync(bad, "[kv]\nram_gib = 0.0625\nrma = 1\n");

  test("a file that is right", async () => {
    expect(await hearth("check", good)).toEqual({ code: 0, out: `${good}: ok\n`, err: "" });
    const { code, out } = await hearth("check", "--json", good);
    expect({ code, document: lastJson(out) }).toEqual({
      code: 0,
      document: { file: good, ok: true, problems: [] },
    });
  });

  test("with every default written out, it is the same configuration", async () => {
    const facts = { hostname: "host", memoryBytes: null };
    const { out } = await hearth("check", "--show", good);
    const shown = parseConfig(out, "shown", facts);
    expect(shown.ok).toBe(true);
    const document = lastJson((await hearth("check", "--show", "--json", good)).out);
    if (shown.ok) expect(document.config).toEqual(JSON.parse(JSON.stringify(shown.config)));
  });

  test("a file that is wrong, or not there", async () => {
    const { code, out } = await hearth("check", bad);
    expect(code).toBe(3);
    expect(out).toStartWith(`${bad}:3:1 kv.rma: `);
    const document = lastJson((await hearth("check", "--json", bad)).out);
    expect(document).toMatchObject({
      ok: false,
      problems: [{ file: bad, line: 3, key: "kv.rma" }],
    });
    expect((await hearth("check", join(folder, "none.toml"))).code).toBe(3);
  });

  test("a router's file that is checked as an agent's says which option to use", async () => {
    const file = join(folder, "router.toml");
    writeFileSync(file, '[router]\nid = "r"\n[workers.w]\nmodel = "m"\n');
    const said = `${file}: this is the file of a router: use --router\n`;
    expect(await hearth("check", file)).toEqual({ code: 3, out: said, err: "" });
    expect((await hearth("check", "--router", file)).code).toBe(0);
  });
});

describe("reference", () => {
  test("errors, with the exit code of each", async () => {
    const { code, out } = await hearth("reference", "errors");
    expect(code).toBe(0);
    for (const [name, { meaning }] of Object.entries(ERROR_CODES)) {
      expect(out).toMatch(new RegExp(`\\| \`${name}\` \\| ${meaning} \\| (yes|no) \\| \\d+ \\|`));
    }
  });

  test("health codes, with what to do about each", async () => {
    const { out } = await hearth("reference", "health");
    for (const [name, { severity, fix }] of Object.entries(HEALTH_CODES)) {
      expect(out).toMatch(new RegExp(`\\| \`${name}\` \\| ${severity} \\| .* \\|$`, "m"));
      expect(out).toContain(`| ${fix} |`);
    }
  });

  test("metrics and configuration, whole", async () => {
    const metrics = (await hearth("reference", "metrics")).out;
    for (const name of Object.keys(METRICS)) expect(metrics).toContain(`| \`${name}\` |`);
    const config = (await hearth("reference", "config")).out;
    for (const { name } of SCHEMA_KEYS) expect(config).toContain(`### ${name}\n`);
  });

  test("words in receipts, as docs/reference/commands.md has them", async () => {
    const { out } = await hearth("reference", "commands");
    for (const [word, { meaning, retry }] of Object.entries(REFUSALS)) {
      expect(out).toContain(`| \`${word}\` | ${meaning} | ${retry ? "yes" : "no"} |`);
    }
    const page = readFileSync(join(import.meta.dir, "../../docs/reference/commands.md"), "utf8");
    const table = (text: string) => text.split("## Why a block is not done")[1]!;
    const rows = (text: string) => table(text).match(/^\| `.*$/gm);
    expect(rows(out)).toEqual(rows(page.split("\n## Limits")[0]!));
  });

  test("of nothing else", async () => {
    const { code, err } = await hearth("reference", "poems");
    expect(code).toBe(2);
    expect(err).toContain('use one of "commands", "config", "errors", "health", "metrics"');
  });
});

describe("bench policy", () => {
  const trace = join(tempDir(), "small.jsonl");
  const lines = [0, 1, 2, 0, 3, 0].map((id, at) =>
    JSON.stringify({ timestamp: at, input_length: 512, output_length: 1, hash_ids: [id] }),
  );
  writeFileSync(trace, `${lines.join("\n")}\n`);

  test("prints a row for each policy at each size", async () => {
    const words = ["--trace", trace, "--capacity", "2,4", "--policy", "lru,best", "--json"];
    const { code, out, err } = await hearth("bench", "policy", ...words);
    expect({ code, err }).toEqual({ code: 0, err: "" });
    const rows = out.trimEnd().split("\n");
    const rate = { decisions_per_s: expect.any(Number) };
    // LRU with two slots hits only the last 0; the best choice keeps 0. With four, both hit twice.
    expect(rows.map((row) => JSON.parse(row))).toEqual([
      { trace: "small", capacity: 2, policy: "lru", hit_ratio: 0.1667, score: 0, ...rate },
      { trace: "small", capacity: 2, policy: "best", hit_ratio: 0.3333, score: 1, ...rate },
      { trace: "small", capacity: 4, policy: "lru", hit_ratio: 0.3333, score: null, ...rate },
      { trace: "small", capacity: 4, policy: "best", hit_ratio: 0.3333, score: null, ...rate },
    ]);
  });

  test("wants a trace that is there", async () => {
    expect((await hearth("bench", "policy", "--capacity", "2")).code).toBe(2);
    const missing = await hearth("bench", "policy", "--capacity", "2", "--trace", `${trace}.no`);
    expect(missing.code).toBe(1);
    expect(missing.err).toContain("cannot be opened");
  });
});

test("bench index reports memory and rates", async () => {
  const { code, out } = await hearth("bench", "index", "--blocks", "20000", "--json");
  expect(code).toBe(0);
  const result = lastJson(out);
  expect(result).toMatchObject({
    blocks: 20_000,
    match_64_p50_us: expect.any(Number),
    insert_per_s: expect.any(Number),
    evict_per_s: expect.any(Number),
    bytes_per_block: expect.any(Number),
  });
});

describeNative("bench hash", () => {
  test("reports the digests of the whole prompt", async () => {
    const { code, out } = await hearth("bench", "hash", "--runs", "20", "--json");
    expect(code).toBe(0);
    const result = lastJson(out);
    expect(result.blocks).toBe(234);
    for (const name of ["blake3_gbps", "prompt_15k_us", "plain_us", "ratio"]) {
      expect(result[name]).toBeGreaterThan(0);
    }
    const { prompt_15k_us, plain_us } = result as Record<string, number>;
    expect(result.ratio).toBeCloseTo(prompt_15k_us! / plain_us!, 2);
  });
});

describe("doctor", () => {
  test("reports checks as JSON, and ends by what they say", async () => {
    const { code, out } = await hearth("doctor", "--path", tempDir(), "--json");
    const report = lastJson(out) as { ok: boolean; checks: { name: string; status: string }[] };
    expect(code).toBe(report.ok ? 0 : 4);
    expect(report.checks.map(({ name }) => name)).toContain("io_uring");
  });

  test("measures the host against a configuration", async () => {
    const config = join(tempDir(), "hearth.toml");
    writeFileSync(config, '[kv]\nram_gib = 0.0625\n[engine]\nsocket = "/nowhere/at/all.sock"\n');
    const { out } = await hearth("doctor", "--config", config, "--path", tempDir());
    expect(out).toContain("/nowhere/at");
    writeFileSync(config, "[kv]\n");
    const refused = await hearth("doctor", "--config", config);
    expect(refused.code).toBe(3);
    expect(refused.err).toContain("kv.ram_gib: is missing");
  });

  test("expects the socket where the agent has it by default", async () => {
    const parsed = parseConfig("[kv]\nram_gib = 1\n", "f", { hostname: "h", memoryBytes: null });
    const folder = parsed.ok ? parsed.config.engine.socket.replace(/\/[^/]*$/, "") : "";
    expect(folder).toBe("/run/hearth");
    expect((await hearth("doctor", "--path", tempDir())).out).toContain(folder);
  });
});
