import { expect, test } from "bun:test";
import { type GpuOpened, loadNative, type Native } from "../../src/native/index.ts";
import { describeNative } from "../support/native.ts";
import { waitFor } from "../support/wait.ts";
import { type Bed, KIB, MIB, opened, piece, withGpus } from "./gpus-kit.ts";

const INVALID_VALUE = 1;
const BYTES = 4 * MIB;
const LENT_SEED = 11n;
const ANSWER_SEED = 12n;

/** Script of an engine: exports device memory by handle and by descriptor, and inspects it. */
const LENDER = `
  import { loadNative, openGpus, Region } from "./src/native/index.ts";
  const [library] = process.argv.slice(1);
  const native = loadNative();
  const options = { bytes: ${BYTES}, hugePages: "off", lockMemory: "off" };
  const region = Region.create(native, options);
  const gpus = openGpus(native, {
    region, library, jobsMax: 16, piecesMax: 16, onLost: () => {},
  });
  const all = [{ regionOffset: 0, memoryOffset: 0, bytes: ${BYTES} }];
  const memories = [];
  for (const exportable of [false, true]) {
    const { memory } = await gpus.allocate(0, ${BYTES}, { exportable });
    region.fill(0, ${BYTES}, ${LENT_SEED}n);
    await gpus.toGpu(memory, all);
    memories.push(memory);
  }
  const lent = await gpus.exportIpc(memories[0]);
  const { fd } = await gpus.exportFd(memories[1]);
  native.sendFd(3, new Uint8Array([1]), fd);
  console.log(JSON.stringify({ handle: lent.handle.toHex(), offset: lent.offset }));
  for await (const _ of Bun.stdin.stream()) {
    const wrong = [];
    for (const memory of memories) {
      region.fill(0, ${BYTES}, 0n);
      await gpus.fromGpu(memory, all);
      wrong.push(region.firstWrong(0, ${BYTES}, ${ANSWER_SEED}n));
    }
    console.log(JSON.stringify(wrong));
  }
`;

interface Lender extends Disposable {
  readonly handle: Uint8Array;
  readonly offset: number;
  readonly fd: number;
  /** First position in each memory that differs from the expected content. */
  look(): Promise<(number | null)[]>;
  kill(): Promise<void>;
}

async function lender(native: Native, library: string): Promise<Lender> {
  const [ours, theirs] = native.socketPair();
  const child = Bun.spawn([process.execPath, "-e", LENDER, library], {
    cwd: `${import.meta.dir}/../..`,
    stdio: ["pipe", "pipe", "inherit", theirs],
  });
  native.closeFd(theirs);
  const reader = child.stdout.getReader();
  const line = async () => JSON.parse(new TextDecoder().decode((await reader.read()).value));
  const said = await line();
  const fd = await descriptorFrom(native, ours);
  native.closeFd(ours);
  return {
    handle: Uint8Array.fromHex(said.handle),
    offset: said.offset,
    fd,
    look() {
      child.stdin.write("look\n");
      child.stdin.flush();
      return line();
    },
    async kill() {
      child.kill("SIGKILL");
      await child.exited;
    },
    [Symbol.dispose]: () => child.kill("SIGKILL"),
  };
}

async function descriptorFrom(native: Native, socket: number): Promise<number> {
  let fd: number | null = null;
  await waitFor(() => {
    const received = native.receiveFd(socket, new Uint8Array(1));
    if (typeof received === "object") fd = received.fd;
    return fd !== null;
  });
  return fd!;
}

async function takes(bed: Bed, opening: Promise<GpuOpened>) {
  const memory = await opened(opening);
  bed.region.fill(0, BYTES, 0n);
  expect(await bed.gpus.fromGpu(memory, [piece(0, 0, BYTES)])).toEqual({ ok: true });
  expect(bed.region.firstWrong(0, BYTES, LENT_SEED)).toBe(null);
  bed.region.fill(0, BYTES, ANSWER_SEED);
  expect(await bed.gpus.toGpu(memory, [piece(0, 0, BYTES)])).toEqual({ ok: true });
  return memory;
}

