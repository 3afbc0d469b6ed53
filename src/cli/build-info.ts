import { readFileSync } from "node:fs";
import { join } from "node:path";

/** What runs here. */
export interface BuildInfo {
  readonly version: string;
  /**
   * Twelve hex digits, with `-dirty` where the sources differed; `checkout` where it is not built.
   */
  readonly commit: string;
  readonly runtime: string;
}

// Replaced by text when the executable is built.
declare const HEARTH_VERSION: string;
declare const HEARTH_COMMIT: string;

function checkoutVersion(): string {
  const manifest = readFileSync(join(import.meta.dir, "../../package.json"), "utf8");
  return (JSON.parse(manifest) as { version: string }).version;
}

export function buildInfo(): BuildInfo {
  return {
    version: typeof HEARTH_VERSION === "undefined" ? checkoutVersion() : HEARTH_VERSION,
    commit: typeof HEARTH_COMMIT === "undefined" ? "checkout" : HEARTH_COMMIT,
    runtime: `Bun ${Bun.version}`,
  };
}

/** `hearth 0.1.0 (0123456789ab, Bun 1.4.5)` */
export function versionLine(build: BuildInfo): string {
  return `hearth ${build.version} (${build.commit}, ${build.runtime})`;
}
