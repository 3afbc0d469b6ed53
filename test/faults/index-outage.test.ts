import { afterAll, expect, test } from "bun:test";
import { rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { systemClock } from "../../src/core/index.ts";
import { type BlockIndex, openBlockIndex } from "../../src/store/index/index.ts";
import { SsdHost, SsdKit } from "../store/ssd/ssd-kit.ts";
import { describeNative, noteSkip, waitFor, withTempDir } from "../support/index.ts";
import { fillUp, mountAt } from "./mounts.ts";

const OWNER = { worker: "w", machine: "m", store: "s" };
const BLOCKS = Array.from({ length: 12 }, (_, i) => `x${i}`);

/** Writes, drops and reads blocks, as if the index did its work. */
async function useStore(kit: SsdKit, prefix: string): Promise<void> {
  const engine = kit.engine();
  const names = BLOCKS.map((name) => prefix + name);
  for (const name of names) {
    expect(await engine.put(name)).toEqual(["ok"]);
    await kit.settled();
  }
  await kit.ssd.room.drop(kit.nodeOf(names[0]!));
  kit.leaveRam();
  for (const [i, name] of names.entries()) {
    expect(await engine.load(name)).toEqual([i === 0 ? "miss" : "ok"]);
  }
}

describeNative("an index that fails", () => {
  const host = new SsdHost();
  afterAll(() => host[Symbol.asyncDispose]());

  test("from the start: blocks are written, read and dropped all the same", () =>
    withTempDir(async (root) => {
      const folder = join(root, "index");
      // A file where the folder should be: nothing can be made there.
      writeFileSync(folder, "");
      const dir = join(root, "ssd");
      const openIndex = (_: string, incarnation: bigint) =>
        openBlockIndex({ folder, incarnation, owner: OWNER, clock: systemClock });
      {
        await using kit = await SsdKit.open(host, { dir, openIndex });
        expect(kit.index.state.failing).not.toBeNull();
        await useStore(kit, "a");
        expect((await kit.ssd.persist()).durable).toBe(false);
        await kit.expectNothingLeft();
      }
      // Once there is an index again, what lies on SSD is found by its headers.
      rmSync(folder);
      await using next = await SsdKit.open(host, { dir, openIndex });
      expect(next.report).toMatchObject({ blocks: 11, adopted: 11 });
      expect(next.index.state.failing).toBeNull();
    }));

  test(
    "later, for want of space: reads and writes go on, and so does the index after it",
    () =>
      withTempDir(async (root) => {
        const folder = join(root, "index");
        using small = mountAt(folder, "size=1m");
        if (small === null) {
          noteSkip("an index without space", "only root may mount a file system");
          return;
        }
        let index: BlockIndex | null = null;
        const openIndex = async (_: string, incarnation: bigint) => {
          index = await openBlockIndex({ folder, incarnation, owner: OWNER, clock: systemClock });
          return index;
        };
        const dir = join(root, "ssd");
        await using kit = await SsdKit.open(host, { dir, openIndex });
        await useStore(kit, "a");
        expect(await index!.flush()).toBe(true);
        const ballast = join(folder, "ballast");
        for (let bytes = 262_144; bytes >= 1; bytes = Math.floor(bytes / 2)) {
          fillUp(ballast, bytes);
        }
        let round = 0;
        const fails = async () => {
          await useStore(kit, `b${round++}`);
          await index!.flush();
          return index!.state.failing !== null;
        };
        await waitFor(fails, 20_000, "the index to fail");
        await useStore(kit, "c");
        expect((await kit.ssd.persist()).durable).toBe(false);
        rmSync(ballast);
        await waitFor(async () => index!.flush(), 20_000, "the index to work again");
        expect(index!.state.failing).toBeNull();
        expect((await kit.ssd.persist()).durable).toBe(true);
        await kit.expectNothingLeft();
      }),
    60_000,
  );
});
