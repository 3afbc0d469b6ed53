import { expect, test } from "bun:test";
import { join } from "node:path";
import { benchPolicy, type PolicyName } from "../../../src/workload/bench/index.ts";
import { bundledTrace, openTrace, type Trace } from "../../../src/workload/traces/index.ts";
import { describeTraces } from "../traces/shared-traces.ts";

const TIMEOUT_MS = 60_000;

type Table = readonly Readonly<Record<string, number>>[];

const ALL = ["lru", "best"] as const;

/** The published table of the bundled trace. */
const BUNDLED: Table = [
  row(300, [0.2742, 0.3196]),
  row(1_000, [0.2827, 0.3633]),
  row(3_000, [0.2994, 0.3799]),
  row(5_859, [0.3428, 0.3799]),
  row(10_000, [0.3786, 0.3799]),
];

function row(blocks: number, ratios: readonly number[]): Readonly<Record<string, number>> {
  return { blocks, ...Object.fromEntries(ALL.map((name, at) => [name, ratios[at]!])) };
}

/** Both sides as `policy@capacity ratio`. */
async function compare(trace: Trace, table: Table, policies: readonly PolicyName[]) {
  const capacities = table.map(({ blocks }) => blocks!);
  const rows = await benchPolicy({ trace, capacities, policies });
  return {
    rows: rows.map((one) => `${one.policy}@${one.capacity} ${one.hit_ratio}`),
    published: table.flatMap((line) =>
      policies.map((policy) => `${policy}@${line.blocks} ${line[policy]}`),
    ),
  };
}

test("the bundled trace gives the published figures", async () => {
  const { rows, published } = await compare(await bundledTrace(), BUNDLED, ALL);
  expect(rows).toHaveLength(10);
  expect(rows).toEqual(published);
});

/** Key in tables.json, file, number of figures compared, policies. */
const FILES: readonly (readonly [string, string, number, readonly PolicyName[]])[] = [
  ["mooncake_arxiv_first1000", "mooncake_arxiv_first1000.jsonl.gz", 10, ALL],
  ["mooncake_conversation_0-40min", "mooncake_conversation_0-40min.jsonl.gz", 16, ALL],
  ["mooncake_toolmix_0-40min", "mooncake_toolmix_0-40min.jsonl.gz", 16, ALL],
  ["agent_logs_block16", "agent_logs_block16.jsonl.gz", 10, ALL],
  ["ragpulse_0-403200s_block16", "ragpulse", 12, ALL],
  ["claude_code_composed_512", "claude_code_composed_512.jsonl.zst", 7, ["lru"]],
];

describeTraces("the published tables, to four digits", (folder) => {
  test.each(FILES)(
    "%s",
    async (key, file, figures, policies) => {
      const tables = await Bun.file(join(folder, "tables.json")).json();
      const trace = await openTrace(join(folder, file));
      const { rows, published } = await compare(trace, tables[key].cache.capacity, policies);
      expect(rows).toHaveLength(figures);
      expect(rows).toEqual(published);
    },
    TIMEOUT_MS,
  );

  test(
    "claude_code_composed_64, made of two files",
    async () => {
      const trace = await openTrace(join(folder, "claude_code_composed_512.jsonl.zst"), {
        nativeBlocks: join(folder, "claude_code_sessions.runs.jsonl.gz"),
      });
      const capacities = [15_625, 1_787_518];
      const rows = await benchPolicy({ trace, capacities, policies: ["lru"] });
      const published = { trace: "claude_code_composed_64", blocks_asked: 49_095_520 };
      expect(rows).toMatchObject([
        { ...published, hit_ratio: 0.2146 },
        // With room for every block, only first sights miss.
        { ...published, hit_ratio: 0.9636, blocks_hit: 49_095_520 - 1_787_518 },
      ]);
    },
    TIMEOUT_MS,
  );
});
