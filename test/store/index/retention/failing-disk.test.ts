import { describe, expect, test } from "bun:test";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { yieldToLoop } from "../../../../src/core/index.ts";
import { ManualClock, noteSkip, tempDir, waitFor } from "../../../support/index.ts";
import { mountExt4, mountTmpfs, remount } from "../mounts.ts";
import { contentsOf, holdOf, openLedger, readLedger, textOf, upTo } from "./ledger-kit.ts";

const folders = tempDir();

function newFolder(): string {
  const folder = join(folders, crypto.randomUUID());
  mkdirSync(folder);
  return folder;
}

/** Why `mount` cannot be used here; null where it can. */
function whyNot(mount: (below: string) => Disposable): string | null {
  try {
    mount(newFolder())[Symbol.dispose]();
    return null;
  } catch (thrown) {
    return String(thrown);
  }
}

const noTmpfs = whyNot((below) => mountTmpfs(below, 64));
if (noTmpfs !== null) noteSkip("ledger on a full and on a read-only disk", noTmpfs);

describe.skipIf(noTmpfs !== null)("a disk that refuses", () => {
  test("on a full disk changes wait, callers are notified, and writing resumes automatically", async () => {
    using mount = mountTmpfs(newFolder(), 2_048);
    const folder = join(mount.folder, "index");
    const ledger = await openLedger(folder);
    ledger.putHold(holdOf(1));
    expect(await ledger.commit()).toBe(true);
    for (const number of upTo(3_000)) ledger.putHold(holdOf(number));
    expect(await ledger.commit()).toBe(false);
    expect(ledger.state.failing).toContain("full");
    expect(ledger.state).toMatchObject({ pending: 3_000, dropped: 0 });
    ledger.removeHold(2);
    expect(await ledger.commit()).toBe(false);
    remount(mount, "size=64m");
    await waitFor(() => ledger.state.failing === null && ledger.state.pending === 0, 20_000);
    expect(await ledger.close(5_000)).toBe(true);
    const numbers = upTo(3_000).filter((number) => number !== 2);
    expect((await readLedger(folder)).holds).toEqual(contentsOf(numbers).holds);
  });

  test("on a disk that stays full the queue is bounded, and a group is dropped whole", async () => {
    using mount = mountTmpfs(newFolder(), 1_024);
    const folder = join(mount.folder, "index");
    const pendingBytesMax = 3 * 2 ** 20;
    const ledger = await openLedger(folder, { pendingBytesMax });
    ledger.putHold(holdOf(1));
    expect(await ledger.commit()).toBe(true);
    const blocks = new Uint8Array(36 * 512);
    const answers: Promise<boolean>[] = [];
    for (const number of upTo(400)) {
      for (const part of [1, 2, 3]) ledger.putHold(holdOf(number * 10 + part, { blocks }));
      answers.push(ledger.commit());
      await yieldToLoop();
      if (number % 20 === 0) await Promise.all(answers.splice(0));
    }
    expect(ledger.state.failing).not.toBeNull();
    const { dropped, pending } = ledger.state;
    expect(pending * blocks.length).toBeLessThanOrEqual(pendingBytesMax);
    expect(dropped).toBeGreaterThan(400);
    // Kept entries can still be released.
    ledger.removeHold(11);
    await ledger.commit();
    expect(ledger.state.dropped).toBe(dropped);
    remount(mount, "size=64m");
    await waitFor(() => ledger.state.failing === null && ledger.state.pending === 0, 20_000);
    ledger.putHold(holdOf(50_000));
    expect(await ledger.close(5_000)).toBe(true);
    const { holds } = await readLedger(folder);
    const ids = holds.map(({ id }) => id);
    expect([ids[0], ids.at(-1)]).toEqual([1, 50_000]);
    const parts = Map.groupBy(ids.slice(1, -1), (id) => Math.floor(id / 10));
    expect(parts.get(1)).toEqual([12, 13]);
    parts.delete(1);
    expect(parts.size).toBeGreaterThan(10);
    for (const group of parts.values()) expect(group).toHaveLength(3);
    expect(ids.length).toBe(2 + 1_200 - dropped - 1);
  });

  test("read-only from the start: it works without, and opens when it can", async () => {
    using mount = mountTmpfs(newFolder(), 8_192);
    const folder = join(mount.folder, "index");
    const before = await openLedger(folder);
    before.putHold(holdOf(1));
    expect(await before.close(5_000)).toBe(true);
    remount(mount, "ro");
    const ledger = await openLedger(folder, { incarnation: 2n });
    expect(ledger.state.failing).not.toBeNull();
    expect(ledger.contents.holds).toEqual([]);
    ledger.putHold(holdOf(2));
    expect(await ledger.commit()).toBe(false);
    remount(mount, "rw");
    await waitFor(() => ledger.state.failing === null && ledger.state.pending === 0, 20_000);
    expect(ledger.state.setAside?.why).toContain("could not be opened");
    expect(await ledger.close(5_000)).toBe(true);
    expect((await readLedger(folder)).holds).toEqual(contentsOf([2]).holds);
  });
});

