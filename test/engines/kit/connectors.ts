import { join } from "node:path";
import { run } from "../../../scripts/lib/run.ts";
import { hostTarget } from "../../../scripts/lib/targets.ts";
import { buildWheels, PYTHON_PACKAGES, writeWheels } from "../../../scripts/lib/wheels.ts";
import { Skip } from "./cache.ts";
import { ensureUv } from "./install.ts";
import { WorkFolder } from "./work-folder.ts";

/**
 * A folder with the wheels of this checkout, installed as users install them. It is beside the
 * engine's environment, not in it, so that other checkouts can use the same engine.
 */
async function install(): Promise<string> {
  const host = hostTarget();
  if (!host.ok) throw new Skip(host.why);
  const folder = new WorkFolder();
  const [wheels, target] = [join(folder.path, "dist"), join(folder.path, "site-packages")];
  writeWheels(await buildWheels([host.target]), wheels);
  const names = Object.keys(PYTHON_PACKAGES).map((name) => name.replace("_", "-"));
  const from = ["--no-index", "--find-links", wheels, "--target", target];
  const { ok, output } = await run([await ensureUv(), "pip", "install", "-q", ...from, ...names]);
  if (!ok) throw new Error(`the wheels of the connectors could not be installed: ${output}`);
  return target;
}

let installed: Promise<string> | undefined;

/** PYTHONPATH of engines: `before`, then the installed wheels, which are built once a process. */
export async function connectorPath(...before: string[]): Promise<string> {
  installed ??= install();
  return [...before, await installed].join(":");
}
