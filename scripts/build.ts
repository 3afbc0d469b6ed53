/** `bun run build`: one executable with everything inside. */
import { relative } from "node:path";
import { scriptOptions } from "./lib/arguments.ts";
import {
  BuildError,
  crossOutfile,
  ensureExecutable,
  ensureFaultyExecutable,
  ensureHostExecutable,
} from "./lib/executable.ts";
import { ROOT } from "./lib/paths.ts";
import { parseTargets } from "./lib/targets.ts";

const HELP = `
Builds Hearth into one executable that needs no Bun, Zig or node_modules.

  bun run build                                      dist/hearth, for this host
  bun run build --target linux-x64,linux-arm64       dist/hearth-linux-x64, dist/hearth-linux-arm64
  bun run build --target all                         the same
  bun run build --faults                             dist/hearth-faults, for crash tests alone

Another platform's runtime comes from npm, once, into .toolchain/cross.
Exit codes: 0 built, or up to date; 1 failed; 2 wrong usage.
`;

const options = scriptOptions(HELP, {
  target: { type: "string" },
  faults: { type: "boolean", default: false },
});

async function build(): Promise<string[]> {
  if (options.faults) return [await ensureFaultyExecutable()];
  if (options.target === undefined) return [await ensureHostExecutable()];
  const files: string[] = [];
  for (const target of parseTargets(options.target)) {
    await ensureExecutable(target, crossOutfile(target));
    files.push(crossOutfile(target));
  }
  return files;
}

try {
  for (const file of await build()) console.log(relative(ROOT, file));
} catch (thrown) {
  if (!(thrown instanceof BuildError)) throw thrown;
  console.error(`build: ${thrown.message}`);
  process.exit(1);
}
