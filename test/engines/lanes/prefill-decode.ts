import type { Agent } from "../kit/agent.ts";
import { askAll } from "../kit/ask-all.ts";
import { type Answer, prefill, type Question } from "../kit/client.ts";
import { quantile } from "../kit/compare.ts";
import { type LaneContext, serverOf } from "../kit/lane.ts";
import { connectorFigures } from "../kit/metrics.ts";
import { Prompts } from "../kit/prompts.ts";
import { checkEqual, computedBlocks, questionsOf } from "../kit/stages.ts";
import { Vllm } from "../kit/vllm.ts";
import { startPair } from "./two-engines.ts";

const TOKENS_OUT = 16;
const WIDTH = 2;

/** Asks as a P/D proxy does: one token from the prefill engine, the answer from the other. */
class Disaggregated {
  readonly #prefill: Vllm;
  readonly #decode: Vllm;

  constructor(prefiller: Vllm, decoder: Vllm) {
    this.#prefill = prefiller;
    this.#decode = decoder;
  }

  async ask(question: Question): Promise<Answer> {
    const remote = { do_remote_decode: true, do_remote_prefill: false };
    const extra = { kv_transfer_params: remote };
    const first = await prefill(this.#prefill, { ...question, tokens: 1, extra });
    // With this member vLLM reports the tokens that the prefill engine had cached, not its own.
    const { remote_prefill_cached_tokens: _, ...handed } = first.transferParams ?? {};
    const isHanded = first.transferParams !== null;
    const params = isHanded ? { extra: { kv_transfer_params: handed } } : {};
    return this.#decode.ask({ ...question, ...params });
  }
}

interface Route {
  readonly title: string;
  readonly sent: readonly number[][];
}

async function playRoute(
  context: LaneContext,
  { title, sent }: Route,
  servers: readonly [Vllm, Vllm],
  reference: readonly Answer[],
): Promise<void> {
  const { sheet } = context;
  const proxy = new Disaggregated(...servers);
  const answers = await askAll(proxy, questionsOf(sent, TOKENS_OUT), WIDTH, title);
  checkEqual(sheet, title, reference, answers);
  const computed = computedBlocks(sent, answers);
  const twice = computed.reduce((sum, blocks) => sum + blocks, 0);
  sheet.atMost(`${title}: full blocks computed twice`, twice, 0);
  sheet.figure(`${title}: full blocks computed twice, by prompt`, computed.filter(Boolean));
  for (const server of servers) {
    sheet.figure(`${title}: connector of ${server.name}`, connectorFigures(await server.metrics()));
  }
  const times = answers.map((answer) => answer.firstTokenMs);
  sheet.figure(`${title}: decode TTFT, ms`, {
    p50: Math.round(quantile(times, 0.5)),
    p99: Math.round(quantile(times, 0.99)),
  });
}

/** The prompts on an engine without Hearth. */
async function referenceRun(context: LaneContext, sent: readonly number[][]): Promise<Answer[]> {
  await using server = await Vllm.start(serverOf(context, "reference"));
  return await askAll(server, questionsOf(sent, TOKENS_OUT), 1, "reference");
}

/** A prefill engine and decode engines that exchange blocks through Hearth alone. */
export async function prefillDecode(context: LaneContext): Promise<void> {
  const { folder, seed, model, isQuick } = context;
  const prompts = new Prompts(seed + 200, model.vocabulary);
  const count = isQuick ? 6 : 24;
  const routes = ["same host", "two agents"].map((title) => ({
    title,
    sent: Array.from({ length: count }, () => prompts.tokens(prompts.between(200, 5_000))),
  }));
  const sent = routes.flatMap((route) => route.sent);
  const reference = await referenceRun(context, sent);
  await using agents = await startPair(folder, 2_048);
  const launch = (name: string, agent: Agent) =>
    Vllm.start({ ...serverOf(context, name), hearth: { socket: agent.socket } });
  await using prefiller = await launch("prefill", agents.near);
  for (const [index, route] of routes.entries()) {
    const agent = index === 0 ? agents.near : agents.far;
    await using decoder = await launch(`decode-${index}`, agent);
    const own = reference.slice(index * count, (index + 1) * count);
    await playRoute(context, route, [prefiller, decoder], own);
  }
}
