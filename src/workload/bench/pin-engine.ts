import { connectHttp, type HttpControlClient, pin } from "../../control/client/index.ts";
import {
  assert,
  BlockFlag,
  DIGEST_BYTES,
  HearthError,
  LAYER_ALL,
  sleep,
  systemClock,
} from "../../core/index.ts";
import { EngineClient, Outcome } from "../../engine/index.ts";
import { encodeManifest, manifestOf, namespaceKey } from "../../identity/index.ts";
import { type Native, type NativeBuffer, nativeBuffer, Region } from "../../native/index.ts";
import { Tier } from "../../store/blocks/index.ts";
import {
  type AddressBatch,
  CommitFlag,
  createAddressBatch,
  createHandleBatch,
  type HandleBatch,
} from "../../store/index.ts";
import { fileBytesOf } from "../../store/kvb/index.ts";
import { type AgentStatus, PrivateAgent } from "../replay/index.ts";

/** Blocks of one request, as `bench engine` has them. */
const AT_ONCE = 64;

/** Blocks stored by one request: the agent verifies one such batch while the next is copied. */
const STORED_AT_ONCE = 16;

const PAGE = 4096;

/** Between two tries where the agent has no room until its SSD has written. */
const RETRY_MS = 1;

const TIMEOUT_MS = 60_000;

const MANIFEST = manifestOf({
  model: "bench-pin",
  dtype: "pattern",
  layout: "hearth:bench",
  blockTokens: 64,
});

export interface PinEngineOptions {
  readonly socketPath: string;
  readonly blockBytes: number;
  readonly signal: AbortSignal;
}

/** One request's columns. */
interface Batch {
  readonly blocks: AddressBatch;
  readonly handles: HandleBatch;
}

function createBatch(capacity: number): Batch {
  return { blocks: createAddressBatch(capacity), handles: createHandleBatch(capacity) };
}

/** Stores conversations as an engine would, and reads them back. */
export class PinEngine implements AsyncDisposable {
  readonly #native: Native;
  readonly #client: EngineClient;
  readonly #options: PinEngineOptions;
  readonly #namespaceKey: Uint8Array;
  /** Blocks are made in it, copied out of it, and read back into it. */
  readonly #gpu: Region;
  readonly #gpuView: NativeBuffer;
  /** Where a restored block is copied to, over and over. */
  readonly #staging: NativeBuffer;
  readonly #read = [createBatch(AT_ONCE), createBatch(AT_ONCE)] as const;
  readonly #stored = [createBatch(STORED_AT_ONCE), createBatch(STORED_AT_ONCE)] as const;

  private constructor(native: Native, client: EngineClient, options: PinEngineOptions) {
    this.#native = native;
    this.#client = client;
    this.#options = options;
    this.#namespaceKey = namespaceKey(native, MANIFEST);
    const bytes = Math.ceil(options.blockBytes / PAGE) * PAGE;
    this.#gpu = Region.create(native, { bytes, hugePages: "off", lockMemory: "off" });
    this.#gpuView = this.#gpu.view(options.blockBytes);
    this.#staging = nativeBuffer(options.blockBytes);
  }

  static async connect(native: Native, options: PinEngineOptions): Promise<PinEngine> {
    const client = await EngineClient.connect(native, {
      socketPath: options.socketPath,
      manifest: encodeManifest(MANIFEST),
      name: "bench-pin",
      signal: options.signal,
    });
    return new PinEngine(native, client, options);
  }

