import { type LaneHost, type LaneResult, LaneSkip } from "../support/lane.ts";
import { requireMemory, Skip } from "./kit/cache.ts";
import { type EngineName, ensureEngine } from "./kit/install.ts";
import { type Lane, type LaneReport, runLane } from "./kit/lane.ts";
import { ensureModel } from "./kit/model.ts";
import { say } from "./kit/say.ts";

export interface EngineRun {
  readonly engine: EngineName;
  readonly lanes: readonly (readonly [name: string, lane: Lane])[];
  readonly seed: number;
  readonly modelSeed: number;
  readonly minutes: number;
  readonly isQuick: boolean;
}

/** Runs `run` if the host has the memory for an engine. Rejects with LaneSkip if it lacks anything. */
export async function onEngines<T>(run: () => Promise<T>): Promise<T> {
  try {
    await requireMemory();
    return await run();
  } catch (thrown) {
    if (!(thrown instanceof Skip)) throw thrown;
    throw new LaneSkip(`real engines: ${thrown.message}`, "ENGINES");
  }
}

/** Runs lanes on a real engine and joins their reports. */
export function runEngines(options: EngineRun, host: LaneHost): Promise<LaneResult> {
  return onEngines(async () => {
    const engine = await ensureEngine(options.engine);
    // Models are made with the packages of vLLM; SGLang reads the same files.
    const maker = options.engine === "vllm" ? engine : await ensureEngine("vllm");
    const { seed, modelSeed, isQuick, minutes } = options;
    const model = await ensureModel(maker, { seed: modelSeed });
    const lanes: LaneReport[] = [];
    for (const [name, lane] of options.lanes) {
      say(`lane ${name}`);
      const report = await runLane(name, lane, { engine, model, seed, isQuick, minutes });
      lanes.push(report);
      host.print(textOf(report));
    }
    const ok = lanes.every((report) => report.ok);
    const head = { engine: engine.name, version: engine.version, seed, modelSeed, isQuick, ok };
    return { violations: lanes.flatMap(violationsOf), json: { ...head, lanes } };
  });
}

function violationsOf({ lane, ok, checks }: LaneReport): string[] {
  const broken = checks.filter((check) => !check.ok).map(({ claim }) => `${lane}: ${claim}`);
  return ok || broken.length > 0 ? broken : [`${lane} failed`];
}

function textOf({ lane, ok, seconds, skipped, checks, figures }: LaneReport): string {
  return [
    `${ok ? "ok    " : "FAILED"} ${lane} (${seconds} s)`,
    ...(skipped === undefined ? [] : [`  skipped: ${skipped}`]),
    ...checks.map(({ claim, ok: holds, value, wanted }) => {
      const found = typeof value === "string" ? value : JSON.stringify(value);
      return `  ${holds ? "ok    " : "FAILED"} ${claim}: ${found} (${wanted})`;
    }),
    ...Object.entries(figures).map(([name, value]) => `         ${name}: ${JSON.stringify(value)}`),
  ].join("\n");
}
