import {
  chmodSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { join, relative } from "node:path";
import { ensureHost, ensureLibrary, libraryFile, sha256 } from "./native-build.ts";
import { ROOT, TOOLCHAIN_DIR } from "./paths.ts";
import { startProgress } from "./progress.ts";
import { run, seconds } from "./run.ts";
import { hostTarget, TARGET_NAMES, TARGETS, type Target } from "./targets.ts";

/**
 * The program, then the workers it starts: each is an entry point of its own and keeps its path
 * below `src` inside the executable.
 */
const ENTRIES = [
  "src/main.ts",
  "src/store/index/index-worker.ts",
  "src/router/proxy/tokens/token-worker.ts",
];
const DIST = join(ROOT, "dist");

/**
 * What the executable was built from is not on disk, or did not come out right; says what to do.
 */
export class BuildError extends Error {
  override readonly name = "BuildError";
}

/** The commit the sources are at, with `-dirty` when they differ from it; "unknown" without git. */
export async function sourceCommit(): Promise<string> {
  const commit = await run(["git", "rev-parse", "--short=12", "HEAD"]);
  if (!commit.ok) return "unknown";
  const status = await run(["git", "status", "--porcelain", "--untracked-files=no"]);
  return status.ok && status.output !== "" ? `${commit.output.trim()}-dirty` : commit.output.trim();
}

/**
 * Bun's executable for `target`, into which the program is put: the one that runs this, or, for
 * another platform, the npm package that carries it. Nothing is run of what is fetched.
 */
async function runtimeFor(target: Target): Promise<string> {
  const host = hostTarget();
  if (host.ok && host.target === target) return process.execPath;
  const { runtimePackage, npmCpu } = TARGETS[target];
  const folder = join(TOOLCHAIN_DIR, "cross", `${target}-${Bun.version}`);
  const runtime = join(folder, "node_modules", runtimePackage, "bin/bun");
  if (existsSync(runtime)) return runtime;
  mkdirSync(folder, { recursive: true });
  const manifest = { private: true, dependencies: { [runtimePackage]: Bun.version } };
  writeFileSync(join(folder, "package.json"), JSON.stringify(manifest));
  const progress = startProgress(`build: bringing Bun ${Bun.version} for ${target} from npm`);
  const platform = ["--os=linux", `--cpu=${npmCpu}`, "--libc=glibc"];
  const words = [process.execPath, "install", "--ignore-scripts", "--no-save", ...platform];
  const result = await run(words, { cwd: folder });
  if (!result.ok || !existsSync(runtime)) {
    rmSync(folder, { recursive: true, force: true });
    progress.end(`build: no Bun for ${target}`);
    throw new BuildError(`${result.output}cannot bring ${runtimePackage}: check the network`);
  }
  progress.end(`build: brought Bun ${Bun.version} for ${target} in ${seconds(result.ms)}`);
  return runtime;
}

interface Constants {
  readonly HEARTH_COMPILED: boolean;
  /** The bug that the fuzzer must find is never in what ships. */
  readonly HEARTH_CANARY: false;
  /** Planned faults: for crash tests, in an executable of their own. */
  readonly HEARTH_FAULTS: boolean;
  readonly HEARTH_TARGET: Target;
  readonly HEARTH_NATIVE_SHA256: string;
  readonly HEARTH_VERSION: string;
  readonly HEARTH_COMMIT: string;
}

/** The constants of the build, replaced in the sources before dead branches are dropped. */
async function constantsFor(
  target: Target,
  library: Uint8Array,
  faults: boolean,
): Promise<Constants> {
  const manifest = JSON.parse(readFileSync(join(ROOT, "package.json"), "utf8"));
  return {
    HEARTH_COMPILED: true,
    HEARTH_CANARY: false,
    HEARTH_FAULTS: faults,
    HEARTH_TARGET: target,
    HEARTH_NATIVE_SHA256: sha256(library),
    HEARTH_VERSION: manifest.version,
    HEARTH_COMMIT: await sourceCommit(),
  };
}

/** An ELF file for the wanted machine with this library inside and no other target's. */
function verify(file: string, target: Target, library: Buffer): void {
  const bytes = readFileSync(file);
  if (bytes.readUInt32BE(0) !== 0x7f454c46) throw new BuildError(`${file} is no ELF file`);
  const machine = bytes.readUInt16LE(18);
  if (machine !== TARGETS[target].elfMachine) {
    throw new BuildError(`${file} is for ELF machine ${machine}, not for ${target}`);
  }
  if (!bytes.includes(library)) throw new BuildError(`${file} does not carry its library`);
  for (const other of TARGET_NAMES) {
    const foreign = libraryFile({ target: other });
    if (other === target || !existsSync(foreign)) continue;
    if (!bytes.includes(readFileSync(foreign))) continue;
    throw new BuildError(`${file} also carries the library for ${other}`);
  }
}

async function libraryFor(target: Target): Promise<Buffer> {
  const host = hostTarget();
  // For this host the bindings come along: they must be those of the library that is put inside.
  const isHost = host.ok && host.target === target;
  const outcome = isHost ? await ensureHost() : await ensureLibrary({ target });
  if (outcome.kind === "skipped") throw new BuildError(outcome.why);
  if (outcome.kind === "failed") throw new BuildError(`${outcome.output}${outcome.why}`);
  return readFileSync(libraryFile({ target }));
}

/** Files that end up in the executable, beside the library. */
function bundledFiles(): string[] {
  const below = (folder: string): string[] =>
    readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
      const path = join(folder, entry.name);
      return entry.isDirectory() ? below(path) : [path];
    });
  const folders = ["src", "config"].map((name) => join(ROOT, name));
  const files = folders.filter((folder) => existsSync(folder)).flatMap(below);
  return [...files, join(ROOT, "package.json"), join(ROOT, "bun.lock")].sort();
}