  /** Conversation `number` with `count` blocks. */
  name(number: number, count: number): Conversation {
    return conversation(this.#native, this.#namespaceKey, number, count);
  }

  /**
   * Stores all of its blocks; the bytes of each are its own where `own`, else the same for all.
   * Resolves when the agent has verified them. Throws LIMIT if a block is not stored.
   */
  async store(of: Conversation, own: boolean): Promise<void> {
    if (!own) this.#gpu.fill(0, this.#options.blockBytes, of.hashes[0]!);
    let before: Promise<void> = Promise.resolve();
    const untilMs = systemClock.monotonicMs() + TIMEOUT_MS;
    for (let at = 0, turn = 0; at < of.count; turn++) {
      const batch = this.#stored[turn % 2]!;
      const count = Math.min(STORED_AT_ONCE, of.count - at);
      const { taken, committed } = await this.#storeSome(of, at, count, own, batch);
      await before;
      before = committed;
      at += taken;
      if (taken === count) continue;
      if (systemClock.monotonicMs() > untilMs) throw noRoom(of.count - at);
      await sleep(systemClock, RETRY_MS, this.#options.signal);
    }
    await before;
  }

  async #storeSome(of: Conversation, from: number, count: number, own: boolean, batch: Batch) {
    const { blocks, handles } = batch;
    this.#nameBlocks(of, from, count, blocks);
    await this.#client.reserve(blocks, 0n, handles);
    let taken = 0;
    while (taken < count && handles.outcome[taken] === Outcome.ok) taken++;
    for (let i = taken; i < count; i++) {
      if (handles.outcome[i] === Outcome.full) continue;
      throw new HearthError("LIMIT", "a block of the benchmark was there before it was stored");
    }
    handles.count = taken;
    for (let i = 0; i < taken; i++) this.#copyIn(of, from + i, own, handles, i);
    if (taken === 0) return { taken, committed: Promise.resolve() };
    return { taken, committed: this.#client.commit(handles).then(() => allOk(handles)) };
  }

  #copyIn(of: Conversation, index: number, own: boolean, handles: HandleBatch, i: number): void {
    const { blockBytes } = this.#options;
    if (own) this.#gpu.fill(0, blockBytes, of.hashes[index]!);
    const offset = handles.offset[i]!;
    handles.checksum[i] = this.#client.arena.copyIn(offset, this.#gpuView, blockBytes, true);
    handles.flags[i] = CommitFlag.checksumGiven;
  }

  #nameBlocks(of: Conversation, from: number, count: number, into: AddressBatch): void {
    this.#nameDigests(of, from, count, into);
    into.bytes.fill(this.#options.blockBytes, 0, count);
    into.flags.fill(BlockFlag.aliasGiven, 0, count);
    for (let i = 0; i < count; i++) {
      const hash = of.hashes[from + i]!;
      into.aliasLo[i] = Number(hash & 0xffff_ffffn);
      into.aliasHi[i] = Number(hash >> 32n);
    }
    const parents = into.parents.subarray(0, count * DIGEST_BYTES);
    if (from > 0) {
      const first = (from - 1) * DIGEST_BYTES;
      parents.set(of.digests.subarray(first, first + count * DIGEST_BYTES));
      return;
    }
    parents.fill(0, 0, DIGEST_BYTES);
    parents.set(of.digests.subarray(0, (count - 1) * DIGEST_BYTES), DIGEST_BYTES);
  }

  #nameDigests(of: Conversation, from: number, count: number, into: AddressBatch): void {
    into.count = count;
    into.layer = LAYER_ALL;
    into.digests.set(of.digests.subarray(from * DIGEST_BYTES, (from + count) * DIGEST_BYTES));
  }

  /** The number of its blocks in RAM, and only on SSD. Does not count as a use. */
  async whereIs(of: Conversation): Promise<{ ram: number; ssd: number }> {
    const found = { ram: 0, ssd: 0 };
    const { blocks } = this.#read[0];
    const best = new Uint8Array(AT_ONCE);
    for (let at = 0; at < of.count; at += AT_ONCE) {
      const count = Math.min(AT_ONCE, of.count - at);
      this.#nameDigests(of, at, count, blocks);
      await this.#client.match(blocks, 0, best);
      for (let i = 0; i < count; i++) {
        if (best[i] === Tier.ram) found.ram++;
        else if (best[i] === Tier.ssd) found.ssd++;
      }
    }
    return found;
  }

  /**
   * Acquires every block and copies out those that are there. While one batch is copied, the next
   * is on its way.
   */
  async restore(of: Conversation) {
    const { blockBytes } = this.#options;
    const { arena } = this.#client;
    const start = Bun.nanoseconds();
    let present = 0;
    let coming = this.#acquire(of, 0, 0);
    for (let at = 0, turn = 0; at < of.count; at += AT_ONCE, turn++) {
      const handles = await coming;
      if (at + AT_ONCE < of.count) coming = this.#acquire(of, at + AT_ONCE, turn + 1);
      // A request leaves when this turn of the loop lets it.
      await Promise.resolve();
      for (let i = 0; i < handles.count; i++) {
        if (handles.outcome[i] !== Outcome.ok) continue;
        arena.copyOut(handles.offset[i]!, this.#staging, blockBytes, false);
        present++;
      }
      this.#release(handles);
    }
    return { present, ns: Bun.nanoseconds() - start };
  }

  async #acquire(of: Conversation, from: number, turn: number): Promise<HandleBatch> {
    const { blocks, handles } = this.#read[turn % 2]!;
    this.#nameDigests(of, from, Math.min(AT_ONCE, of.count - from), blocks);
    const options = { tiers: 0, deadlineMs: TIMEOUT_MS, stopAtMiss: false };
    await this.#client.acquire(blocks, options, handles);
    return handles;
  }

