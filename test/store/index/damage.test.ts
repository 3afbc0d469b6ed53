import { Database } from "bun:sqlite";
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import {
  cpSync,
  mkdirSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import fc from "fast-check";
import type { BlockIndex } from "../../../src/store/index/index.ts";
import { tempDir } from "../../support/index.ts";
import {
  aliasOf,
  aliasText,
  crashImage,
  INDEX_FILE,
  loadAliases,
  loadRows,
  madeIndex,
  openIndex,
  rowOf,
  rowsOf,
  textOf,
  upTo,
} from "./index-kit.ts";

const ROWS = 700;
const ALIASES = 60;
const folders = tempDir();
const clean = join(folders, "clean");
/** Ended in the middle: its log holds what `clean` has in its file. */
const crashed = join(folders, "crashed");
/** Rows of `crashed` after each of its commits, by the sequence of the commit. */
const states = new Map<number, Map<string, string>>();
let crashing: BlockIndex;

beforeAll(async () => {
  await madeIndex(clean, ROWS, ALIASES);
  crashing = await openIndex(join(folders, "live"));
  await crashing.begin();
  states.set(0, new Map());
  for (const end of [1, 2, 3, 4, 5, 6, 7].map((part) => part * 100)) {
    for (let number = end - 99; number <= end; number++) crashing.put(rowOf(number));
    expect(await crashing.flush()).toBe(true);
    states.set(end, rowsOf(upTo(end)));
  }
  crashImage(join(folders, "live"), crashed);
});

afterAll(() => crashing[Symbol.asyncDispose]());

let made = 0;

/** Opens a copy that `damage` has changed, and hands the result to `check` unless set aside. */
async function opened(
  source: string,
  damage: (folder: string) => void,
  check: (index: BlockIndex, folder: string) => Promise<void>,
): Promise<"set aside" | "as it was"> {
  const folder = join(folders, `copy-${made++}`);
  cpSync(source, folder, { recursive: true });
  damage(folder);
  try {
    await using index = await openIndex(folder, { incarnation: 9n });
    expect(index.state.failing).toBeNull();
    if (index.state.setAside !== null) {
      expect(await loadRows(index)).toEqual(new Map());
      return "set aside";
    }
    await check(index, folder);
    return "as it was";
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** The numbers of the pages that a tree of the database lies in. */
function pagesOf(path: string, name: string): Set<number> {
  using db = new Database(path, { readonly: true });
  const pages = db.query<{ pageno: number }, [string]>("SELECT pageno FROM dbstat WHERE name = ?");
  return new Set(pages.all(name).map(({ pageno }) => pageno));
}

function flipped(file: string, flips: readonly { at: number; mask: number }[]) {
  return (folder: string): void => {
    const path = join(folder, file);
    const bytes = readFileSync(path);
    for (const { at, mask } of flips) bytes[at % bytes.length]! ^= mask;
    writeFileSync(path, bytes);
  };
}

/** All rows of `clean`, to the bit. */
async function expectClean(index: BlockIndex): Promise<void> {
  expect(await loadRows(index)).toEqual(rowsOf(upTo(ROWS)));
  const aliases = upTo(ALIASES).map((number) => aliasOf(number, number % 2 === 0 ? 8 : 32));
  expect(await loadAliases(index)).toEqual(aliases.map(aliasText).sort());
}

/** A sound file, and one whose damage has not shown, is written to like any other. */
async function expectCleanAndUseful(index: BlockIndex, folder: string): Promise<void> {
  await expectClean(index);
  await index.begin();
  for (const number of [1, 2, 3]) index.remove(rowOf(number).digest, rowOf(number).layer);
  for (const number of upTo(300)) index.put(rowOf(10_000 + number));
  const isWritten = await index.close(5_000);
  await using again = await openIndex(folder, { incarnation: 10n });
  if (again.state.setAside !== null) return;
  expect(isWritten).toBe(true);
  const numbers = [...upTo(ROWS).slice(3), ...upTo(300).map((number) => 10_000 + number)];
  expect(await loadRows(again)).toEqual(rowsOf(numbers));
}

/** Rows of `crashed` at the sequence that it now claims. */
async function expectSomeState(index: BlockIndex): Promise<void> {
  const rows = await loadRows(index);
  if (index.previous.incarnation === null) expect(rows).toEqual(new Map());
  else expect(rows).toEqual(states.get(index.previous.flushedSequence)!);
}

const flip = fc.record({ at: fc.nat(2 ** 30), mask: fc.integer({ min: 1, max: 255 }) });
const flips = fc.array(flip, { minLength: 1, maxLength: 8 });

describe("an index with flipped bytes", () => {
  test("is set aside, or gives back every row as it was written", async () => {
    const outcomes = new Set<string>();
    const property = fc.asyncProperty(flips, async (where) => {
      outcomes.add(await opened(clean, flipped(INDEX_FILE, where), expectCleanAndUseful));
    });
    // Once unseen: a bit above the 32 that a layer has, and that its seal took.
    const unseen = [{ at: 58_997_528, mask: 1 }];
    // Once read and never written again: the version of the format for writing.
    const unwritten = [{ at: 18, mask: 1 }];
    const examples: [{ at: number; mask: number }[]][] = [[unseen], [unwritten]];
    await fc.assert(property, { numRuns: 60, examples });
    expect(outcomes).toContain("set aside");
  });

  test("gives what one of its commits left, where its log was hit", async () => {
    const property = fc.asyncProperty(flips, async (where) => {
      await opened(crashed, flipped(`${INDEX_FILE}-wal`, where), expectSomeState);
    });
    await fc.assert(property, { numRuns: 25 });
  });

  test("gives what one of its commits left, where its log was cut", async () => {
    const bytes = statSync(join(crashed, `${INDEX_FILE}-wal`)).size;
    const property = fc.asyncProperty(fc.nat(bytes), async (length) => {
      const cut = (folder: string) => truncateSync(join(folder, `${INDEX_FILE}-wal`), length);
      await opened(crashed, cut, expectSomeState);
    });
    await fc.assert(property, { numRuns: 15 });
  });

  test("notices where the index of a table does not say what the table says", async () => {
    const bytes = readFileSync(join(clean, INDEX_FILE));
    const pages = pagesOf(join(clean, INDEX_FILE), "sqlite_autoindex_blocks_1");
    let noticed = 0;
    for (const number of upTo(ROWS).filter((row) => row % 50 === 0)) {
      let at = bytes.indexOf(rowOf(number).digest);
      while (!pages.has(Math.floor(at / 4096) + 1))
        at = bytes.indexOf(rowOf(number).digest, at + 1);
      // Its last byte, so that the order of the entries stays as it was.
      const where = [{ at: at + 31, mask: 1 }];
      const outcome = await opened(clean, flipped(INDEX_FILE, where), expectClean);
      if (outcome === "set aside") noticed++;
    }
    // If a page was split, the first find may be a remnant in the free space.
    expect(noticed).toBeGreaterThan(ROWS / 50 / 2);
  });

  test("notices a page of an earlier day, and one swapped with another", async () => {
    const pageBytes = 4096;
    const old = readFileSync(join(clean, INDEX_FILE));
    const newer = join(folders, "newer");
    cpSync(clean, newer, { recursive: true });
    const index = await openIndex(newer, { incarnation: 2n });
    await index.begin();
    for (const number of upTo(ROWS)) index.touch(rowOf(number).digest, rowOf(number).layer, 5, 6);
    expect(await index.close(5_000)).toBe(true);
    const now = readFileSync(join(newer, INDEX_FILE));
    const expected = new Map(
      upTo(ROWS).map((number) => textOf(rowOf(number, { lastSeen: 5, uses: 6 }))),
    );
    const check = async (found: BlockIndex) => expect(await loadRows(found)).toEqual(expected);
    let noticed = 0;
    const pages = Math.min(old.length, now.length) / pageBytes;
    for (let page = 0; page < pages; page++) {
      const [from, to] = [page * pageBytes, (page + 1) * pageBytes];
      if (old.subarray(from, to).equals(now.subarray(from, to))) continue;
      const bytes = Buffer.from(now);
      old.copy(bytes, from, from, to);
      const write = (folder: string) => writeFileSync(join(folder, INDEX_FILE), bytes);
      if ((await opened(newer, write, check)) === "set aside") noticed++;
    }
    expect(noticed).toBeGreaterThan(10);
    const swapped = Buffer.from(now);
    now.copy(swapped, 5 * pageBytes, 6 * pageBytes, 7 * pageBytes);
    now.copy(swapped, 6 * pageBytes, 5 * pageBytes, 6 * pageBytes);
    const swap = (folder: string) => writeFileSync(join(folder, INDEX_FILE), swapped);
    expect(await opened(newer, swap, check)).toBe("set aside");
  });
});

test("a copy that nothing was done to is as it was", async () => {
  mkdirSync(folders, { recursive: true });
  expect(await opened(clean, () => {}, expectCleanAndUseful)).toBe("as it was");
  expect(await opened(crashed, () => {}, expectSomeState)).toBe("as it was");
});
