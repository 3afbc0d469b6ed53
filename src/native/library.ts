import { dlopen, type FFIFunction } from "bun:ffi";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { HearthError, messageOf } from "../core/index.ts";
import { ABI_HASH, FUNCTIONS } from "./abi.gen.ts";
import { nativeBuffer } from "./buffers.ts";
import { openEmbeddedLibrary } from "./embedded.ts";
import { readStruct } from "./layout.ts";
import { profileCalls } from "./profile.ts";

export type FunctionName = keyof typeof FUNCTIONS;
/**
 * Every export takes numbers (an address, a handle, a count) or typed arrays and returns an i32.
 */
export type Symbols = Record<FunctionName, (...args: NativeArgument[]) => number>;
export type NativeArgument = number | Uint8Array | Uint16Array | Uint32Array | BigUint64Array;

declare const HEARTH_COMPILED: boolean;

/** True in the executable made by `bun run build`. */
export const compiled = typeof HEARTH_COMPILED !== "undefined" && HEARTH_COMPILED;

/** `linux-x64` or `linux-arm64`: the names under which libraries are built. */
export const hostTarget = `${process.platform}-${process.arch}`;

/** Where a checkout's library lies; in the executable it is inside. */
export function libraryPath(): string {
  return join(import.meta.dir, "../../dist/native", hostTarget, "libhearth.so");
}

const FFI_TYPES: Record<string, string> = { ptr: "ptr", u64: "u64", u32: "u32", i32: "i32" };

function declarations(): Record<string, FFIFunction> {
  const table: Record<string, FFIFunction> = {};
  for (const [name, { args, returns }] of Object.entries(FUNCTIONS)) {
    const types = args.map((type) => FFI_TYPES[type]!);
    table[name] = { args: types, returns: FFI_TYPES[returns]! } as FFIFunction;
  }
  return table;
}

function openAt(path: string): Symbols {
  try {
    return dlopen(path, declarations()).symbols as unknown as Symbols;
  } catch (cause) {
    const message = `the native library cannot be loaded: ${messageOf(cause)}`;
    throw new HearthError("NATIVE_UNAVAILABLE", message, { cause });
  }
}

function openFromCheckout(): Symbols {
  const path = libraryPath();
  if (!existsSync(path)) {
    throw new HearthError("NATIVE_UNAVAILABLE", `there is no native library at ${path}`, {
      fix: "build it with `bun run native` (needs Zig from `bun install`, on Linux)",
    });
  }
  return openAt(path);
}

function checkAbi(symbols: Symbols): void {
  const info = nativeBuffer(24);
  symbols.hearth_abi(info.bytes);
  const hash = readStruct("AbiInfo", info.bytes).abi_hash.toHex();
  if (hash === ABI_HASH) return;
  const message = `the native library speaks ABI ${hash}, these bindings ${ABI_HASH}`;
  throw new HearthError("NATIVE_ABI_MISMATCH", message, { fix: "rebuild with `bun run native`" });
}

/**
 * What the library is compiled for, as /proc/cpuinfo spells it: x86-64-v3 with AES and carry-less
 * products; ARMv8 with AES. Elsewhere its first hash would end the process with SIGILL.
 */
export const CPU_FLAGS: Readonly<Record<string, readonly string[]>> = {
  x64: [
    ...["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "popcnt", "sse4_2"],
    ...["aes", "pclmulqdq"],
  ],
  arm64: ["asimd", "aes"],
};

/** Flags of the processor, from the text of /proc/cpuinfo; null where it names none. */
export function cpuFlags(cpuInfo: string): readonly string[] | null {
  return /^(?:flags|Features)\s*:\s*(.*)$/m.exec(cpuInfo)?.[1]?.split(" ") ?? null;
}

function checkCpu(): void {
  const flags = existsSync("/proc/cpuinfo")
    ? cpuFlags(readFileSync("/proc/cpuinfo", "utf8"))
    : null;
  const missing = (CPU_FLAGS[process.arch] ?? []).filter((flag) => !flags?.includes(flag));
  // Without /proc nothing is known; then it is tried.
  if (flags === null || missing.length === 0) return;
  const what = `this processor lacks ${missing.join(", ")}`;
  throw new HearthError("NATIVE_UNAVAILABLE", what, {
    fix: "use a newer CPU; in a virtual machine, pass the host's CPU through (host-passthrough)",
  });
}

/** Opens the library of this host and refuses one of another build. */
export function openLibrary(): Symbols {
  checkCpu();
  const symbols = compiled ? openEmbeddedLibrary(openAt) : openFromCheckout();
  checkAbi(symbols);
  if (process.env.HEARTH_NATIVE_PROFILE !== "1") return symbols;
  const { symbols: timed, report } = profileCalls(symbols);
  process.on("exit", () => console.error(report()));
  return timed;
}
