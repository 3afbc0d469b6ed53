import { connectHttp, type HttpControlClient, pin } from "../../../control/client/index.ts";
import { assert, HearthError, sleep, systemClock } from "../../../core/index.ts";
import type { Native } from "../../../native/index.ts";
import { fileBytesOf } from "../../../store/kvb/index.ts";
import { type AgentStatus, PrivateAgent } from "../../replay/index.ts";
import type { Conversation } from "./conversation.ts";
import { PinEngine } from "./pin-engine.ts";

/** Tokens that RAM holds, and blocks of 64 tokens: as where the depths were measured first. */
export const CAPACITY_TOKENS = 42_816;
export const BLOCK_TOKENS = 64;
export const CAPACITY_BLOCKS = CAPACITY_TOKENS / BLOCK_TOKENS;
/**
 * More than RAM and the longest conversation together: what RAM is to give up is on SSD already,
 * and a restore waits for no writing.
 */
const SSD_BLOCKS = Math.floor(CAPACITY_BLOCKS * 1.5);
/** How many times its capacity an agent is flooded with. */
const TURNS = 3;
const FLOOD_CHAIN = 64;
const WARM_UP_BLOCKS = 1_024;
const WARM_UP_PASSES = 8;
const PAGE = 4096;
const OWNER = "bench";
const POLL_MS = 2;
const SETTLE_MS = 120_000;

export interface FloodedAgentOptions {
  readonly blockBytes: number;
  /** Where the SSD tier lies; null: RAM alone. */
  readonly ssdDir: string | null;
  readonly policy: string;
  readonly signal: AbortSignal;
}

/** An agent of the benchmark's own, with an engine and a client of the command plane before it. */
export class FloodedAgent implements AsyncDisposable {
  readonly engine: PinEngine;
  /** Blocks that RAM and SSD hold together, were each to hold its own. */
  readonly capacityBlocks: number;
  readonly hasSsd: boolean;
  readonly #agent: PrivateAgent;
  readonly #commands: HttpControlClient;
  readonly #signal: AbortSignal;
  #flooded: Conversation[] = [];
  #next = 0;

  private constructor(agent: PrivateAgent, engine: PinEngine, options: FloodedAgentOptions) {
    this.#agent = agent;
    this.engine = engine;
    this.#signal = options.signal;
    this.#commands = connectHttp({ url: agent.apiUrl, issuer: OWNER });
    this.hasSsd = options.ssdDir !== null;
    this.capacityBlocks = CAPACITY_BLOCKS + (this.hasSsd ? SSD_BLOCKS : 0);
  }

  static async start(native: Native, options: FloodedAgentOptions): Promise<FloodedAgent> {
    const { blockBytes, ssdDir, policy, signal } = options;
    const ramBytes = CAPACITY_BLOCKS * Math.ceil(blockBytes / PAGE) * PAGE;
    await using opened = new AsyncDisposableStack();
    const agent = opened.use(
      await PrivateAgent.start({
        ramBytes,
        ssdBytes: ssdDir === null ? null : SSD_BLOCKS * fileBytesOf(blockBytes),
        ...(ssdDir === null ? {} : { ssdDir }),
        blocksMax: 65_536,
        policy,
        settings: {
          // Nothing is late here, and every block is written: the time it takes is what counts.
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
  async pin({ hashes, count }: Conversation): Promise<void> {
    const command = pin(hashes, { owner: OWNER });
    const result = await this.#commands.send("", command, { signal: this.#signal });
    if (result.kind === "receipt" && result.receipt.counts.done === count) return;
    const why = result.kind === "receipt" ? JSON.stringify(result.receipt.counts) : result.why;
    throw new HearthError("LIMIT", `not all of ${count} blocks were pinned: ${why}`);
  }

  /**
   * Stores other blocks, three times what the agent holds. Throws LIMIT where the agent did not
   * take exactly so many, or they did not take each other's place.
   */
  async flood(): Promise<number> {
    const blocks = TURNS * this.capacityBlocks;
    const before = await this.#agent.status();
    this.#flooded = [];
    for (let left = blocks; left > 0; left -= FLOOD_CHAIN) {
      const chain = this.engine.name(this.#next++, Math.min(FLOOD_CHAIN, left));
      await this.engine.store(chain, false);
      this.#flooded.push(chain);
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

  /**
   * Reads back of the flood what is where a pinned conversation is: what is measured is an agent at
   * work, not one that reads for the first time.
   */
  async warmUp(): Promise<void> {
    let read = 0;
    for (let pass = 0; pass < WARM_UP_PASSES; pass++) {
      for (const chain of this.#flooded.toReversed()) {
        const { ram, ssd } = await this.engine.whereIs(chain);
        if ((this.hasSsd ? ssd : ram) < chain.count) continue;
        await this.engine.restore(chain);
        read += chain.count;
        if (read >= WARM_UP_BLOCKS) return;
      }
    }
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