  /** Gives back those that were there; `handles` holds nothing after that. */
  #release(handles: HandleBatch): void {
    let held = 0;
    for (let i = 0; i < handles.count; i++) {
      if (handles.outcome[i] !== Outcome.ok) continue;
      handles.slot[held] = handles.slot[i]!;
      handles.generation[held] = handles.generation[i]!;
      held++;
    }
    handles.count = held;
    if (held > 0) this.#client.release(handles);
  }

  /** Blocks whose bytes are not those that were stored, or that are not there. */
  async wrongBlocks(of: Conversation): Promise<number> {
    const { blockBytes } = this.#options;
    let wrong = 0;
    for (let at = 0; at < of.count; at += AT_ONCE) {
      const handles = await this.#acquire(of, at, 0);
      for (let i = 0; i < handles.count; i++) {
        if (handles.outcome[i] !== Outcome.ok || handles.bytes[i] !== blockBytes) wrong++;
        else if (!this.#isRight(handles, i, of.hashes[at + i]!)) wrong++;
      }
      this.#release(handles);
    }
    return wrong;
  }

  #isRight(handles: HandleBatch, i: number, seed: bigint): boolean {
    const { blockBytes } = this.#options;
    const offset = handles.offset[i]!;
    const checksum = this.#client.arena.copyOut(offset, this.#gpuView, blockBytes, true);
    return checksum === handles.checksum[i] && this.#gpu.firstWrong(0, blockBytes, seed) === null;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#client[Symbol.asyncDispose]();
    this.#gpu[Symbol.dispose]();
  }
}

function allOk(handles: HandleBatch): void {
  for (let i = 0; i < handles.count; i++) {
    if (handles.outcome[i] === Outcome.ok) continue;
    throw new HearthError("INTERNAL", "the agent did not take a block as it was written");
  }
}

function noRoom(left: number): HearthError {
  return new HearthError("LIMIT", `the agent has no room for ${left} blocks of the flood`, {
    fix: "see whether the drive of --dir still writes",
  });
}

/** Tokens that RAM holds, and blocks of 64 tokens: as where the depths were measured first. */
const CAPACITY_TOKENS = 42_816;

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

const OWNER = "bench";

const SETTLE_MS = 120_000;

interface FloodedAgentOptions {
  readonly blockBytes: number;
  /** Where the SSD tier lies; null: RAM alone. */
  readonly ssdDir: string | null;
  readonly policy: string;
  readonly signal: AbortSignal;
}

/** A temporary agent, with an engine and a client of the command plane. */
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
          kv: { ssd_write_queue: `"${Math.max(ramBytes, 2 ** 20)}B"` },
          engine: { acquire_deadline: '"60s"', lease: '"2m"' },
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

  /** Pins by engine hash, as a router does. Throws LIMIT if a block is not pinned. */
  async pin({ hashes, count }: Conversation): Promise<void> {
    const command = pin(hashes, { owner: OWNER });
    const result = await this.#commands.send("", command, { signal: this.#signal });
    if (result.kind === "receipt" && result.receipt.counts.done === count) return;
    const why = result.kind === "receipt" ? JSON.stringify(result.receipt.counts) : result.why;
    throw new HearthError("LIMIT", `not all of ${count} blocks were pinned: ${why}`);
  }

  /**
   * Stores other blocks of three times the agent's capacity. Throws LIMIT if the agent did not
   * store exactly this many, or did not evict as many.
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
   * Reads blocks of the flood from the tier of the pinned conversation, so that the measured agent
   * is warmed up.
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

  /** Resolves when all pending writes to SSD are complete. */
  async #settled(): Promise<AgentStatus> {
    const agent = this.#agent;
    let status = await agent.status();
    await agent.until(SETTLE_MS, "write all blocks to SSD", this.#signal, async () => {
      status = await agent.status();
      return (status.ssd?.queued_blocks ?? 0) === 0;
    });
    return status;
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
    assert(committed !== undefined, "the agent counts stored blocks");
    return { committed, written: status.ssd?.counters.written_blocks ?? null };
  };
  const [a, b] = [count(before), count(after)];
  const written = a.written === null || b.written === null ? null : b.written - a.written;
  return { committed: b.committed - a.committed, written };
}

/** Blocks that build upon each other, each with the 64-bit hash its engine knows it by. */
interface Conversation {
  readonly count: number;
  /** 32 bytes a block, the first one's first. */
  readonly digests: Uint8Array;
  /** Unsigned; known before anything is stored. */
  readonly hashes: readonly bigint[];
}

/** Conversation number `number`: no two numbers share a block. */
function conversation(
  native: Native,
  namespaceKey: Uint8Array,
  number: number,
  count: number,
): Conversation {
  const ids = new BigUint64Array(count);
  for (let i = 0; i < count; i++) ids[i] = (BigInt(number) << 32n) | BigInt(i);
  const digests = new Uint8Array(count * DIGEST_BYTES);
  native.chainDigests(namespaceKey, new Uint8Array(ids.buffer), 8, digests);
  const view = new DataView(digests.buffer);
  const hashes = Array.from({ length: count }, (_, i) => view.getBigUint64(i * DIGEST_BYTES, true));
  return { count, digests, hashes };
}
