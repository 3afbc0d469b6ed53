import { join } from "node:path";
import { Agent } from "../kit/agent.ts";
import type { Answer } from "../kit/client.ts";
import { compareChats, mean, quantile, round } from "../kit/compare.ts";
import { Chats, Workload, type WorkloadShape } from "../kit/conversations.ts";
import { type LaneContext, type Sheet, serverOf } from "../kit/lane.ts";
import { Prompts } from "../kit/prompts.ts";
import { say } from "../kit/say.ts";
import { Vllm, type VllmOptions } from "../kit/vllm.ts";

const SHAPE: WorkloadShape = {
  conversations: 48,
  turns: 6,
  systems: 4,
  systemTokens: 800,
  turnTokens: [100, 300],
};
const QUICK: WorkloadShape = { ...SHAPE, conversations: 8, turns: 3 };
const TOKENS_OUT = 24;
const WIDTH = 2;
const REPEATS = 2;
/** Blocks of the engine's own cache: two conversations. */
const ENGINE_BLOCKS = 160;
const LENGTH_MAX = 4_096;
/** RAM for blocks beside the engine's own, the same for every arm: about half of the workload. */
const RAM_MIB = 192;
const SSD_MIB = 2_048;
const FIXTURES = join(import.meta.dir, "..", "fixtures");

/** Why an arm of the table is left out. */
const LEFT_OUT = {
  LMCache:
    "LMCache 0.5.6 has no connector for a KV cache in host memory: it logs " +
    '"No supported cpu connector found" and computes everything',
};

interface Arm {
  readonly name: string;
  readonly server: Vllm;
}

interface Tally {
  readonly answers: Answer[];
  /** Answers by conversation. */
  readonly chats: Map<number, Answer[]>;
  seconds: number;
}

/** vLLM's own offloading, with a worker that copies with numpy instead of CUDA. */
const OFFLOADING: Pick<VllmOptions, "transfer" | "env"> = {
  transfer: {
    kv_connector: "OffloadingConnector",
    kv_role: "kv_both",
    kv_connector_extra_config: {
      spec_name: "NumpyOffloadingSpec",
      spec_module_path: "hearth_cpu_offloading",
      cpu_bytes_to_use: RAM_MIB * 2 ** 20,
    },
  },
  env: { PYTHONPATH: join(FIXTURES, "cpu_offloading") },
};

/** Every conversation's next turn, two requests at a time. */
async function playTurn(arm: Arm, chats: Chats, order: readonly number[], turn: number) {
  const found = new Map<number, Answer>();
  let next = 0;
  const work = async () => {
    while (next < order.length) {
      const conversation = order[next++]!;
      const prompt = chats.ask(conversation, turn);
      const answer = await arm.server.ask({ prompt, tokens: TOKENS_OUT });
      chats.take(conversation, answer);
      found.set(conversation, answer);
    }
  };
  await Promise.all(Array.from({ length: WIDTH }, work));
  return found;
}

/** One workload on all arms: each turn on one arm after the other, in changing order. */
async function playRepeat(arms: readonly Arm[], workload: Workload): Promise<Map<Arm, Tally>> {
  const chats = new Map(arms.map((arm) => [arm, new Chats(workload)]));
  const tallies = new Map<Arm, Tally>(
    arms.map((arm) => [arm, { answers: [], chats: new Map(), seconds: 0 }]),
  );
  for (const [turn, order] of workload.order.entries()) {
    for (let place = 0; place < arms.length; place++) {
      const arm = arms[(place + turn) % arms.length]!;
      const began = performance.now();
      const tally = tallies.get(arm)!;
      for (const [conversation, answer] of await playTurn(arm, chats.get(arm)!, order, turn)) {
        tally.answers.push(answer);
        tally.chats.set(conversation, [...(tally.chats.get(conversation) ?? []), answer]);
      }
      tally.seconds += (performance.now() - began) / 1000;
    }
    say(`turn ${turn + 1} of ${workload.order.length}`);
  }
  return tallies;
}

