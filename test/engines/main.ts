/** `./dev test:engines`: real engines with Hearth as their KV cache. */
import { requireMemory, Skip } from "./kit/cache.ts";
import { ensureEngine } from "./kit/install.ts";
import { type Lane, type LaneReport, runLane } from "./kit/lane.ts";
import { ensureModel } from "./kit/model.ts";
import { say } from "./kit/say.ts";
import { chaos } from "./lanes/chaos.ts";
import { endToEnd } from "./lanes/end-to-end.ts";
import { overhead } from "./lanes/overhead.ts";
import { pin } from "./lanes/pin.ts";
import { prefillDecode } from "./lanes/prefill-decode.ts";
import { tensorParallel } from "./lanes/tensor-parallel.ts";
import { twoEngines } from "./lanes/two-engines.ts";
import { type Options, readOptions, usageError } from "./options.ts";

const VLLM_LANES: Readonly<Record<string, Lane>> = {
  "end-to-end": endToEnd,
  "two-engines": twoEngines,
  "prefill-decode": prefillDecode,
  "tensor-parallel": tensorParallel,
  overhead,
};

/** Lanes that run only if an option or `--only` names them. */
const NAMED_LANES: Readonly<Record<string, Lane>> = {
  chaos,
  pin,
};

const SGLANG_LANES: Readonly<Record<string, Lane>> = {};

function lanesFor(options: Options): [string, Lane][] {
  const own = options.engine === "sglang" ? SGLANG_LANES : VLLM_LANES;
  const known = { ...own, ...NAMED_LANES };
  const switches = (["chaos", "pin", "gpu"] as const).filter((name) => options[name]);
  const names = [...options.only, ...switches];
  const wanted = names.length > 0 ? names : Object.keys(own);
  return wanted.map((name) => {
    const lane = known[name];
    if (lane !== undefined) return [name, lane];
    return usageError(`--only ${name}: expected one of ${Object.keys(known).join(", ")}`);
  });
}

function print({ lane, ok, seconds, checks, figures }: LaneReport): void {
  console.log(`${ok ? "ok    " : "FAILED"} ${lane} (${seconds} s)`);
  for (const { claim, ok: holds, value, wanted } of checks) {
    const found = typeof value === "string" ? value : JSON.stringify(value);
    console.log(`  ${holds ? "ok    " : "FAILED"} ${claim}: ${found} (${wanted})`);
  }
  for (const [name, value] of Object.entries(figures)) {
    console.log(`         ${name}: ${JSON.stringify(value)}`);
  }
}

async function run(options: Options): Promise<boolean> {
  const lanes = lanesFor(options);
  await requireMemory();
  const engine = await ensureEngine(options.engine);
  const maker = options.engine === "vllm" ? engine : await ensureEngine("vllm");
  const { seed, modelSeed, quick: isQuick, minutes } = options;
  const model = await ensureModel(maker, { seed: modelSeed });
  const reports: LaneReport[] = [];
  for (const [name, lane] of lanes) {
    say(`lane ${name}`);
    const report = await runLane(name, lane, { engine, model, seed, isQuick, minutes });
    reports.push(report);
    if (!options.json) print(report);
  }
  const ok = reports.every((report) => report.ok);
  const { name, version } = engine;
  const head = { engine: name, version, seed, modelSeed, isQuick, ok };
  if (options.json) console.log(JSON.stringify({ ...head, lanes: reports }));
  return ok;
}

function skip(why: string, isJson: boolean): never {
  const isRequired = process.env.REQUIRE_ENGINES === "1";
  console.error(`${isRequired ? "required" : "skipped"}: real engines: ${why}`);
  if (isJson) console.log(JSON.stringify({ skipped: why }));
  process.exit(isRequired ? 1 : 0);
}

const options = readOptions();
try {
  process.exit((await run(options)) ? 0 : 1);
} catch (thrown) {
  if (!(thrown instanceof Skip)) throw thrown;
  skip(thrown.message, options.json);
}
