import { rmSync } from "node:fs";
import { setFaults } from "../../src/native/index.ts";
import { type Method, SsdHost } from "../store/ssd/ssd-kit.ts";
import { faultCounts } from "../support/index.ts";
import { actionsOf, nthsOf } from "./actions.ts";
import type { Workload } from "./workloads.ts";
import { type Resources, resources, World } from "./world.ts";

export interface SweepViolation {
  readonly workload: string;
  readonly method: Method;
  readonly plan: string;
  readonly what: string;
}

export interface SweepPart {
  readonly workload: string;
  readonly method: Method;
  /** Calls that the workload makes, and runs with one of them failing. */
  readonly points: number;
  readonly runs: number;
}

export interface SweepReport {
  readonly parts: SweepPart[];
  readonly violations: SweepViolation[];
}

export interface SweepOptions {
  readonly folder: string;
  readonly workloads: readonly Workload[];
  readonly methods: readonly Method[];
  /** Only these plans; all that there are otherwise. */
  readonly plans?: readonly string[];
  /** Of all plans, one in so many. */
  readonly oneIn?: number;
  onProgress?(part: SweepPart, total: number): void;
}

const RUN_MS = 20_000;
const LEAK_TRIES = 100;

/** Runs each workload with each of its calls failing once, and for ever. */
export async function sweep(options: SweepOptions): Promise<SweepReport> {
  await using host = new SsdHost();
  const report: SweepReport = { parts: [], violations: [] };
  const rejections: unknown[] = [];
  const onRejection = (reason: unknown) => rejections.push(reason);
  process.on("unhandledRejection", onRejection);
  try {
    for (const method of options.methods) {
      for (const workload of options.workloads) {
        const runner = new Runner(host, options.folder, method, workload, rejections);
        await runOne(runner, options, report);
      }
    }
  } finally {
    process.off("unhandledRejection", onRejection);
  }
  return report;
}

async function runOne(runner: Runner, options: SweepOptions, report: SweepReport): Promise<void> {
  const { method, workload } = runner;
  const note = (plan: string, what: string | null) => {
    if (what === null) return;
    report.violations.push({ workload: workload.name, method, plan, what });
  };
  note("count", await runner.run("count"));
  const counts = runner.counts;
  const oneIn = options.oneIn ?? 1;
  const plans = options.plans ?? plansFor(counts).filter((_, i) => i % oneIn === 0);
  let runs = 1;
  for (const plan of plans) {
    note(plan, await runner.run(plan));
    const part = { workload: workload.name, method, points: Object.keys(counts).length, runs };
    options.onProgress?.(part, plans.length);
    runs++;
  }
  const points = Object.keys(counts).length;
  report.parts.push({ workload: workload.name, method, points, runs });
}

export function plansFor(counts: Readonly<Record<string, number>>): string[] {
  return Object.entries(counts).flatMap(([point, count]) =>
    nthsOf(count).flatMap((nth) =>
      actionsOf(point, Number.parseInt(nth, 10)).map((action) => `${point}:${nth}:${action}`),
    ),
  );
}

class Runner {
  readonly method: Method;
  readonly workload: Workload;
  counts: Readonly<Record<string, number>> = {};
  readonly #host: SsdHost;
  readonly #folder: string;
  readonly #rejections: unknown[];
  #runs = 0;

  constructor(
    host: SsdHost,
    folder: string,
    method: Method,
    workload: Workload,
    rejections: unknown[],
  ) {
    this.#host = host;
    this.#folder = folder;
    this.method = method;
    this.workload = workload;
    this.#rejections = rejections;
  }

  /** What must not have happened, in words, or null. */
  async run(plan: string): Promise<string | null> {
    const dir = `${this.#folder}/${this.workload.name}-${this.method}-${this.#runs++}`;
    const { native } = this.#host;
    const world = new World(
      this.#host,
      dir,
      plan === "count",
      this.method,
      this.workload.options ?? {},
    );
    const before = this.#runs > 1 ? resources() : null;
    try {
      setFaults(native, plan);
      await withinTime(this.workload.run(world));
      if (plan === "count") this.counts = faultCounts(native);
      await withinTime(world.verify());
    } catch (error) {
      return describe(error);
    } finally {
      setFaults(native, "");
      await world.close();
      rmSync(dir, { recursive: true, force: true });
    }
    if (this.#rejections.length > 0) {
      return `unhandled: ${this.#rejections.splice(0).map(describe).join("; ")}`;
    }
    return before === null ? null : await leakSince(before);
  }
}

async function withinTime(work: Promise<void>): Promise<void> {
  const { promise, reject } = Promise.withResolvers<never>();
  const timer = setTimeout(() => reject(new Error(`not over after ${RUN_MS} ms`)), RUN_MS);
  try {
    await Promise.race([work, promise]);
  } finally {
    clearTimeout(timer);
  }
}

/** What the run left open; streams of the runtime may close theirs a moment later. */
async function leakSince(before: Resources): Promise<string | null> {
  for (let tries = 0; ; tries++) {
    const fds = resources().fds.filter((fd) => !before.fds.includes(fd));
    const more = resources().fds.length - before.fds.length;
    const maps = resources().maps - before.maps;
    if (more <= 0 && maps <= 0) return null;
    if (tries === LEAK_TRIES) return `left open: ${fds.join(", ")}; ${maps} memory files`;
    await Bun.sleep(5);
  }
}

function describe(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const place = error.stack?.split("\n").find((line) => line.includes("/src/"));
  return `${error.name}: ${error.message}${place === undefined ? "" : ` (${place.trim()})`}`;
}
