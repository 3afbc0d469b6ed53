import { dlopen, FFIType } from "bun:ffi";
import { afterEach, expect, test } from "bun:test";
import { join } from "node:path";
import { describeNative, withTempDir } from "../support/index.ts";
import { standIn, standInLacking } from "../support/stand-ins.ts";

const NO_DEVICE = 100;
const TIMEOUT = 702;

const CALLS = {
  cuInit: { args: [FFIType.u32], returns: FFIType.i32 },
  cuDevicePrimaryCtxRetain: { args: [FFIType.ptr, FFIType.i32], returns: FFIType.i32 },
  cuDevicePrimaryCtxRelease_v2: { args: [FFIType.i32], returns: FFIType.i32 },
  cuCtxSetCurrent: { args: [FFIType.u64], returns: FFIType.i32 },
  cuMemAlloc_v2: { args: [FFIType.ptr, FFIType.u64], returns: FFIType.i32 },
} as const;

/** Allocates memory of a device and reads from its address. */
const TOUCH = `
  import { dlopen, FFIType, toArrayBuffer } from "bun:ffi";
  const { symbols } = dlopen(process.argv[1], ${JSON.stringify(CALLS)});
  const out = new BigUint64Array(1);
  const codes = [
    symbols.cuInit(0),
    symbols.cuDevicePrimaryCtxRetain(out, 0),
    symbols.cuCtxSetCurrent(out[0]),
    symbols.cuMemAlloc_v2(out, 4096n),
  ];
  console.log(codes.join(" "));
  if (codes[3] === 0) console.log(new Uint8Array(toArrayBuffer(Number(out[0]), 0, 1))[0]);
`;

async function touch(library: string, plan: string) {
  const env = { ...process.env, STANDIN_CUDA: plan };
  const child = Bun.spawn([process.execPath, "-e", TOUCH, library], { env, stderr: "ignore" });
  const text = await new Response(child.stdout).text();
  await child.exited;
  return { text, signal: child.signalCode };
}

describeNative("the stand-in for CUDA's driver", () => {
  const cuda = standIn("libcuda.so.1");
  const { symbols } = dlopen(cuda.path, CALLS);

  afterEach(() => cuda.configure(""));

  test("follows the latest plan, and counts from there", () => {
    cuda.configure("devices=0");
    expect(symbols.cuInit(0)).toBe(NO_DEVICE);
    cuda.configure(`cuDevicePrimaryCtxRetain=${TIMEOUT}@2`);
    const out = new BigUint64Array(1);
    expect(symbols.cuInit(0)).toBe(0);
    expect(symbols.cuDevicePrimaryCtxRetain(out, 0)).toBe(0);
    expect(symbols.cuDevicePrimaryCtxRetain(out, 0)).toBe(TIMEOUT);
    expect(cuda.counters()).toMatchObject({
      "calls.cuInit": 1,
      "calls.cuDevicePrimaryCtxRetain": 2,
      "open.contexts": 1,
    });
    expect(symbols.cuDevicePrimaryCtxRelease_v2(0)).toBe(0);
    expect(cuda.counters()["open.contexts"]).toBe(0);
    expect(() => cuda.configure("device=1")).toThrow("no plan");
    cuda.configure("");
    expect(cuda.counters()).toEqual({});
  });

  test("takes its plan from the environment; the host cannot access its memory", async () => {
    expect(await touch(cuda.path, "cuMemAlloc_v2=2")).toEqual({ text: "0 0 0 2\n", signal: null });
    // No byte is printed: reading the address kills the process.
    expect(await touch(cuda.path, "")).toEqual({ text: "0 0 0 0\n", signal: "SIGSEGV" });
  });

  test("can lack calls, as an older driver does", () =>
    withTempDir((folder) => {
      const path = join(folder, "libcuda.so.1");
      const old = standInLacking("libcuda.so.1", ["cuMemAlloc_v2"], path);
      old.configure("devices=2");
      expect(() => dlopen(path, CALLS)).toThrow("cuMemAlloc_v2");
      const { cuInit } = dlopen(path, { cuInit: CALLS.cuInit }).symbols;
      expect(cuInit(0)).toBe(0);
      expect(old.counters()).toEqual({ "calls.cuInit": 1 });
      expect(cuda.counters()).toEqual({});
    }));
});
