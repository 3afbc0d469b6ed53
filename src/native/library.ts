import { dlopen, type FFIFunction } from "bun:ffi";
import { existsSync } from "node:fs";
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
export type Symbols = Record<FunctionName, (...args: (number | Uint8Array)[]) => number>;

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

/** Opens the library of this host and refuses one of another build. */
export function openLibrary(): Symbols {
  const symbols = compiled ? openEmbeddedLibrary(openAt) : openFromCheckout();
  checkAbi(symbols);
  if (process.env.HEARTH_NATIVE_PROFILE !== "1") return symbols;
  const { symbols: timed, report } = profileCalls(symbols);
  process.on("exit", () => console.error(report()));
  return timed;
}
