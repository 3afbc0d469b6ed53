import { expect, test } from "bun:test";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { faultPoint, loadNative, openDisk, Region, setFaults } from "../../src/native/index.ts";
import { faultCounts, tempDir, waitFor } from "../support/index.ts";
import {
  DEPTH,
  describeMethods,
  expectOpenFiles,
  filesBelow,
  filled,
  type Kit,
  loadOne,
  MIB,
  openFiles,
  SLOW_MS,
  storeOne,
  withDisk,
} from "./disk-kit.ts";

const BYTES = 70_000;

function plan(text: string): void {
  setFaults(loadNative(), text);
}

/** Runs every operation once, regardless of failures. Without failures the folder ends up empty. */
async function everything(kit: Kit): Promise<void> {
  const { disk } = kit;
  await storeOne(kit, "ab/one.kvb", BYTES, 3);
  const loaded = await loadOne(kit, "ab/one.kvb", BYTES, 3);
  expect(loaded.ok && !loaded.right).toBeFalse();
  const header = disk.claimHeader()!;
  await disk.peek("ab/one.kvb", header);
  header[Symbol.dispose]();
  await disk.rename("ab/one.kvb", "aside/one.kvb");
  await disk.list("aside");
  await disk.sync();
  await disk.space();
  await disk.remove("aside/one.kvb");
  await disk.remove("ab/one.kvb");
}

/** How often each call is hit in one run of `everything`. */
async function countHits(kit: Kit): Promise<[string, number][]> {
  plan("count");
  await everything(kit);
  const counts = Object.entries(faultCounts(loadNative()));
  plan("");
  return counts.filter(([name]) => !name.startsWith("ring."));
}

