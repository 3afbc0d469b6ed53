import { expect, test } from "bun:test";
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { systemClock } from "../../../src/core/index.ts";
import { loadNative } from "../../../src/native/index.ts";
import {
  checkFolder,
  emptyTally,
  FINDING_KINDS,
  type Finding,
  type FindingKind,
  HEADER_BYTES,
  type IndexedBlocks,
  repairFinding,
} from "../../../src/store/kvb/index.ts";
import { describeNative, withTempDir } from "../../support/index.ts";
import {
  type BlockFile,
  type BlockWishes,
  blockFile,
  literalIndex,
  writeBlock,
} from "./block-files.ts";

const OWNER = { format: 1, worker: "w", machine: null, created: "2026-01-01T00:00:00.000Z" };

interface Checked {
  readonly kinds: FindingKind[];
  readonly found: Finding[];
  readonly tally: ReturnType<typeof emptyTally>;
}

async function check(dir: string, index: IndexedBlocks | null = null, deep = true) {
  const tally = emptyTally();
  const found: Finding[] = [];
  const native = loadNative();
  for await (const one of checkFolder({ dir, native, deep, index, tally })) found.push(one);
  return { kinds: found.map(({ kind }) => kind).sort(), found, tally } satisfies Checked;
}

/** A sound folder of 40 blocks, all layers, single ones, with parents, of several sizes. */
async function withFolder(use: (dir: string, blocks: BlockFile[]) => Promise<void>) {
  await withTempDir(async (dir) => {
    const native = loadNative();
    const blocks: BlockFile[] = [];
    for (let seed = 0; seed < 40; seed++) {
      const parent = seed % 3 === 0 ? null : blocks[seed - 1]!.header.digest;
      const layer = seed % 4 === 0 ? { layer: seed } : {};
      const payloadBytes = [1, 4096, 6000, 100_000][seed % 4]!;
      blocks.push(blockFile(native, seed, { parent, payloadBytes, ...layer }));
    }
    for (const block of blocks) writeBlock(dir, block);
    writeFileSync(join(dir, "owner.json"), JSON.stringify(OWNER));
    writeFileSync(join(dir, "lock"), "");
    for (const name of ["index", "quarantine", "lost+found"]) mkdirSync(join(dir, name));
    await use(dir, blocks);
  });
}

function flip(file: string, at: number): void {
  const bytes = readFileSync(file);
  bytes[at]! ^= 1;
  writeFileSync(file, bytes);
}

/** Everything below a folder, by path: sizes and bytes. */
function contents(dir: string): Map<string, string> {
  const files = readdirSync(dir, { recursive: true, withFileTypes: true });
  return new Map(
    files
      .filter((entry) => entry.isFile())
      .map((entry) => join(entry.parentPath, entry.name))
      .map((path) => [path, readFileSync(path).toHex()]),
  );
}

const other = (seed: number, wishes: BlockWishes = {}) => blockFile(loadNative(), seed, wishes);

/** One kind of damage, and what a deep check with an index says about it. */
const DAMAGES: readonly [string, FindingKind[], (dir: string, blocks: BlockFile[]) => void][] = [
  [
    "a flipped header bit",
    ["header", "row_of_damaged"],
    (dir, [a]) => flip(join(dir, a!.path), 20),
  ],
  [
    "a flipped payload bit",
    ["payload", "row_of_damaged"],
    (dir, blocks) => flip(join(dir, blocks[3]!.path), HEADER_BYTES + 99_999),
  ],
  [
    "a flipped bit behind the payload",
    ["padding", "row_of_damaged"],
    (dir, [a]) => flip(join(dir, a!.path), HEADER_BYTES + 1),
  ],
  [
    "a shorter file",
    ["row_of_damaged", "size"],
    (dir, [a]) => truncateSync(join(dir, a!.path), 4097),
  ],
  [
    "half a header",
    ["row_of_damaged", "size"],
    (dir, [a]) => truncateSync(join(dir, a!.path), 4095),
  ],
  ["an empty file", ["row_of_damaged", "size"], (dir, [a]) => truncateSync(join(dir, a!.path), 0)],
  [
    "a longer file",
    ["row_of_damaged", "size"],
    (dir, [a]) => truncateSync(join(dir, a!.path), 12_288),
  ],
  [
    "two files that changed names",
    ["misplaced", "misplaced", "row_of_damaged", "row_of_damaged"],
    (dir, [, a, b]) => {
      writeBlock(dir, a!, b!.path);
      writeBlock(dir, b!, a!.path);
    },
  ],
  [
    "a file in another folder",
    ["misplaced", "no_file"],
    (dir, [a]) => {
      mkdirSync(join(dir, "00"), { recursive: true });
      renameSync(join(dir, a!.path), join(dir, "00", a!.path.slice(3)));
    },
  ],
  ["a file under two names", ["duplicate"], (dir, [, a]) => writeBlock(dir, a!, variantOf(a!, 2))],
  [
    "a file under another variant than the index says",
    ["row_differs"],
    (dir, [, a]) => renameSync(join(dir, a!.path), join(dir, variantOf(a!, 1))),
  ],
  [
    "an earlier payload of a block",
    ["row_differs"],
    (dir) =>
      writeBlock(
        dir,
        other(5, { parent: other(4).header.digest, payloadBytes: 4096, generation: 1 }),
      ),
  ],
  [
    "the block of another namespace",
    ["row_differs"],
    (dir) => writeBlock(dir, other(9, { payloadBytes: 4096, namespaceKey: new Uint8Array(32) })),
  ],
  ["a file that is gone", ["no_file"], (dir, [a]) => rmSync(join(dir, a!.path))],
  ["a file more", ["no_row"], (dir) => writeBlock(dir, other(99))],
  [
    "leftovers of interrupted writes",
    ["leftover", "leftover"],
    (dir, [a]) => {
      writeFileSync(join(dir, a!.path.slice(0, 2), ".3f9a.tmp"), "x");
      writeFileSync(join(dir, ".3f9a.tmp"), "x");
    },
  ],
  ["a damaged owner", ["owner"], (dir) => writeFileSync(join(dir, "owner.json"), "{")],
  ["no owner", ["no_owner"], (dir) => rmSync(join(dir, "owner.json"))],
  [
    "a file that is not Hearth's",
    ["foreign", "foreign", "foreign", "no_file"],
    (dir, [a, b]) => {
      writeFileSync(join(dir, "README"), "");
      writeFileSync(join(dir, b!.path.slice(0, 2), "core"), "");
      renameSync(join(dir, a!.path), join(dir, "lost+found", "a"));
      symlinkSync(join(dir, "lost+found", "a"), join(dir, a!.path));
    },
  ],
];

