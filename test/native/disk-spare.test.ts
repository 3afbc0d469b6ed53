import { expect, test } from "bun:test";
import { linkSync, statSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { loadNative, setFaults } from "../../src/native/index.ts";
import { faultCounts } from "../support/index.ts";
import {
  describeMethods,
  filesBelow,
  filled,
  type Kit,
  loadOne,
  storeOne,
  withDisk,
} from "./disk-kit.ts";

const BYTES = 10_000;
const SPARE = "ab/.0.tmp";

const plan = (text: string) => setFaults(loadNative(), text);

/** A block of `seed` under the name of a spare file. */
async function makeSpare(kit: Kit, seed: number, bytes = BYTES): Promise<number> {
  await storeOne(kit, "ab/old.kvb", bytes, seed);
  expect(await kit.disk.rename("ab/old.kvb", SPARE)).toMatchObject({ ok: true });
  return inodeOf(kit, SPARE);
}

const inodeOf = (kit: Kit, path: string) => statSync(join(kit.folder, path)).ino;

async function storeOver(kit: Kit, path: string, seed: number, spare = SPARE) {
  const transfer = filled(kit, path, 0, BYTES, seed);
  const stored = await kit.disk.store({ ...transfer, spare });
  transfer.header[Symbol.dispose]();
  return stored;
}

describeMethods("a disk that overwrites spare files", (method) => {
  test("the spare file becomes the new block, in the block's folder", () =>
    withDisk({ method }, async (kit) => {
      const inode = await makeSpare(kit, 3);
      expect(await storeOver(kit, "cd/new.kvb", 4)).toMatchObject({ ok: true });
      expect(filesBelow(kit.folder)).toEqual(["cd/new.kvb"]);
      expect(inodeOf(kit, "cd/new.kvb")).toBe(inode);
      expect(await loadOne(kit, "cd/new.kvb", BYTES, 4)).toMatchObject({ right: true });
    }));

  test("a file with another length, with a second name, or missing is not used as a spare", () =>
    withDisk({ method }, async (kit) => {
      const refused = { ok: false, status: "missing" };
      expect(await storeOver(kit, "cd/new.kvb", 4)).toMatchObject(refused);
      for (const bytes of [BYTES - 4_096, BYTES + 4_096]) {
        await makeSpare(kit, 3, bytes);
        expect(await storeOver(kit, "cd/new.kvb", 4)).toMatchObject(refused);
        expect(await loadOne(kit, SPARE, bytes, 3)).toMatchObject({ right: true });
        await kit.disk.remove(SPARE);
      }
      await makeSpare(kit, 3);
      linkSync(join(kit.folder, SPARE), join(kit.folder, "backup"));
      expect(await storeOver(kit, "cd/new.kvb", 4)).toMatchObject(refused);
      expect(await loadOne(kit, "backup", BYTES, 3)).toMatchObject({ right: true });
      symlinkSync("backup", join(kit.folder, "link"));
      expect(await storeOver(kit, "cd/new.kvb", 4, "link")).toMatchObject({ ok: false });
      expect(await loadOne(kit, "backup", BYTES, 3)).toMatchObject({ right: true });
    }));

  test("a path that leads out of the folder is refused", () =>
    withDisk({ method }, async (kit) => {
      const refused = { ok: false, status: "bad_request" };
      expect(await storeOver(kit, "new.kvb", 4, "../x.tmp")).toMatchObject(refused);
    }));

  test("a taken name keeps its file, and the spare file is kept", () =>
    withDisk({ method }, async (kit) => {
      await storeOne(kit, "cd/new.kvb", BYTES, 5);
      await makeSpare(kit, 3);
      const refused = { ok: false, status: "exists" };
      expect(await storeOver(kit, "cd/new.kvb", 4)).toMatchObject(refused);
      expect(await loadOne(kit, "cd/new.kvb", BYTES, 5)).toMatchObject({ right: true });
      expect(filesBelow(kit.folder).sort()).toEqual([SPARE, "cd/new.kvb"]);
    }));

  test("each failing call leaves the spare file, and nothing under the block's name", () =>
    withDisk({ method }, async (kit) => {
      for (const call of ["reuse", "measure", "write", "stat", "rename"]) {
        for (const errno of ["EIO", "ENOSPC", "EROFS"]) {
          await makeSpare(kit, 3);
          plan(`store.${call}:1:${errno}`);
          const failed = await storeOver(kit, "ab/new.kvb", 4);
          expect(faultCounts(loadNative())[`store.${call}`]).toBe(1);
          plan("");
          const status = { EIO: "io_error", ENOSPC: "no_space", EROFS: "read_only" }[errno]!;
          expect(failed).toMatchObject({ ok: false, status });
          expect(filesBelow(kit.folder)).toEqual([SPARE]);
          await kit.disk.remove(SPARE);
        }
      }
      await makeSpare(kit, 3);
      plan("store.write:1:short");
      expect(await storeOver(kit, "ab/new.kvb", 4)).toMatchObject({ ok: true });
      expect(await loadOne(kit, "ab/new.kvb", BYTES, 4)).toMatchObject({ right: true });
    }));

  test("without RENAME_NOREPLACE the rename uses a link and replaces nothing", () =>
    withDisk({ method }, async (kit) => {
      const inode = await makeSpare(kit, 3);
      await storeOne(kit, "ab/one.kvb", BYTES, 5);
      plan("store.rename:1+:EINVAL");
      expect(await storeOver(kit, "ab/one.kvb", 4)).toMatchObject({ status: "exists" });
      expect(await storeOver(kit, "ef/new.kvb", 4)).toMatchObject({ ok: true });
      expect(inodeOf(kit, "ef/new.kvb")).toBe(inode);
      expect(filesBelow(kit.folder).sort()).toEqual(["ab/one.kvb", "ef/new.kvb"]);
    }));
});
