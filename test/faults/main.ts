/** `bun run test:faults`: every call that the SSD tier makes to the kernel fails, in its turn. */
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { scriptOptions } from "../../scripts/lib/arguments.ts";
import { ensureHost } from "../../scripts/lib/native-build.ts";
import { loadNative } from "../../src/native/index.ts";
import type { Method } from "../store/ssd/ssd-kit.ts";
import { ringRefusal } from "./methods.ts";
import { SCENARIOS, type ScenarioResult } from "./scenarios.ts";
import { type SweepReport, sweep } from "./sweep.ts";
import { WORKLOADS } from "./workloads.ts";

const HELP = `
Runs workloads of the SSD tier again and again. In each run one of their system calls or
allocations fails, once or from then on, with every error that makes sense for it; also while the
tier starts and recovers. After each run the store must come back by itself, with no wrong byte, no
crash and nothing left over. Then scenarios with whole agents: io_uring denied, memlock too small, a
disk that hangs for 30 seconds.

  bun run test:faults                          everything, about four minutes on two cores
  bun run test:faults -- --workload eviction   one workload, or one scenario, by its name
  bun run test:faults -- --method threads      one way to reach the disk (threads or io_uring)
  bun run test:faults -- --one-in 10           one plan in ten
  bun run test:faults -- --workload kill --plan store.link:2:EIO    one run
  bun run test:faults -- --json                the report as one line of JSON on standard output

Exit codes: 0 all is well; 1 a violation; 2 wrong usage.
`;

const options = scriptOptions(HELP, {
  workload: { type: "string" },
  method: { type: "string" },
  plan: { type: "string" },
  "one-in": { type: "string", default: "1" },
  json: { type: "boolean", default: false },
  sweep: { type: "boolean", default: false },
});

function fail(text: string): never {
  console.error(text);
  process.exit(2);
}

const METHODS: readonly Method[] = ["threads", "io_uring"];
const names = [...WORKLOADS, ...SCENARIOS].map(({ name }) => name);
const { workload, method, plan } = options;
const oneIn = Number(options["one-in"]);
if (workload !== undefined && !names.includes(workload)) {
  fail(`--workload ${workload} is none of ${names.join(", ")}`);
}
if (method !== undefined && !METHODS.includes(method as Method)) {
  fail(`--method ${method} is none of ${METHODS.join(", ")}`);
}
if (!Number.isSafeInteger(oneIn) || oneIn < 1) fail(`--one-in ${oneIn} is no whole number`);
if (plan !== undefined && workload === undefined) fail("--plan needs a --workload");
const native = await ensureHost();
if (native.kind === "failed" || native.kind === "skipped") fail(`no faults: ${native.why}`);

/** In memory where that is to be had: thousands of runs, and no wear. */
function makeFolder(): string {
  const root = existsSync("/dev/shm") ? "/dev/shm" : tmpdir();
  return mkdtempSync(join(root, "hearth-faults-"));
}

/** One method, in this process: plans are its own. */
async function sweepHere(only: Method): Promise<SweepReport> {
  const folder = makeFolder();
  let shown = "";
  try {
    return await sweep({
      folder,
      methods: [only],
      oneIn,
      workloads: WORKLOADS.filter(({ name }) => workload === undefined || workload === name),
      ...(plan === undefined ? {} : { plans: [plan] }),
      onProgress(part, total) {
        const line = `faults: ${only} ${part.workload}: ${total} plans`;
        if (line !== shown) process.stderr.write(`${line}\n`);
        shown = line;
      },
    });
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** Each method in a process of its own, both at the same time. */
async function sweepEach(methods: readonly Method[]): Promise<SweepReport> {
  const children = methods.map(async (only) => {
    const words = ["--sweep", "--method", only, "--one-in", String(oneIn)];
    if (workload !== undefined) words.push("--workload", workload);
    if (plan !== undefined) words.push("--plan", plan);
    const command = [process.execPath, import.meta.path, ...words];
    const child = Bun.spawn(command, { stdout: "pipe", stderr: "inherit", stdin: "ignore" });
    const text = await child.stdout.text();
    if ((await child.exited) !== 0) {
      const what = `the process ended with ${child.exitCode ?? child.signalCode}`;
      const where = { workload: workload ?? "all", method: only, plan: plan ?? "all" };
      return { parts: [], violations: [{ ...where, what }] };
    }
    return JSON.parse(text) as SweepReport;
  });
  const reports = await Promise.all(children);
  return {
    parts: reports.flatMap(({ parts }) => parts),
    violations: reports.flatMap(({ violations }) => violations),
  };
}

if (options.sweep) {
  console.log(JSON.stringify(await sweepHere(method as Method)));
  process.exit(0);
}

const startMs = performance.now();
/** Seconds of all workloads by both methods, and of the scenarios, on two cores. */
const [SWEEP_S, SCENARIOS_S] = [160, 50];
if (workload === undefined) {
  const s = SWEEP_S / oneIn + (method === undefined ? SCENARIOS_S : 0);
  process.stderr.write(`faults: about ${Math.ceil(s / 60)} min on two cores\n`);
}
const refusal = await ringRefusal(loadNative());
const skipped: string[] = refusal === null ? [] : [`io_uring: ${refusal}`];
const methods = METHODS.filter((one) => method === undefined || method === one).filter(
  (one) => one !== "io_uring" || refusal === null,
);
const wantsSweep = workload === undefined || WORKLOADS.some(({ name }) => name === workload);
const swept: SweepReport = wantsSweep ? await sweepEach(methods) : { parts: [], violations: [] };
const scenarios: ScenarioResult[] = [];
for (const scenario of SCENARIOS) {
  const isWanted = workload === undefined ? method === undefined : workload === scenario.name;
  if (!isWanted) continue;
  process.stderr.write(`faults: scenario ${scenario.name}\n`);
  const result = await scenario.run().catch((error) => ({ violations: [String(error)] }));
  scenarios.push({ name: scenario.name, ...result });
}
for (const { name, skipped: why } of scenarios) if (why) skipped.push(`${name}: ${why}`);
const runs = swept.parts.reduce((sum, part) => sum + part.runs, 0);
const seconds = Number(((performance.now() - startMs) / 1_000).toFixed(1));
const violations = [
  ...swept.violations.map(
    ({ workload: name, method: by, plan: how, what }) =>
      `${what}\n  bun run test:faults -- --workload ${name} --method ${by} --plan ${how}`,
  ),
  ...scenarios.flatMap((one) => one.violations.map((what) => `${one.name}: ${what}`)),
];
for (const why of skipped) console.error(`skipped: ${why}`);
for (const violation of violations) console.error(`violation: ${violation}`);
if (options.json) {
  const { parts } = swept;
  console.log(JSON.stringify({ runs, seconds, violations, skipped, parts, scenarios }));
} else {
  const rest = `${scenarios.length} scenarios, ${violations.length} violations`;
  const workloads = new Set(swept.parts.map((part) => part.workload)).size;
  console.log(`faults: ${runs} runs of ${workloads} workloads, ${rest}, ${seconds} s`);
}
process.exit(violations.length === 0 ? 0 : 1);
