import { describe, expect, test } from "bun:test";
import { join } from "node:path";
import { ManualClock, tempDir, waitFor } from "../../support/index.ts";
import {
  aliasOf,
  aliasText,
  crashImage,
  digestOf,
  LAYER,
  loadAliases,
  loadRows,
  madeIndex,
  namespaceOf,
  openIndex,
  rowOf,
  rowsOf,
  textOf,
  upTo,
} from "./index-kit.ts";

const folders = tempDir();
let made = 0;
const newFolder = (): string => join(folders, `index-${made++}`);

describe("rows", () => {
  test("come back as they were put, over several batches", async () => {
    const folder = newFolder();
    await madeIndex(folder, 2_500);
    await using index = await openIndex(folder);
    expect(index.state.rows).toBe(2_500);
    expect(await loadRows(index)).toEqual(rowsOf(upTo(2_500)));
  });

  test("of a layer and namespace come together, oldest use first, in parts", async () => {
    const folder = newFolder();
    const count = 5_000;
    const writer = await openIndex(folder);
    const layerOf = (number: number) => (number === 1 ? 0 : LAYER);
    for (const number of upTo(count)) {
      writer.put(rowOf(number, { layer: layerOf(number), namespaceKey: namespaceOf(0) }));
    }
    expect(await writer.close(5_000)).toBe(true);
    await using index = await openIndex(folder);
    const batches = await Array.fromAsync(index.loadBlocks());
    expect(batches.map((batch) => batch.layer).sort()).toEqual([0, LAYER, LAYER]);
    expect(Math.max(...batches.map((batch) => batch.count))).toBe(4_096);
    const seen = batches.filter((batch) => batch.layer === LAYER).flatMap((b) => [...b.lastSeen]);
    expect(seen).toEqual(seen.toSorted((a, b) => a - b));
    expect(seen).toHaveLength(count - 1);
  });

  test("are replaced, removed and touched", async () => {
    const folder = newFolder();
    await madeIndex(folder, 4);
    const index = await openIndex(folder, { incarnation: 2n });
    await index.begin();
    const second = rowOf(2, { bytes: 77, variant: 2, parent: null, sequence: 1 });
    index.put(second);
    index.remove(rowOf(3).digest, rowOf(3).layer);
    index.touch(rowOf(4).digest, rowOf(4).layer, 99, 8);
    index.touch(digestOf(50), LAYER, 99, 8);
    index.remove(digestOf(51), LAYER);
    expect(await index.flush()).toBe(true);
    expect(index.state).toMatchObject({ rows: 3, pending: 0, dropped: 0, failing: null });
    await index.close(5_000);
    const fourth = rowOf(4, { lastSeen: 99, uses: 8 });
    await using again = await openIndex(folder);
    expect(await loadRows(again)).toEqual(new Map([rowOf(1), second, fourth].map(textOf)));
  });

  test("a use that finds no room in the queue is dropped without a loss", async () => {
    const clock = new ManualClock();
    await using index = await openIndex(newFolder(), { clock, pendingMax: 4 });
    for (const number of [1, 2]) index.put(rowOf(number));
    index.touch(rowOf(3).digest, rowOf(3).layer, 99, 8);
    expect(index.state).toMatchObject({ pending: 2, dropped: 0 });
    expect(await index.flush({ durable: true })).toBe(true);
  });

  test("waiting changes of one block become one", async () => {
    const folder = newFolder();
    const index = await openIndex(folder, { clock: new ManualClock() });
    const [one, two, three] = [rowOf(1), rowOf(2), rowOf(3)];
    index.put(one);
    index.touch(one.digest, one.layer, 5, 6);
    index.put(two);
    index.remove(two.digest, two.layer);
    index.touch(two.digest, two.layer, 5, 6);
    index.remove(three.digest, three.layer);
    index.put(three);
    expect(index.state.pending).toBe(3);
    expect(await index.close(5_000)).toBe(true);
    await using again = await openIndex(folder);
    const expected = [rowOf(1, { lastSeen: 5, uses: 6 }), three].map(textOf);
    expect(await loadRows(again)).toEqual(new Map(expected));
  });

  test("are committed by themselves, soon after", async () => {
    const clock = new ManualClock();
    await using index = await openIndex(newFolder(), { clock });
    index.put(rowOf(1));
    expect(index.state.pending).toBe(1);
    clock.advance(100);
    await waitFor(() => index.state.rows === 1);
    for (const number of upTo(1_000)) index.put(rowOf(number + 1));
    await waitFor(() => index.state.rows === 1_001);
  });

  test("changed bytes of the caller after a put change nothing", async () => {
    const folder = newFolder();
    const index = await openIndex(folder);
    const row = rowOf(1);
    index.put(row);
    row.digest.fill(0);
    row.namespaceKey.fill(0);
    await index.close(5_000);
    await using again = await openIndex(folder);
    expect(await loadRows(again)).toEqual(rowsOf([1]));
  });
});

