import { createHash } from "node:crypto";
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { dirname, join, relative } from "node:path";
import { BINDINGS_FILE, NATIVE_DIR, ROOT } from "./paths.ts";
import { startProgress } from "./progress.ts";
import { seconds } from "./run.ts";
import { hostTarget, TARGETS, type Target } from "./targets.ts";
import { findZig, runZig, zigVersion } from "./zig.ts";

export type NativeOutcome =
  | { readonly kind: "fresh" | "built" }
  | { readonly kind: "skipped"; readonly why: string }
  | { readonly kind: "failed"; readonly why: string; readonly output: string };

export type BindingsMode = "write" | "check";

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

/** The library of the Python client, which `python/hearth_client/native.py` finds there. */
export function clientLibraryFile(target: Target): string {
  return join(NATIVE_DIR, target, "libhearth_client.so");
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

function failed(why: string, output = ""): NativeOutcome {
  return { kind: "failed", why, output };
}

/** One thing that a run of `zig build` makes. */
interface Part {
  readonly label: string;
  isFresh(): boolean;
  /** Arguments after `zig build`. */
  readonly words: readonly string[];
  /** Takes over what was made; words where that is refused. */
  finish(): string | undefined;
}

/** One library of a target: what `zig build` makes, and what says from which sources. */
interface LibraryProduct {
  readonly step: "install" | "client";
  readonly product: string;
  readonly made: string;
  readonly stamp: string;
}

function libraryProduct(choice: LibraryChoice): LibraryProduct {
  return {
    step: "install",
    product: libraryFile(choice),
    made: "lib/libhearth.so",
    stamp: "stamp.json",
  };
}

function clientProduct(target: Target): LibraryProduct {
  return {
    step: "client",
    product: clientLibraryFile(target),
    made: "lib/libhearth_client.so",
    stamp: "client.json",
  };
}

/** The agent's library and, beside it, the Python client's. The canary has only the former. */
function libraryPart(choice: LibraryChoice, sources: string): Part {
  const client = choice.canary ? [] : [clientProduct(choice.target)];
  return productsPart(choice, [libraryProduct(choice), ...client], sources);
}

function productsPart(
  choice: LibraryChoice,
  products: readonly LibraryProduct[],
  sources: string,
): Part {
  const { target, canary } = choice;
  const flags = buildArguments(choice);
  const inputs = sha256(`${sources} ${flags.join(" ")}`);
  const stage = join(ROOT, ".zig-cache/stage", `${target}-${process.pid}`);
  const stampOf = ({ product, stamp }: LibraryProduct) => join(dirname(product), stamp);
  return {
    label: `${target}${canary ? " (canary)" : ""}`,
    isFresh: () => products.every((one) => isFresh(one.product, stampOf(one), inputs)),
    words: [...products.map((one) => one.step), ...flags, "--prefix", stage],
    finish() {
      for (const one of products) {
        const made = join(stage, one.made);
        if (!existsSync(made)) return `zig build left no ${made}`;
        mkdirSync(dirname(one.product), { recursive: true });
        const digest = sha256(readFileSync(made));
        renameSync(made, one.product);
        writeStamp(stampOf(one), { inputs, product: digest });
      }
      rmSync(stage, { recursive: true, force: true });
      return undefined;
    },
  };
}

function bindingsPart(mode: BindingsMode, sources: string): Part {
  const before = existsSync(BINDINGS_FILE) ? readFileSync(BINDINGS_FILE) : undefined;
  return {
    label: "bindings",
    isFresh: () => isFresh(BINDINGS_FILE, BINDINGS_STAMP, sources),
    words: ["bindings"],
    finish() {
      const after = readFileSync(BINDINGS_FILE);
      if (mode === "check" && before !== undefined && !before.equals(after)) {
        writeFileSync(BINDINGS_FILE, before);
        return "src/native/abi.gen.ts is stale: run `./dev native` and commit what it writes";
      }
      writeStamp(BINDINGS_STAMP, { inputs: sources, product: sha256(after) });
      return undefined;
    },
  };
}

/** What stands in for the libraries of devices, by the name under which each is opened. */
const STAND_INS = { "libcuda.so.1": "standin-cuda", "libibverbs.so.1": "standin-verbs" } as const;

/** Where tests find the stand-ins of a target. */
export function standInsFolder(target: Target): string {
  return join(NATIVE_DIR, `${target}-stand-ins`);
}

function standInsPart(target: Target, sources: string): Part {
  const folder = standInsFolder(target);
  const { zigTarget, zigCpu } = TARGETS[target];
  const flags = ["-Doptimize=ReleaseSafe", `-Dtarget=${zigTarget}`, `-Dcpu=${zigCpu}`];
  const inputs = sha256(`${sources} ${flags.join(" ")}`);
  const stage = join(ROOT, ".zig-cache/stage", `${target}-stand-ins-${process.pid}`);
  const names = Object.entries(STAND_INS);
  const stampOf = (name: string) => join(folder, `${name}.json`);
  return {
    label: "stand-ins",
    isFresh: () => names.every(([name]) => isFresh(join(folder, name), stampOf(name), inputs)),
    words: ["stand-ins", ...flags, "--prefix", stage],
    finish() {
      mkdirSync(folder, { recursive: true });
      for (const [name, made] of names) {
        const file = join(stage, `lib/lib${made}.so`);
        if (!existsSync(file)) return `zig build left no ${file}`;
        const digest = sha256(readFileSync(file));
        renameSync(file, join(folder, name));
        writeStamp(stampOf(name), { inputs, product: digest });
      }
      rmSync(stage, { recursive: true, force: true });
      return undefined;
    },
  };
}

/** Makes in one run of Zig those parts that are not fresh; they compile side by side. */
async function make(parts: readonly Part[]): Promise<NativeOutcome> {
  const stale = parts.filter((part) => !part.isFresh());
  if (stale.length === 0) return { kind: "fresh" };
  const zig = findZig();
  if (zig === undefined) {
    const host = `${process.platform}-${process.arch}`;
    return { kind: "skipped", why: `no Zig for ${host} in node_modules: run \`bun install\`` };
  }
  const label = stale.map((part) => part.label).join(", ");
  const progress = startProgress(`native: building ${label}`);
  const result = await runZig(zig, ["build", ...stale.flatMap((part) => part.words)]);
  const problem = result.ok
    ? stale.map((part) => part.finish()).find((words) => words !== undefined)
    : `zig build failed (exit ${result.code})`;
  if (problem !== undefined) {
    progress.end(`native: ${label} failed`);
    return failed(problem, result.ok ? "" : result.output);
  }
  progress.end(`native: built ${label} in ${seconds(result.ms)}`);
  return { kind: "built" };
}

/**
 * The library for one target, built when its sources changed since the last time. Runs side by side
 * do no harm: each builds into a folder of its own and moves the finished file into place.
 */
export function ensureLibrary(choice: LibraryChoice): Promise<NativeOutcome> {
  return make([libraryPart(choice, digestOfSources())]);
}

/** The library of the Python client alone. */
export function ensureClientLibrary(target: Target): Promise<NativeOutcome> {
  return make([productsPart({ target }, [clientProduct(target)], digestOfSources())]);
}

/**
 * The bindings in src/native. `write` brings them up to date; `check` leaves the file as it is and
 * fails when the sources would generate another one.
 */
export function ensureBindings(mode: BindingsMode): Promise<NativeOutcome> {
  return make([bindingsPart(mode, digestOfSources())]);
}

/** Under CI nothing generated may differ from what was committed; elsewhere it is brought along. */
export function bindingsMode(): BindingsMode {
  return process.env.CI === "true" ? "check" : "write";
}

/** The stand-ins of this host, which tests open instead of CUDA's library and the verbs'. */
export async function ensureStandIns(): Promise<NativeOutcome> {
  const host = hostTarget();
  if (!host.ok) return { kind: "skipped", why: host.why };
  return make([standInsPart(host.target, digestOfSources())]);
}

/** What a test run or a start from the checkout needs on this host: library and bindings. */
export async function ensureHost(): Promise<NativeOutcome> {
  const host = hostTarget();
  if (!host.ok) return { kind: "skipped", why: host.why };
  const sources = digestOfSources();
  return make([
    libraryPart({ target: host.target }, sources),
    bindingsPart(bindingsMode(), sources),
  ]);
}
