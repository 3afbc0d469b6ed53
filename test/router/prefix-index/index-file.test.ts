import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { randomBelow, seededRandom, yieldToLoop } from "../../../src/core/index.ts";
import type { PrefixIndex } from "../../../src/router/index.ts";
import { describeNative } from "../../support/native.ts";
import { changeOf, expectSame, heldIn, nativeIndex, promptOf, randomStep } from "./index-kit.ts";
import { ReferenceIndex } from "./reference-index.ts";

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "prefix-index-"));
});
afterAll(() => rm(folder, { recursive: true }));

function fill(seed: number, steps: number, ...indexes: PrefixIndex[]): void {
  const random = seededRandom(seed);
  const changes = Array.from({ length: steps }, () => changeOf(randomStep(random)));
  for (const index of indexes) index.apply(changes);
}

describeNative("the prefix index in a file", () => {
  test("a saved index is restored unchanged", async () => {
    const path = join(folder, "whole");
    using index = nativeIndex();
    const model = new ReferenceIndex();
    fill(1, 2_000, index, model);
    await index.save(path);
    expect(await readdir(folder)).toEqual(["whole"]);
    using again = nativeIndex();
    expect(await again.load(path)).toBe(true);
    expectSame(again, model);
    fill(2, 500, again, model);
    expectSame(again, model);
  });

  test("a save captures the moment it began", async () => {
    const path = join(folder, "moving");
    using index = nativeIndex(2 ** 24);
    fill(3, 1_000, index);
    const hashes = BigUint64Array.from({ length: 400_000 }, (_, i) => BigInt(i) * 7919n);
    const change = {
      kind: "stored",
      tier: "host",
      parent: null,
      hashes,
      tokenHashes: null,
    } as const;
    index.apply([{ ...changeOf(randomStep(seededRandom(0))), change }]);
    const before = heldIn(index);
    const saving = index.save(path);
    let round = 0;
    const isUnderWay = () =>
      Promise.race([saving.then(() => false), yieldToLoop().then(() => true)]);
    while (await isUnderWay()) fill(100 + round++, 50, index);
    expect(round).toBeGreaterThan(0);
    using again = nativeIndex(2 ** 24);
    expect(await again.load(path)).toBe(true);
    expect(heldIn(again)).toEqual(before);
    // A second one begins with everything unsaved again.
    await index.save(path);
    using later = nativeIndex(2 ** 24);
    expect(await later.load(path)).toBe(true);
    expect(heldIn(later)).toEqual(heldIn(index));
  });

  test("a damaged or truncated file is refused and leaves an empty index", async () => {
    const path = join(folder, "damaged");
    const random = seededRandom(7);
    using index = nativeIndex();
    fill(7, 60, index);
    await index.save(path);
    const good = await readFile(path);
    using again = nativeIndex();
    for (let i = 0; i < 400; i++) {
      const bad = i % 2 === 0 ? good.subarray(0, randomBelow(random, good.length)) : flipped();
      await writeFile(path, bad);
      expect(await again.load(path)).toBe(false);
      expect(again.stats).toMatchObject({ blocks: 0, heldBlocks: 0, runs: 0 });
      expect(again.match(BigUint64Array.from(promptOf(400, false))).count).toBe(0);
    }
    await writeFile(path, Buffer.concat([good, Buffer.of(0)]));
    expect(await again.load(path)).toBe(false);
    expect(await again.load(join(folder, "missing"))).toBe(false);
    await writeFile(path, good);
    expect(await again.load(path)).toBe(true);
    expect(heldIn(again)).toEqual(heldIn(index));

    function flipped(): Buffer {
      const bytes = Buffer.from(good);
      const at = randomBelow(random, bytes.length);
      bytes[at] = bytes[at]! ^ (1 << randomBelow(random, 8));
      return bytes;
    }
  });

  test("a restored index reports pruning, also with less memory", async () => {
    const path = join(folder, "forgetful");
    using index = nativeIndex(8192);
    const model = new ReferenceIndex();
    fill(9, 3_000, index, model);
    expect(index.stats.forgotten).toBeGreaterThan(0);
    await index.save(path);
    for (const bytes of [8192, 6000, 2 ** 20]) {
      using again = nativeIndex(bytes);
      expect(await again.load(path)).toBe(true);
      for (let block = 1; block < 500; block++) {
        const hashes = BigUint64Array.from(promptOf(block, block % 5 === 0));
        const { exactBlocks } = again.match(hashes);
        const cut = hashes.subarray(0, exactBlocks);
        const { count, targets, device } = again.match(cut);
        const expected = model.match(cut);
        expect([...targets.subarray(0, count)]).toEqual([...expected.targets]);
        expect([...device.subarray(0, count)]).toEqual([...expected.device]);
      }
    }
  });

  test("a save to a missing folder fails and the index keeps working", async () => {
    using index = nativeIndex();
    fill(11, 100, index);
    await expect(index.save(join(folder, "none", "index"))).rejects.toThrow("ENOENT");
    const path = join(folder, "after");
    await index.save(path);
    using again = nativeIndex();
    expect(await again.load(path)).toBe(true);
    expect(heldIn(again)).toEqual(heldIn(index));
  });
});
