import { describe, expect, test } from "bun:test";
import { join } from "node:path";
import { runCli } from "../../../src/cli/index.ts";
import { parentInTree } from "../../../src/workload/bench/index.ts";
import { memoryIo } from "../../cli/memory-io.ts";
import { describeNats } from "../../support/index.ts";

const MAIN = join(import.meta.dir, "../../../src/main.ts");
const TEST_MS = 120_000;

/** In a process of its own: it starts itself as an agent. */
async function benchControl(...words: string[]) {
  const child = Bun.spawn([process.execPath, MAIN, "bench", "control", "--json", ...words], {
    env: process.env,
    stdout: "pipe",
    stderr: "pipe",
  });
  const [out, err] = await Promise.all([child.stdout.text(), child.stderr.text()]);
  return { code: await child.exited, out, err };
}

async function refused(...words: string[]) {
  const io = memoryIo();
  return { code: await runCli(["bench", "control", ...words], io), err: io.errText() };
}

describe("bench control", () => {
  test("the tree that is pruned: each block once, below one root, deep and wide", () => {
    for (const below of [1, 2, 3, 4, 5, 17, 1_000, 4_321]) {
      const depths = [0];
      const children = new Map<number, number>();
      for (let block = 1; block <= below; block++) {
        const parent = parentInTree(block, below)!;
        expect(parent).toBeWithin(0, block);
        depths.push(depths[parent]! + 1);
        children.set(parent, (children.get(parent) ?? 0) + 1);
      }
      expect(parentInTree(0, below)).toBeNull();
      if (below < 1_000) continue;
      expect(Math.max(...depths)).toBeGreaterThanOrEqual(Math.floor(below / 4));
      expect(children.get(0)!).toBeGreaterThanOrEqual(Math.floor(below / 4));
    }
  });

  test("bench control refuses invalid arguments before it starts a process", async () => {
    expect((await refused("--hashes", "0")).code).toBe(2);
    expect((await refused("--in-flight", "769")).code).toBe(2);
    expect((await refused("--encoding", "xml")).code).toBe(2);
    const { code, err } = await refused("--nats", "http://127.0.0.1:4222");
    expect(code).toBe(3);
    expect(err).toContain("nats://");
  });
});

const SMALL = ["--seconds", "1", "--rounds", "1", "--hashes", "4", "--in-flight", "4"];

describeNats("bench control over a nats-server", () => {
  for (const more of [
    ["--prune-blocks", "3000", "--prune-rounds", "2"],
    ["--ram-only", "--carrier", "ws", "--encoding", "msgpack", "--prune-blocks", "0"],
  ]) {
    test(
      more.join(" "),
      async () => {
        const { code, out, err } = await benchControl(...SMALL, ...more);
        expect({ code, err }).toEqual({ code: 0, err: "" });
        const figures = JSON.parse(out);
        const isRam = more.includes("--ram-only");
        expect(figures).toMatchObject({
          hashes: 4,
          in_flight: 4,
          durable: !isRam,
          carrier: isRam ? "ws" : "nats",
          encoding: isRam ? "msgpack" : "json",
        });
        expect(figures.receipts).toBeGreaterThan(figures.pins_standing);
        for (const name of ["commands_per_s", "p50_us", "p99_us", "pins_standing"]) {
          expect(figures[name]).toBeGreaterThan(0);
        }
        if (isRam) return;
        expect(figures.prune_blocks).toBe(3_000);
        expect(figures.prune_blocks_per_s).toBeGreaterThan(0);
        expect(figures.loop_stall_ms_max).toBeGreaterThan(0);
      },
      TEST_MS,
    );
  }
});
