import { defineLane, flag, LaneUsage, oneOf, text, whole } from "../support/lane.ts";
import type { Lane } from "./kit/lane.ts";
import { chaos } from "./lanes/chaos.ts";
import { docs } from "./lanes/docs.ts";
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
import { runEngines } from "./run.ts";

const ENGINES = ["vllm", "sglang", "lmcache"] as const;
const SWITCHES = ["chaos", "pin", "gpu", "events"] as const;

const VLLM_LANES: Readonly<Record<string, Lane>> = {
  "end-to-end": endToEnd,
  "two-engines": twoEngines,
  "prefill-decode": prefillDecode,
  "tensor-parallel": tensorParallel,
  overhead,
};

const SGLANG_LANES: Readonly<Record<string, Lane>> = {
  hicache: sglangHicache,
};

const LMCACHE_LANES: Readonly<Record<string, Lane>> = {
  "bench-l2": lmcacheBench,
};

const OWN_LANES = { vllm: VLLM_LANES, sglang: SGLANG_LANES, lmcache: LMCACHE_LANES };

/** Lanes that run only if an option or `--only` names them. */
const NAMED_LANES: typeof OWN_LANES = {
  vllm: { chaos, docs: docs("vllm"), events, gpu, pin, router, ...VARIANTS },
  sglang: { docs: docs("sglang") },
  lmcache: { docs: docs("lmcache") },
};

export const lane = defineLane({
  help: `
Runs real engines on this host with Hearth as their KV cache, and compares what they answer with the
same engine without Hearth. Engines come from PyPI into a cache folder ($HEARTH_ENGINES_CACHE; about
6 GB for vLLM and for LMCache, 10 GB for SGLang). Models are made on this host, with random weights.

  ./dev test:engines                        every lane of vLLM, about an hour on two cores
  ./dev test:engines --engine sglang        SGLang with HiCache
  ./dev test:engines --engine lmcache       LMCache's own benchmark of L2 adapters
  ./dev test:engines --only end-to-end      one lane, or several with commas
  ./dev test:engines --only variants        pipeline parallelism, LoRA, MLA
  ./dev test:engines --engine NAME --only docs
                                            the how-to pages of the engine, as printed
  ./dev test:engines --chaos --minutes 10   agent and engine killed, stopped, damaged under load
  ./dev test:engines --pin                  pinned and unpinned conversations against a flood
  ./dev test:engines --events               a router's overlap against vLLM's cached_tokens
  ./dev test:engines --gpu                  a real model shape on this host's GPU
  ./dev test:engines --seed 7 --model-seed 3
                                            other prompts, other weights
  ./dev test:engines --quick                few prompts: for development, not as evidence
  ./dev test:engines --engine NAME --record FILE
                                            writes the connector calls of a short run
  ./dev test:engines --json                 the result as JSON on standard output

A host without the memory or the disk for it prints "skipped" and exits 0; with REQUIRE_ENGINES=1 it
exits 1. Exit codes: 0 every claim holds, or skipped; 1 a claim does not hold; 2 wrong usage.
`,
  options: {
    engine: oneOf(ENGINES, "vllm"),
    chaos: flag(),
    pin: flag(),
    gpu: flag(),
    events: flag(),
    quick: flag(),
    minutes: whole(1, 10),
    seed: whole(0, 1),
    "model-seed": whole(0, 1),
    only: text(""),
    record: text(),
  },
  run({ engine, quick: isQuick, minutes, seed, "model-seed": modelSeed, ...chosen }, host) {
    const names = [
      ...chosen.only.split(",").filter((name) => name !== ""),
      ...SWITCHES.filter((name) => chosen[name]),
    ];
    const lanes: [string, Lane][] =
      chosen.record === null ? lanesOf(engine, names) : [["record", record(chosen.record)]];
    return runEngines({ engine, lanes, seed, modelSeed, minutes, isQuick }, host);
  },
});

/** The named lanes of an engine; all of its own if none is named. */
function lanesOf(engine: (typeof ENGINES)[number], names: readonly string[]): [string, Lane][] {
  const isVllm = engine === "vllm";
  const own = OWN_LANES[engine];
  const known: Readonly<Record<string, Lane>> = { ...own, ...NAMED_LANES[engine] };
  const wanted = names.flatMap((name) =>
    name === "variants" && isVllm ? Object.keys(VARIANTS) : [name],
  );
  return (wanted.length > 0 ? wanted : Object.keys(own)).map((name) => {
    const found = known[name];
    if (found !== undefined) return [name, found];
    const names = Object.keys(known).join(", ");
    throw new LaneUsage(`${engine} has no lane ${name}: expected some of ${names}`);
  });
}