function digestOfInputs(constants: Constants): string {
  const parts = [`bun ${Bun.version}`, JSON.stringify(constants)];
  for (const file of bundledFiles()) {
    parts.push(`${relative(ROOT, file)} ${sha256(readFileSync(file))}`);
  }
  return sha256(parts.join("\n"));
}

/**
 * Builds one executable at `outfile`, or leaves it when nothing it is made from changed. The
 * finished file takes its name in one step: one that runs now goes on undisturbed. Throws
 * BuildError.
 */
export async function ensureExecutable(
  target: Target,
  outfile: string,
  options: { readonly faults: boolean } = { faults: false },
): Promise<"built" | "fresh"> {
  const library = await libraryFor(target);
  const constants = await constantsFor(target, library, options.faults);
  const stampFile = join(DIST, `.${target}-${sha256(outfile).slice(0, 8)}.stamp`);
  const inputs = digestOfInputs(constants);
  const isFresh = existsSync(outfile) && existsSync(stampFile);
  if (isFresh && readFileSync(stampFile, "utf8") === inputs) return "fresh";

  const runtime = await runtimeFor(target);
  const progress = startProgress(`build: ${relative(ROOT, outfile)}`);
  mkdirSync(DIST, { recursive: true });
  const temporary = join(DIST, `.hearth-${target}-${process.pid}`);
  const defines = Object.entries(constants).flatMap(([name, value]) => [
    "--define",
    `${name}=${JSON.stringify(value)}`,
  ]);
  const result = await run([
    process.execPath,
    "build",
    "--compile",
    `--target=bun-${target}`,
    `--compile-executable-path=${runtime}`,
    "--minify",
    "--bytecode",
    "--format=esm",
    "--no-compile-autoload-dotenv",
    "--no-compile-autoload-bunfig",
    ...defines,
    ...ENTRIES,
    `--outfile=${temporary}`,
  ]);
  try {
    if (!result.ok) throw new BuildError(`${result.output}bun build failed (exit ${result.code})`);
    verify(temporary, target, library);
    chmodSync(temporary, 0o755);
    renameSync(temporary, outfile);
    writeFileSync(stampFile, inputs);
  } catch (thrown) {
    progress.end(`build: ${relative(ROOT, outfile)} failed`);
    throw thrown;
  } finally {
    rmSync(temporary, { force: true });
  }
  progress.end(`build: ${relative(ROOT, outfile)} in ${seconds(result.ms)}`);
  return "built";
}

/** `dist/hearth` for this host. Throws BuildError where the host is none of the targets. */
export function ensureHostExecutable(): Promise<string> {
  return ensureForHost("hearth", { faults: false });
}

/** `dist/hearth-faults` for this host: the same with planned faults, which crash tests run. */
export function ensureFaultyExecutable(): Promise<string> {
  return ensureForHost("hearth-faults", { faults: true });
}

async function ensureForHost(name: string, options: { readonly faults: boolean }): Promise<string> {
  const host = hostTarget();
  if (!host.ok) throw new BuildError(`${host.why}; name a target: --target linux-x64`);
  const outfile = join(DIST, name);
  await ensureExecutable(host.target, outfile, options);
  return outfile;
}

export function crossOutfile(target: Target): string {
  return join(DIST, `hearth-${target}`);
}
