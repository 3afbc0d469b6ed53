import { mkdirSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { hostTarget } from "../../../scripts/lib/targets.ts";
import { buildWheels, writeWheels } from "../../../scripts/lib/wheels.ts";
import { PLANS, type Plan, type Program, runPage } from "../../docs/pages.ts";
import { hearthExecutable } from "../../support/index.ts";
import { Skip } from "../kit/cache.ts";
import type { Lane, LaneContext } from "../kit/lane.ts";
import { BLOCK_TOKENS, type Model, OFFLINE } from "../kit/model.ts";
import { say } from "../kit/say.ts";
import { CPU_SHIMS } from "../kit/sglang.ts";
import { ON_CPU } from "../kit/vllm.ts";

/** Hang detector: a page starts an engine up to twice. */
const PAGE_MS = 1_800_000;
/** Stands for a commit of the Hub. */
const COMMIT = "0".repeat(40);

type EngineOfPages = NonNullable<Plan["engine"]>;

/** The printed programs with the options of a small host without a GPU. */
const PROGRAMS: Readonly<
  Record<EngineOfPages, (context: LaneContext) => Readonly<Record<string, Program>>>
> = {
  vllm: ({ engine }) => ({
    vllm: {
      command: join(engine.folder, "bin", "vllm"),
      port: 8000,
      words:
        `--host 127.0.0.1 --dtype float32 --block-size ${BLOCK_TOKENS} ` +
        "--num-gpu-blocks-override 512 --max-model-len 8192 " +
        `--override-generation-config '{"max_new_tokens":8}'`,
    },
  }),
  sglang: ({ engine }) => ({
    python: {
      command: `env PYTHONPATH=${CPU_SHIMS}:$PYTHONPATH SGLANG_USE_CPU_ENGINE=1 ${engine.python}`,
      port: 30000,
      words:
        "--host 127.0.0.1 --device cpu --attention-backend torch_native --dtype float32 " +
        "--max-total-tokens 8192 --max-running-requests 4 --chunked-prefill-size 2048 " +
        "--mem-fraction-static 0.6 --disable-overlap-schedule --skip-server-warmup " +
        // page_first_direct needs a GPU.
        "--hicache-mem-layout layer_first",
    },
  }),
  lmcache: ({ engine }) => ({
    lmcache: { command: join(engine.folder, "bin", "lmcache"), words: "" },
  }),
};

/** The tiny model where a download of Qwen/Qwen3-8B would be, for engines and for routers. */
function placeModel({ folder: from }: Model, folder: string): void {
  const entry = join(folder, "hf", "hub", "models--Qwen--Qwen3-8B");
  mkdirSync(join(entry, "refs"), { recursive: true });
  mkdirSync(join(entry, "snapshots"), { recursive: true });
  writeFileSync(join(entry, "refs", "main"), COMMIT);
  symlinkSync(from, join(entry, "snapshots", COMMIT));
  mkdirSync(join(folder, "models"), { recursive: true });
  symlinkSync(from, join(folder, "models", "Qwen3-8B"));
}

/** Runs the how-to pages of an engine as printed. */
export function docs(engine: EngineOfPages): Lane {
  return async (context) => {
    const host = hostTarget();
    if (!host.ok) throw new Skip(host.why);
    if (Bun.which("pip") === null) throw new Skip("no pip on the PATH");
    const wheels = await buildWheels([host.target]);
    const executable = await hearthExecutable();
    const pages = Object.keys(PLANS).filter((page) => PLANS[page]!.engine === engine);
    for (const [index, page] of pages.entries()) {
      say(`running ${page}`);
      const folder = join(context.folder, String(index));
      mkdirSync(folder);
      writeWheels(wheels, join(folder, "dist"));
      placeModel(context.model, folder);
      const env = {
        ...{ ...OFFLINE, ...ON_CPU, HF_HOME: join(folder, "hf"), VLLM_NO_USAGE_STATS: "1" },
        PYTHONDONTWRITEBYTECODE: undefined,
      };
      const result = await runPage({
        ...{ page, folder, executable, env, programs: PROGRAMS[engine](context), limitMs: PAGE_MS },
      });
      context.sheet.figure(`blocks of ${page}`, result.blocks);
      context.sheet.check(`${page} runs as printed`, result.ok, result.ok || result.why, "it does");
    }
  };
}
