import { describe, expect, test } from "bun:test";
import { loadNative, openDisk, setFaults } from "../../src/native/index.ts";
import { tempDir } from "../support/index.ts";
import { describePython } from "../support/python.ts";
import {
  describeMethods,
  loadOne,
  registrationOver,
  SLOW_MS,
  storeOne,
  withDisk,
} from "./disk-kit.ts";

/** Stores and loads one block with any method and prints the method. */
const SCRIPT = `
  import { loadNative, openDisk, Region } from "./src/native/index.ts";
  const native = loadNative();
  const [folder, method] = process.argv.slice(1);
  const bytes = 8 * 2 ** 20;
  const arena = Region.create(native, { bytes, hugePages: "off", lockMemory: "off" });
  arena.fill(0, 2 ** 20, 3n);
  const sum = arena.checksum(0, 2 ** 20);
  try {
    const disk = await openDisk(native, { folder, arena, depth: 4, method });
    const header = disk.claimHeader();
    const transfer = { path: "one.kvb", header, region: arena, offset: 0, bytes: 2 ** 20 };
    const stored = await disk.store(transfer);
    const loaded = await disk.load({ ...transfer, offset: 2 ** 21 });
    const right = stored.ok && loaded.ok && loaded.checksum === sum;
    console.log(disk.method, disk.registered, right, disk.methodReason);
    await disk.close(1000);
  } catch (error) {
    console.log(error.message);
  }
`;

/** io_uring_setup answers EPERM, as in a container. */
const DENY_IO_URING = `
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
IO_URING_SETUP, EPERM = 425, 1
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, IO_URING_SETUP), (6, 0, 0, 0x50000 | EPERM),
         (6, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code)))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program, 0, 0) == 0, os.strerror(ctypes.get_errno())
os.execv(sys.argv[1], sys.argv[1:])
`;

/** 64 KiB of lockable memory, and no privilege to raise it. */
const LITTLE_MEMLOCK = `
import ctypes, os, resource, sys
ctypes.CDLL(None).prctl(24, 14, 0, 0, 0)
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
os.execv(sys.argv[1], sys.argv[1:])
`;

async function runUnder(python: string, wrapper: string, method: string): Promise<string> {
  const words = [process.execPath, "-e", SCRIPT, tempDir(), method];
  const cwd = `${import.meta.dir}/../..`;
  const child = Bun.spawn([python, "-c", wrapper, ...words], { cwd, stderr: "inherit" });
  return (await new Response(child.stdout).text()).trim();
}

const canRing = () => loadNative().probeIoUring().ok;

describePython("a disk on a host", (python) => {
  test(
    "that denies io_uring uses threads and reports the reason",
    async () => {
      const printed = await runUnder(python, DENY_IO_URING, "auto");
      expect(printed).toBe("threads false true io_uring refused: EPERM");
      const demanded = await runUnder(python, DENY_IO_URING, "io_uring");
      expect(demanded).toContain("not permitted");
      const asked = await runUnder(python, DENY_IO_URING, "threads");
      expect(asked).toBe("threads false true configured");
    },
    SLOW_MS,
  );

  test(
    "with little lockable memory works without registration",
    async () => {
      const printed = await runUnder(python, LITTLE_MEMLOCK, "auto");
      const method = canRing() ? "io_uring false true io_uring is available" : "threads";
      expect(printed).toStartWith(method);
    },
    SLOW_MS,
  );
});

function ringTests(): void {
  const method = "io_uring";
  test.each(["ring.setup", "ring.map", "ring.enable"])(
    "fails at %s falls back to threads, unless io_uring is required",
    (call) =>
      withDisk({ method }, async ({ folder, arena }) => {
        const native = loadNative();
        setFaults(native, `${call}:1+:EPERM`);
        const options = { folder, arena, depth: 4 };
        await using disk = await openDisk(native, { ...options, method: "auto" });
        expect(disk.method).toBe("threads");
        expect(disk.registered).toBeFalse();
        if (call !== "ring.map") expect(disk.methodReason).toContain("EPERM");
        expect(await storeOne({ folder, disk, arena }, "one.kvb", 9000, 3)).toMatchObject({
          ok: true,
        });
        await expect(openDisk(native, { ...options, method: "io_uring" })).rejects.toThrow();
      }),
  );

  test("cannot register the arena works without registration", async () => {
    const native = loadNative();
    for (const nth of [1, 2]) {
      setFaults(native, `ring.register:${nth}:ENOMEM`);
      await withDisk({ method }, async (kit) => {
        expect(kit.disk).toMatchObject({ method: "io_uring", registered: false });
        expect(await storeOne(kit, "one.kvb", 9000, 3)).toMatchObject({ ok: true });
        expect(await loadOne(kit, "one.kvb", 9000, 3)).toMatchObject({ right: true });
      });
    }
    setFaults(native, "");
    await withDisk({ method }, async (kit) => expect(kit.disk.registered).toBeTrue());
  });

  test("registers slowly is usable meanwhile", () =>
    withDisk({ method }, async ({ folder, arena }) => {
      // The first hit is for the memory, the second for the call.
      setFaults(loadNative(), "ring.register:2:delay=500");
      await using disk = await openDisk(loadNative(), { folder, arena, depth: 4, method });
      expect(disk).toMatchObject({ method: "io_uring", registered: false, registering: true });
      const kit = { folder, disk, arena };
      expect(await storeOne(kit, "one.kvb", 9000, 3)).toMatchObject({ ok: true });
      expect(await loadOne(kit, "one.kvb", 9000, 3)).toMatchObject({ right: true });
      expect(disk.registering).toBeTrue();
      await registrationOver(disk);
      expect(disk.registered).toBeTrue();
      expect(await loadOne(kit, "one.kvb", 9000, 3)).toMatchObject({ right: true });
    }));

  test("is refused by the kernel fails its jobs, not the disk", () =>
    withDisk({ method }, async (kit) => {
      const native = loadNative();
      setFaults(native, "ring.enter:1:EAGAIN;ring.enter:3:EINTR");
      expect(await storeOne(kit, "one.kvb", 9000, 3)).toMatchObject({ ok: true });
      expect(await loadOne(kit, "one.kvb", 9000, 3)).toMatchObject({ right: true });
      setFaults(native, "ring.enter:1+:EIO");
      const failed = { ok: false, status: "io_error" };
      expect(await storeOne(kit, "two.kvb", 9000, 3)).toMatchObject(failed);
      expect(await loadOne(kit, "one.kvb", 9000, 3)).toMatchObject(failed);
      setFaults(native, "");
      expect(await loadOne(kit, "one.kvb", 9000, 3)).toMatchObject({ right: true });
    }));
}

describeMethods("a disk", (method) => {
  if (method === "io_uring") describe("whose ring", ringTests);

  test("that is denied O_DIRECT uses buffered I/O and reports it", () =>
    withDisk({ method }, async ({ folder, arena }) => {
      const native = loadNative();
      setFaults(native, "open.probe:1:EINVAL");
      await using disk = await openDisk(native, { folder, arena, depth: 4, method });
      expect(disk.direct).toBeFalse();
      const kit = { folder, disk, arena };
      expect(await storeOne(kit, "one.kvb", 9001, 3)).toMatchObject({ ok: true });
      expect(await loadOne(kit, "one.kvb", 9001, 3)).toMatchObject({ right: true });
    }));
});
