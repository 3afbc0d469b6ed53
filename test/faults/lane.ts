import { existsSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { loadNative } from "../../src/native/index.ts";
import type { Method } from "../store/ssd/ssd-kit.ts";
import { defineLane, flag, LaneUsage, needNative, oneOf, text, whole } from "../support/lane.ts";
import { ringRefusal } from "./methods.ts";
import { SCENARIOS, type ScenarioResult } from "./scenarios.ts";
import { type SweepReport, sweep } from "./sweep.ts";
import { WORKLOADS } from "./workloads.ts";

const METHODS: readonly Method[] = ["threads", "io_uring"];
const NAMES = [...WORKLOADS, ...SCENARIOS].map(({ name }) => name);
/** Seconds of all workloads by both methods, and of the scenarios, on two cores. */
const [SWEEP_S, SCENARIOS_S] = [160, 50];

interface Choice {
  readonly workload: string | null;
  readonly plan: string | null;
  readonly oneIn: number;
}

export const lane = defineLane({
  help: `
Runs workloads of the SSD tier again and again. In each run one of their system calls or allocations
fails, once or from then on, with every plausible error; also while the tier starts and recovers.
After each run the store must recover without help, with no wrong byte, no crash and no leak. Then
scenarios with whole agents: io_uring denied, memlock too small, a disk that hangs for 30 seconds.

  ./dev test:faults                          everything, about four minutes on two cores
  ./dev test:faults --workload eviction      one workload, or one scenario, by its name
  ./dev test:faults --method threads         one way to reach the disk (threads or io_uring)
  ./dev test:faults --one-in 10              one plan in ten
  ./dev test:faults --workload kill --plan store.link:2:EIO    one run
  ./dev test:faults --json                   the report as one line of JSON on standard output

Exit codes: 0 all is well; 1 a violation; 2 wrong usage.
`,
  options: {
    workload: oneOf(NAMES),
    method: oneOf(METHODS),
    plan: text(),
    "one-in": whole(1, 1),
    sweep: flag(),
  },
  async run({ workload, method, plan, "one-in": oneIn, sweep: isChild }, host) {
    if (plan !== null && workload === null) throw new LaneUsage("--plan needs a --workload");
    await needNative();
    const choice: Choice = { workload, plan, oneIn };
    if (isChild) {
      // On tmpfs if there is one: thousands of runs, and no wear.
      const folder = host.folder(existsSync("/dev/shm") ? "/dev/shm" : tmpdir());
      return { violations: [], json: await sweepHere(method!, choice, folder) };
    }
    const startMs = performance.now();
    if (workload === null) {
      const seconds = SWEEP_S / oneIn + (method === null ? SCENARIOS_S : 0);
      host.say(`about ${Math.ceil(seconds / 60)} min on two cores`);
    }
    const refusal = await ringRefusal(loadNative());
    const methods = METHODS.filter((one) => (method ?? one) === one).filter(
      (one) => one !== "io_uring" || refusal === null,
    );
    const wantsSweep = workload === null || WORKLOADS.some(({ name }) => name === workload);
    const swept = wantsSweep ? await sweepEach(methods, choice) : { parts: [], violations: [] };
    const scenarios = await playScenarios(workload, method === null, host.say);
    const skipped = [
      ...(refusal === null ? [] : [`io_uring: ${refusal}`]),
      ...scenarios.flatMap((one) => (one.skipped ? [`${one.name}: ${one.skipped}`] : [])),
    ];
    for (const why of skipped) host.say(`skipped: ${why}`);
    const violations = violationsOf(swept, scenarios);
    const runs = swept.parts.reduce((sum, part) => sum + part.runs, 0);
    const seconds = Number(((performance.now() - startMs) / 1_000).toFixed(1));
    const workloads = new Set(swept.parts.map((part) => part.workload)).size;
    return {
      violations,
      json: { runs, seconds, violations, skipped, parts: swept.parts, scenarios },
      text:
        `faults: ${runs} runs of ${workloads} workloads, ${scenarios.length} scenarios, ` +
        `${violations.length} violations, ${seconds} s`,
    };
  },
});

function violationsOf(swept: SweepReport, scenarios: readonly ScenarioResult[]): string[] {
  return [
    ...swept.violations.map(
      ({ workload, method, plan, what }) =>
        `${what}\n  ./dev test:faults --workload ${workload} --method ${method} --plan ${plan}`,
    ),
    ...scenarios.flatMap((one) => one.violations.map((what) => `${one.name}: ${what}`)),
  ];
}

/** `isWhole`: without a named scenario, all are played. */
async function playScenarios(
  wanted: string | null,
  isWhole: boolean,
  say: (line: string) => void,
): Promise<ScenarioResult[]> {
  const scenarios: ScenarioResult[] = [];
  for (const scenario of SCENARIOS) {
    if (wanted === null ? !isWhole : wanted !== scenario.name) continue;
    say(`scenario ${scenario.name}`);
    const result = await scenario.run().catch((thrown) => ({ violations: [String(thrown)] }));
    scenarios.push({ name: scenario.name, ...result });
  }
  return scenarios;
}

/** One method in this process, because its faults are planned per process. */
function sweepHere(
  method: Method,
  { workload, plan, oneIn }: Choice,
  folder: string,
): Promise<SweepReport> {
  let shown = "";
  return sweep({
    folder,
    methods: [method],
    oneIn,
    workloads: WORKLOADS.filter(({ name }) => (workload ?? name) === name),
    ...(plan === null ? {} : { plans: [plan] }),
    onProgress(part, total) {
      const line = `faults: ${method} ${part.workload}: ${total} plans`;
      if (line !== shown) process.stderr.write(`${line}\n`);
      shown = line;
    },
  });
}

/** Each method in a process of its own, both at the same time. */
async function sweepEach(
  methods: readonly Method[],
  { workload, plan, oneIn }: Choice,
): Promise<SweepReport> {
  const entry = join(import.meta.dir, "../lanes.ts");
  const children = methods.map(async (method): Promise<SweepReport> => {
    const words = ["faults", "--json", "--sweep", "--method", method, "--one-in", `${oneIn}`];
    if (workload !== null) words.push("--workload", workload);
    if (plan !== null) words.push("--plan", plan);
    const command = [process.execPath, entry, ...words];
    const child = Bun.spawn(command, { stdout: "pipe", stderr: "inherit", stdin: "ignore" });
    const output = await child.stdout.text();
    if ((await child.exited) === 0) return JSON.parse(output) as SweepReport;
    const what = `the process ended with ${child.exitCode ?? child.signalCode}`;
    const where = { workload: workload ?? "all", method, plan: plan ?? "all" };
    return { parts: [], violations: [{ ...where, what }] };
  });
  const reports = await Promise.all(children);
  return {
    parts: reports.flatMap(({ parts }) => parts),
    violations: reports.flatMap(({ violations }) => violations),
  };
}
