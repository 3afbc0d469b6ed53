/** `bun run test`: the Zig, Python and Bun tests, and one line that sums them up. */
import { appendFileSync, existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, dirname, join } from "node:path";
import { withAgent } from "./lib/agent.ts";
import { ensureHost } from "./lib/native-build.ts";
import { ensureNatsServer } from "./lib/nats-server.ts";
import { findPython, pythonEnvironment } from "./lib/python.ts";
import { ensurePyzmq } from "./lib/pyzmq.ts";
import { isRequired } from "./lib/required.ts";
import { run } from "./lib/run.ts";
import { fastTests } from "./lib/slow-tests.ts";
import {
  type Outcome,
  parseBunSummary,
  parsePythonSummary,
  pythonSkips,
  summaryLine,
  total,
} from "./lib/summary.ts";
import { bunTest } from "./lib/tools.ts";
import { runZigTests } from "./lib/zig-tests.ts";

const HELP = `
Builds the native library, then runs the Zig, Python and Bun tests.

  bun run test                     everything
  bun run test --fast              under 3 minutes: no Zig tests, no files of slow-tests.ts
  bun run test test/core           only the Bun tests whose path contains test/core
  bun run test -t "evicts"         any option of \`bun test\`

A nats-server and pyzmq are taken from this host or, with Debian's packages, brought below
.toolchain. REQUIRE_NATIVE=1, REQUIRE_PYTHON=1, REQUIRE_NATS=1, REQUIRE_PYZMQ=1 (or CI=true for all)
turn skipped suites into failures.
The last line is "N passed, N failed, N skipped". Exit codes: 0 all passed; 1 something failed.
`;

/** How often the whole run kills an agent; a run of single files does so a few times. */
const CRASH_CYCLES = "50";

const NO_TESTS: Outcome = { kind: "ran", passed: 0, failed: 1, skipped: 0 };

async function nativeTests(): Promise<Outcome> {
  const built = await ensureHost();
  if (built.kind !== "failed") return runZigTests();
  console.error(`${built.output}\nnative: ${built.why}`);
  return NO_TESTS;
}

/**
 * Against a running agent where the library can be had; without one those tests skip themselves.
 */
async function pythonTests(skipsFile: string): Promise<Outcome> {
  const python = findPython();
  if (python.kind === "skipped") return python;
  const discover = ["discover", "--verbose", "-s", "python/tests", "-t", "python"];
  const command = [python.path, "-m", "unittest", ...discover];
  const runTests = (agent: Record<string, string>) =>
    run(command, { env: { ...pythonEnvironment(), ...agent }, echo: true });
  const native = await ensureHost();
  const hasAgent = native.kind === "fresh" || native.kind === "built";
  const result = hasAgent
    ? await withAgent((socket) => runTests({ HEARTH_SOCKET: socket }))
    : await runTests({});
  for (const [why, tests] of pythonSkips(result.output)) {
    appendFileSync(skipsFile, `skipped: ${tests} Python tests: ${why}\n`);
  }
  return parsePythonSummary(result.output, result.code);
}

/** A runner that could not even start has failed, and the others still run. */
async function orFailed(runner: Promise<Outcome>): Promise<Outcome> {
  try {
    return await runner;
  } catch (thrown) {
    console.error(thrown instanceof Error ? thrown.message : thrown);
    return NO_TESTS;
  }
}

async function bunTests(args: string[], skipsFile: string): Promise<Outcome> {
  const colours = process.stdout.isTTY ? { FORCE_COLOR: "1" } : {};
  const crashes = args.length === 0 ? { HEARTH_CRASH_CYCLES: CRASH_CYCLES } : {};
  const env = { ...process.env, ...crashes, ...colours, HEARTH_SKIPS_FILE: skipsFile };
  const nats = await ensureNatsServer();
  if (nats.kind === "skipped") console.log(`nats: suites that need it are left out: ${nats.why}`);
  const pyzmq = await ensurePyzmq();
  if (pyzmq.kind === "skipped")
    console.log(`pyzmq: suites that need it are left out: ${pyzmq.why}`);
  const result = await run(bunTest(...args), { env, echo: true });
  return parseBunSummary(result.output, result.code);
}

/** A skipped runner, as one line; under CI it counts as a failure. */
function judge(name: string, needs: "NATIVE" | "PYTHON", outcome: Outcome): Outcome {
  if (outcome.kind === "ran") return outcome;
  const required = isRequired(needs);
  console.log(`${required ? "required" : "skipped"}: ${name} tests: ${outcome.why}`);
  return required ? NO_TESTS : outcome;
}

function printSkips(file: string): void {
  if (!existsSync(file)) return;
  process.stdout.write(`\n${readFileSync(file, "utf8")}`);
}

function printRunner(name: string, outcome: Outcome): void {
  const text = outcome.kind === "ran" ? summaryLine(outcome) : `skipped: ${outcome.why}`;
  console.log(`${name.padEnd(7)} ${text}`);
}

async function main(): Promise<number> {
  const args = process.argv.slice(2);
  if (args.includes("--help") || args.includes("-h")) {
    console.log(HELP.trim());
    return 0;
  }
  const isFast = args.includes("--fast");
  if (isFast) args.splice(args.indexOf("--fast"), 1);
  process.env.PATH = `${dirname(process.execPath)}${delimiter}${process.env.PATH ?? ""}`;
  const folder = mkdtempSync(join(tmpdir(), "hearth-test-"));
  const skipsFile = join(folder, "skips");
  try {
    const outcomes: [string, Outcome][] = [];
    if (args.length === 0) {
      if (!isFast) outcomes.push(["zig", judge("Zig", "NATIVE", await nativeTests())]);
      outcomes.push(["python", judge("Python", "PYTHON", await orFailed(pythonTests(skipsFile)))]);
    }
    const files = isFast ? fastTests(args) : args;
    outcomes.push(["bun", await bunTests(files, skipsFile)]);
    printSkips(skipsFile);
    console.log("");
    for (const [name, outcome] of outcomes) printRunner(name, outcome);
    const sum = total(outcomes.map(([, outcome]) => outcome));
    console.log(summaryLine(sum));
    return sum.failed === 0 ? 0 : 1;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

process.exit(await main());
