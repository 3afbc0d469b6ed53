/** `./dev test:engines`: real engines with Hearth as their KV cache. */
import type { Lane } from "./kit/lane.ts";
import { chaos } from "./lanes/chaos.ts";
import { endToEnd } from "./lanes/end-to-end.ts";
import { events } from "./lanes/events.ts";
import { gpu } from "./lanes/gpu.ts";
import { lmcacheBench } from "./lanes/lmcache.ts";
import { overhead } from "./lanes/overhead.ts";
import { pin } from "./lanes/pin.ts";
import { prefillDecode } from "./lanes/prefill-decode.ts";
import { record } from "./lanes/record.ts";
import { router } from "./lanes/router.ts";
import { sglangHicache } from "./lanes/sglang.ts";
import { tensorParallel } from "./lanes/tensor-parallel.ts";
import { twoEngines } from "./lanes/two-engines.ts";
import { VARIANTS } from "./lanes/variants.ts";
import { type Options, readOptions } from "./options.ts";
import { runMain, usageError } from "./run.ts";

const VLLM_LANES: Readonly<Record<string, Lane>> = {
  "end-to-end": endToEnd,
  "two-engines": twoEngines,
  "prefill-decode": prefillDecode,
  "tensor-parallel": tensorParallel,
  overhead,
};

/** Lanes of vLLM that run only if an option or `--only` names them. */
const NAMED_LANES: Readonly<Record<string, Lane>> = {
  chaos,
  events,
  gpu,
  pin,
  router,
  ...VARIANTS,
};

const SGLANG_LANES: Readonly<Record<string, Lane>> = {
  hicache: sglangHicache,
};

const LMCACHE_LANES: Readonly<Record<string, Lane>> = {
  "bench-l2": lmcacheBench,
};

const OWN_LANES = { vllm: VLLM_LANES, sglang: SGLANG_LANES, lmcache: LMCACHE_LANES };

function lanesFor(options: Options): [string, Lane][] {
  if (options.record !== null) return [["record", record(options.record)]];
  const isVllm = options.engine === "vllm";
  const own = OWN_LANES[options.engine];
  const known: Readonly<Record<string, Lane>> = isVllm ? { ...own, ...NAMED_LANES } : own;
  const switches = (["chaos", "pin", "gpu", "events"] as const).filter((name) => options[name]);
  const only = options.only.flatMap((name) =>
    name === "variants" && isVllm ? Object.keys(VARIANTS) : [name],
  );
  const names = [...only, ...switches];
  const wanted = names.length > 0 ? names : Object.keys(own);
  return wanted.map((name) => {
    const lane = known[name];
    if (lane !== undefined) return [name, lane];
    return usageError(`${options.engine} has no lane ${name}: ${Object.keys(known).join(", ")}`);
  });
}

const options = readOptions();
const { engine, seed, modelSeed, minutes, quick: isQuick, json: isJson } = options;
const lanes = lanesFor(options);
await runMain({ engine, lanes, seed, modelSeed, minutes, isQuick, isJson });