function variantOf(block: BlockFile, variant: number): string {
  return block.path.replace(".kvb", `.${variant}.kvb`);
}

describeNative("a check of a folder", () => {
  test("finds nothing in a sound one, and counts it", async () => {
    await withFolder(async (dir, blocks) => {
      const { found, tally } = await check(dir, literalIndex(blocks));
      expect(found).toEqual([]);
      expect(tally).toMatchObject({ files: 40, sound: 40, rows: 40, quarantined: 0 });
      expect(tally.payloadBytes).toBe(10 * (1 + 4096 + 6000 + 100_000));
      expect(tally.fileBytes).toBe(blocks.reduce((sum, { bytes }) => sum + bytes.length, 0));
      expect(tally.allocatedBytes).toBeGreaterThanOrEqual(tally.fileBytes);
    });
  });

  for (const [what, kinds, damage] of DAMAGES) {
    test(`finds ${what}, changes nothing, and repairs it`, async () => {
      await withFolder(async (dir, blocks) => {
        damage(dir, blocks);
        const before = contents(dir);
        const { kinds: seen, found } = await check(dir, literalIndex(blocks));
        expect(seen).toEqual(kinds);
        expect(contents(dir)).toEqual(before);

        const rows = new Map(blocks.map((block, rowId) => [rowId, block]));
        const dropRow = (rowId: number) => void rows.delete(rowId);
        for (const one of found) {
          const repair = repairFinding({ dir, clock: systemClock, dropRow }, one);
          expect(repair.action).not.toBe("failed");
          if (repair.action !== "quarantined") continue;
          expect(existsSync(join(dir, one.path))).toBe(false);
          expect(contents(dir).get(join(dir, repair.to))).toBe(before.get(join(dir, one.path))!);
        }
        const left = await check(dir, literalIndex([...rows.values()]));
        const remedies = left.kinds.map((kind) => FINDING_KINDS[kind].remedy);
        const open = remedies.filter((remedy) => remedy !== "none" && remedy !== "next_start");
        expect(open).toEqual([]);
      });
    });
  }

  test("reads headers only, unless it is deep", async () => {
    await withFolder(async (dir, blocks) => {
      flip(join(dir, blocks[3]!.path), HEADER_BYTES + 5);
      expect((await check(dir, literalIndex(blocks), false)).kinds).toEqual([]);
      expect((await check(dir, null, true)).kinds).toEqual(["payload"]);
    });
  });

  test("without an index misses no rows", async () => {
    await withFolder(async (dir, blocks) => {
      rmSync(join(dir, blocks[0]!.path));
      expect((await check(dir)).kinds).toEqual([]);
    });
  });

  test("two keys with one short name are two blocks", async () => {
    await withTempDir(async (dir) => {
      // Keys whose first 8 bytes are equal take 2^32 tries to find, so here they are made up.
      const native = {
        blake3: (data: Uint8Array) => loadNative().blake3(data),
        blockKeys: (digest: Uint8Array, _layer: number, out: Uint8Array) => {
          out.fill(0x5a, 0, 8);
          out.set(digest.subarray(0, 24), 8);
        },
      };
      const blocks = [blockFile(native, 1), blockFile(native, 2, { variant: 1 })];
      for (const block of blocks) writeBlock(dir, block);
      writeFileSync(join(dir, "owner.json"), JSON.stringify(OWNER));
      const tally = emptyTally();
      const index = literalIndex(blocks);
      const walk = checkFolder({ dir, native, deep: true, index, tally });
      expect(await Array.fromAsync(walk)).toEqual([]);
      expect(tally).toMatchObject({ files: 2, sound: 2, rows: 2 });
    });
  });

  test("check-folder stops when its signal fires", async () => {
    await withFolder(async (dir) => {
      for (let seed = 100; seed < 200; seed++) writeBlock(dir, other(seed));
      const controller = new AbortController();
      controller.abort(new Error("enough"));
      const { signal } = controller;
      const native = loadNative();
      const tally = emptyTally();
      const walk = checkFolder({ dir, native, deep: false, index: null, tally, signal });
      await expect(Array.fromAsync(walk)).rejects.toThrow("enough");
    });
  });
});
