import {
  defineLane,
  flag,
  type LaneHost,
  type LaneResult,
  needNative,
  whole,
} from "../support/lane.ts";
import { type Check, runConformance } from "./conformance.ts";
import { compareTemplate, readGolden, type TokenCheck, templateNames } from "./tokens/compare.ts";

const VECTORS = ["test/events/golden-events.test.ts", "test/identity"];
/** Draws among equal workers. */
const DRAWS = 20_000;

export const lane = defineLane({
  help: `
Compares the router with an implementation that is as literal as possible: worked examples of cost
and softmax, every candidate of every explanation under several settings, how often equal workers
are drawn, prefill and decode accounting, expiry, and the prefix index. Then the vectors of engines'
events and hashes. With --tokens instead: prompts of the proxy against token ids from a real vLLM.

  ./dev test:conformance                       a million steps of index and slots, about a minute
  ./dev test:conformance --steps 10000         a short run
  ./dev test:conformance --seed 7              other steps
  ./dev test:conformance --tokens              every golden conversation and template, alone
  ./dev test:conformance --json                the result as one line of JSON

Exit codes: 0 no difference; 1 some; 2 wrong usage.
`,
  options: { steps: whole(100, 1_000_000), seed: whole(0, 1), tokens: flag() },
  async run({ steps, seed, tokens }, host) {
    if (tokens) return compareTokens(host);
    await needNative();
    // Imported after the build, because these modules look for the library when they are loaded.
    const { loadNative } = await import("../../src/native/index.ts");
    const { NativeIndex } = await import("../../src/router/index.ts");
    const { seededRandom } = await import("../../src/core/index.ts");
    const checks = [
      ...runConformance({
        ...{ steps, draws: DRAWS, seed, nowMs: () => performance.now() },
        makeIndex: () =>
          new NativeIndex({
            native: loadNative(),
            random: seededRandom(seed),
            bytesMax: 2 ** 28,
          }),
        onCheck: (check) => host.print(lineOf(check)),
      }),
    ];
    checks.push(runVectors());
    host.print(lineOf(checks.at(-1)!));
    return { violations: differences(checks), json: { steps, seed, checks } };
  },
});

function runVectors(): Check {
  const startMs = performance.now();
  const vectors = Bun.spawnSync([process.execPath, "test", ...VECTORS], { stderr: "pipe" });
  const output = vectors.stderr.toString();
  const passed = Number(/^ *(\d+) pass$/m.exec(output)?.[1] ?? 0);
  const isSound = vectors.exitCode === 0 && passed > 0;
  return {
    name: "vectors of events and hashes",
    compared: passed,
    fault: isSound ? null : output.slice(-2_000),
    seconds: (performance.now() - startMs) / 1_000,
  };
}

async function compareTokens(host: LaneHost): Promise<LaneResult> {
  const checks: TokenCheck[] = [];
  const golden = readGolden();
  for (const template of templateNames()) {
    const check = await compareTemplate(golden, template, 1);
    checks.push(check);
    host.print(lineOf(check));
  }
  const compared = checks.reduce((sum, check) => sum + check.compared, 0);
  const equal = checks.reduce((sum, check) => sum + check.compared - check.different, 0);
  const nothing = compared === 0 ? ["no prompt was compared"] : [];
  return {
    violations: [...differences(checks), ...nothing],
    json: { compared, equal, checks },
    text: `${equal} of ${compared} prompts equal vLLM ${golden.golden.vllm}`,
  };
}

function differences(checks: readonly Check[]): string[] {
  return checks.flatMap(({ name, fault }) => (fault === null ? [] : [`${name}: ${fault}`]));
}

function lineOf({ name, compared, fault, seconds }: Check): string {
  const verdict = fault === null ? `${compared} compared` : `DIFFERS: ${fault}`;
  return `${name.padEnd(48)} ${verdict} (${seconds.toFixed(1)} s)`;
}
