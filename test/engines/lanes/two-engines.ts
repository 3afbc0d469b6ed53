import { join } from "node:path";
import { makeCluster } from "../../support/index.ts";
import { Agent, peerKeys } from "../kit/agent.ts";
import { askAll } from "../kit/ask-all.ts";
import type { Answer } from "../kit/client.ts";
import { type LaneContext, serverOf } from "../kit/lane.ts";
import { connectorFigures } from "../kit/metrics.ts";
import { Prompts } from "../kit/prompts.ts";
import { freePort } from "../kit/server.ts";
import { checkEqual, checkRestored, questionsOf } from "../kit/stages.ts";
import { Vllm } from "../kit/vllm.ts";

const TOKENS_OUT = 8;
const WIDTH = 3;

export interface Pair extends AsyncDisposable {
  readonly near: Agent;
  readonly far: Agent;
}

/** Two agents of one cluster that pull from each other over sealed TCP. */
export async function startPair(folder: string, ramMib: number): Promise<Pair> {
  const cluster = makeCluster(join(folder, "ca"));
  const places = ["near", "far"].map((worker) => ({ worker, port: freePort() }));
  await using stack = new AsyncDisposableStack();
  const agents: Agent[] = [];
  for (const { worker, port } of places) {
    const others = places.filter((place) => place.worker !== worker);
    const config = { peers: peerKeys(cluster, worker, port, others) };
    agents.push(stack.use(await Agent.start({ name: worker, folder, ramMib, config })));
  }
  const ended = stack.move();
  const [near, far] = agents as [Agent, Agent];
  return { near, far, [Symbol.asyncDispose]: () => ended.disposeAsync() };
}

/** Engine A computes; B on the same host and C behind a second agent restore. */
export async function twoEngines(context: LaneContext): Promise<void> {
  const { sheet, folder, seed, model, isQuick } = context;
  const prompts = new Prompts(seed + 100, model.vocabulary);
  const sent = prompts.mixed(isQuick ? 12 : 48, 200, 6_000);
  const questions = questionsOf(sent, TOKENS_OUT);
  await using agents = await startPair(folder, 1_024);
  const play = async (name: string, agent: Agent): Promise<Answer[]> => {
    const hearth = { socket: agent.socket };
    await using server = await Vllm.start({ ...serverOf(context, name), hearth });
    const answers = await askAll(server, questions, WIDTH, name);
    await agent.settled();
    sheet.figure(`connector of ${name}`, connectorFigures(await server.metrics()));
    return answers;
  };
  const first = await play("engine-a", agents.near);
  const sameHost = await play("engine-b", agents.near);
  checkEqual(sheet, "engine B, same host", first, sameHost);
  checkRestored(sheet, "engine B, same host", sent, sameHost);
  const otherHost = await play("engine-c", agents.far);
  checkEqual(sheet, "engine C, other agent", first, otherHost);
  checkRestored(sheet, "engine C, other agent", sent, otherHost);
  const pulled = (await agents.far.metrics()).sum("hearth_peer_blocks_total", "stream");
  sheet.atLeast("engine C: blocks pulled over sealed TCP", pulled, 1);
}
