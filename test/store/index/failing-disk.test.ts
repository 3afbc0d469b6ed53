import { describe, expect, test } from "bun:test";
import { existsSync, mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { noteSkip, tempDir, waitFor } from "../../support/index.ts";
import { loadRows, madeIndex, openIndex, rowOf, rowsOf, upTo } from "./index-kit.ts";
import { mountExt4, mountTmpfs, remount } from "./mounts.ts";

const folders = tempDir();

/** Why `mount` cannot be used here; null where it can. */
function whyNot(mount: (below: string) => Disposable): string | null {
  try {
    const below = join(folders, crypto.randomUUID());
    mkdirSync(below);
    mount(below)[Symbol.dispose]();
    return null;
  } catch (thrown) {
    return String(thrown);
  }
}

function newFolder(): string {
  const folder = join(folders, crypto.randomUUID());
  mkdirSync(folder);
  return folder;
}

const noTmpfs = whyNot((below) => mountTmpfs(below, 64));
if (noTmpfs !== null) noteSkip("index on a full and on a read-only disk", noTmpfs);

describe.skipIf(noTmpfs !== null)("a disk that refuses", () => {
  test("on a full disk changes wait, the run is notified, and writing resumes automatically", async () => {
    using mount = mountTmpfs(newFolder(), 4_096);
    const index = await openIndex(join(mount.folder, "index"));
    await index.begin();
    for (const number of upTo(100)) index.put(rowOf(number));
    expect(await index.flush()).toBe(true);
    const ballast = join(mount.folder, "ballast");
    try {
      writeFileSync(ballast, new Uint8Array(8_000_000));
    } catch (full) {
      expect(String(full)).toContain("ENOSPC");
    }
    for (const number of upTo(20_000)) index.put(rowOf(number));
    expect(await index.flush()).toBe(false);
    expect(index.state.failing).toContain("full");
    expect(index.state.pending).toBeGreaterThan(10_000);
    expect(index.state.dropped).toBe(0);
    rmSync(ballast);
    remount(mount, "size=64m");
    await waitFor(() => index.state.failing === null && index.state.pending === 0, 20_000);
    expect(await index.close(5_000)).toBe(true);
    await using again = await openIndex(join(mount.folder, "index"), { incarnation: 2n });
    expect(again.previous).toEqual({ incarnation: 1n, flushedSequence: 20_000, clean: true });
    expect(await loadRows(again)).toEqual(rowsOf(upTo(20_000)));
  });

  test("on a disk that stays full the queue is bounded, and the rest counted and never claimed", async () => {
    using mount = mountTmpfs(newFolder(), 2_048);
    const folder = join(mount.folder, "index");
    const index = await openIndex(folder, { pendingMax: 3_000 });
    await index.begin();
    index.put(rowOf(1));
    expect(await index.flush()).toBe(true);
    for (const number of upTo(60_000)) {
      index.put(rowOf(number));
      if (number % 1_000 === 0) await Bun.sleep(0);
    }
    await waitFor(() => index.state.failing !== null);
    const { dropped } = index.state;
    expect(index.state.pending).toBeLessThanOrEqual(4_000);
    expect(dropped).toBeGreaterThan(40_000);
    for (const number of upTo(2_000)) index.touch(rowOf(number).digest, rowOf(number).layer, 1, 1);
    remount(mount, "size=64m");
    expect(await index.flush()).toBe(false);
    await waitFor(() => index.state.failing === null && index.state.pending === 0, 20_000);
    expect(await index.flush()).toBe(true);
    index.put(rowOf(60_001));
    expect(await index.flush()).toBe(true);
    expect(await index.close(5_000)).toBe(true);
    await using again = await openIndex(folder, { incarnation: 2n });
    expect(again.previous.clean).toBe(false);
    const through = again.previous.flushedSequence;
    const rows = await loadRows(again);
    expect(through).toBeLessThan(60_000 - dropped / 2);
    for (const [key, text] of rowsOf(upTo(through))) expect(rows.get(key)).toBe(text);
    expect(rows.size).toBeGreaterThan(through);
  });

  test("read-only from the start: it works without, and opens when it can", async () => {
    using mount = mountTmpfs(newFolder(), 8_192);
    const folder = join(mount.folder, "index");
    await madeIndex(folder, 50);
    remount(mount, "ro");
    const index = await openIndex(folder, { incarnation: 2n });
    expect(index.state.failing).not.toBeNull();
    expect(index.previous.incarnation).toBeNull();
    expect(await loadRows(index)).toEqual(new Map());
    index.put(rowOf(7, { sequence: 0 }));
    expect(await index.begin()).toBe(false);
    index.put(rowOf(8, { sequence: 1 }));
    remount(mount, "rw");
    await waitFor(() => index.state.failing === null && index.state.pending === 0, 20_000);
    // The earlier rows are not those reported to this run.
    expect(index.state.setAside?.why).toContain("could not be opened");
    expect(existsSync(index.state.setAside!.path)).toBe(true);
    expect(await index.close(5_000)).toBe(true);
    await using again = await openIndex(folder, { incarnation: 3n });
    expect(again.previous).toEqual({ incarnation: 2n, flushedSequence: 1, clean: true });
    expect(await loadRows(again)).toEqual(rowsOf([7, 8]));
  });

  test("no room to make one at the start", async () => {
    using mount = mountTmpfs(newFolder(), 16);
    const index = await openIndex(join(mount.folder, "index"));
    expect(index.state.failing).toContain("full");
    index.put(rowOf(1));
    expect(await index.flush()).toBe(false);
    remount(mount, "size=8m");
    await waitFor(() => index.state.rows === 1, 20_000);
    expect(index.state).toMatchObject({ failing: null, setAside: null });
    expect(await index.close(5_000)).toBe(true);
  });
});

test("a folder that cannot be made: it works without", async () => {
  const file = join(newFolder(), "file");
  writeFileSync(file, "");
  await using index = await openIndex(join(file, "index"));
  expect(index.state.failing).toContain("ENOTDIR");
  index.put(rowOf(1));
  expect(await index.flush()).toBe(false);
  expect(await index.close(1_000)).toBe(false);
});

test("ten times the disk's rate of changes is bounded and counted, and does not block the event loop", async () => {
  const pendingMax = 5_000;
  await using index = await openIndex(newFolder(), { pendingMax });
  await index.begin();
  for (const number of upTo(10 * pendingMax)) index.put(rowOf(number));
  // The batch on its way counts beyond those that wait.
  expect(index.state.pending).toBeLessThanOrEqual(pendingMax + 1_000);
  expect(index.state.dropped).toBeGreaterThanOrEqual(10 * pendingMax - index.state.pending);
  expect(await index.flush()).toBe(false);
  expect(await index.flush()).toBe(true);
  expect(index.state.rows + index.state.dropped).toBe(10 * pendingMax);
});

const noExt4 = whyNot((below) => mountExt4(below, 16));
if (noExt4 !== null) noteSkip("index on a disk that hangs", noExt4);

describe.skipIf(noExt4 !== null)("a disk that hangs", () => {
  test("never stops the loop, and close does not wait for it", async () => {
    using mount = mountExt4(newFolder(), 32);
    const folder = join(mount.folder, "index");
    const index = await openIndex(folder);
    await index.begin();
    index.put(rowOf(1));
    expect(await index.flush({ durable: true })).toBe(true);
    mount.freeze();
    for (const number of upTo(3_000)) index.put(rowOf(number + 1));
    let isSettled = false;
    const flushed = index.flush().finally(() => {
      isSettled = true;
    });
    await Bun.sleep(50);
    expect(isSettled).toBe(false);
    expect(index.state).toMatchObject({ pending: 3_000, rows: 1 });
    const before = performance.now();
    expect(await index.close(30)).toBe(false);
    expect(performance.now() - before).toBeLessThan(1_000);
    expect(await flushed).toBe(false);
    mount.thaw();
    // The worker lets go once the kernel has let go of it.
    await using again = await waitFor(() => openIndex(folder, { incarnation: 2n }), 20_000);
    expect(again.state.setAside).toBeNull();
    expect(again.previous.incarnation).toBe(1n);
    expect((await loadRows(again)).size).toBeGreaterThanOrEqual(1);
  });

  test("opening it can be given up", async () => {
    using mount = mountExt4(newFolder(), 32);
    const folder = join(mount.folder, "index");
    mount.freeze();
    const controller = new AbortController();
    const opening = openIndex(folder, { signal: controller.signal });
    await Bun.sleep(50);
    controller.abort();
    expect(opening).rejects.toMatchObject({ code: "ABORTED" });
    await opening.catch(() => mount.thaw());
  });
});
