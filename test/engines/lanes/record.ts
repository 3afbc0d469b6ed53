import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Agent } from "../kit/agent.ts";
import { askAll } from "../kit/ask-all.ts";
import { type Lane, type LaneContext, serverOf } from "../kit/lane.ts";
import { Prompts } from "../kit/prompts.ts";
import { questionsOf } from "../kit/stages.ts";
import { Vllm } from "../kit/vllm.ts";

const TOKENS_OUT = 40;
/** Blocks of the engine's own cache: less than the prompts need, so that some are preempted. */
const ENGINE_BLOCKS = 72;
const LENGTH_MAX = 2_048;

/** Requests of every kind that the connector meets: shared prefixes, salt, `n`, an abort. */
async function play(context: LaneContext, server: Vllm): Promise<void> {
  const prompts = new Prompts(context.seed + 900, context.model.vocabulary);
  const sent = prompts.mixed(6, 100, 900);
  await askAll(server, questionsOf(sent, TOKENS_OUT), 3, "recorded");
  await server.resetPrefixCache();
  await askAll(server, questionsOf(sent, TOKENS_OUT), 3, "recorded again");
  await server.ask({ prompt: sent[0]!, tokens: 2, extra: { cache_salt: "tenant" } });
  const aborted = server.ask({
    ...{ prompt: prompts.tokens(1_500), tokens: 400, signal: AbortSignal.timeout(1_500) },
  });
  await aborted.catch(() => null);
  await server.ask({ prompt: prompts.tokens(80), tokens: 2 });
}

/** Writes the calls that real vLLM makes to the connector, one JSON object a line. */
export function record(file: string): Lane {
  return async (context) => {
    const { sheet, folder } = context;
    await using agent = await Agent.start({ name: "a", folder, ramMib: 256 });
    const calls = join(folder, "calls.jsonl");
    const options = {
      ...serverOf(context, "recorded"),
      ...{ hearth: { socket: agent.socket }, blocks: ENGINE_BLOCKS, lengthMax: LENGTH_MAX },
      env: { HEARTH_VLLM_RECORD: calls },
    };
    {
      await using server = await Vllm.start(options);
      await play(context, server);
    }
    const text = existsSync(calls) ? readFileSync(calls) : Buffer.alloc(0);
    writeFileSync(file, file.endsWith(".gz") ? Bun.gzipSync(text) : text);
    sheet.atLeast("calls recorded", text.toString().split("\n").length - 1, 10);
    sheet.figure("bytes", text.length);
  };
}
