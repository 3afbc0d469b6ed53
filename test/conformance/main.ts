/** `bun run test:conformance`: the router against a literal implementation, and event vectors. */
import { scriptOptions } from "../../scripts/lib/arguments.ts";
import { ensureHost } from "../../scripts/lib/native-build.ts";
import { type Check, runConformance } from "./conformance.ts";
import { compareTemplate, readGolden, type TokenCheck, templateNames } from "./tokens/compare.ts";

const HELP = `
Compares the router with an implementation that is as literal as can be: worked examples of cost
and softmax, every candidate of every explanation under several settings, how often equal workers
are drawn, prefill and decode accounting, expiry, and the prefix index. Then the vectors of engines'
events and hashes. With --tokens instead: prompts of the proxy against token ids from a real vLLM.

  bun run test:conformance                       a million steps of index and slots, about a minute
  bun run test:conformance -- --steps 10000      a short one
  bun run test:conformance -- --seed 7           other steps
  bun run test:conformance -- --tokens           every golden conversation and template, alone
  bun run test:conformance -- --json             the result as one line of JSON

Exit codes: 0 no difference; 1 some; 2 wrong usage.
`;

const VECTORS = ["test/events/golden-events.test.ts", "test/identity"];

const options = scriptOptions(HELP, {
  steps: { type: "string", default: "1000000" },
  seed: { type: "string", default: "1" },
  tokens: { type: "boolean", default: false },
  json: { type: "boolean", default: false },
});

function fail(text: string): never {
  console.error(text);
  process.exit(2);
}

function wholeNumber(name: "steps" | "seed", min: number): number {
  const value = Number(options[name]);
  if (Number.isSafeInteger(value) && value >= min) return value;
  return fail(`--${name} ${options[name]} is no whole number from ${min}`);
}

function print({ name, compared, fault, seconds }: Check): void {
  const verdict = fault === null ? `${compared} compared` : `DIFFERS: ${fault}`;
  console.log(`${name.padEnd(48)} ${verdict} (${seconds.toFixed(1)} s)`);
}

if (options.tokens) {
  const checks: TokenCheck[] = [];
  const golden = readGolden();
  for (const template of templateNames()) {
    checks.push(await compareTemplate(golden, template, 1));
    if (!options.json) print(checks.at(-1)!);
  }
  const compared = checks.reduce((sum, check) => sum + check.compared, 0);
  const equal = checks.reduce((sum, check) => sum + check.compared - check.different, 0);
  if (options.json) console.log(JSON.stringify({ compared, equal, checks }));
  else console.log(`${equal} of ${compared} prompts as vLLM ${golden.golden.vllm} has them`);
  process.exit(equal === compared && compared > 0 ? 0 : 1);
}

const steps = wholeNumber("steps", 100);
const seed = wholeNumber("seed", 0);
const host = await ensureHost();
if (host.kind === "failed" || host.kind === "skipped") fail(`no native library: ${host.why}`);
// After the build: what is imported before it would look for a library that is not there yet.
const { loadNative } = await import("../../src/native/index.ts");
const { NativeIndex } = await import("../../src/router/index.ts");
const { seededRandom } = await import("../../src/core/index.ts");

const checks = [
  ...runConformance({
    ...{ steps, draws: 20_000, seed, nowMs: () => performance.now() },
    makeIndex: () =>
      new NativeIndex({ native: loadNative(), random: seededRandom(seed), bytesMax: 2 ** 28 }),
    onCheck: (check) => options.json || print(check),
  }),
];

const startMs = performance.now();
const vectors = Bun.spawnSync([process.execPath, "test", ...VECTORS], { stderr: "pipe" });
const told = vectors.stderr.toString();
const passed = Number(/^ *(\d+) pass$/m.exec(told)?.[1] ?? 0);
const isSound = vectors.exitCode === 0 && passed > 0;
checks.push({
  name: "vectors of events and hashes",
  compared: passed,
  fault: isSound ? null : told.slice(-2_000),
  seconds: (performance.now() - startMs) / 1_000,
});
if (!options.json) print(checks.at(-1)!);
else console.log(JSON.stringify({ steps, seed, checks }));
process.exit(checks.every(({ fault }) => fault === null) ? 0 : 1);
