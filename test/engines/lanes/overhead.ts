import { Agent } from "../kit/agent.ts";
import { askAll } from "../kit/ask-all.ts";
import { interval95 } from "../kit/compare.ts";
import { type LaneContext, serverOf } from "../kit/lane.ts";
import { connectorFigures } from "../kit/metrics.ts";
import { Prompts } from "../kit/prompts.ts";
import { say } from "../kit/say.ts";
import { questionsOf } from "../kit/stages.ts";
import { Vllm } from "../kit/vllm.ts";

const PAIRS = 15;
const PROMPT_TOKENS = 1_024;
const TOKENS_OUT = 32;
const PROMPTS = 16;
const WIDTH = 4;
const RATIO_MIN = 0.97;

/** Tokens per second for prompts that no cache has seen. */
async function throughput(server: Vllm, prompts: Prompts): Promise<number> {
  const sent = Array.from({ length: PROMPTS }, () => prompts.tokens(PROMPT_TOKENS));
  const began = performance.now();
  const answers = await askAll(server, questionsOf(sent, TOKENS_OUT), WIDTH, server.name);
  const seconds = (performance.now() - began) / 1000;
  const hits = answers.reduce((sum, answer) => sum + answer.cachedTokens, 0);
  if (hits > 0) throw new Error(`${hits} tokens of new prompts were cached`);
  return (PROMPTS * (PROMPT_TOKENS + TOKENS_OUT)) / seconds;
}

/** Throughput with the connector and no hits, in turns with vLLM alone. */
export async function overhead(context: LaneContext): Promise<void> {
  const { sheet, folder, seed, model, isQuick } = context;
  const prompts = new Prompts(seed + 400, model.vocabulary);
  await using agent = await Agent.start({ name: "a", folder, ramMib: 1_024 });
  const hearth = { socket: agent.socket };
  await using alone = await Vllm.start(serverOf(context, "alone"));
  await using connected = await Vllm.start({ ...serverOf(context, "connected"), hearth });
  // The first batch of each server compiles and fills pools.
  for (const server of [alone, connected]) await throughput(server, prompts);
  const ratios: number[] = [];
  const rates: [number, number][] = [];
  for (let pair = 0; pair < (isQuick ? 3 : PAIRS); pair++) {
    const order = pair % 2 === 0 ? [alone, connected] : [connected, alone];
    const found = new Map<Vllm, number>();
    for (const server of order) found.set(server, await throughput(server, prompts));
    const rate: [number, number] = [found.get(alone)!, found.get(connected)!];
    rates.push(rate);
    ratios.push(rate[1] / rate[0]);
    say(`pair ${pair + 1}: ${rate.map(Math.round).join(" and ")} tokens/s`);
  }
  const { mean, low, high } = interval95(ratios);
  sheet.figure("connector", connectorFigures(await connected.metrics()));
  sheet.figure("pairs", ratios.length);
  sheet.figure(
    "throughput alone and connected, tokens/s",
    rates.map((pair) => pair.map(Math.round)),
  );
  sheet.figure("ratio", { mean, low, high });
  sheet.atLeast("throughput with the connector/alone, upper end of the interval", high, RATIO_MIN);
}
