import { Agent } from "../kit/agent.ts";
import { askAll } from "../kit/ask-all.ts";
import { type LaneContext, serverOf } from "../kit/lane.ts";
import { Prompts } from "../kit/prompts.ts";
import { checkEqual, checkRestored, questionsOf } from "../kit/stages.ts";
import { Vllm, type VllmOptions } from "../kit/vllm.ts";

const TOKENS_OUT = 8;
const RANKS = 2;

/** LOOKUP and MATCH frames that the agent has answered. */
async function lookups(agent: Agent): Promise<number> {
  const metrics = await agent.metrics();
  const count = (name: string) => metrics.sum("hearth_engine_frames_total", `operation="${name}"`);
  return count("lookup") + count("match");
}

/** Two ranks restore what two ranks stored; one lookup answers for both. */
export async function tensorParallel(context: LaneContext): Promise<void> {
  const { sheet, folder, seed, model, isQuick } = context;
  const prompts = new Prompts(seed + 300, model.vocabulary);
  const sent = prompts.mixed(isQuick ? 6 : 24, 200, 4_000);
  const questions = questionsOf(sent, TOKENS_OUT);
  const play = async (options: VllmOptions) => {
    await using server = await Vllm.start({ ...options, tensorParallel: RANKS });
    return await askAll(server, questions, 1, options.name);
  };
  const reference = await play(serverOf(context, "tp-reference"));
  await using agent = await Agent.start({ name: "a", folder, ramMib: 1_024 });
  const hearth = { socket: agent.socket };
  const cold = await play({ ...serverOf(context, "tp-cold"), hearth });
  checkEqual(sheet, "TP 2, cold", reference, cold);
  await agent.settled();
  const before = await lookups(agent);
  const restored = await play({ ...serverOf(context, "tp-restored"), hearth });
  checkEqual(sheet, "TP 2, restored", reference, restored);
  checkRestored(sheet, "TP 2", sent, restored);
  const asked = (await lookups(agent)) - before;
  // The warm-up request is shorter than a block and asks nothing.
  sheet.atMost("TP 2: lookups for a request, both ranks", asked / sent.length, 1);
  sheet.figure("TP 2: lookups", asked);
}
