import { createHash } from "node:crypto";
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { dirname, join, relative } from "node:path";
import { BINDINGS_FILE, NATIVE_DIR, ROOT } from "./paths.ts";
import { startProgress } from "./progress.ts";
import { type RunResult, seconds } from "./run.ts";
import { hostTarget, TARGETS, type Target } from "./targets.ts";
import { findZig, runZig, zigVersion } from "./zig.ts";

export type NativeOutcome =
  | { readonly kind: "fresh" | "built" }
  | { readonly kind: "skipped"; readonly why: string }
  | { readonly kind: "failed"; readonly why: string; readonly output: string };

export interface LibraryChoice {
  readonly target: Target;
  /** With the planted bug that the fuzzers must find. Never shipped: it has a folder of its own. */
  readonly canary?: boolean;
}

/**
 * What the files on disk were made from; content decides, so a checkout or a copy never misleads.
 */
interface Stamp {
  readonly inputs: string;
  readonly product: string;
}

const BINDINGS_STAMP = join(NATIVE_DIR, "bindings.json");

export function libraryFile({ target, canary }: LibraryChoice): string {
  return join(NATIVE_DIR, canary ? `${target}-canary` : target, "libhearth.so");
}

export function sha256(bytes: Uint8Array | string): string {
  return createHash("sha256").update(bytes).digest("hex");
}

function sourceFiles(): string[] {
  const below = (folder: string): string[] =>
    readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
      const path = join(folder, entry.name);
      return entry.isDirectory() ? below(path) : [path];
    });
  const files = [...below(join(ROOT, "zig")), join(ROOT, "build.zig"), join(ROOT, "build.zig.zon")];
  return files.filter((file) => existsSync(file)).sort();
}

function digestOfSources(): string {
  const hash = createHash("sha256").update(`zig ${zigVersion()}\n`);
  for (const file of sourceFiles()) {
    const bytes = readFileSync(file);
    hash.update(`${relative(ROOT, file)} ${bytes.length}\n`).update(bytes);
  }
  return hash.digest("hex");
}

function buildArguments({ target, canary }: LibraryChoice): string[] {
  const { zigTarget, zigCpu } = TARGETS[target];
  const flags = ["-Doptimize=ReleaseSafe", `-Dtarget=${zigTarget}`, `-Dcpu=${zigCpu}`];
  return canary ? [...flags, "-Dcanary=true"] : flags;
}

function readStamp(file: string): Stamp | undefined {
  if (!existsSync(file)) return undefined;
  try {
    return JSON.parse(readFileSync(file, "utf8")) as Stamp;
  } catch (thrown) {
    // Half-written by a killed run: as good as none.
    if (thrown instanceof SyntaxError) return undefined;
    throw thrown;
  }
}

function isFresh(product: string, stampFile: string, inputs: string): boolean {
  const stamp = readStamp(stampFile);
  if (stamp?.inputs !== inputs || !existsSync(product)) return false;
  return stamp.product === sha256(readFileSync(product));
}

function writeStamp(file: string, stamp: Stamp): void {
  mkdirSync(dirname(file), { recursive: true });
  const temporary = `${file}.${process.pid}`;
  writeFileSync(temporary, JSON.stringify(stamp));
  renameSync(temporary, file);
}

function failed(why: string, result: RunResult): NativeOutcome {
  return { kind: "failed", why: `${why} (exit ${result.code})`, output: result.output };
}

/**
 * The library for one target, built when its sources changed since the last time. Runs side by side
 * do no harm: each builds into a folder of its own and moves the finished file into place.
 */
export async function ensureLibrary(choice: LibraryChoice): Promise<NativeOutcome> {
  const product = libraryFile(choice);
  const stampFile = join(dirname(product), "stamp.json");
  const flags = buildArguments(choice);
  const inputs = sha256(`${digestOfSources()} ${flags.join(" ")}`);
  if (isFresh(product, stampFile, inputs)) return { kind: "fresh" };
  const zig = findZig();
  if (zig === undefined) return { kind: "skipped", why: noZig() };

  const label = `native: building ${choice.target}${choice.canary ? " (canary)" : ""}`;
  const progress = startProgress(label);
  const stage = join(ROOT, ".zig-cache/stage", `${choice.target}-${process.pid}`);
  const result = await runZig(zig, ["build", "install", ...flags, "--prefix", stage]);
  const made = join(stage, "lib/libhearth.so");
  if (!result.ok || !existsSync(made)) {
    progress.end(`native: ${choice.target} failed`);
    return failed("zig build failed", result);
  }
  mkdirSync(dirname(product), { recursive: true });
  const digest = sha256(readFileSync(made));
  renameSync(made, product);
  writeStamp(stampFile, { inputs, product: digest });
  rmSync(stage, { recursive: true, force: true });
  const kib = Math.round(statSync(product).size / 1024);
  progress.end(`native: built ${choice.target}, ${kib} KiB, in ${seconds(result.ms)}`);
  return { kind: "built" };
}

/**
 * The bindings in src/native. `write` brings them up to date; `check` leaves the file as it is and
 * fails when the sources would generate another one.
 */
export async function ensureBindings(mode: "write" | "check"): Promise<NativeOutcome> {
  const inputs = digestOfSources();
  if (isFresh(BINDINGS_FILE, BINDINGS_STAMP, inputs)) return { kind: "fresh" };
  const zig = findZig();
  if (zig === undefined) return { kind: "skipped", why: noZig() };

  const before = existsSync(BINDINGS_FILE) ? readFileSync(BINDINGS_FILE) : undefined;
  const result = await runZig(zig, ["build", "bindings"]);
  if (!result.ok) return failed("zig build bindings failed", result);
  const after = readFileSync(BINDINGS_FILE);
  const changed = before === undefined || !before.equals(after);
  if (changed && mode === "check") {
    if (before !== undefined) writeFileSync(BINDINGS_FILE, before);
    const why = "src/native/abi.gen.ts is stale: run `./dev native` and commit what it writes";
    return { kind: "failed", why, output: "" };
  }
  writeStamp(BINDINGS_STAMP, { inputs, product: sha256(after) });
  return { kind: changed ? "built" : "fresh" };
}

function noZig(): string {
  return `no Zig for ${process.platform}-${process.arch} in node_modules: run \`bun install\``;
}

/**
 * Under CI nothing generated may differ from what was committed; elsewhere it is brought up to
 * date.
 */
export function bindingsMode(): "write" | "check" {
  return process.env.CI === "true" ? "check" : "write";
}

/** What a test run or a start from the checkout needs on this host: library and bindings. */
export async function ensureHost(): Promise<NativeOutcome> {
  const host = hostTarget();
  if (!host.ok) return { kind: "skipped", why: host.why };
  const library = await ensureLibrary({ target: host.target });
  if (library.kind === "failed" || library.kind === "skipped") return library;
  const bindings = await ensureBindings(bindingsMode());
  return bindings.kind === "fresh" ? library : bindings;
}
