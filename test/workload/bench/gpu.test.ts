import { expect, test } from "bun:test";
import { runCli } from "../../../src/cli/index.ts";
import { memoryIo } from "../../cli/memory-io.ts";
import { describeNative } from "../../support/index.ts";
import { standIn } from "../../support/stand-ins.ts";

const MIB = 2 ** 20;
const RATES = ["h2d", "d2h", "h2d_1mib", "d2h_1mib", "scatter", "gather"];
const BARE = ["bare_h2d_gbps", "bare_d2h_gbps", "bare_64kib_h2d_gbps", "bare_64kib_d2h_gbps"];

async function benchGpu(...words: string[]) {
  const io = memoryIo();
  const code = await runCli(["bench", "gpu", "--json", ...words], io);
  return { code, err: io.errText(), record: code === 0 ? JSON.parse(io.outText()) : null };
}

describeNative("bench gpu", () => {
  const cuda = standIn("libcuda.so.1");
  const quick = ["--library", cuda.path, "--bytes", "32MiB", "--rounds", "1"];

  test("rates of pieces of each size beside the plain loop, and nothing left open", async () => {
    cuda.configure("");
    const { code, err, record } = await benchGpu(...quick);
    expect({ code, err }).toEqual({ code: 0, err: "" });
    expect(record).toMatchObject({
      device: "Stand-in GPU 0",
      driver: "12.8",
      stand_in: true,
      batches: true,
      bytes: 32 * MIB,
      rounds: 1,
      pageable: 0,
      wrong: 0,
    });
    for (const name of BARE) expect(record[name]).toBeGreaterThan(0);
    for (const name of RATES) {
      expect(record[`${name}_gbps`]).toBeGreaterThan(0);
      expect(record[`${name}_of_bare`]).toBeGreaterThan(0);
    }
    const counters = cuda.counters();
    // 512 pieces of 64 KiB each way, in this round and the first one, were no calls of their own.
    expect(counters.batches).toBeGreaterThan(0);
    for (const [name, count] of Object.entries(counters)) {
      if (name.startsWith("open.")) expect([name, count]).toEqual([name, 0]);
      expect(name).not.toStartWith("misuse");
    }
  });

  test("a byte that comes back wrong is counted", async () => {
    // The plain loop copies first: 2 of 16 MiB and 512 of 64 KiB each way.
    cuda.configure(`flip@${2 * (2 + 512) + 1}`);
    const { code, record } = await benchGpu(...quick);
    expect(code).toBe(0);
    expect(record.wrong).toBe(1);
  });

  test.each(["copy=700@1300", "copy=700@20"])(
    "%s: a lost device ends bench gpu with a message",
    async (plan) => {
      cuda.configure(plan);
      const { code, err } = await benchGpu(...quick);
      cuda.configure("");
      expect(code).toBe(4);
      expect(err).toContain("CUDA error 700");
    },
  );

  test("bench gpu without a driver, a GPU or the GPU named ends with a message", async () => {
    const none = await benchGpu("--library", "/nowhere/libcuda.so.1");
    expect(none).toMatchObject({ code: 4, err: expect.stringContaining("libcuda.so.1 not found") });
    cuda.configure("devices=0");
    const empty = await benchGpu(...quick);
    expect(empty).toMatchObject({
      code: 4,
      err: expect.stringContaining("the driver lists no GPU"),
    });
    const long = await benchGpu("--library", cuda.path, "--bytes", "64GiB");
    expect(long).toMatchObject({ code: 4, err: empty.err });
    cuda.configure("");
    const absent = await benchGpu(...quick, "--device", "1");
    expect(absent).toMatchObject({ code: 4, err: expect.stringContaining("GPU 1") });
    cuda.configure("memory=16m");
    const small = await benchGpu(...quick);
    expect(small).toMatchObject({ code: 4, err: expect.stringContaining("CUDA error 2") });
    cuda.configure("");
  });

  test("a length that is not a multiple of the largest piece is a usage error", async () => {
    expect((await benchGpu("--bytes", "17MiB")).code).toBe(2);
  });
});