describe("aliases", () => {
  test("come back, go with their block, and are not entered without one", async () => {
    const folder = newFolder();
    const index = await openIndex(folder);
    for (const number of [1, 2, 3]) index.put(rowOf(number));
    for (const bytes of [8, 32]) {
      for (const number of [1, 2, 9]) index.putAlias(aliasOf(number, bytes));
    }
    index.putAlias(aliasOf(1, 8));
    await index.flush();
    index.remove(rowOf(2).digest, rowOf(2).layer);
    await index.close(5_000);
    await using again = await openIndex(folder);
    const expected = [aliasOf(1, 8), aliasOf(1, 32)].map(aliasText).sort();
    expect(await loadAliases(again)).toEqual(expected);
    expect(again.state.setAside).toBeNull();
  });
});

describe("what a start knows of the run before", () => {
  test("nothing of a new index", async () => {
    const folder = newFolder();
    const index = await openIndex(folder);
    expect(index.previous).toEqual({ incarnation: null, flushedSequence: 0, clean: false });
    expect(index.state).toMatchObject({ rows: 0, failing: null, setAside: null });
    await index[Symbol.asyncDispose]();
  });

  test("its incarnation, all 64 bits of it, and how far it came", async () => {
    const folder = newFolder();
    const incarnation = 0xfedc_ba98_7654_3210n;
    const index = await openIndex(folder, { incarnation });
    for (const sequence of [1, 2, 4]) index.put(rowOf(sequence));
    await index.close(5_000);
    await using again = await openIndex(folder);
    expect(again.previous).toEqual({ incarnation, flushedSequence: 2, clean: true });
  });

  test("a sequence that was given up does not hold back the others", async () => {
    const folder = newFolder();
    const index = await openIndex(folder);
    index.put(rowOf(2));
    index.skip(1);
    index.put(rowOf(4));
    index.skip(3);
    await index.close(5_000);
    await using again = await openIndex(folder);
    expect(again.previous.flushedSequence).toBe(4);
  });

  test("until recovery has ended, the run before is the previous one", async () => {
    let folder = newFolder();
    await madeIndex(folder, 3);
    for (const incarnation of [2n, 3n]) {
      await using crashing = await openIndex(folder, { incarnation });
      const clean = incarnation === 2n;
      expect(crashing.previous).toEqual({ incarnation: 1n, flushedSequence: 3, clean });
      crashing.remove(rowOf(1).digest, rowOf(1).layer);
      crashing.put(rowOf(8, { sequence: 0 }));
      expect(await crashing.flush()).toBe(true);
      folder = crashImage(folder, newFolder());
    }
    await using index = await openIndex(folder, { incarnation: 4n });
    expect(index.previous.incarnation).toBe(1n);
    expect(await index.begin()).toBe(true);
    await using last = await openIndex(crashImage(folder, newFolder()), { incarnation: 5n });
    expect(last.previous).toEqual({ incarnation: 4n, flushedSequence: 0, clean: false });
    expect(await loadRows(last)).toEqual(rowsOf([2, 3, 8]));
  });

  test("the first block of a run ends recovery if it was not ended before", async () => {
    const folder = newFolder();
    await madeIndex(folder, 3);
    await using index = await openIndex(folder, { incarnation: 2n });
    index.put(rowOf(4, { sequence: 1 }));
    expect(await index.flush()).toBe(true);
    await using last = await openIndex(crashImage(folder, newFolder()), { incarnation: 3n });
    expect(last.previous).toEqual({ incarnation: 2n, flushedSequence: 1, clean: false });
  });

  test("the run begins with the rows before its first block, not before them", async () => {
    const folder = newFolder();
    await madeIndex(folder, 3);
    // Its clock stands still: only full batches go.
    await using index = await openIndex(folder, { incarnation: 2n, clock: new ManualClock() });
    for (const number of upTo(2_500)) index.put(rowOf(number, { sequence: 0 }));
    index.put(rowOf(3_000, { sequence: 1 }));
    await waitFor(() => index.state.rows === 2_000);
    {
      await using half = await openIndex(crashImage(folder, newFolder()), { incarnation: 3n });
      expect(half.previous).toMatchObject({ incarnation: 1n, flushedSequence: 3 });
    }
    expect(await index.flush()).toBe(true);
    await using whole = await openIndex(crashImage(folder, newFolder()), { incarnation: 3n });
    expect(whole.previous).toMatchObject({ incarnation: 2n, flushedSequence: 1 });
  });

  test("an index that was being made when its run ended is not taken for a whole one", async () => {
    const folder = newFolder();
    await using crashing = await openIndex(folder);
    crashing.put(rowOf(1, { sequence: 0 }));
    expect(await crashing.flush()).toBe(true);
    await using index = await openIndex(crashImage(folder, newFolder()));
    expect(index.previous.incarnation).toBeNull();
    expect(index.state.setAside?.why).toContain("rows are missing");
    expect(await loadRows(index)).toEqual(new Map());
  });

  test("rows are loaded once, and before recovery ends", async () => {
    const folder = newFolder();
    await madeIndex(folder, 5_000, 10);
    await using index = await openIndex(folder);
    const load = index.loadBlocks()[Symbol.asyncIterator]();
    expect((await load.next()).value?.count).toBeGreaterThan(0);
    index.remove(rowOf(1).digest, rowOf(1).layer);
    expect(await index.flush()).toBe(true);
    // Blocks removed meanwhile are still listed: the load is of the moment of opening.
    let rest = 0;
    for (let next = await load.next(); !next.done; next = await load.next()) rest++;
    expect(rest).toBeGreaterThan(0);
    expect(Array.fromAsync(index.loadBlocks())).rejects.toThrow("once");
    await index.begin();
    expect(Array.fromAsync(index.loadAliases())).rejects.toThrow("before recovery ends");
  });

  test("flush answers after the commit, durable or not, with nothing to do as well", async () => {
    await using index = await openIndex(newFolder());
    expect(await index.flush()).toBe(true);
    expect(await index.flush({ durable: true })).toBe(true);
    index.put(rowOf(1));
    const flushes = [index.flush(), index.flush({ durable: true }), index.flush()];
    index.put(rowOf(2));
    expect(await Promise.all(flushes)).toEqual([true, true, true]);
    expect(index.state.rows).toBeGreaterThanOrEqual(1);
  });

  test("after close nothing is taken, and close answers the same", async () => {
    const index = await openIndex(newFolder());
    expect(await index.close(5_000)).toBe(true);
    expect(await index.close(5_000)).toBe(true);
    index.put(rowOf(1));
    expect(await index.flush()).toBe(false);
  });
});
