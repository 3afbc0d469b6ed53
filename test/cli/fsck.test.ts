import { describe, expect, test } from "bun:test";
import {
  chownSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { runCli } from "../../src/cli/index.ts";
import { systemClock, type WorkerId } from "../../src/core/index.ts";
import { loadNative } from "../../src/native/index.ts";
import { type BlockIndex, openBlockIndex } from "../../src/store/index/index.ts";
import { claimFolder, HEADER_BYTES } from "../../src/store/kvb/index.ts";
import { type BlockFile, blockFile, writeBlock } from "../store/kvb/block-files.ts";
import { describeNative, noteSkip, withTempDir } from "../support/index.ts";
import { memoryIo } from "./memory-io.ts";

async function fsck(...words: string[]) {
  const io = memoryIo();
  const code = await runCli(["fsck", ...words], io);
  return { code, out: io.outText(), err: io.errText() };
}

async function fsckJson(...words: string[]) {
  const { code, out, err } = await fsck("--json", ...words);
  expect(err).toBe("");
  return { code, document: JSON.parse(out) };
}

function openIndex(dir: string, incarnation: bigint): Promise<BlockIndex> {
  const owner = { worker: "w", machine: "m", store: "s" };
  return openBlockIndex({ folder: join(dir, "index"), incarnation, owner, clock: systemClock });
}

/** A folder as an agent leaves it: claimed, `count` blocks, a row for each. */
async function withFolder(
  use: (dir: string, blocks: BlockFile[]) => Promise<void>,
  count = 20,
): Promise<void> {
  await withTempDir(async (dir) => {
    const native = loadNative();
    const worker = "w" as WorkerId;
    claimFolder({ dir, native, worker, machine: null, clock: systemClock })[Symbol.dispose]();
    const blocks = Array.from({ length: count }, (_, seed) => blockFile(native, seed));
    const index = await openIndex(dir, 7n);
    await index.begin();
    for (const { header, variant } of blocks) {
      const { payloadBytes: bytes, payloadChecksum: checksum, ...names } = header;
      index.put({ ...names, bytes, checksum, variant, lastSeen: 1, uses: 1 });
    }
    for (const block of blocks) writeBlock(dir, block);
    expect(await index.close(10_000)).toBe(true);
    await use(dir, blocks);
  });
}

function flip(file: string, at: number): void {
  const bytes = readFileSync(file);
  bytes[at]! ^= 0x10;
  writeFileSync(file, bytes);
}

/** Names, sizes and times of everything below a folder. */
function listing(dir: string): string[] {
  return readdirSync(dir, { recursive: true, encoding: "utf8" })
    .map((name) => ({ name, ...statSync(join(dir, name)) }))
    .map(({ name, size, mtimeMs }) => `${name} ${size} ${mtimeMs}`)
    .sort();
}

describe("fsck refuses", () => {
  test("a folder that is none of Hearth's, or not there", async () => {
    await withTempDir(async (dir) => {
      for (const path of [dir, join(dir, "none")]) {
        const { code, err } = await fsck(path);
        expect({ code, err }).toMatchObject({
          code: 2,
          err: expect.stringContaining("not an SSD folder"),
        });
      }
    });
  });
});

describeNative("fsck", () => {
  test("of a sound folder says so, and changes nothing", async () => {
    await withFolder(async (dir, blocks) => {
      const before = listing(dir);
      const { code, document } = await fsckJson("--deep", dir);
      expect(code).toBe(0);
      expect(document).toMatchObject({
        dir,
        owner: { worker: "w", machine: null },
        deep: true,
        indexed: true,
        files: blocks.length,
        sound_blocks: blocks.length,
        payload_bytes: blocks.length * 6000,
        rows: blocks.length,
        problems: 0,
        unsolved: 0,
        counts: {},
        findings: [],
      });
      const { out } = await fsck(dir);
      expect(out).toContain("--deep reads them\nclean (");
      expect(listing(dir)).toEqual(before);
    });
  });

  test("lists problems, counts those it does not list, and ends with 1", async () => {
    await withFolder(async (dir, [a, b, c, d]) => {
      flip(join(dir, a!.path), 100);
      truncateSync(join(dir, b!.path), 8192);
      rmSync(join(dir, c!.path));
      flip(join(dir, d!.path), HEADER_BYTES + 77);
      const before = listing(dir);
      const { code, out } = await fsck("--show", "1", dir);
      expect(code).toBe(1);
      expect(out).toContain("\n  and 4 more\n");
      expect(out).toContain("findings    ");
      const { document } = await fsckJson("--deep", dir);
      expect(document).toMatchObject({
        problems: 4,
        unsolved: 4,
        counts: { header: 1, size: 1, payload: 1, no_file: 1, row_of_damaged: 3 },
      });
      expect(document.findings).toContainEqual({
        kind: "header",
        path: a!.path,
        why: "the header does not match its checksum",
        repair: null,
      });
      expect(listing(dir)).toEqual(before);
    });
  });

  test("--repair moves, removes and drops; after it folder and index are sound", async () => {
    await withFolder(async (dir, [a, b, c]) => {
      flip(join(dir, a!.path), HEADER_BYTES);
      const damaged = readFileSync(join(dir, a!.path));
      rmSync(join(dir, b!.path));
      writeFileSync(join(dir, c!.path.slice(0, 2), ".00ff.tmp"), "half");
      const { code, document } = await fsckJson("--deep", "--repair", dir);
      expect(code).toBe(0);
      expect(document).toMatchObject({
        problems: 3,
        unsolved: 0,
        repairs: { quarantined: 1, removed: 1, row_dropped: 2 },
      });
      const moved = document.findings.find(({ kind }: { kind: string }) => kind === "payload");
      expect(readFileSync(join(dir, moved.repair.to)).equals(damaged)).toBe(true);
      expect((await fsckJson("--deep", dir)).document).toMatchObject({
        problems: 0,
        quarantined_before: 1,
        files: 18,
        rows: 18,
      });
      // The agent's own door finds the index as the last run left it, less two rows.
      const index = await openIndex(dir, 8n);
      expect(index.state).toMatchObject({ rows: 18, setAside: null });
      expect(index.previous).toMatchObject({ incarnation: 7n, flushedSequence: 20, clean: true });
      await index.close(10_000);
    });
  });

  test("leaves to the next start what the next start settles", async () => {
    await withFolder(async (dir) => {
      writeBlock(dir, blockFile(loadNative(), 99));
      expect((await fsckJson(dir)).code).toBe(1);
      const { code, out } = await fsck("--repair", dir);
      expect(code).toBe(0);
      expect(out).toContain("left to the next start");
    });
  });

  test("finds a damaged index, and looks at the files all the same", async () => {
    await withFolder(async (dir, [a]) => {
      const database = join(dir, "index", "hearth.sqlite");
      const bytes = readFileSync(database);
      flip(database, bytes.indexOf(a!.header.digest) + 31);
      flip(join(dir, a!.path), 100);
      const { code, document } = await fsckJson(dir);
      expect(code).toBe(1);
      expect(document).toMatchObject({
        indexed: false,
        rows: null,
        counts: { index: 1, header: 1 },
      });
      expect(readFileSync(database).length).toBe(bytes.length);
    });
  });

  test("works without an index, and with one elsewhere", async () => {
    await withFolder(async (dir) => {
      await withTempDir(async (elsewhere) => {
        const { out } = await fsck("--index", elsewhere, dir);
        expect(out).toContain("no index was read");
      });
      const there = await fsckJson("--index", join(dir, "index"), dir);
      expect(there.document).toMatchObject({ indexed: true, rows: 20, problems: 0 });
    });
  });

  test("is refused while an agent has the folder", async () => {
    await withFolder(async (dir) => {
      const native = loadNative();
      const worker = "w" as WorkerId;
      const claim = { dir, native, worker, machine: null, clock: systemClock };
      using folder = claimFolder(claim);
      const { code, err } = await fsck(dir);
      expect({ code, owner: folder.owner.worker }).toEqual({ code: 1, owner: "w" });
      expect(err).toContain("is used by another process");
    });
  });

  test("holds the lock while it looks, and makes none where there is none", async () => {
    await withFolder(async (dir) => {
      rmSync(join(dir, "lock"));
      expect((await fsck(dir)).code).toBe(0);
      expect(existsSync(join(dir, "lock"))).toBe(false);
      expect((await fsck("--repair", dir)).code).toBe(0);
      expect(existsSync(join(dir, "lock"))).toBe(true);
    });
  });

  test("a damaged owner.json is a problem that stays, a foreign file is not a problem", async () => {
    await withFolder(async (dir) => {
      writeFileSync(join(dir, "notes.txt"), "");
      mkdirSync(join(dir, "backup"));
      expect((await fsckJson(dir)).document).toMatchObject({ problems: 0, counts: { foreign: 2 } });
      writeFileSync(join(dir, "owner.json"), "{");
      const { code, document } = await fsckJson("--repair", dir);
      expect(code).toBe(1);
      expect(document).toMatchObject({
        owner: null,
        problems: 1,
        unsolved: 1,
        repairs: { left: 3 },
      });
      expect(readFileSync(join(dir, "owner.json"), "utf8")).toBe("{");
    });
  });
});

describeNative("fsck as root on the folder of another user", () => {
  const isRoot = process.getuid!() === 0;
  if (!isRoot) noteSkip("fsck as root", "this user is not root");
  const NOBODY = 65_534;

  test.skipIf(!isRoot)("leaves nothing there that its owner cannot open", async () => {
    await withFolder(async (dir, [block]) => {
      const all = readdirSync(dir, { recursive: true, encoding: "utf8" });
      for (const name of ["", ...all]) chownSync(join(dir, name), NOBODY, NOBODY);
      rmSync(join(dir, "lock"));
      rmSync(join(dir, "quarantine"), { recursive: true });
      flip(join(dir, block!.path), HEADER_BYTES + 5);
      const { document } = await fsckJson("--deep", "--repair", dir);
      expect(document.repairs).toEqual({ quarantined: 1, row_dropped: 1 });
      const owners = readdirSync(dir, { recursive: true, encoding: "utf8" }).map((name) => {
        const { uid, gid } = statSync(join(dir, name));
        return [name, uid, gid];
      });
      expect(owners.filter(([, uid, gid]) => uid !== NOBODY || gid !== NOBODY)).toEqual([]);
      expect(statSync(join(dir, "lock")).mode & 0o777).toBe(0o600);
    });
  });
});
