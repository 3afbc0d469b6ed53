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

/**
 * The profile switch: with `HEARTH_NATIVE_PROFILE=1` every native call is timed, and a table of
 * calls, p50 and p99 per function goes to stderr when the process ends.
 */

type NativeCall = (...args: unknown[]) => number;

/** Buckets at powers of 2^(1/4) nanoseconds: a quantile is right to 19 %. */
const BUCKETS = 160;
const PER_DOUBLING = 4;

interface Samples {
  calls: number;
  totalNs: number;
  buckets: Uint32Array;
}

function quantileNs(samples: Samples, quantile: number): number {
  let left = Math.ceil(samples.calls * quantile);
  for (let bucket = 0; bucket < BUCKETS; bucket++) {
    left -= samples.buckets[bucket]!;
    if (left <= 0) return 2 ** (bucket / PER_DOUBLING);
  }
  return Number.POSITIVE_INFINITY;
}

function timed(call: NativeCall, samples: Samples): NativeCall {
  return (...args) => {
    const start = Bun.nanoseconds();
    const result = call(...args);
    const ns = Bun.nanoseconds() - start;
    samples.calls++;
    samples.totalNs += ns;
    const bucket = Math.floor(Math.log2(Math.max(1, ns)) * PER_DOUBLING);
    const index = Math.min(BUCKETS - 1, bucket);
    samples.buckets[index] = samples.buckets[index]! + 1;
    return result;
  };
}

/** Wraps every function of `symbols`; returns the wrapped ones and what prints the table. */
function profileCalls<T extends Record<string, unknown>>(
  symbols: T,
): { symbols: T; report: () => string } {
  const all = new Map<string, Samples>();
  const wrapped: Record<string, unknown> = {};
  for (const [name, call] of Object.entries(symbols)) {
    const samples = { calls: 0, totalNs: 0, buckets: new Uint32Array(BUCKETS) };
    all.set(name, samples);
    wrapped[name] = timed(call as NativeCall, samples);
  }
  return { symbols: wrapped as T, report: () => formatProfile(all) };
}

function formatProfile(all: Map<string, Samples>): string {
  const used = [...all].filter(([, samples]) => samples.calls > 0);
  used.sort(([, a], [, b]) => b.totalNs - a.totalNs);
  const lines = ["native function                   calls    p50 us    p99 us  total ms"];
  for (const [name, samples] of used) {
    const cells = [
      name.padEnd(30),
      String(samples.calls).padStart(8),
      (quantileNs(samples, 0.5) / 1e3).toFixed(2).padStart(9),
      (quantileNs(samples, 0.99) / 1e3).toFixed(2).padStart(9),
      (samples.totalNs / 1e6).toFixed(1).padStart(9),
    ];
    lines.push(cells.join(" "));
  }
  return lines.join("\n");
}

/**
 * The library inside the executable. Bun would unpack it to a guessable file in the temporary
 * folder and trust whatever lies there next time; so its digest is checked and it is loaded from a
 * sealed memfd, or from a private folder where the kernel refuses to execute one
 * (`vm.memfd_noexec=2`).
 */

declare const HEARTH_TARGET: string;
declare const HEARTH_NATIVE_SHA256: string;

const MFD_CLOEXEC = 1;
const MFD_ALLOW_SEALING = 2;
const F_ADD_SEALS = 1033;
/** SEAL, SHRINK, GROW and WRITE: nobody changes the code once it was checked. */
const SEAL_ALL = 0x0f;

interface EmbeddedModule {
  readonly default: string;
}

/**
 * Path of the file inside the executable. `HEARTH_TARGET` is a constant of the build: the branch
 * not taken, and its library, are left out. (Of an `if` with two returns both would be kept.)
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
  throw new HearthError("NATIVE_UNAVAILABLE", "the library inside this executable is damaged", {
    fix: "install the executable again",
  });
}

/**
 * A sealed anonymous file with these bytes; its descriptor stays open until the library is loaded.
 */
function sealedMemfd(bytes: Uint8Array): number {
  const libc = dlopen("libc.so.6", {
    memfd_create: { args: ["ptr", "u32"], returns: "i32" },
    fcntl: { args: ["i32", "i32", "i32"], returns: "i32" },
  });
  const name = Buffer.from("hearth-library\0");
  const fd = libc.symbols.memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) throw new HearthError("NATIVE_UNAVAILABLE", "memfd_create was refused");
  for (let written = 0; written < bytes.length; ) {
    written += writeSync(fd, bytes, written, bytes.length - written);
  }
  if (libc.symbols.fcntl(fd, F_ADD_SEALS, SEAL_ALL) !== 0) {
    closeSync(fd);
    throw new HearthError("NATIVE_UNAVAILABLE", "the memfd could not be sealed");
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
 * systemd's RuntimeDirectory, or the user's; never the shared temporary folder unless all else
 * fails.
 */
function privateParent(): string {
  const fromUnit = process.env.RUNTIME_DIRECTORY?.split(":")[0];
  return fromUnit ?? process.env.XDG_RUNTIME_DIR ?? process.env.TMPDIR ?? "/tmp";
}

function openFromPrivateFolder<T>(bytes: Uint8Array, open: (path: string) => T): T {
  // mkdtemp makes the folder 0700 under a fresh name: nobody else can have put anything into it.
  const folder = mkdtempSync(join(privateParent(), "hearth-"));
  try {
    const path = join(folder, "libhearth.so");
    writeFileSync(path, bytes, { mode: 0o500, flag: "wx" });
    return open(path);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** Loads the embedded library through `open`, which throws where it cannot. */
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
    throw new HearthError("NATIVE_UNAVAILABLE", `the library cannot be loaded: ${reasons}`, {
      cause,
      fix: "give the process a RuntimeDirectory on a file system without noexec",
    });
  }
}
