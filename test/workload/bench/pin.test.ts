import { describe, expect, test } from "bun:test";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { pinBlockBytes } from "../../../src/workload/bench/index.ts";
import { describeNative, tempDir } from "../../support/index.ts";

const MAIN = join(import.meta.dir, "../../../src/main.ts");

/** Rows of `bench pin`, in a process that can start its agents. */
async function benchPin(...words: string[]) {
  const command = [process.execPath, MAIN, "bench", "pin", ...words, "--json"];
  const bench = Bun.spawn(command, { stdout: "pipe", stderr: "pipe" });
  const [out, err] = await Promise.all([bench.stdout.text(), bench.stderr.text()]);
  const code = await bench.exited;
  const rows = code === 0 ? out.trimEnd().split("\n") : [];
  return { code, err, rows: rows.map((line) => JSON.parse(line)) };
}

describe("bench pin", () => {
  test("blocks have 64 tokens of 160 KiB, times the scale, in whole pages", () => {
    expect([1, 1 / 64, 1 / 2560].map(pinBlockBytes)).toEqual([10_485_760, 163_840, 4_096]);
    expect(pinBlockBytes(1 / 1000)).toBe(12_288);
  });
});

describeNative("bench pin with agents of its own", () => {
  test("nothing is left without a pin, all of it with one, from RAM and from SSD", async () => {
    const dir = tempDir();
    const words = ["--dir", dir, "--scale", "1/2560", "--runs", "1", "--without-fio"];
    const { code, err, rows } = await benchPin(...words, "--depth", "16");
    expect([code, err]).toEqual([0, ""]);
    const capacities = { ram: 669, ssd: 669 + 1_003 };
    expect(rows.map(({ tier, depth }) => [tier, depth])).toEqual([
      ["ram", 16],
      ["ssd", 16],
    ]);
    for (const row of rows) {
      const capacity = capacities[row.tier as "ram" | "ssd"];
      expect(row).toMatchObject({
        tokens: 15_002,
        blocks: 234,
        block_bytes: 4_096,
        cached_share_unpinned: 0,
        cached_share_pinned: 1,
        capacity_blocks: capacity,
        flood_blocks: 3 * capacity,
        runs: 1,
      });
      expect(row.restore_ms).toBeGreaterThan(0);
      const gbps = (row.blocks * 4_096) / (row.restore_ms * 1e6);
      expect(row.restore_gbps / gbps).toBeCloseTo(1, 0);
      if (row.tier === "ssd") expect([row.limit_gbps, row.ratio]).toEqual([null, null]);
      else expect(row.ratio).toBeGreaterThan(0);
    }
    expect(readdirSync(dir)).toEqual([]);
  });

  test("a depth that is not measured is refused", async () => {
    const { code, err } = await benchPin("--depth", "0,3");
    expect(code).toBe(2);
    expect(err).toContain("--depth is one of 0, 2, 6, 10, 16, not 3");
  });
});
