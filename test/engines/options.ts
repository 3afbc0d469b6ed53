import { scriptOptions } from "../../scripts/lib/arguments.ts";
import { usageError, wholeNumber } from "./run.ts";

const HELP = `
Runs real engines on this host with Hearth as their KV cache, and compares what they answer with the
same engine without Hearth. Engines come from PyPI into a cache folder ($HEARTH_ENGINES_CACHE; about
6 GB for vLLM and for LMCache, 10 GB for SGLang). Models are made on this host, with random weights.

  ./dev test:engines                        every lane of vLLM, about an hour on two cores
  ./dev test:engines --engine sglang        SGLang with HiCache
  ./dev test:engines --engine lmcache       LMCache's own benchmark of L2 adapters
  ./dev test:engines --only end-to-end      one lane, or several with commas
  ./dev test:engines --only variants        pipeline parallelism, LoRA, MLA
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
`;

export const ENGINES = ["vllm", "sglang", "lmcache"] as const;

export interface Options {
  readonly engine: (typeof ENGINES)[number];
  readonly chaos: boolean;
  readonly pin: boolean;
  readonly gpu: boolean;
  readonly events: boolean;
  readonly quick: boolean;
  readonly json: boolean;
  readonly minutes: number;
  readonly seed: number;
  readonly modelSeed: number;
  readonly only: readonly string[];
  readonly record: string | null;
}

export function readOptions(): Options {
  const given = scriptOptions(HELP, {
    engine: { type: "string", default: "vllm" },
    chaos: { type: "boolean", default: false },
    pin: { type: "boolean", default: false },
    gpu: { type: "boolean", default: false },
    events: { type: "boolean", default: false },
    quick: { type: "boolean", default: false },
    json: { type: "boolean", default: false },
    minutes: { type: "string", default: "10" },
    seed: { type: "string", default: "1" },
    "model-seed": { type: "string", default: "1" },
    only: { type: "string", default: "" },
    record: { type: "string" },
  });
  const engine = ENGINES.find((name) => name === given.engine);
  if (engine === undefined) {
    usageError(`--engine ${given.engine}: expected one of ${ENGINES.join(", ")}`);
  }
  const { chaos, pin, gpu, events, quick, json } = given;
  return {
    ...{ engine, chaos, pin, gpu, events, quick, json },
    minutes: wholeNumber("minutes", given.minutes, 1),
    seed: wholeNumber("seed", given.seed, 0),
    modelSeed: wholeNumber("model-seed", given["model-seed"], 0),
    only: given.only.split(",").filter((name) => name !== ""),
    record: given.record ?? null,
  };
}
