import { expect, test } from "bun:test";
import { existsSync, openSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { loadNative, NativeError, nativeBuffer, Queue, Region } from "../../src/native/index.ts";
import { describeNative, withTempDir } from "../support/index.ts";

const MIB = 2 ** 20;

function arena(bytes = MIB): Region {
  return Region.create(loadNative(), { bytes, hugePages: "off", lockMemory: "off" });
}

function statusOf(run: () => unknown): string {
  try {
    run();
  } catch (error) {
    if (error instanceof NativeError) return error.status;
    throw error;
  }
  return "ok";
}

describeNative("regions", () => {
  test("bytes are copied in and out unchanged, with the checksum of both copies", () => {
    using region = arena();
    const from = nativeBuffer(5000);
    crypto.getRandomValues(from.bytes);
    const sent = region.copyIn(4096, from, 5000, true);
    const into = nativeBuffer(5000);
    expect(region.copyOut(4096, into, 5000, true)).toBe(sent);
    expect(into.bytes).toEqual(from.bytes);
    expect(sent).toBe(Bun.hash.xxHash3(from.bytes));
    expect(region.checksum(4096, 5000)).toBe(sent);
  });

  test("a pattern detects another seed, a shift and one wrong byte", () => {
    using region = arena();
    region.fill(0, 100_000, 42n);
    expect(region.firstWrong(0, 100_000, 42n)).toBeNull();
    expect(region.firstWrong(0, 100_000, 43n)).not.toBeNull();
    expect(region.firstWrong(8, 99_000, 42n)).not.toBeNull();
    const one = nativeBuffer(1);
    region.copyOut(70_001, one, 1, false);
    one.bytes[0] = one.bytes[0]! ^ 1;
    region.copyIn(70_001, one, 1, false);
    expect(region.firstWrong(0, 100_000, 42n)).toBe(70_001);
  });

  test("any part of it is usable as memory", () => {
    // The region lives as long as the process, because views of it exist. Only touched pages use
    // memory.
    const region = arena(2 ** 31 + 2 ** 30);
    const into = nativeBuffer(9_000);
    for (const offset of [0, 4_097, 2 ** 30 - 1, 2 ** 30, 2 ** 31 - 5_000, 3 * 2 ** 30 - 9_000]) {
      region.fill(offset, 9_000, BigInt(offset));
      region.copyOut(offset, into, 9_000, false);
      const span = region.span(offset, 9_000);
      expect(span).toEqual(into.bytes);
      span.set([1, 2, 3], 8_997);
      expect(region.firstWrong(offset, 9_000, BigInt(offset))).toBe(8_997);
    }
    expect(region.span(5, 0)).toHaveLength(0);
    expect(region.span(2 ** 29, 2 ** 30)).toHaveLength(2 ** 30);
    expect(() => region.span(3 * 2 ** 30 - 1, 2)).toThrow("inside the region");
    expect(() => region.span(-1, 2)).toThrow("inside the region");
    expect(() => region.span(0, 2 ** 30 + 1)).toThrow("at most half");
  });

  test("spans outside are refused and access nothing", () => {
    using region = arena(4096);
    const some = nativeBuffer(64);
    expect(statusOf(() => region.copyIn(4095, some, 2, false))).toBe("out_of_range");
    expect(statusOf(() => region.copyOut(4097, some, 0, false))).toBe("out_of_range");
    expect(statusOf(() => region.fill(0, 4097, 1n))).toBe("out_of_range");
    expect(statusOf(() => region.checksum(2 ** 52, 1))).toBe("out_of_range");
  });

  test("odd sizes and impossible options are refused", () => {
    expect(statusOf(() => arena(5000))).toBe("bad_request");
    expect(statusOf(() => arena(0))).toBe("bad_request");
    const wish = { bytes: 4096, hugePages: "require", lockMemory: "off" } as const;
    expect(statusOf(() => Region.create(loadNative(), wish))).toBe("bad_request");
  });

  test("a second view sees the same bytes; a read-only one cannot write", () => {
    const native = loadNative();
    using region = arena();
    const path = `/proc/self/fd/${region.fd}`;
    const fd = openSync(path, "r");
    using view = Region.map(native, { fd, bytes: MIB, writable: false });
    region.fill(0, 4096, 7n);
    expect(view.firstWrong(0, 4096, 7n)).toBeNull();
    expect(statusOf(() => view.fill(0, 4096, 8n))).toBe("not_permitted");
    const again = openSync(path, "r");
    const tooLong = { fd: again, bytes: 2 * MIB, writable: false };
    expect(statusOf(() => Region.map(native, tooLong))).toBe("out_of_range");
    native.closeFd(again);
  });

  test("the arena of an ended process is taken over with its bytes", async () => {
    using region = arena();
    region.fill(0, MIB, 77n);
    const script = `
      import { loadNative, Region } from "./src/native/index.ts";
      const options = { fd: 3, bytes: ${MIB}, lockMemory: "try" };
      const region = Region.adopt(loadNative(), options);
      const descriptor = await Bun.file("/proc/self/fdinfo/3").text();
      const isClosedOnExec = /^flags:\\s+02\\d{6}$/m.test(descriptor);
      const { populatedBytes } = region.state();
      console.log(region.firstWrong(0, ${MIB}, 77n), populatedBytes, isClosedOnExec);
      region.fill(0, 4096, 78n);
    `;
    const child = Bun.spawn([process.execPath, "-e", script], {
      cwd: `${import.meta.dir}/../..`,
      stdio: ["ignore", "pipe", "inherit", region.fd],
    });
    expect(await new Response(child.stdout).text()).toBe(`null ${MIB} true\n`);
    expect(await child.exited).toBe(0);
    expect(region.firstWrong(0, 4096, 78n)).toBeNull();
  });

  test("an arena of another size or with other seals is not taken over", () => {
    const native = loadNative();
    using region = arena();
    const fd = openSync(`/proc/self/fd/${region.fd}`, "r+");
    const adopt = (bytes: number) => Region.adopt(native, { fd, bytes, lockMemory: "off" });
    expect(statusOf(() => adopt(2 * MIB))).toBe("out_of_range");
    expect(statusOf(() => adopt(MIB / 2))).toBe("out_of_range");
    expect(statusOf(() => adopt(5000))).toBe("bad_request");
    adopt(MIB)[Symbol.dispose]();
    expect(statusOf(() => native.closeFd(fd))).toBe("system");
  });

  test("pages are combined into huge ones if requested", async () => {
    const native = loadNative();
    await using queue = new Queue(native, { entries: 8, threads: 1, watches: 1 });
    const bytes = 8 * MIB;
    using plain = Region.create(native, { bytes, hugePages: "off", lockMemory: "off" });
    await queue.populate(plain, 0, bytes);
    expect(plain.state().hugeBytes).toBe(0);
    using huge = Region.create(native, { bytes, hugePages: "try", lockMemory: "off" });
    huge.fill(2 * MIB, 100, 5n);
    expect(await queue.populate(huge, 4096, bytes - 4096)).toMatchObject({ ok: true });
    // Not on every host: a kernel before 6.1, or fragmented memory, provides none.
    expect([0, 6 * MIB]).toContain(huge.state().hugeBytes);
    expect(huge.firstWrong(2 * MIB, 100, 5n)).toBeNull();
  });

  test("an unsealed file is not mapped, because its owner could truncate it", async () => {
    const native = loadNative();
    await withTempDir(async (folder) => {
      const path = join(folder, "arena");
      writeFileSync(path, new Uint8Array(MIB));
      const fd = openSync(path, "r+");
      const map = () => Region.map(native, { fd, bytes: MIB, writable: true });
      expect(statusOf(map)).not.toBe("ok");
      native.closeFd(fd);
    });
  });

  test("a node is preferred for whole pages, and a missing node is not an error", () => {
    using region = arena();
    expect(region.preferNode(0, 8_192, 1_023)).toBe(false);
    expect(statusOf(() => region.preferNode(1, 4_096, 0))).toBe("bad_request");
    expect(statusOf(() => region.preferNode(0, 4_096, 1_024))).toBe("bad_request");
    expect(statusOf(() => region.preferNode(MIB, 4_096, 0))).toBe("out_of_range");
    // Every kernel that supports nodes has node 0.
    expect(region.preferNode(0, MIB, 0)).toBe(existsSync("/sys/devices/system/node/node0"));
    region.fill(0, MIB, 3n);
    expect(region.firstWrong(0, MIB, 3n)).toBeNull();
  });
});
