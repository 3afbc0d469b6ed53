/** `bun run native`: the native library and its generated bindings. */
import { scriptOptions } from "./lib/arguments.ts";
import {
  ensureBindings,
  ensureHost,
  ensureLibrary,
  ensureStandIns,
  type NativeOutcome,
} from "./lib/native-build.ts";
import { hostTarget, parseTargets, type Target } from "./lib/targets.ts";
import { runZigTests } from "./lib/zig-tests.ts";

const HELP = `
Builds dist/native/<target>/libhearth.so, beside it libhearth_client.so for the Python client, and
src/native/abi.gen.ts when zig/ changed.

  bun run native                       for this host
  bun run native --target all          for every target (or linux-x64, linux-arm64)
  bun run native --canary              with the planted bug that the fuzzers must find,
                                       into dist/native/<target>-canary
  bun run native --stand-ins           what tests open instead of CUDA's library and the verbs',
                                       into dist/native/<target>-stand-ins
  bun run native --check-fresh         only says whether the committed bindings are fresh
  bun run native --test                also runs the Zig tests
  bun run native --quiet               says nothing when there is nothing to do

Exit codes: 0 done, or nothing to do on this host (says why); 1 failed; 2 wrong usage.
`;

const options = scriptOptions(HELP, {
  target: { type: "string" },
  canary: { type: "boolean", default: false },
  "stand-ins": { type: "boolean", default: false },
  "check-fresh": { type: "boolean", default: false },
  test: { type: "boolean", default: false },
  quiet: { type: "boolean", default: false },
});

/** Reports and, on a failure, ends the script. */
function report(what: string, outcome: NativeOutcome): void {
  if (outcome.kind === "failed") {
    process.stderr.write(outcome.output);
    console.error(`native: ${what}: ${outcome.why}`);
    process.exit(1);
  }
  if (outcome.kind === "skipped") console.error(`native: skipped ${what}: ${outcome.why}`);
  else if (!options.quiet) console.error(`native: ${what} is up to date`);
}

function wantedTargets(): Target[] {
  if (options.target !== undefined) return parseTargets(options.target);
  const host = hostTarget();
  if (host.ok) return [host.target];
  console.error(`native: skipped the library: ${host.why}`);
  return [];
}

if (options["check-fresh"]) {
  report("src/native/abi.gen.ts", await ensureBindings("check"));
  process.exit(0);
}
if (options.target === undefined && !options.canary) {
  report("the library and its bindings", await ensureHost());
} else {
  for (const target of wantedTargets()) {
    report(target, await ensureLibrary({ target, canary: options.canary }));
  }
}
if (options["stand-ins"]) report("the stand-ins", await ensureStandIns());
if (options.test) {
  const tests = await runZigTests();
  if (tests.kind === "skipped") console.error(`native: skipped the Zig tests: ${tests.why}`);
  else if (tests.failed > 0) process.exit(1);
}