test("a folder that cannot be made: it works without", async () => {
  const file = join(newFolder(), "file");
  writeFileSync(file, "");
  await using ledger = await openLedger(join(file, "index"));
  expect(ledger.state.failing).toContain("ENOTDIR");
  ledger.putHold(holdOf(1));
  expect(await ledger.commit()).toBe(false);
  expect(await ledger.close(1_000)).toBe(false);
});

test("more than may wait: dropped with all of its group, counted, said once", async () => {
  const folder = newFolder();
  await using ledger = await openLedger(folder, { pendingBytesMax: 100_000 });
  const blocks = new Uint8Array(36 * 1_000);
  for (const id of [1, 2, 3, 4]) ledger.putHold(holdOf(id, { blocks }));
  expect(ledger.state).toMatchObject({ pending: 0, dropped: 4 });
  // Every caller that commits in the same turn gets the error, not only the first.
  ledger.putHold(holdOf(5));
  const refused = [ledger.commit(), ledger.commit()];
  await yieldToLoop();
  ledger.putHold(holdOf(6));
  const later = [ledger.commit(), ledger.commit()];
  expect(await Promise.all([...refused, ...later])).toEqual([false, false, true, true]);
  expect(await ledger.close(5_000)).toBe(true);
  expect((await readLedger(folder)).holds).toEqual(contentsOf([6]).holds);
});

test("a commit of a change that was dropped long ago fails, however late", async () => {
  const folder = newFolder();
  await using ledger = await openLedger(folder, { pendingBytesMax: 100_000 });
  const since = ledger.mark;
  ledger.putHold(holdOf(1, { blocks: new Uint8Array(36 * 5_000) }));
  expect(await ledger.commit()).toBe(false);
  const later = ledger.mark;
  ledger.putHold(holdOf(2));
  expect(await ledger.commit()).toBe(true);
  expect(await ledger.commit({ since })).toBe(false);
  expect(await ledger.commit({ since: later })).toBe(true);
});

const noExt4 = whyNot((below) => mountExt4(below, 16));
if (noExt4 !== null) noteSkip("ledger on a disk that hangs", noExt4);

describe.skipIf(noExt4 !== null)("a disk that hangs", () => {
  test("never stops the loop, and close does not wait for it", async () => {
    using mount = mountExt4(newFolder(), 32);
    const folder = join(mount.folder, "index");
    const ledger = await openLedger(folder);
    ledger.putHold(holdOf(1));
    expect(await ledger.commit()).toBe(true);
    mount.freeze();
    ledger.putHold(holdOf(2));
    let isSettled = false;
    const committed = ledger.commit().finally(() => {
      isSettled = true;
    });
    await Bun.sleep(50);
    expect(isSettled).toBe(false);
    const before = performance.now();
    expect(await ledger.close(30)).toBe(false);
    expect(performance.now() - before).toBeLessThan(1_000);
    expect(await committed).toBe(false);
    mount.thaw();
    // The worker lets go once the kernel has let go of it.
    await using again = await waitFor(() => openLedger(folder, { incarnation: 2n }), 20_000);
    expect(again.state.setAside).toBeNull();
    expect(textOf(again.contents).holds[0]).toEqual(contentsOf([1]).holds[0]!);
  });

  test("is not waited for: commits say so until it answers, and then all of it is", async () => {
    using mount = mountExt4(newFolder(), 32);
    const folder = join(mount.folder, "index");
    const clock = new ManualClock();
    const ledger = await openLedger(folder, { clock });
    mount.freeze();
    ledger.putHold(holdOf(1));
    const first = ledger.commit();
    await waitFor(() => clock.pending > 1);
    const second = ledger.commit();
    clock.advance(5_000);
    expect(await Promise.all([first, second])).toEqual([false, false]);
    expect(ledger.state.failing).toContain("has not answered");
    ledger.putHold(holdOf(2));
    expect(await ledger.commit()).toBe(false);
    mount.thaw();
    await waitFor(() => ledger.state.failing === null, 20_000);
    expect(await ledger.commit()).toBe(true);
    expect(await ledger.close(5_000)).toBe(true);
    expect((await readLedger(folder)).holds).toEqual(contentsOf([1, 2]).holds);
  });

  test("opening it can be given up", async () => {
    using mount = mountExt4(newFolder(), 32);
    mount.freeze();
    const controller = new AbortController();
    const { signal } = controller;
    const opening = openLedger(join(mount.folder, "index"), { signal });
    await Bun.sleep(50);
    controller.abort();
    expect(opening).rejects.toMatchObject({ code: "ABORTED" });
    await opening.catch(() => mount.thaw());
  });
});
