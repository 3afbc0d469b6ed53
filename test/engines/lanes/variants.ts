import { join } from "node:path";
import { Agent } from "../kit/agent.ts";
import { askAll } from "../kit/ask-all.ts";
import type { Answer } from "../kit/client.ts";
import { compare } from "../kit/compare.ts";
import { ensureEngine } from "../kit/install.ts";
import { type Lane, type LaneContext, serverOf } from "../kit/lane.ts";
import { ensureModel, type Model } from "../kit/model.ts";
import { Prompts } from "../kit/prompts.ts";
import { checkEqual, checkRestored, questionsOf } from "../kit/stages.ts";
import { Vllm, type VllmOptions } from "../kit/vllm.ts";

const TOKENS_OUT = 8;
const LENGTH_MAX = 4_096;

/** A configuration of vLLM that the lanes of the plain model do not cover. */
interface Variant {
  readonly title: string;
  /** Further options of make-model.py. */
  readonly makeModel?: readonly string[];
  readonly options: (model: Model) => Partial<VllmOptions>;
  /** On a CPU vLLM makes the buffers between its stages only while it compiles. */
  readonly compiles?: boolean;
  /** Further members of each request. */
  readonly extra?: Readonly<Record<string, unknown>>;
  /**
   * vLLM itself answers differently with a prefix from its own cache, so restored answers are
   * compared with those.
   */
  readonly cachesInexactly?: boolean;
  /** Answers that must find nothing of what the variant's requests stored. */
  readonly apart?: { readonly title: string; readonly extra: Readonly<Record<string, unknown>> };
}

const PIPELINE: Variant = {
  title: "PP 2",
  options: () => ({ args: ["--pipeline-parallel-size", "2"] }),
  compiles: true,
};

const LORA: Variant = {
  title: "LoRA",
  makeModel: ["--lora-rank", "8"],
  options: ({ folder }) => ({
    args: ["--enable-lora", "--lora-modules", `adapter=${join(folder, "adapter")}`],
  }),
  extra: { model: "adapter" },
  apart: { title: "the base model", extra: { model: "tiny" } },
};

/**
 * Latent attention: every rank holds the same bytes, and the first rank stores them. vLLM's kernels
 * for CPUs take bfloat16, and those of a prompt with a cached prefix round otherwise.
 */
const MLA: Variant = {
  title: "MLA, TP 2",
  makeModel: ["--architecture", "deepseek-v2", "--layers", "2", "--dtype", "bfloat16"],
  options: () => ({ tensorParallel: 2, args: ["--dtype", "bfloat16"] }),
  cachesInexactly: true,
};

/** The prompts without Hearth, with it, and after a restart of the engine. */
function variant(chosen: Variant): Lane {
  const { title, makeModel, options, extra, apart, cachesInexactly, compiles } = chosen;
  return async (context: LaneContext) => {
    const { sheet, folder, seed, isQuick } = context;
    const engine = await ensureEngine("vllm");
    const made = { seed: 1, extra: makeModel ?? [] };
    const model = makeModel === undefined ? context.model : await ensureModel(engine, made);
    const prompts = new Prompts(seed + 1_100, model.vocabulary);
    const sent = prompts.mixed(isQuick ? 4 : 12, 200, 1_500);
    const given = options(model);
    // Compiling takes minutes a start and changes nothing that the connector sees.
    const eager = compiles ? [] : ["--enforce-eager"];
    const args = [...eager, ...(given.args ?? [])];
    const common = { lengthMax: LENGTH_MAX, ...given, args };
    const ask = (server: Vllm, stage: string, more = extra): Promise<Answer[]> => {
      const questions = questionsOf(sent, TOKENS_OUT).map((one) => ({ ...one, extra: more ?? {} }));
      return askAll(server, questions, 1, `${title}, ${stage}`);
    };
    let [computed, cached, others]: Answer[][] = [];
    {
      const named = serverOf({ ...context, model }, "reference");
      await using server = await Vllm.start({ ...named, ...common });
      computed = await ask(server, "without Hearth");
      cached = cachesInexactly ? await ask(server, "cached by vLLM") : computed;
      if (apart !== undefined) others = await ask(server, apart.title, apart.extra);
    }
    await using agent = await Agent.start({ name: "a", folder, ramMib: 512 });
    const named = serverOf({ ...context, model }, "engine");
    await using server = await Vllm.start({
      ...named,
      ...common,
      hearth: { socket: agent.socket },
    });
    checkEqual(sheet, `${title}, cold`, computed, await ask(server, "cold"));
    await agent.settled();
    await server.restart();
    const restored = await ask(server, "restarted");
    checkEqual(sheet, `${title}, engine restarted`, cached, restored);
    if (cachesInexactly) {
      const { wrong: _, ...figures } = compare(computed, cached);
      sheet.figure(`${title}, vLLM's own cache against computed answers`, figures);
    }
    checkRestored(sheet, `${title}, engine restarted`, sent, restored);
    if (apart === undefined) return;
    const found = await ask(server, apart.title, apart.extra);
    const claim = `${title}: tokens of another adapter's blocks that ${apart.title} finds`;
    sheet.atMost(claim, found[0]!.cachedTokens, 0);
    checkEqual(sheet, `${title}, ${apart.title}`, others!, found);
  };
}

/** Lanes of what vLLM runs beside one rank of a plain model. */
export const VARIANTS: Readonly<Record<string, Lane>> = {
  "variant-pp": variant(PIPELINE),
  "variant-lora": variant(LORA),
  "variant-mla": variant(MLA),
};
