import { Agent } from "../kit/agent.ts";
import { askAll } from "../kit/ask-all.ts";
import { mean } from "../kit/compare.ts";
import { type LaneContext, serverOf } from "../kit/lane.ts";
import { Prompts } from "../kit/prompts.ts";
import { Sglang } from "../kit/sglang.ts";
import { checkEqual, checkRestored, questionsOf } from "../kit/stages.ts";

const TOKENS_OUT = 8;

/** SGLang restores from Hearth after a flush of its caches and after a restart. */
export async function sglangHicache(context: LaneContext): Promise<void> {
  const { sheet, folder, seed, model, isQuick } = context;
  const prompts = new Prompts(seed + 800, model.vocabulary);
  const sent = prompts.mixed(isQuick ? 8 : 40, 200, 4_000);
  const questions = questionsOf(sent, TOKENS_OUT);
  const play = async (server: Sglang, title: string) => {
    const answers = await askAll(server, questions, 1, title);
    const ms = mean(answers.map((answer) => answer.totalMs));
    sheet.figure(`${title}: mean time of a request, ms`, ms);
    return answers;
  };
  const reference = await (async () => {
    await using server = await Sglang.start(serverOf(context, "sglang-reference"));
    return await play(server, "without Hearth");
  })();
  await using agent = await Agent.start({ name: "a", folder, ramMib: 1_024 });
  const hearth = { socket: agent.socket };
  await using server = await Sglang.start({ ...serverOf(context, "sglang"), hearth });
  checkEqual(sheet, "cold", reference, await play(server, "cold"));
  await agent.settled();
  await server.flushCache();
  const flushed = await play(server, "after /flush_cache");
  checkEqual(sheet, "after /flush_cache", reference, flushed);
  checkRestored(sheet, "after /flush_cache", sent, flushed);
  const loaded = await server.counter("sglang:hearth_loaded_bytes_total");
  sheet.atLeast("loaded bytes in SGLang's own metrics", loaded, 1);
  await agent.settled();
  await server.restart();
  const restarted = await play(server, "after a restart");
  checkEqual(sheet, "after a restart", reference, restarted);
  checkRestored(sheet, "after a restart", sent, restarted);
}
