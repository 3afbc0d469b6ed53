import { join } from "node:path";
import {
  connectHttp,
  type HttpControlClient,
  pin,
  unpin,
  type WireCommand,
} from "../../client/index.ts";
import { assert, HearthError, sleep, systemClock } from "../../core/index.ts";
import { fileBytesOf } from "../../kvb/index.ts";
import type { Native } from "../../native/index.ts";
import { type AgentStatus, PrivateAgent } from "../../replay/index.ts";
import type { Conversation } from "./conversation.ts";
import { PinEngine } from "./pin-engine.ts";

/** Tokens that RAM holds, and blocks of 64 tokens: as where the depths were measured first. */
export const CAPACITY_TOKENS = 42_816;
export const BLOCK_TOKENS = 64;
export const CAPACITY_BLOCKS = CAPACITY_TOKENS / BLOCK_TOKENS;
/** How many times its capacity an agent is flooded with. */
const TURNS = 3;
const FLOOD_CHAIN = 64;
const PAGE = 4096;
const OWNER = "bench";
const POLL_MS = 2;
const SETTLE_MS = 120_000;

export interface FloodedAgentOptions {
  readonly blockBytes: number;
  /** Where the SSD tier lies, as large as RAM; null: RAM alone. */
  readonly ssdDir: string | null;
  readonly policy: string;
  readonly signal: AbortSignal;
}

/** An agent of the benchmark's own, with an engine and a client of the command plane before it. */
export class FloodedAgent implements AsyncDisposable {
  readonly engine: PinEngine;
  /** Blocks that RAM and SSD hold together, were each to hold its own. */
  readonly capacityBlocks: number;
  readonly #agent: PrivateAgent;
  readonly #commands: HttpControlClient;
  readonly #signal: AbortSignal;
  #next = 0;

  private constructor(agent: PrivateAgent, engine: PinEngine, options: FloodedAgentOptions) {
    this.#agent = agent;
    this.engine = engine;
    this.#signal = options.signal;
    this.#commands = connectHttp({ url: agent.apiUrl, issuer: OWNER });
    this.capacityBlocks = CAPACITY_BLOCKS * (options.ssdDir === null ? 1 : 2);
  }

  static async start(native: Native, options: FloodedAgentOptions): Promise<FloodedAgent> {
    const { blockBytes, ssdDir, policy, signal } = options;
    const ramBytes = CAPACITY_BLOCKS * Math.ceil(blockBytes / PAGE) * PAGE;
    await using opened = new AsyncDisposableStack();
    const agent = opened.use(
      await PrivateAgent.start({
        ramBytes,
        ssdBytes: ssdDir === null ? null : CAPACITY_BLOCKS * fileBytesOf(blockBytes),
        ...(ssdDir === null ? {} : { ssdDir: join(ssdDir, "ssd") }),
        blocksMax: 65_536,
        policy,
        settings: {
          // Nothing is late here, and every block is written: how long it takes is what is measured.
          kv: { ssd_read_deadline: '"60s"', ssd_write_queue: `"${Math.max(ramBytes, 2 ** 20)}B"` },
          control: { pin_share: "0.95", pin_share_owner: "0.95" },
        },
        signal,
      }),
    );
    const { socketPath } = agent;
    const engine = opened.use(await PinEngine.connect(native, { socketPath, blockBytes, signal }));
    const flooded = new FloodedAgent(agent, engine, options);
    opened.move();
    return flooded;
  }

  /** Whether the page cache is passed by; null without SSD. */
  async isDirect(): Promise<boolean | null> {
    return (await this.#agent.status()).ssd?.direct ?? null;
  }

  /** A conversation that was never seen before, stored and settled. */
  async converse(blocks: number): Promise<Conversation> {
    const conversation = this.engine.name(this.#next++, blocks);
    await this.engine.store(conversation, true);
    await this.#settled();
    return conversation;
  }

  /** By engine hash, as a router would. Throws LIMIT where a block is not pinned. */
  pin(of: Conversation): Promise<void> {
    return this.#command(pin(of.hashes, { owner: OWNER }), of.count);
  }

  unpin(of: Conversation): Promise<void> {
    return this.#command(unpin(of.hashes, { owner: OWNER }), of.count);
  }

  async #command(command: WireCommand, blocks: number): Promise<void> {
    const result = await this.#commands.send("", command, { signal: this.#signal });
    if (result.kind === "receipt" && result.receipt.counts.done === blocks) return;
    const why = result.kind === "receipt" ? JSON.stringify(result.receipt.counts) : result.why;
    throw new HearthError("LIMIT", `not all of ${blocks} blocks were pinned or let go: ${why}`);
  }

  /**
   * Stores other blocks, three times what the agent holds. Throws LIMIT where the agent did not
   * take exactly so many, or they did not take each other's place.
   */
  async flood(): Promise<number> {
    const blocks = TURNS * this.capacityBlocks;
    const before = await this.#agent.status();
    for (let left = blocks; left > 0; left -= FLOOD_CHAIN) {
      const chain = this.engine.name(this.#next++, Math.min(FLOOD_CHAIN, left));
      await this.engine.store(chain, false);
    }
    const after = await this.#settled();
    const since = countedSince(before, after);
    const isFull = after.ram.blocks > CAPACITY_BLOCKS * 0.9;
    const isWritten = since.written === null || since.written >= blocks;
    if (isFull && isWritten && since.committed === blocks) return blocks;
    const text =
      `a flood of ${blocks} blocks came to ${since.committed} stored, ${since.written ?? "none"} ` +
      `written to SSD, ${after.ram.blocks} in RAM`;
    throw new HearthError("LIMIT", text, { fix: "the agent's own counters say so: a bug" });
  }

  /** When what is to be on SSD is there. */
  async #settled(): Promise<AgentStatus> {
    const untilMs = systemClock.monotonicMs() + SETTLE_MS;
    for (;;) {
      const status = await this.#agent.status();
      if (status.ssd === null || status.ssd.queued_blocks === 0) return status;
      if (systemClock.monotonicMs() > untilMs) {
        throw new HearthError("DEADLINE", "the SSD does not come to an end with writing");
      }
      await sleep(systemClock, POLL_MS, this.#signal);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#commands[Symbol.asyncDispose]();
    await this.engine[Symbol.asyncDispose]();
    await this.#agent[Symbol.asyncDispose]();
  }
}

function countedSince(before: AgentStatus, after: AgentStatus) {
  const count = (status: AgentStatus) => {
    const committed = status.counters.committed_blocks;
    assert(committed !== undefined, "the agent counts what is stored");
    return { committed, written: status.ssd?.counters.written_blocks ?? null };
  };
  const [a, b] = [count(before), count(after)];
  const written = a.written === null || b.written === null ? null : b.written - a.written;
  return { committed: b.committed - a.committed, written };
}
