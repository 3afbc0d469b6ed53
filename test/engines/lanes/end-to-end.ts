import { Agent } from "../kit/agent.ts";
import { askAll } from "../kit/ask-all.ts";
import type { Answer } from "../kit/client.ts";
import { quantile } from "../kit/compare.ts";
import { type LaneContext, type Sheet, serverOf } from "../kit/lane.ts";
import { connectorFigures } from "../kit/metrics.ts";
import { distinctBlocks, Prompts } from "../kit/prompts.ts";
import { say } from "../kit/say.ts";
import { checkEqual, checkRestored, questionsOf } from "../kit/stages.ts";
import { Vllm } from "../kit/vllm.ts";

const TOKENS_OUT = 8;
const WIDTH = 3;
const TTFT_TOKENS = 3_000;
const TTFT_RATIO_MAX = 0.15;

/** Prompts of one run; the reference and every stage send the same. */
interface Work {
  /** Prompts of 3,000 tokens that share nothing; sent one at a time. */
  readonly timed: readonly number[][];
  readonly mixed: readonly number[][];
  /** The timed ones, then the mixed ones. */
  readonly all: readonly number[][];
}

/** Answers in the order of `Work.all`. */
interface Stage {
  readonly all: readonly Answer[];
  readonly timedMs: readonly number[];
}

async function play(server: Vllm, work: Work, title: string): Promise<Stage> {
  const ask = (prompts: readonly number[][], width: number) =>
    askAll(server, questionsOf(prompts, TOKENS_OUT), width, title);
  const timed = await ask(work.timed, 1);
  const mixed = await ask(work.mixed, WIDTH);
  return { all: [...timed, ...mixed], timedMs: timed.map((answer) => answer.firstTokenMs) };
}

function checkRestart(
  sheet: Sheet,
  title: string,
  work: Work,
  reference: Stage,
  stage: Stage,
): void {
  checkEqual(sheet, title, reference.all, stage.all);
  checkRestored(sheet, title, work.all, stage.all);
  const ratio = quantile(stage.timedMs, 0.5) / quantile(reference.timedMs, 0.5);
  sheet.atMost(`${title}: TTFT at 3,000 tokens, restored/computed`, ratio, TTFT_RATIO_MAX);
  sheet.figure(`${title}: TTFT restored, ms`, stage.timedMs.map(Math.round));
}

/** The prompts on vLLM without a connector. */
async function referenceRun(context: LaneContext, work: Work): Promise<Stage> {
  await using server = await Vllm.start(serverOf(context, "reference"));
  return await play(server, work, "reference");
}

function workOf({ seed, model, isQuick }: LaneContext): Work {
  const prompts = new Prompts(seed, model.vocabulary);
  const timed = Array.from({ length: isQuick ? 3 : 8 }, () => prompts.tokens(TTFT_TOKENS));
  const mixed = prompts.mixed(isQuick ? 24 : 204, 200, 6_000);
  return { timed, mixed, all: [...timed, ...mixed] };
}

/** Prompts without Hearth, then with it: cold, after an engine restart, after an agent restart. */
export async function endToEnd(context: LaneContext): Promise<void> {
  const { sheet, folder, model } = context;
  const work = workOf(context);
  const blocks = distinctBlocks(work.all);
  sheet.figure("prompts", work.all.length);
  sheet.figure("distinct full blocks", blocks);
  const reference = await referenceRun(context, work);
  sheet.figure("TTFT computed, ms", reference.timedMs.map(Math.round));

  const ramMib = Math.ceil((blocks * model.blockBytes * 1.4) / 2 ** 20) + 64;
  await using agent = await Agent.start({ name: "a", folder, ramMib, ssdMib: ramMib * 2 });
  const hearth = { socket: agent.socket };
  await using server = await Vllm.start({ ...serverOf(context, "engine"), hearth });
  const cold = await play(server, work, "cold");
  checkEqual(sheet, "cold", reference.all, cold.all);
  await agent.settled();

  await server.restart();
  const fromRam = await play(server, work, "engine restarted");
  sheet.figure("engine restarted: connector", connectorFigures(await server.metrics()));
  checkRestart(sheet, "engine restarted", work, reference, fromRam);
  await agent.settled();

  say("restarting the agent and the engine");
  await server.kill();
  await agent.end("SIGTERM");
  await agent.start();
  await server.restart();
  const fromSsd = await play(server, work, "agent restarted");
  checkRestart(sheet, "agent restarted", work, reference, fromSsd);
  sheet.figure("connector since the last restart", connectorFigures(await server.metrics()));
}