interface Figures {
  readonly meanTtftMs: number;
  readonly p99TtftMs: number;
  readonly tokensComputed: number;
  readonly tokensAsked: number;
  readonly seconds: number;
}

function figuresOf({ answers, seconds }: Pick<Tally, "answers" | "seconds">): Figures {
  const times = answers.map((answer) => answer.firstTokenMs);
  const asked = answers.reduce((sum, answer) => sum + answer.promptTokens, 0);
  const cached = answers.reduce((sum, answer) => sum + answer.cachedTokens, 0);
  return {
    meanTtftMs: round(mean(times)),
    p99TtftMs: round(quantile(times, 0.99)),
    tokensComputed: asked - cached,
    tokensAsked: asked,
    seconds: round(seconds),
  };
}

function checkBest(sheet: Sheet, all: ReadonlyMap<string, Figures>): void {
  const own = all.get("hearth")!;
  for (const key of ["meanTtftMs", "p99TtftMs", "tokensComputed"] as const) {
    const others = [...all].filter(([name]) => name !== "hearth").map(([, found]) => found[key]);
    sheet.atMost(`Hearth best: ${key}`, own[key], Math.min(...others));
  }
}

function report(sheet: Sheet, arms: readonly Arm[], runs: readonly Map<Arm, Tally>[]): void {
  const all = new Map<string, Figures>();
  for (const arm of arms) {
    const parts = runs.map((run) => run.get(arm)!);
    const answers = parts.flatMap((part) => part.answers);
    const seconds = parts.reduce((sum, part) => sum + part.seconds, 0);
    all.set(arm.name, figuresOf({ answers, seconds }));
    sheet.figure(arm.name, all.get(arm.name));
    sheet.figure(`${arm.name}, each repeat`, parts.map(figuresOf));
    const verdicts = runs.map((run) => compareChats(run.get(arms[0]!)!.chats, run.get(arm)!.chats));
    const wrong = verdicts.flatMap((verdict) => verdict.wrong);
    const sum = (name: "ties" | "compared") =>
      verdicts.reduce((total, verdict) => total + verdict[name], 0);
    sheet.figure(`${arm.name}: conversations that end at a tie with vLLM alone`, sum("ties"));
    sheet.figure(`${arm.name}: answers compared`, `${sum("compared")} of ${answers.length}`);
    const claim = `${arm.name}: tokens of each conversation equal vLLM alone up to its first tie`;
    sheet.check(claim, wrong.length === 0, wrong.slice(0, 10), "all");
  }
  checkBest(sheet, all);
}

/** A multi-turn workload on vLLM alone, with Hearth and with vLLM's own offloading, in turns. */
export async function multiTurn(context: LaneContext): Promise<void> {
  const { sheet, folder, seed, model, isQuick } = context;
  const prompts = new Prompts(seed + 700, model.vocabulary);
  const shape = isQuick ? QUICK : SHAPE;
  await using stack = new AsyncDisposableStack();
  const agent = await Agent.start({ name: "a", folder, ramMib: RAM_MIB, ssdMib: SSD_MIB });
  stack.use(agent);
  const options = (name: string) => ({
    ...serverOf(context, name),
    ...{ blocks: ENGINE_BLOCKS, lengthMax: LENGTH_MAX },
  });
  const wanted: VllmOptions[] = [
    options("alone"),
    { ...options("hearth"), hearth: { socket: agent.socket } },
    { ...options("offloading"), ...OFFLOADING },
  ];
  const arms: Arm[] = [];
  for (const each of wanted) {
    arms.push({ name: each.name, server: stack.use(await Vllm.start(each)) });
  }
  const runs: Map<Arm, Tally>[] = [];
  for (let repeat = 0; repeat < (isQuick ? 1 : REPEATS); repeat++) {
    runs.push(await playRepeat(arms, new Workload(prompts, shape)));
  }
  sheet.figure("workload", { ...shape, repeats: runs.length, ramMib: RAM_MIB, ssdMib: SSD_MIB });
  sheet.figure("left out", LEFT_OUT);
  report(sheet, arms, runs);
}
