import { expect, test } from "bun:test";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { runCli } from "../../src/cli/index.ts";
import { seededRandom } from "../../src/core/index.ts";
import { loadNative } from "../../src/native/index.ts";
import { FileInspector, HEADER_BYTES, verifyHeader } from "../../src/store/kvb/index.ts";
import { memoryIo } from "../cli/memory-io.ts";
import { type BlockFile, blockFile } from "../store/kvb/block-files.ts";
import { describeNative, withTempDir } from "../support/index.ts";
import { makeRound } from "./blocks.ts";
import { runCorrupt } from "./corrupt.ts";
import { DAMAGE_NAMES, DAMAGES, isHarmless, isUnchanged } from "./damage.ts";
import { fileOf } from "./file-cases.ts";
import { Host, Rig } from "./rig.ts";
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

  test("in a folder that a store has left is what hearth fsck finds", async () => {
    await withTempDir(async (dir) => {
      await using host = new Host();
      const round = makeRound(seededRandom(3), 40);
      {
        await using rig = await Rig.open(host, dir);
        await rig.put(round);
        await rig.moveToSsd();
      }
      expect(await fsck(dir)).toMatchObject({ code: 0, files: 40, rows: 40, counts: {} });
      for (const block of round.blocks.slice(0, 7)) {
        const path = fileOf(host.native, dir, round.layer, block);
        const bytes = readFileSync(path);
        bytes[HEADER_BYTES + 1]! ^= 1;
        writeFileSync(path, bytes);
      }
      expect(await fsck(dir)).toMatchObject({ code: 1, sound_blocks: 33, counts: { payload: 7 } });
      expect(await fsck(dir, "--repair")).toMatchObject({ code: 0, unsolved: 0 });
      {
        await using rig = await Rig.open(host, dir);
        expect(rig.index.state.setAside).toBeNull();
        expect(await rig.get(round)).toEqual(
          round.blocks.map((_, i) => (i < 7 ? "miss" : "right")),
        );
      }
      expect(await fsck(dir)).toMatchObject({ code: 0, files: 33, rows: 33, counts: {} });
    });
  });

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
  });
});

async function fsck(dir: string, ...words: string[]): Promise<object> {
  const io = memoryIo();
  const code = await runCli(["fsck", "--deep", "--json", ...words, dir], io);
  return { code, ...JSON.parse(io.outText()) };
}

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
