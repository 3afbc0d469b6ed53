import { dlopen, type FFIFunction } from "bun:ffi";
import { createHash } from "node:crypto";
import {
  closeSync,
  existsSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { join } from "node:path";
import { HearthError, messageOf } from "../core/index.ts";
import { ABI_HASH, FUNCTIONS } from "./abi.gen.ts";
import { nativeBuffer, readStruct } from "./memory.ts";

export type FunctionName = keyof typeof FUNCTIONS;
/**
 * Functions of the native library, by name. Their arguments are numbers (an address, a handle, a
 * count) or typed arrays; each returns an i32.
 */
export type Symbols = Record<FunctionName, (...args: NativeArgument[]) => number>;
export type NativeArgument = number | Uint8Array | Uint16Array | Uint32Array | BigUint64Array;

declare const HEARTH_COMPILED: boolean;

/** True if this code runs in the executable built by `bun run build`. */
export const compiled = typeof HEARTH_COMPILED !== "undefined" && HEARTH_COMPILED;

/**
 * Operating system and CPU of this process: `linux-x64` or `linux-arm64`. Paths of built libraries
 * contain it.
 */
export const hostTarget = `${process.platform}-${process.arch}`;

/**
 * Returns the path of the native library in a source checkout. The executable contains the library
 * instead.
 */
export function libraryPath(): string {
  return join(import.meta.dir, "../../dist/native", hostTarget, "libhearth.so");
}

const FFI_TYPES: Record<string, string> = { ptr: "ptr", u64: "u64", u32: "u32", i32: "i32" };

function declarations(): Record<string, FFIFunction> {
  const table: Record<string, FFIFunction> = {};
  for (const [name, { args, returns }] of Object.entries(FUNCTIONS)) {
    const types = args.map((type) => FFI_TYPES[type]);
    table[name] = { args: types, returns: FFI_TYPES[returns] } as FFIFunction;
  }
  return table;
}

function openAt(path: string): Symbols {
  try {
    return dlopen(path, declarations()).symbols as unknown as Symbols;
  } catch (cause) {
    const message = `cannot load the native library: ${messageOf(cause)}`;
    throw new HearthError("NATIVE_UNAVAILABLE", message, { cause });
  }
}

function openFromCheckout(): Symbols {
  const path = libraryPath();
  if (!existsSync(path)) {
    throw new HearthError("NATIVE_UNAVAILABLE", `native library not found at ${path}`, {
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
  const message = `the native library has ABI ${hash}, these bindings expect ${ABI_HASH}`;
  throw new HearthError("NATIVE_ABI_MISMATCH", message, { fix: "rebuild with `bun run native`" });
}

/**
 * CPU features that the library is compiled for, with the names of /proc/cpuinfo: x86-64-v3 with
 * AES and carry-less multiplication, or ARMv8 with AES. On a CPU without them, the first hash would
 * end the process with SIGILL.
 */
export const CPU_FLAGS: Readonly<Record<string, readonly string[]>> = {
  x64: [
    ...["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "popcnt", "sse4_2"],
    ...["aes", "pclmulqdq"],
  ],
  arm64: ["asimd", "aes"],
};

/** Returns the CPU features listed in the text of /proc/cpuinfo. Null if the text lists none. */
export function cpuFlags(cpuInfo: string): readonly string[] | null {
  return /^(?:flags|Features)\s*:\s*(.*)$/m.exec(cpuInfo)?.[1]?.split(" ") ?? null;
}

function checkCpu(): void {
  const flags = existsSync("/proc/cpuinfo")
    ? cpuFlags(readFileSync("/proc/cpuinfo", "utf8"))
    : null;
  const missing = (CPU_FLAGS[process.arch] ?? []).filter((flag) => !flags?.includes(flag));
  // Without /proc, the features are unknown; assume that they are present.
  if (flags === null || missing.length === 0) return;
  const what = `this processor lacks ${missing.join(", ")}`;
  throw new HearthError("NATIVE_UNAVAILABLE", what, {
    fix: "use a newer CPU; in a virtual machine, pass the host's CPU through (host-passthrough)",
  });
}

/**
 * Opens the native library for this host. Throws if it was built from another version of the
 * source.
 */
export function openLibrary(): Symbols {
  checkCpu();
  const symbols = compiled ? openEmbeddedLibrary(openAt) : openFromCheckout();
  checkAbi(symbols);
  return symbols;
}

/**
 * Loads the library that is embedded in the executable. Bun's own loader would unpack the library
 * to a predictable path in the temporary folder, and would trust a file that already exists there.
 * This code verifies the library's digest, then loads it from a sealed memfd, or from a private
 * folder if the kernel refuses to execute a memfd (`vm.memfd_noexec=2`).
 */

declare const HEARTH_TARGET: string;
declare const HEARTH_NATIVE_SHA256: string;

const MFD_CLOEXEC = 1;
const MFD_ALLOW_SEALING = 2;
const F_ADD_SEALS = 1033;
/**
 * The seals SEAL, SHRINK, GROW and WRITE together: the library's code cannot change after it was
 * verified.
 */
const SEAL_ALL = 0x0f;

interface EmbeddedModule {
  readonly default: string;
}

/**
 * Returns the path of the library inside the executable. `HEARTH_TARGET` is a build constant, so
 * the bundler drops the other platform's library. It would keep both if this were an `if` with two
 * returns.
 */
function embeddedPath(): string {
  const embedded: EmbeddedModule =
    HEARTH_TARGET === "linux-arm64"
      ? require("./embedded-linux-arm64.ts")
      : require("./embedded-linux-x64.ts");
  return embedded.default;
}

function checkedLibrary(): Uint8Array {
  const bytes = readFileSync(embeddedPath());
  const digest = createHash("sha256").update(bytes).digest("hex");
  if (digest === HEARTH_NATIVE_SHA256) return bytes;
  throw new HearthError(
    "NATIVE_UNAVAILABLE",
    "the library inside this executable is damaged: digest mismatch",
    {
      fix: "install the executable again",
    },
  );
}

/**
 * Creates a sealed anonymous file with these bytes. The caller keeps its descriptor open until the
 * library is loaded.
 */
function sealedMemfd(bytes: Uint8Array): number {
  const libc = dlopen("libc.so.6", {
    memfd_create: { args: ["ptr", "u32"], returns: "i32" },
    fcntl: { args: ["i32", "i32", "i32"], returns: "i32" },
  });
  const name = Buffer.from("hearth-library\0");
  const fd = libc.symbols.memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) throw new HearthError("NATIVE_UNAVAILABLE", "memfd_create failed");
  for (let written = 0; written < bytes.length; ) {
    written += writeSync(fd, bytes, written, bytes.length - written);
  }
  if (libc.symbols.fcntl(fd, F_ADD_SEALS, SEAL_ALL) !== 0) {
    closeSync(fd);
    throw new HearthError("NATIVE_UNAVAILABLE", "sealing the memfd failed");
  }
  return fd;
}

function openFromMemfd<T>(bytes: Uint8Array, open: (path: string) => T): T {
  const fd = sealedMemfd(bytes);
  try {
    return open(`/proc/self/fd/${fd}`);
  } finally {
    closeSync(fd);
  }
}

/**
 * Returns the folder for a private copy: systemd's RuntimeDirectory, the user's runtime folder, or,
 * if neither is set, the shared temporary folder.
 */
function privateParent(): string {
  const fromUnit = process.env.RUNTIME_DIRECTORY?.split(":")[0];
  return fromUnit ?? process.env.XDG_RUNTIME_DIR ?? process.env.TMPDIR ?? "/tmp";
}

function openFromPrivateFolder<T>(bytes: Uint8Array, open: (path: string) => T): T {
  // mkdtemp creates a new folder with mode 0700, so no other user can have written to it.
  const folder = mkdtempSync(join(privateParent(), "hearth-"));
  try {
    const path = join(folder, "libhearth.so");
    writeFileSync(path, bytes, { mode: 0o500, flag: "wx" });
    return open(path);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** Loads the embedded library with `open`. `open` throws if it cannot load a path. */
function openEmbeddedLibrary<T>(open: (path: string) => T): T {
  const bytes = checkedLibrary();
  let refused: unknown;
  try {
    return openFromMemfd(bytes, open);
  } catch (cause) {
    refused = cause;
  }
  try {
    return openFromPrivateFolder(bytes, open);
  } catch (cause) {
    const reasons = `${messageOf(refused)}; then ${messageOf(cause)}`;
    throw new HearthError("NATIVE_UNAVAILABLE", `cannot load the embedded library: ${reasons}`, {
      cause,
      fix: "give the process a RuntimeDirectory on a file system without noexec",
    });
  }
}
