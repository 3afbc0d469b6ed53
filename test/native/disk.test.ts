import { expect, test } from "bun:test";
import {
  mkdirSync,
  readFileSync,
  statfsSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { loadNative, nativeBuffer, openDisk, Region } from "../../src/native/index.ts";
import { noteSkip } from "../support/index.ts";
import {
  DEPTH,
  describeMethods,
  expectOpenFiles,
  filesBelow,
  filled,
  loadOne,
  MIB,
  openFiles,
  PAGE,
  SLOW_MS,
  storeOne,
  withDisk,
} from "./disk-kit.ts";

const SIZES = [1, 4095, 4096, 4097, 65_536, MIB - 1, MIB + 1, 8 * MIB];

function pages(bytes: number): number {
  return Math.ceil(bytes / PAGE) * PAGE;
}

describeMethods("a disk", (method) => {
  test("reports its method", () =>
    withDisk({ method }, async ({ disk }) => {
      expect(disk.method).toBe(method);
      expect(disk.methodReason).toBe("configured");
      expect(disk.depth).toBe(DEPTH);
      if (method === "threads") expect(disk.registered).toBeFalse();
    }));

  test.each(SIZES)(
    "%d bytes come back as they went, with their checksum",
    (bytes) =>
      withDisk({ method }, async (kit) => {
        const stored = await storeOne(kit, "ab/one.kvb", bytes, 3);
        const fileBytes = PAGE + pages(bytes);
        expect(stored).toMatchObject({ ok: true });
        if (stored.ok) expect(stored.allocatedBytes).toBeGreaterThanOrEqual(fileBytes);
        const loaded = await loadOne(kit, "ab/one.kvb", bytes, 3);
        expect(loaded).toMatchObject({ ok: true, right: true, fileBytes });
        const file = readFileSync(join(kit.folder, "ab/one.kvb"));
        expect(file.length).toBe(fileBytes);
      }),
    SLOW_MS,
  );

  test("bytes after the payload in its last page are not written to the file", () =>
    withDisk({ method }, async (kit) => {
      kit.arena.fill(0, 4 * PAGE, 9n);
      const transfer = filled(kit, "ab/one.kvb", 0, PAGE + 10, 3);
      using _header = transfer.header;
      expect(await kit.disk.store(transfer)).toMatchObject({ ok: true });
      const file = readFileSync(join(kit.folder, "ab/one.kvb"));
      expect(file.subarray(2 * PAGE + 10).every((byte) => byte === 0)).toBeTrue();
      // The next slot belongs to another block.
      const next = nativeBuffer(PAGE);
      kit.arena.copyOut(2 * PAGE, next, PAGE, false);
      expect(next.bytes.some((byte) => byte !== 0)).toBeTrue();
    }));

  test("an existing file is left alone", () =>
    withDisk({ method }, async (kit) => {
      await storeOne(kit, "ab/one.kvb", 5000, 3);
      expect(await storeOne(kit, "ab/one.kvb", 9000, 4)).toMatchObject({ status: "exists" });
      expect(await loadOne(kit, "ab/one.kvb", 5000, 3)).toMatchObject({ right: true });
      expect(filesBelow(kit.folder)).toEqual(["ab/one.kvb"]);
    }));

  test("a missing file is missing for every operation", () =>
    withDisk({ method }, async (kit) => {
      const { disk } = kit;
      const missing = { ok: false, status: "missing" };
      using header = disk.claimHeader()!;
      for (const path of ["one.kvb", "ab/one.kvb"]) {
        expect(await loadOne(kit, path, 10, 3)).toMatchObject(missing);
        expect(await disk.peek(path, header)).toMatchObject(missing);
        expect(await disk.remove(path)).toMatchObject(missing);
        expect(await disk.rename(path, "aside/one.kvb")).toMatchObject(missing);
        expect(await disk.list(path)).toMatchObject(missing);
      }
    }));

  test("a file that is too short is short, and the memory after it is untouched", () =>
    withDisk({ method }, async (kit) => {
      await storeOne(kit, "one.kvb", 3 * PAGE, 3);
      const short = { ok: false, status: "short" };
      expect(await loadOne(kit, "one.kvb", 3 * PAGE + 1, 3)).toMatchObject(short);
      truncateSync(join(kit.folder, "one.kvb"), 4 * PAGE - 1);
      expect(await loadOne(kit, "one.kvb", 3 * PAGE, 3)).toMatchObject(short);
      expect(await loadOne(kit, "one.kvb", 3 * PAGE - 1, 3)).toMatchObject({ ok: true });
      truncateSync(join(kit.folder, "one.kvb"), 100);
      using header = kit.disk.claimHeader()!;
      expect(await kit.disk.peek("one.kvb", header)).toMatchObject(short);
    }));

  test("peek reads only the header", () =>
    withDisk({ method }, async (kit) => {
      await storeOne(kit, "one.kvb", 9000, 3);
      using header = kit.disk.claimHeader()!;
      const fileBytes = PAGE + pages(9000);
      expect(await kit.disk.peek("one.kvb", header)).toEqual({ ok: true, fileBytes });
      expect(header.bytes.every((byte) => byte === 3)).toBeTrue();
    }));

  test("operations up to its depth run at once; another is full immediately", () =>
    withDisk({ method, arenaBytes: DEPTH * 2 ** 16 }, async (kit) => {
      const transfers = Array.from({ length: DEPTH }, (_, i) =>
        filled(kit, `${(i % 7).toString(16)}0/${i}.kvb`, i * 2 ** 16, 60_000 + i, i),
      );
      expect(kit.disk.claimHeader()).toBeNull();
      const stores = transfers.map((transfer) => kit.disk.store(transfer));
      expect(kit.disk.inFlight).toBe(DEPTH);
      expect(await kit.disk.space()).toMatchObject({ ok: false, status: "full" });
      for (const stored of await Promise.all(stores)) expect(stored).toMatchObject({ ok: true });
      for (const { header, offset } of transfers) {
        header.bytes.fill(255);
        kit.arena.fill(offset, 2 ** 16, 255n);
      }
      const loads = await Promise.all(transfers.map((transfer) => kit.disk.load(transfer)));
      for (const [i, loaded] of loads.entries()) {
        const { header, offset, bytes } = transfers[i]!;
        expect(kit.arena.firstWrong(offset, bytes, BigInt(i))).toBeNull();
        expect(loaded).toMatchObject({ ok: true, checksum: kit.arena.checksum(offset, bytes) });
        expect(header.bytes.every((byte) => byte === i)).toBeTrue();
        header[Symbol.dispose]();
        header[Symbol.dispose]();
      }
      expect(Array.from({ length: DEPTH + 1 }, () => kit.disk.claimHeader()).at(-1)).toBeNull();
    }));

  test("a rename creates folders and replaces nothing", () =>
    withDisk({ method }, async (kit) => {
      await storeOne(kit, "ab/one.kvb", 100, 3);
      await storeOne(kit, "ab/two.kvb", 100, 4);
      expect(await kit.disk.rename("ab/one.kvb", "aside/one.kvb")).toMatchObject({ ok: true });
      const over = await kit.disk.rename("ab/two.kvb", "aside/one.kvb");
      expect(over).toMatchObject({ ok: false, status: "exists" });
      expect(await loadOne(kit, "aside/one.kvb", 100, 3)).toMatchObject({ right: true });
      expect(filesBelow(kit.folder).sort()).toEqual(["ab/two.kvb", "aside/one.kvb"]);
    }));

  test(
    "a folder of 2,000 files is listed completely",
    () =>
      withDisk({ method }, async ({ folder, disk }) => {
        mkdirSync(join(folder, "ab"));
        const names = Array.from({ length: 2000 }, (_, i) => `${i}`.padStart(16, "0"));
        for (const [i, name] of names.entries()) {
          writeFileSync(join(folder, "ab", name), "x".repeat(i % 50));
        }
        const listed = await disk.list("ab");
        if (!listed.ok) throw new Error(listed.status);
        const entries = [...listed.entries].sort((a, b) => (a.name < b.name ? -1 : 1));
        expect(entries.map((entry) => entry.name)).toEqual(names);
        expect(entries.map((entry) => entry.bytes)).toEqual(names.map((_, i) => i % 50));
        expect(await disk.list("")).toMatchObject({ entries: [{ name: "ab" }] });
        mkdirSync(join(folder, "empty"));
        expect(await disk.list("empty")).toEqual({ ok: true, entries: [] });
      }),
    SLOW_MS,
  );

  test("ext4 places its folders far from each other", () =>
    withDisk({ method }, async (kit) => {
      const ext4 = 0xef53;
      if (statfsSync(kit.folder).type !== ext4) {
        return noteSkip("folders far from each other", "the temporary folder is not on ext4");
      }
      const shards = ["a0", "b1", "c2", "d3"];
      for (const shard of shards) await storeOne(kit, `${shard}/one.kvb`, 100, 3);
      const inodes = shards.map((shard) => statSync(join(kit.folder, shard)).ino);
      inodes.sort((a, b) => a - b);
      const gaps = inodes.slice(1).map((inode, i) => inode - inodes[i]!);
      // A group has thousands of inodes.
      expect(Math.min(...gaps)).toBeGreaterThan(500);
    }));

  test(
    "sync and space return results",
    () =>
      withDisk({ method }, async ({ disk }) => {
        expect(await disk.sync()).toMatchObject({ ok: true });
        const space = await disk.space();
        if (!space.ok) throw new Error(space.status);
        expect(space.totalBytes).toBeGreaterThan(space.freeBytes);
        expect(space.freeBytes).toBeGreaterThan(0);
      }),
    SLOW_MS,
  );

  test("paths outside the folder and transfers outside their memory are refused", () =>
    withDisk({ method, arenaBytes: 2 * PAGE }, async (kit) => {
      const { disk } = kit;
      const transfer = filled(kit, "one.kvb", 0, PAGE, 3);
      using _header = transfer.header;
      const refused = { ok: false, status: "bad_request" };
      for (const path of ["", "/tmp/one.kvb", "../one.kvb", "ab/../../one.kvb"]) {
        expect(await disk.store({ ...transfer, path })).toMatchObject(refused);
        expect(await disk.remove(path)).toMatchObject(refused);
        expect(await disk.rename("one.kvb", path)).toMatchObject(refused);
      }
      expect(await disk.store({ ...transfer, offset: 512 })).toMatchObject(refused);
      expect(await disk.store({ ...transfer, bytes: 0 })).toMatchObject(refused);
      const outside = { ok: false, status: "out_of_range" };
      expect(await disk.load({ ...transfer, bytes: 2 * PAGE + 1 })).toMatchObject(outside);
      expect(() => disk.remove("x".repeat(64))).toThrow("63 characters");
      expect(() => disk.remove("ä")).toThrow("ASCII");
      const foreign = { bytes: new Uint8Array(PAGE), [Symbol.dispose]() {} };
      await expect(disk.peek("one.kvb", foreign)).rejects.toThrow("claimed");
      expect(filesBelow(kit.folder)).toEqual([]);
    }));

  test("a symbolic link is not followed", () =>
    withDisk({ method }, async (kit) => {
      await storeOne(kit, "one.kvb", 100, 3);
      symlinkSync("one.kvb", join(kit.folder, "two.kvb"));
      expect(await loadOne(kit, "two.kvb", 100, 3)).toMatchObject({ ok: false });
    }));

  test("regions other than the arena are usable", () =>
    withDisk({ method, arena: null }, async (kit) => {
      expect(kit.disk.registered).toBeFalse();
      await storeOne(kit, "one.kvb", 100_000, 3);
      expect(await loadOne(kit, "one.kvb", 100_000, 3)).toMatchObject({ right: true });
    }));

  test("nothing stays open, and operations of a closed disk are closed", async () => {
    await withDisk({ method }, () => Promise.resolve());
    const before = openFiles();
    await withDisk({ method }, async (kit) => {
      const during = openFiles();
      for (let i = 0; i < 30; i++) {
        await storeOne(kit, "ab/one.kvb", 5000, 3);
        await loadOne(kit, "ab/one.kvb", i * 1000 + 1, 3);
        await kit.disk.list(i % 2 === 0 ? "ab" : "cd");
      }
      await expectOpenFiles(during, "while it works");
      expect(await kit.disk.close(1000)).toBeTrue();
      expect(await kit.disk.close(1000)).toBeTrue();
      expect(await kit.disk.sync()).toMatchObject({ ok: false, status: "closed" });
    });
    await expectOpenFiles(before, "after the disk");
  });

  test("a missing folder, and a file in its place, are refused", () =>
    withDisk({ method }, async ({ folder }) => {
      const before = openFiles();
      const native = loadNative();
      writeFileSync(join(folder, "file"), "x");
      const options = { bytes: MIB, hugePages: "off", lockMemory: "off" } as const;
      using arena = Region.create(native, options);
      for (const name of ["none", "file", `none\0${folder}`]) {
        const opened = openDisk(native, { folder: join(folder, name), arena, depth: 4, method });
        await expect(opened).rejects.toThrow("openDisk");
      }
      await expectOpenFiles(before + 1, "none of the folders");
    }));
});
