import { waitFor } from "../../support/index.ts";
import { Agent } from "../kit/agent.ts";
import { askAll } from "../kit/ask-all.ts";
import type { Answer } from "../kit/client.ts";
import { type LaneContext, serverOf } from "../kit/lane.ts";
import { BLOCK_TOKENS } from "../kit/model.ts";
import { Prompts } from "../kit/prompts.ts";
import { say } from "../kit/say.ts";
import { questionsOf } from "../kit/stages.ts";
import { Vllm } from "../kit/vllm.ts";

/** Turns behind the system prompt, and the tokens of the prompt at that depth. */
const DEPTHS: readonly (readonly [depth: number, tokens: number])[] = [
  [0, 3_158],
  [2, 4_810],
  [6, 7_347],
  [10, 10_826],
  [16, 15_002],
];
const TURN_TOKENS = 150;
const FLOOD_TOKENS = 1_000;
const FLOOD_CAPACITIES = 3;
const FLOOD_WIDTH = 4;
const RAM_MIB = 512;
const PINNED_MIN = 0.9;
const LENGTH_MAX = 16_384;
const PIN_WAIT_MS = 60_000;

/** A request that pins the full blocks of its prompt. */
function pinOf(prompt: readonly number[], depth: number) {
  const payload = { ttl_seconds: 3_600, owner: `depth-${depth}` };
  const action = { action_id: "1", action_type: "pin", action_version: "1", payload };
  const envelope = { protocol_version: "1", message_id: `depth-${depth}`, actions: [action] };
  const extra = { kv_transfer_params: { kv_hints: envelope } };
  return { prompt, tokens: 1, extra };
}

interface Bench {
  readonly agent: Agent;
  readonly server: Vllm;
  readonly prompts: Prompts;
  /** Tokens whose KV fills the agent's RAM once. */
  readonly capacityTokens: number;
}

async function pinnedBlocks(agent: Agent): Promise<number> {
  return (await agent.process.status()).control.pins.blocks;
}

async function warm(bench: Bench, pinned: number[], unpinned: number[], depth: number) {
  const { agent, server } = bench;
  const before = await pinnedBlocks(agent);
  const full = Math.floor(pinned.length / BLOCK_TOKENS);
  await server.ask({ prompt: unpinned, tokens: 1 });
  await server.ask(pinOf(pinned, depth));
  const isPinned = async () => (await pinnedBlocks(agent)) - before >= full;
  await waitFor(isPinned, PIN_WAIT_MS, `${full} blocks being pinned`);
  await agent.settled();
}

/** Prompts without reuse whose blocks fill the agent's RAM several times. */
async function flood({ server, prompts, capacityTokens }: Bench): Promise<number> {
  const count = Math.ceil((FLOOD_CAPACITIES * capacityTokens) / FLOOD_TOKENS);
  const sent = Array.from({ length: count }, () => prompts.tokens(FLOOD_TOKENS));
  await askAll(server, questionsOf(sent, 1), FLOOD_WIDTH, "flood");
  return count;
}

function shareOf(prompt: readonly number[], { cachedTokens }: Answer): number {
  const full = Math.floor(prompt.length / BLOCK_TOKENS);
  return Math.min(1, Math.floor(cachedTokens / BLOCK_TOKENS) / full);
}

/** The sweep of the pin worklog: warm, pin, flood, then the next turn of the conversation. */
export async function pin(context: LaneContext): Promise<void> {
  const { sheet, folder, seed, model, isQuick } = context;
  const prompts = new Prompts(seed + 600, model.vocabulary);
  const ramMib = isQuick ? 192 : RAM_MIB;
  const capacityTokens = Math.floor((ramMib * 2 ** 20) / model.blockBytes) * BLOCK_TOKENS;
  await using agent = await Agent.start({ name: "a", folder, ramMib });
  const options = { ...serverOf(context, "engine"), lengthMax: LENGTH_MAX, blocks: 544 };
  await using server = await Vllm.start({ ...options, hearth: { socket: agent.socket } });
  const bench = { agent, server, prompts, capacityTokens };
  for (const [depth, tokens] of isQuick ? DEPTHS.slice(0, 2) : DEPTHS) {
    const [pinned, unpinned] = [prompts.tokens(tokens), prompts.tokens(tokens)];
    await warm(bench, pinned, unpinned, depth);
    const requests = await flood(bench);
    const turn = prompts.tokens(TURN_TOKENS);
    const next = (prompt: number[]) => server.ask({ prompt: [...prompt, ...turn], tokens: 8 });
    // The unpinned twin first: what it computes cannot help the pinned one.
    const [without, withPin] = [await next(unpinned), await next(pinned)];
    const share = shareOf(pinned, withPin);
    sheet.atLeast(`depth ${depth}: pinned blocks restored`, share, PINNED_MIN);
    sheet.figure(`depth ${depth}`, {
      promptTokens: tokens,
      floodRequests: requests,
      unpinnedRestored: shareOf(unpinned, without),
      pinnedTtftMs: Math.round(withPin.firstTokenMs),
      unpinnedTtftMs: Math.round(without.firstTokenMs),
    });
    say(`depth ${depth}: pinned ${share}, TTFT ${Math.round(withPin.firstTokenMs)} ms`);
  }
}