describeNative("memory of another process", () => {
  test("is readable and writable by handle and by descriptor", async () => {
    await withGpus({}, async (bed) => {
      const { gpus, cuda } = bed;
      using other = await lender(loadNative(), cuda.path);
      expect(other.offset).toBe(0);
      const byHandle = await takes(bed, gpus.importIpc(0, other.handle, BYTES));
      const byFd = await takes(bed, gpus.importFd(0, other.fd, BYTES));
      expect(await other.look()).toEqual([null, null]);
      expect(await gpus.free(byHandle)).toEqual({ ok: true });
      expect(await gpus.free(byFd)).toEqual({ ok: true });
      expect(cuda.counters()["open.imports"] ?? 0).toBe(0);
    });
  });

  test("is opened once for several imports, and closed with the last", async () => {
    await withGpus({}, async ({ gpus, cuda }) => {
      using other = await lender(loadNative(), cuda.path);
      loadNative().closeFd(other.fd);
      const first = await opened(gpus.importIpc(0, other.handle, BYTES));
      const second = await opened(gpus.importIpc(0, other.handle, MIB));
      expect(cuda.counters()["calls.cuIpcOpenMemHandle_v2"]).toBe(1);
      expect(await gpus.importIpc(0, other.handle, BYTES + 1)).toMatchObject({
        status: "out_of_range",
      });
      expect(await gpus.free(first)).toEqual({ ok: true });
      expect(await gpus.toGpu(second, [piece(0, 0, MIB)])).toEqual({ ok: true });
      expect(await gpus.toGpu(second, [piece(0, MIB, 1)])).toMatchObject({
        status: "out_of_range",
      });
      expect(await gpus.free(second)).toEqual({ ok: true });
      expect(await gpus.free(second)).toMatchObject({ status: "stale_handle" });
      expect(cuda.counters()["calls.cuIpcCloseMemHandle"]).toBe(1);
      const again = await opened(gpus.importIpc(0, other.handle, BYTES));
      expect(await gpus.toGpu(second, [piece(0, 0, 1)])).toMatchObject({ status: "stale_handle" });
      expect(await gpus.free(again)).toEqual({ ok: true });
    });
  });

  test("is usable only up to its size", async () => {
    await withGpus({}, async ({ gpus, cuda }) => {
      using other = await lender(loadNative(), cuda.path);
      const larger = 64 * MIB;
      expect(await gpus.importIpc(0, other.handle, larger)).toMatchObject({
        status: "out_of_range",
      });
      expect(await gpus.importFd(0, other.fd, larger)).toMatchObject({
        status: "device_failed",
        code: INVALID_VALUE,
      });
      expect(cuda.counters()["open.imports"] ?? 0).toBe(0);
    });
  });

  test("outlives its owner while it is open here", async () => {
    await withGpus({}, async (bed) => {
      const other = await lender(loadNative(), bed.cuda.path);
      const memory = await opened(bed.gpus.importFd(0, other.fd, BYTES));
      await other.kill();
      expect(await bed.gpus.fromGpu(memory, [piece(0, 0, BYTES)])).toEqual({ ok: true });
      expect(bed.region.firstWrong(0, BYTES, LENT_SEED)).toBe(null);
      expect(await bed.gpus.importIpc(0, other.handle, BYTES)).toMatchObject({
        status: "device_failed",
      });
    });
  });

  test("with an invalid handle or descriptor is refused", async () => {
    await withGpus({}, async ({ gpus }) => {
      const nonsense = new Uint8Array(64).fill(7);
      expect(await gpus.importIpc(0, nonsense, MIB)).toMatchObject({ status: "device_failed" });
      expect(await gpus.importFd(0, -1, MIB)).toMatchObject({ status: "bad_request" });
      expect(await gpus.importIpc(7, nonsense, MIB)).toMatchObject({ status: "out_of_range" });
    });
  });

  test.each(["cuIpcOpenMemHandle_v2", "cuMemGetAddressRange_v2", "cuMemMap", "cuMemSetAccess"])(
    "%s fails: nothing stays open",
    async (call) => {
      await withGpus({ plan: `${call}=1` }, async ({ gpus, cuda }) => {
        using other = await lender(loadNative(), cuda.path);
        const byHandle = await gpus.importIpc(0, other.handle, BYTES);
        const byFd = await gpus.importFd(0, other.fd, BYTES);
        expect([byHandle.ok, byFd.ok].filter((ok) => ok).length).toBe(1);
        for (const one of [byHandle, byFd]) if (one.ok) await gpus.free(one.memory);
        expect(cuda.counters()["open.imports"] ?? 0).toBe(0);
      });
    },
  );

  test("is exported to a NIC as a dma-buf in whole pages", async () => {
    await withGpus({}, async ({ gpus, cuda }) => {
      const memory = await opened(gpus.allocate(0, MIB));
      const exported = await gpus.exportDmaBuf(memory, 64 * KIB, 128 * KIB);
      if (!exported.ok) throw new Error("not exported");
      loadNative().closeFd(exported.fd);
      const refused = { ok: false, status: "bad_request" };
      expect(await gpus.exportDmaBuf(memory, 1, 64 * KIB)).toMatchObject(refused);
      expect(await gpus.exportDmaBuf(memory, MIB, 64 * KIB)).toMatchObject({
        status: "out_of_range",
      });
      cuda.configure("+dma-buf=off");
      expect(await gpus.exportDmaBuf(memory, 0, MIB)).toMatchObject({ status: "device_failed" });
    });
  });
});
