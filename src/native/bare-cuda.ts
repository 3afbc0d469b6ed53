import { dlopen, type FFIFunction } from "bun:ffi";
import { HearthError, messageOf } from "../core/index.ts";

const CALLS = {
  cuInit: ["u32"],
  cuDeviceGet: ["ptr", "i32"],
  cuDevicePrimaryCtxRetain: ["ptr", "i32"],
  cuDevicePrimaryCtxRelease_v2: ["i32"],
  cuCtxSetCurrent: ["u64"],
  cuStreamCreate: ["ptr", "u32"],
  cuStreamDestroy_v2: ["u64"],
  cuStreamSynchronize: ["u64"],
  cuMemHostAlloc: ["ptr", "u64", "u32"],
  cuMemFreeHost: ["u64"],
  cuMemAlloc_v2: ["ptr", "u64"],
  cuMemFree_v2: ["u64"],
  cuMemcpyHtoDAsync_v2: ["u64", "u64", "u64", "u64"],
  cuMemcpyDtoHAsync_v2: ["u64", "u64", "u64", "u64"],
} as const satisfies Record<string, NonNullable<FFIFunction["args"]>>;

type Call = keyof typeof CALLS;

const NON_BLOCKING = 1;

export interface BareCudaOptions {
  /** Path of the CUDA library. Null: the one that the dynamic linker finds. */
  readonly library: string | null;
  readonly device: number;
  /** Bytes of pinned host memory to allocate. The same amount is allocated on the device. */
  readonly bytes: number;
}

/**
 * Baseline for GPU benchmarks: copies between a device and pinned host memory with a plain loop of
 * driver calls, without Hearth's code. Calls block the calling thread. Throws UNSUPPORTED with the
 * driver's error code if a driver call fails.
 */
export class BareCuda implements Disposable {
  readonly #calls: Record<Call, (...args: (number | bigint | BigUint64Array)[]) => number>;
  readonly #out = new BigUint64Array(1);
  readonly #ends: (() => void)[] = [];
  readonly #host: bigint;
  readonly #memory: bigint;
  readonly #stream: bigint;

  constructor({ library, device, bytes }: BareCudaOptions) {
    this.#calls = open(library ?? "libcuda.so.1") as never;
    try {
      this.#call("cuInit", 0);
      const number = Number(this.#made("cuDeviceGet", device)) | 0;
      const context = this.#made("cuDevicePrimaryCtxRetain", number);
      this.#ends.push(() => this.#calls.cuDevicePrimaryCtxRelease_v2(number));
      this.#call("cuCtxSetCurrent", context);
      this.#host = this.#made("cuMemHostAlloc", bytes, 0);
      this.#ends.push(() => this.#calls.cuMemFreeHost(this.#host));
      this.#memory = this.#made("cuMemAlloc_v2", bytes);
      this.#ends.push(() => this.#calls.cuMemFree_v2(this.#memory));
      this.#stream = this.#made("cuStreamCreate", NON_BLOCKING);
      this.#ends.push(() => this.#calls.cuStreamDestroy_v2(this.#stream));
    } catch (thrown) {
      this[Symbol.dispose]();
      throw thrown;
    }
  }

  /**
   * Copies the first `bytes` bytes in pieces of `piece` bytes and waits for the last one. Returns
   * the elapsed nanoseconds.
   */
  copy(direction: "h2d" | "d2h", bytes: number, piece: number): number {
    const start = Bun.nanoseconds();
    for (let at = 0; at < bytes; at += piece) {
      const host = this.#host + BigInt(at);
      const memory = this.#memory + BigInt(at);
      const length = Math.min(piece, bytes - at);
      if (direction === "h2d") {
        this.#call("cuMemcpyHtoDAsync_v2", memory, host, length, this.#stream);
      } else {
        this.#call("cuMemcpyDtoHAsync_v2", host, memory, length, this.#stream);
      }
    }
    this.#call("cuStreamSynchronize", this.#stream);
    return Bun.nanoseconds() - start;
  }

  /**
   * Frees the memory and the CUDA context. If the device is lost, the driver frees nothing, and no
   * error is reported.
   */
  [Symbol.dispose](): void {
    for (const end of this.#ends.splice(0).reverse()) end();
  }

  #call(name: Call, ...args: (number | bigint | BigUint64Array)[]): void {
    const code = this.#calls[name](...args);
    if (code !== 0) throw new HearthError("UNSUPPORTED", `${name} answers CUDA error ${code}`);
  }

  /**
   * Calls a driver function that writes a new handle or address to its first argument. Returns that
   * value.
   */
  #made(name: Call, ...args: (number | bigint)[]): bigint {
    this.#out[0] = 0n;
    this.#call(name, this.#out, ...args);
    return this.#out[0];
  }
}

/**
 * Returns whether `library` is the fake CUDA library used by tests. Timings with it say nothing
 * about a GPU.
 */
export function isStandInCuda(library: string | null): boolean {
  if (library === null) return false;
  try {
    dlopen(library, { standin_configure: { args: ["ptr"], returns: "i32" } });
    return true;
  } catch {
    return false;
  }
}

function open(library: string) {
  const table = Object.entries(CALLS).map(([name, args]) => [name, { args, returns: "i32" }]);
  try {
    return dlopen(library, Object.fromEntries(table) as Record<string, FFIFunction>).symbols;
  } catch (cause) {
    throw new HearthError("UNSUPPORTED", `${library} cannot be opened: ${messageOf(cause)}`, {
      cause,
    });
  }
}
