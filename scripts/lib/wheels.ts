import { mkdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { clientLibraryFile, ensureClientLibrary } from "./native-build.ts";
import { ROOT } from "./paths.ts";
import type { Target } from "./targets.ts";
import { readProject, type Wheel, type WheelSource, wheelOf } from "./wheel.ts";

const PYTHON = join(ROOT, "python");
const LICENSE = join(ROOT, "LICENSE");
const LIBRARY_IN_PACKAGE = "_native/libhearth_client.so";

/**
 * The library needs no C library, so the oldest tag that installers know is right: glibc 2.17.
 */
const PLATFORMS: Readonly<Record<Target, readonly string[]>> = {
  "linux-x64": ["manylinux_2_17_x86_64", "manylinux2014_x86_64"],
  "linux-arm64": ["manylinux_2_17_aarch64", "manylinux2014_aarch64"],
};

/** The packages, and where each has its pyproject.toml. */
export const PYTHON_PACKAGES: Readonly<Record<string, WheelSource>> = {
  hearth_client: {
    packageFolder: join(PYTHON, "hearth_client"),
    projectFolder: PYTHON,
    licenseFile: LICENSE,
  },
  hearth_vllm: connector("hearth_vllm"),
  hearth_sglang: connector("hearth_sglang"),
  hearth_lmcache: connector("hearth_lmcache"),
};

function connector(name: string): WheelSource {
  const folder = join(PYTHON, name);
  return { packageFolder: folder, projectFolder: folder, licenseFile: LICENSE };
}

export class WheelError extends Error {}

/** All packages have the version of package.json, and connectors need that very client. */
export function checkVersions(): void {
  const { version } = JSON.parse(readFileSync(join(ROOT, "package.json"), "utf8"));
  for (const [name, source] of Object.entries(PYTHON_PACKAGES)) {
    const project = readProject(source.projectFolder);
    if (project.version !== version) {
      throw new WheelError(`${name} has version ${project.version}, package.json ${version}`);
    }
    const needed = name === "hearth_client" ? [] : [`hearth-client==${version}`];
    const found = project.dependencies ?? [];
    if (needed.some((one) => !found.includes(one))) {
      throw new WheelError(`${name} depends on ${found.join(", ")}, expected ${needed.join(", ")}`);
    }
  }
}

async function libraryFor(target: Target): Promise<Uint8Array> {
  const built = await ensureClientLibrary(target);
  if (built.kind === "failed") throw new WheelError(`${built.output}\n${built.why}`);
  if (built.kind === "skipped") throw new WheelError(`no library for ${target}: ${built.why}`);
  return readFileSync(clientLibraryFile(target));
}

/** The client for each target, the client without the library, and the connectors. */
export async function buildWheels(targets: readonly Target[]): Promise<Wheel[]> {
  checkVersions();
  const wheels: Wheel[] = [];
  for (const target of targets) {
    const extra = new Map([[LIBRARY_IN_PACKAGE, await libraryFor(target)]]);
    const kind = { platforms: PLATFORMS[target], extra };
    wheels.push(wheelOf(PYTHON_PACKAGES.hearth_client as WheelSource, kind));
  }
  for (const source of Object.values(PYTHON_PACKAGES)) {
    wheels.push(wheelOf(source, { platforms: [], extra: new Map() }));
  }
  return wheels;
}

/** Writes each wheel whole or not at all; answers the files. */
export function writeWheels(wheels: readonly Wheel[], folder: string): string[] {
  mkdirSync(folder, { recursive: true });
  return wheels.map((wheel) => {
    const file = join(folder, wheel.fileName);
    const temporary = `${file}.${process.pid}`;
    writeFileSync(temporary, wheel.bytes);
    renameSync(temporary, file);
    return file;
  });
}
