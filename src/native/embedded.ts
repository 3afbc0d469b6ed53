import { dlopen } from "bun:ffi";
import { createHash } from "node:crypto";
import { closeSync, mkdtempSync, readFileSync, rmSync, writeFileSync, writeSync } from "node:fs";
import { join } from "node:path";
import { HearthError, messageOf } from "../core/index.ts";

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
export function openEmbeddedLibrary<T>(open: (path: string) => T): T {
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