describeMethods("a disk with injected faults", (method) => {
  test(
    "a call that fails once or always leaves no file partial, open or behind",
    () =>
      withDisk({ method }, async (kit) => {
        const hits = await countHits(kit);
        expect(hits.map(([name]) => name)).toContain(`store.link`);
        const before = openFiles();
        for (const [name, count] of hits) {
          const plans = Array.from({ length: count }, (_, i) => `${name}:${i + 1}:EIO`);
          for (const text of [...plans, `${name}:1+:EIO`, `${name}:1+:EINTR`]) {
            plan(text);
            await everything(kit);
            plan("");
            await expectOpenFiles(before, text);
            for (const left of filesBelow(kit.folder)) {
              expect(await loadOne(kit, left, BYTES, 3)).toMatchObject({ right: true });
              await kit.disk.remove(left);
            }
          }
        }
        expect(kit.disk.inFlight).toBe(0);
      }),
    SLOW_MS,
  );

  test.each([
    ["EIO", "io_error"],
    ["ENOSPC", "no_space"],
    ["EDQUOT", "no_space"],
    ["EROFS", "read_only"],
    ["EMFILE", "no_descriptors"],
    ["ENFILE", "no_descriptors"],
    ["ENOMEM", "no_memory"],
    ["EACCES", "not_permitted"],
    ["EUCLEAN", "io_error"],
  ])(
    "%s is %s wherever it strikes",
    (errno, status) =>
      withDisk({ method }, async (kit) => {
        const refused = { ok: false, status };
        for (const call of ["open", "write", "stat", "link"]) {
          plan(`store.${call}:1:${errno}`);
          expect(await storeOne(kit, "one.kvb", BYTES, 3)).toMatchObject(refused);
          expect(filesBelow(kit.folder)).toEqual([]);
        }
        expect(await storeOne(kit, "one.kvb", BYTES, 3)).toMatchObject({ ok: true });
        for (const call of ["open", "stat", "read"]) {
          plan(`load.${call}:1:${errno}`);
          expect(await loadOne(kit, "one.kvb", BYTES, 3)).toMatchObject(refused);
        }
        plan(`remove.*:1:${errno};sync.*:1:${errno};space.*:1:${errno};list.open:1:${errno}`);
        expect(await kit.disk.remove("one.kvb")).toMatchObject(refused);
        expect(await kit.disk.sync()).toMatchObject(refused);
        expect(await kit.disk.space()).toMatchObject(refused);
        expect(await kit.disk.list("")).toMatchObject(refused);
        expect(await loadOne(kit, "one.kvb", BYTES, 3)).toMatchObject({ right: true });
      }),
    SLOW_MS,
  );

  test("partial transfers are continued and interrupted ones repeated", () =>
    withDisk({ method }, async (kit) => {
      for (const what of ["short", "EINTR", "EAGAIN"]) {
        plan(`store.write:1:${what};load.read:1:${what};peek.read:1:${what}`);
        expect(await storeOne(kit, "one.kvb", BYTES, 3)).toMatchObject({ ok: true });
        expect(await loadOne(kit, "one.kvb", BYTES, 3)).toMatchObject({ right: true });
        using header = kit.disk.claimHeader()!;
        expect(await kit.disk.peek("one.kvb", header)).toMatchObject({ ok: true });
        expect(header.bytes.every((byte) => byte === 3)).toBeTrue();
        expect(faultCounts(loadNative())).toMatchObject({
          "store.write": 2,
          "load.read": 2,
          "peek.read": 2,
        });
        await kit.disk.remove("one.kvb");
      }
      plan("store.write:1+:short");
      expect(await storeOne(kit, "one.kvb", BYTES, 3)).toMatchObject({ status: "io_error" });
    }));

  test("a flipped bit is detected by the checksum", () =>
    withDisk({ method }, async (kit) => {
      await storeOne(kit, "one.kvb", BYTES, 3);
      const whole = await loadOne(kit, "one.kvb", BYTES, 3);
      plan("load.read:1:flip");
      const flipped = await loadOne(kit, "one.kvb", BYTES, 3);
      expect(flipped).toMatchObject({ ok: true, right: false });
      if (!whole.ok || !flipped.ok) throw new Error("not loaded");
      expect(flipped.checksum).not.toBe(whole.checksum);
      expect(await loadOne(kit, "one.kvb", BYTES, 3)).toMatchObject({ right: true });
    }));

  test("a late completion does not delay other operations", () =>
    withDisk({ method }, async (kit) => {
      await storeOne(kit, "one.kvb", BYTES, 3);
      for (const call of ["load.open", "load.read"]) {
        plan(`${call}:1:delay=300`);
        const transfer = filled(kit, "one.kvb", MIB, BYTES, 255);
        const order: string[] = [];
        const late = kit.disk.load(transfer).then(() => order.push("late"));
        await waitFor(() => faultCounts(loadNative())[call] === 1);
        for (let i = 0; i < 5; i++) {
          expect(await loadOne(kit, "one.kvb", BYTES, 3)).toMatchObject({ right: true });
        }
        order.push("others");
        await late;
        expect(order).toEqual(["others", "late"]);
        transfer.header[Symbol.dispose]();
      }
    }));

  test("without O_TMPFILE or /proc, files have a temporary name, which is removed", () =>
    withDisk({ method }, async (kit) => {
      for (const text of ["store.open:1:EOPNOTSUPP", "store.open:1:EISDIR"]) {
        plan(text);
        expect(await storeOne(kit, "ab/one.kvb", BYTES, 3)).toMatchObject({ ok: true });
        expect(filesBelow(kit.folder)).toEqual(["ab/one.kvb"]);
        expect(await loadOne(kit, "ab/one.kvb", BYTES, 3)).toMatchObject({ right: true });
        for (const call of ["store.write", "store.stat", "store.link"]) {
          plan(`${text};${call}:1:EIO`);
          const failed = await storeOne(kit, "ab/two.kvb", BYTES, 3);
          expect(failed).toMatchObject({ ok: false, status: "io_error" });
        }
        plan(text);
        const taken = await storeOne(kit, "ab/one.kvb", BYTES, 4);
        expect(taken).toMatchObject({ ok: false, status: "exists" });
        plan("");
        expect(filesBelow(kit.folder)).toEqual(["ab/one.kvb"]);
        await kit.disk.remove("ab/one.kvb");
      }
    }));

  test("without RENAME_NOREPLACE a rename uses a link and replaces nothing", () =>
    withDisk({ method }, async (kit) => {
      await storeOne(kit, "one.kvb", 100, 3);
      await storeOne(kit, "two.kvb", 100, 4);
      plan("rename.rename:1+:EINVAL");
      expect(await kit.disk.rename("one.kvb", "two.kvb")).toMatchObject({ status: "exists" });
      expect(await kit.disk.rename("one.kvb", "ab/one.kvb")).toMatchObject({ ok: true });
      expect(filesBelow(kit.folder).sort()).toEqual(["ab/one.kvb", "two.kvb"]);
    }));

  test(
    "a start that fails at any step leaves nothing open",
    () =>
      withDisk({ method }, async ({ folder }) => {
        const native = loadNative();
        const options = { bytes: MIB, hugePages: "off", lockMemory: "off" } as const;
        using arena = Region.create(native, options);
        const open = () => openDisk(native, { folder, arena, depth: 4, method });
        plan("count");
        await (await open()).close(1000);
        const hits = Object.entries(faultCounts(native));
        plan("");
        const before = openFiles();
        for (const [name, count] of hits) {
          for (let nth = 1; nth <= Math.min(count, 10); nth++) {
            plan(`${name}:${nth}:ENOMEM`);
            const disk = await open().catch(() => null);
            await disk?.close(1000);
            plan("");
            await expectOpenFiles(before, `${name} ${nth}`);
          }
        }
      }),
    SLOW_MS,
  );

  test("a hung disk blocks no caller: it is full at its depth and orphaned at close", async () => {
    const native = loadNative();
    const folder = tempDir();
    const options = { bytes: 16 * MIB, hugePages: "off", lockMemory: "off" } as const;
    const arena = Region.create(native, options);
    const disk = await openDisk(native, { folder, arena, depth: DEPTH, method });
    const kit = { folder, disk, arena };
    await storeOne(kit, "one.kvb", 100, 3);
    plan("*:1+:freeze");
    const transfer = filled(kit, "one.kvb", 0, 100, 255);
    let settled = 0;
    for (let i = 0; i < DEPTH; i++) void disk.load(transfer).then(() => settled++);
    expect(await disk.load(transfer)).toMatchObject({ ok: false, status: "full" });
    expect(await disk.close(20)).toBeFalse();
    expect(await disk.sync()).toMatchObject({ ok: false, status: "closed" });
    // The kernel may still write to it.
    expect(() => arena[Symbol.dispose]()).toThrow("busy");
    expect(settled).toBe(0);
    plan("");
    await waitFor(() => {
      arena[Symbol.dispose]();
      return true;
    });
  });

  test("a disk frozen for a while continues where it was", () =>
    withDisk({ method }, async (kit) => {
      await storeOne(kit, "one.kvb", BYTES, 3);
      plan("load.read:1:freeze;store.write:1:freeze");
      const loads = [loadOne(kit, "one.kvb", BYTES, 3), storeOne(kit, "two.kvb", 100, 4)];
      await waitFor(() => Object.keys(faultCounts(loadNative())).length >= 5);
      using header = kit.disk.claimHeader()!;
      expect(await kit.disk.peek("one.kvb", header)).toMatchObject({ ok: true });
      expect(kit.disk.inFlight).toBe(2);
      plan("");
      for (const loaded of await Promise.all(loads)) expect(loaded).toMatchObject({ ok: true });
      expect(await loadOne(kit, "two.kvb", 100, 4)).toMatchObject({ right: true });
    }));

  test.each([
    ["store.write:1:kill", false],
    ["store.link:1:kill", false],
    ["store.link:1:kill-after", true],
    ["store.close:1:kill", true],
  ])(
    "killed by %s",
    async (text, isThere) => {
      const folder = tempDir();
      const script = `
      import { loadNative, openDisk, Region, setFaults } from "./src/native/index.ts";
      const native = loadNative();
      const arena = Region.create(native, { bytes: 2 ** 20, hugePages: "off", lockMemory: "off" });
      const [folder, method, plan] = process.argv.slice(1);
      const disk = await openDisk(native, { folder, arena, depth: 4, method });
      setFaults(native, plan);
      const header = disk.claimHeader();
      arena.fill(0, 10_000, 3n);
      header.bytes.fill(3);
      await disk.store({ path: "ab/one.kvb", header, region: arena, offset: 0, bytes: 10_000 });
    `;
      const child = Bun.spawn([process.execPath, "-e", script, folder, method, text], {
        cwd: `${import.meta.dir}/../..`,
      });
      await child.exited;
      expect(child.signalCode).toBe("SIGKILL");
      expect(existsSync(join(folder, "ab/one.kvb"))).toBe(isThere);
      expect(filesBelow(folder)).toEqual(isThere ? ["ab/one.kvb"] : []);
      if (!isThere) return;
      await withDisk({ method, folder }, async (kit) => {
        expect(await loadOne(kit, "ab/one.kvb", 10_000, 3)).toMatchObject({ right: true });
      });
    },
    SLOW_MS,
  );
});

describeMethods("the fault plan", () => {
  test("supports fault points outside the library and refuses an invalid plan", () => {
    const native = loadNative();
    expect(faultPoint(native, "index.commit")).toBe(0);
    plan("index.commit:2:EIO;index.sync:1+:ENOSPC");
    const answers = [1, 2, 3].map(() => faultPoint(native, "index.commit"));
    expect(answers).toEqual([0, 5, 0]);
    expect(faultPoint(native, "index.sync")).toBe(28);
    expect(faultCounts(native)).toEqual({ "index.commit": 3, "index.sync": 1 });
    expect(() => plan("index.commit")).toThrow("bad request");
    expect(() => faultPoint(native, "x".repeat(49))).toThrow("bad request");
    plan("");
    expect(faultPoint(native, "index.sync")).toBe(0);
    expect(faultCounts(native)).toEqual({});
  });
});
