import { describe, expect, test } from "bun:test";
import { mkdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { hostMemoryNodes } from "../../src/devices/index.ts";
import { planArenaParts } from "../../src/store/index.ts";
import { describeNative, withTempDir } from "../support/index.ts";
import { openStoreKit, PAGE } from "./store-kit.ts";

const GIB = 2 ** 30;
const MIB = 2 ** 20;

describe("the plan of an arena", () => {
  test("gives each node with devices an equal part, whole GiB where it can", () => {
    expect(planArenaParts(7 * GIB, [1, 0, 1, null], 2)).toEqual([
      { offset: 0, bytes: 4 * GIB, node: 0 },
      { offset: 4 * GIB, bytes: 3 * GIB, node: 1 },
    ]);
    expect(planArenaParts(64 * MIB + PAGE, [3, 1], 4)).toEqual([
      { offset: 0, bytes: 32 * MIB, node: 1 },
      { offset: 32 * MIB, bytes: 32 * MIB + PAGE, node: 3 },
    ]);
  });

  test("is one part if all devices are near one node", () => {
    const whole = [{ offset: 0, bytes: 5 * GIB, node: 1 }];
    expect(planArenaParts(5 * GIB, [1, 1], 2)).toEqual(whole);
  });

  test("is empty if the host has no choice of nodes", () => {
    expect(planArenaParts(8 * GIB, [0, 0], 1)).toEqual([]);
    expect(planArenaParts(8 * GIB, [null], 2)).toEqual([]);
    expect(planArenaParts(8 * GIB, [], 2)).toEqual([]);
    expect(planArenaParts(3 * MIB, [0, 1], 2)).toEqual([]);
    expect(planArenaParts(64 * GIB, [0, 1, 2, 3, 4, 5, 6, 7, 8], 9)).toEqual([]);
  });

  test("covers the arena without a gap for any number of nodes", () => {
    for (let nodes = 1; nodes <= 8; nodes++) {
      const near = Array.from({ length: nodes }, (_, node) => node);
      for (const bytes of [nodes * 2 * MIB, 37 * MIB, 8 * GIB + PAGE, 1023 * GIB]) {
        const parts = planArenaParts(bytes, near, 8);
        let end = 0;
        for (const part of parts) {
          expect(part.offset).toBe(end);
          expect(part.bytes).toBeGreaterThan(0);
          end += part.bytes;
        }
        expect(end).toBe(bytes);
      }
    }
  });
});

test("nodes with memory are counted as the kernel lists them", () =>
  withTempDir(async (root) => {
    expect(hostMemoryNodes(root)).toBe(1);
    const path = join(root, "sys/devices/system/node/has_memory");
    mkdirSync(dirname(path), { recursive: true });
    for (const [list, count] of [
      ["0", 1],
      ["0-1", 2],
      ["0-3,8", 5],
      ["", 1],
    ] as const) {
      writeFileSync(path, `${list}\n`);
      expect(hostMemoryNodes(root)).toBe(count);
    }
  }));

describeNative("a session whose device is near a NUMA node", () => {
  const half = 128 * MIB;
  const parts = [
    { offset: 0, bytes: half, node: 0 },
    { offset: half, bytes: half, node: 3 },
  ];

  test("gets slots in that node's part; without a known node, in any part", async () => {
    await using kit = openStoreKit({ arenaBytes: 2 * half, parts });
    const engine = kit.engine();
    const isThere = (...names: string[]) =>
      engine.reserve(...names).map(({ offset }) => offset >= half);
    engine.holder.near(3);
    expect(isThere("a", "b")).toEqual([true, true]);
    engine.holder.near(0);
    expect(isThere("c")).toEqual([false]);
    engine.holder.near(7);
    expect(engine.reserve("d")[0]?.outcome).toBe("ok");
    engine.holder.near(null);
    expect(engine.reserve("e")[0]?.outcome).toBe("ok");
    kit.expectNothingLeft();
  });

  test("uses the other part when its own is full, and evicts when both are", async () => {
    await using kit = openStoreKit({ arenaBytes: 2 * half, parts });
    const engine = kit.engine();
    engine.holder.near(3);
    const big = (name: string) => ({ name, bytes: 64 * MIB });
    for (const name of ["a", "b", "c", "d", "e", "f"]) {
      expect(await engine.put(big(name))).toEqual(["ok"]);
    }
    expect(kit.snapshot().ramBlocks).toBe(4);
    kit.expectNothingLeft();
  });

  test("gets slots anywhere if all devices are near one node", async () => {
    const [whole] = parts;
    await using kit = openStoreKit({ arenaBytes: half, parts: [whole!] });
    const engine = kit.engine();
    engine.holder.near(0);
    expect(await engine.put("a")).toEqual(["ok"]);
    kit.expectNothingLeft();
  });
});
