import { expect, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { seededRandom } from "../../src/core/index.ts";
import { FileInspector, verifyHeader } from "../../src/kvb/index.ts";
import { loadNative } from "../../src/native/index.ts";
import { type BlockFile, blockFile } from "../kvb/block-files.ts";
import { describeNative, withTempDir } from "../support/index.ts";
import { runCorrupt } from "./corrupt.ts";
import { DAMAGE_NAMES, DAMAGES, isHarmless, isUnchanged } from "./damage.ts";
import { Tally } from "./tally.ts";

const COUNT = 1_000;
const TRIES = 30;

describeNative("damage", () => {
  for (const name of DAMAGE_NAMES.filter((name) => name !== "gone")) {
    test(`${name} is seen by a deep check of the file, or is of another block`, async () => {
      await withTempDir((dir) => {
        const random = seededRandom(11);
        for (let seed = 0; seed < TRIES; seed++) {
          const payloadBytes = [5_000, 20_480, 3_000][seed % 3]!;
          const block = blockFile(loadNative(), seed, { payloadBytes });
          const other = blockFile(loadNative(), seed + 1_000, { payloadBytes }).bytes;
          const damaged = DAMAGES[name].apply({ file: block.bytes, other, random })!;
          expect(isUnchanged(block.bytes, damaged)).toBe(isHarmless(name));
          expect(seen(join(dir, "file"), damaged, block)).toBe(!isUntouched(block, damaged));
        }
      });
    });
  }

  test("of all kinds is seen by a store, and nothing wrong is served", async () => {
    await withTempDir(async (dir) => {
      const tally = await runCorrupt({ count: COUNT, seed: 5, dir, onProgress: () => undefined });
      expect(tally.failures).toEqual([]);
      for (const kind of [...DAMAGE_NAMES, "swapped", "ram_bits", "index_row_bytes"]) {
        expect([...tally.kinds.keys()]).toContain(kind);
      }
      expect(tally.sum("detected") + tally.sum("harmless")).toBe(tally.sum("cases"));
      expect(tally.sum("cases")).toBeGreaterThanOrEqual(COUNT);
      expect(tally.controls).toBeGreaterThan(COUNT / 10);
    });
  }, 60_000);
});

function isUntouched(block: BlockFile, damaged: Uint8Array): boolean {
  return Buffer.compare(block.bytes, damaged) === 0;
}

/** Whether the file is refused, or its header is not that of the block. */
function seen(path: string, bytes: Uint8Array, { header }: BlockFile): boolean {
  writeFileSync(path, bytes);
  const found = new FileInspector().inspect(path, true);
  if (!found.ok) return true;
  const { digest, layer, namespaceKey, parent, payloadBytes, payloadChecksum } = header;
  const names = { digest, layer, namespaceKey, parent };
  const expected = { ...names, bytes: payloadBytes, checksum: payloadChecksum };
  return verifyHeader(found.header, expected) !== null;
}

test("a tally is clean only while nothing was served, unseen or refused without reason", () => {
  const tally = new Tally();
  tally.add("a", "detected", "here");
  tally.add("b", "harmless", "here");
  tally.control(true, "here");
  expect(tally.isClean).toBe(true);
  for (const spoil of [
    (it: Tally) => it.add("a", "served", "here"),
    (it: Tally) => it.add("a", "unseen", "here"),
    (it: Tally) => it.control(false, "here"),
  ]) {
    const spoilt = new Tally();
    spoil(spoilt);
    expect(spoilt.isClean).toBe(false);
    expect(spoilt.failures).toHaveLength(1);
  }
});
