import { requireMemory, Skip } from "./kit/cache.ts";
import { type EngineName, ensureEngine } from "./kit/install.ts";
import { type Lane, type LaneReport, runLane } from "./kit/lane.ts";
import { ensureModel } from "./kit/model.ts";
import { say } from "./kit/say.ts";

export interface RunOptions {
  readonly engine: EngineName;
  readonly lanes: readonly (readonly [name: string, lane: Lane])[];
  readonly seed: number;
  readonly modelSeed: number;
  readonly minutes: number;
  readonly isQuick: boolean;
  readonly isJson: boolean;
}

export function usageError(text: string): never {
  console.error(text);
  process.exit(2);
}

export function wholeNumber(name: string, text: string, min: number): number {
  const value = Number(text);
  if (Number.isSafeInteger(value) && value >= min) return value;
  return usageError(`--${name} ${text}: expected a whole number from ${min} on`);
}

function print({ lane, ok, seconds, skipped, checks, figures }: LaneReport): void {
  console.log(`${ok ? "ok    " : "FAILED"} ${lane} (${seconds} s)`);
  if (skipped !== undefined) console.log(`  skipped: ${skipped}`);
  for (const { claim, ok: holds, value, wanted } of checks) {
    const found = typeof value === "string" ? value : JSON.stringify(value);
    console.log(`  ${holds ? "ok    " : "FAILED"} ${claim}: ${found} (${wanted})`);
  }
  for (const [name, value] of Object.entries(figures)) {
    console.log(`         ${name}: ${JSON.stringify(value)}`);
  }
}

async function run(options: RunOptions): Promise<boolean> {
  const engine = await ensureEngine(options.engine);
  // Models are made with the packages of vLLM; SGLang reads the same files.
  const maker = options.engine === "vllm" ? engine : await ensureEngine("vllm");
  const { seed, modelSeed, isQuick, isJson, minutes } = options;
  const model = await ensureModel(maker, { seed: modelSeed });
  const reports: LaneReport[] = [];
  for (const [name, lane] of options.lanes) {
    say(`lane ${name}`);
    const report = await runLane(name, lane, { engine, model, seed, isQuick, minutes });
    reports.push(report);
    if (!isJson) print(report);
  }
  const ok = reports.every((report) => report.ok);
  const head = { engine: engine.name, version: engine.version, seed, modelSeed, isQuick, ok };
  if (isJson) console.log(JSON.stringify({ ...head, lanes: reports }));
  return ok;
}

function skip(why: string, isJson: boolean): never {
  const isRequired = process.env.REQUIRE_ENGINES === "1";
  console.error(`${isRequired ? "required" : "skipped"}: real engines: ${why}`);
  if (isJson) console.log(JSON.stringify({ skipped: why }));
  process.exit(isRequired ? 1 : 0);
}

/** Runs `main`, which says whether all is well, and ends the process; a `Skip` is reported. */
export async function withSkips(isJson: boolean, main: () => Promise<boolean>): Promise<never> {
  try {
    await requireMemory();
    process.exit((await main()) ? 0 : 1);
  } catch (thrown) {
    if (!(thrown instanceof Skip)) throw thrown;
    skip(thrown.message, isJson);
  }
}

/** Runs lanes, prints their reports and ends the process with the verdict. */
export function runMain(options: RunOptions): Promise<never> {
  return withSkips(options.isJson, () => run(options));
}
