import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ROOT } from "../../../scripts/lib/paths.ts";
import { run } from "../../../scripts/lib/run.ts";
import { Agent } from "../kit/agent.ts";
import { askAll } from "../kit/ask-all.ts";
import { prefill } from "../kit/client.ts";
import type { EngineName } from "../kit/install.ts";
import { type Lane, type LaneContext, serverOf } from "../kit/lane.ts";
import { writeAndRead } from "../kit/lmcache.ts";
import { Prompts } from "../kit/prompts.ts";
import { Sglang } from "../kit/sglang.ts";
import { questionsOf } from "../kit/stages.ts";
import { Vllm } from "../kit/vllm.ts";

const TOKENS_OUT = 40;
/** Blocks of the engine's own cache: little more than one of the longest prompts. */
const ENGINE_BLOCKS = 72;
const LENGTH_MAX = 2_048;
/** Tokens of one step: longer prompts are prefilled in chunks. */
const STEP_TOKENS = 512;
const PYTHON = join(ROOT, "python");
const INTERFACE = join(import.meta.dir, "..", "vllm-interface.py");

/** Plays a short run against an engine whose connector appends its calls to `calls`. */
type Play = (context: LaneContext, agent: Agent, calls: string) => Promise<void>;

/** Shared prefixes, preemption, `n` of 2, a cache salt, an abort, and a reset of all caches. */
async function askVllm(context: LaneContext, server: Vllm): Promise<void> {
  const prompts = new Prompts(context.seed + 900, context.model.vocabulary);
  const sent = prompts.mixed(6, 300, 1_200);
  const first = sent[0]!;
  await askAll(server, questionsOf(sent, TOKENS_OUT), 4, "recorded");
  await server.resetPrefixCache();
  await askAll(server, questionsOf(sent, TOKENS_OUT), 4, "recorded again");
  // Each fits when it starts; together they outgrow the engine's blocks, so that vLLM preempts.
  const growing = Array.from({ length: 4 }, () => prompts.tokens(420));
  await askAll(server, questionsOf(growing, 240), growing.length, "recorded, preempted");
  const twice = { n: 2, temperature: 1, seed: 0 };
  await prefill(server, { prompt: prompts.tokens(300), tokens: 4, extra: twice });
  for (let time = 0; time < 2; time++) {
    await server.ask({ prompt: first, tokens: 2, extra: { cache_salt: "tenant" } });
    await server.resetPrefixCache();
  }
  const aborted = server.ask({
    ...{ prompt: prompts.tokens(1_200), tokens: 800, signal: AbortSignal.timeout(2_000) },
  });
  await aborted.catch(() => null);
  await server.resetPrefixCache({ external: true });
  for (let time = 0; time < 2; time++) {
    await server.ask({ prompt: first, tokens: 2 });
    await server.resetPrefixCache();
  }
}

const playVllm: Play = async (context, agent, calls) => {
  const { engine, sheet } = context;
  await using server = await Vllm.start({
    ...serverOf(context, "recorded"),
    ...{ hearth: { socket: agent.socket }, blocks: ENGINE_BLOCKS, lengthMax: LENGTH_MAX },
    args: ["--max-num-batched-tokens", `${STEP_TOKENS}`],
    env: { HEARTH_VLLM_RECORD: calls },
  });
  await askVllm(context, server);
  const { ok, output } = await run([engine.python, INTERFACE, "--check"], { cwd: ROOT });
  sheet.check("vLLM's connector interface is the recorded one", ok, output.trim(), "no difference");
};

/** Prompts with common prefixes, twice; SGLang flushes its own caches in between. */
const playSglang: Play = async (context, agent, calls) => {
  const prompts = new Prompts(context.seed + 900, context.model.vocabulary);
  const questions = questionsOf(prompts.mixed(4, 300, 900), 2);
  const hearth = { socket: agent.socket, recordTo: calls };
  await using server = await Sglang.start({ ...serverOf(context, "recorded"), hearth });
  await askAll(server, questions, 1, "recorded");
  await agent.settled();
  await server.flushCache();
  await askAll(server, questions, 1, "recorded again");
  await agent.settled();
};

/** LMCache's storage manager stores objects of two groups, and loads them in a second process. */
const playLmcache: Play = async (context, agent, calls) => {
  const { loaded, stored } = await writeAndRead(context, agent, { recordTo: calls });
  context.sheet.atLeast("objects loaded", loaded, stored);
};

const PLAYS: Readonly<Partial<Record<EngineName, Play>>> = {
  vllm: playVllm,
  sglang: playSglang,
  lmcache: playLmcache,
};

/** What the default suite expects in a recording, by the program that the suite itself uses. */
async function checkFeatures({ engine, sheet }: LaneContext, file: string): Promise<void> {
  const command = [engine.python, "-m", "tests.recordings", engine.name, file];
  const env = { ...process.env, PYTHONPATH: PYTHON };
  const { ok, output } = await run(command, { cwd: PYTHON, env });
  if (!ok) throw new Error(`the recording cannot be read: ${output}`);
  const found: Record<string, number> = JSON.parse(output.trim().split("\n").at(-1)!);
  for (const [name, count] of Object.entries(found)) sheet.atLeast(`recorded: ${name}`, count, 1);
}

/** Writes the calls that the real engine makes to its connector, one JSON object a line. */
export function record(file: string): Lane {
  return async (context) => {
    const { sheet, folder, engine } = context;
    const play = PLAYS[engine.name];
    if (play === undefined) throw new Error(`nothing records ${engine.name}`);
    const calls = join(folder, "calls.jsonl");
    {
      await using agent = await Agent.start({ name: "a", folder, ramMib: 256 });
      await play(context, agent, calls);
    }
    const text = existsSync(calls) ? readFileSync(calls) : Buffer.alloc(0);
    writeFileSync(file, file.endsWith(".gz") ? Bun.gzipSync(text) : text);
    sheet.figure("calls", text.toString().split("\n").length - 1);
    sheet.figure("bytes", text.length);
    await checkFeatures(context, file);
  };
}
