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

/** Number of blocks per request, as in `bench engine`. */
const AT_ONCE = 64;

/** Number of blocks stored per request: the agent verifies one batch while the next is copied. */
const STORED_AT_ONCE = 16;

const PAGE = 4096;

/**
 * Milliseconds between attempts to store while the agent is full because its SSD is still writing.
 */
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
  /** Memory in which blocks are made, and from and to which they are copied. */
  readonly #gpu: Region;
  readonly #gpuView: NativeBuffer;
  /** Buffer to which each restored block is copied. */
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

  /** Returns conversation `number` with `count` blocks. */
  name(number: number, count: number): Conversation {
    return conversation(this.#native, this.#namespaceKey, number, count);
  }

  /**
   * Stores all blocks of a conversation. If `own` is set, each block has its own bytes; else all
   * have the same. Resolves when the agent has verified them. Throws LIMIT if a block is not
   * stored.
   */
  async store(of: Conversation, own: boolean): Promise<void> {
    if (!own) this.#gpu.fill(0, this.#options.blockBytes, of.hashes[0]);
    let before: Promise<void> = Promise.resolve();
    const untilMs = systemClock.monotonicMs() + TIMEOUT_MS;
    for (let at = 0, turn = 0; at < of.count; turn++) {
      const batch = this.#stored[turn % 2];
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
    if (own) this.#gpu.fill(0, blockBytes, of.hashes[index]);
    const offset = handles.offset[i];
    handles.checksum[i] = this.#client.arena.copyIn(offset, this.#gpuView, blockBytes, true);
    handles.flags[i] = CommitFlag.checksumGiven;
  }

  #nameBlocks(of: Conversation, from: number, count: number, into: AddressBatch): void {
    this.#nameDigests(of, from, count, into);
    into.bytes.fill(this.#options.blockBytes, 0, count);
    into.flags.fill(BlockFlag.aliasGiven, 0, count);
    for (let i = 0; i < count; i++) {
      const hash = of.hashes[from + i];
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

  /**
   * Returns the number of the conversation's blocks in RAM and the number only on SSD, without
   * counting as a use of them.
   */
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
   * Acquires every block and copies out the cached ones. While one batch is copied, the next is
   * requested.
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
      // Let the event loop send the request before the copy blocks it.
      await Promise.resolve();
      for (let i = 0; i < handles.count; i++) {
        if (handles.outcome[i] !== Outcome.ok) continue;
        arena.copyOut(handles.offset[i], this.#staging, blockBytes, false);
        present++;
      }
      this.#release(handles);
    }
    return { present, ns: Bun.nanoseconds() - start };
  }

  async #acquire(of: Conversation, from: number, turn: number): Promise<HandleBatch> {
    const { blocks, handles } = this.#read[turn % 2];
    this.#nameDigests(of, from, Math.min(AT_ONCE, of.count - from), blocks);
    const options = { tiers: 0, deadlineMs: TIMEOUT_MS, stopAtMiss: false };
    await this.#client.acquire(blocks, options, handles);
    return handles;
  }

  /** Releases the acquired blocks and empties `handles`. */
  #release(handles: HandleBatch): void {
    let held = 0;
    for (let i = 0; i < handles.count; i++) {
      if (handles.outcome[i] !== Outcome.ok) continue;
      handles.slot[held] = handles.slot[i];
      handles.generation[held] = handles.generation[i];
      held++;
    }
    handles.count = held;
    if (held > 0) this.#client.release(handles);
  }

  /** Returns the number of blocks that are missing or whose bytes differ from those stored. */
  async wrongBlocks(of: Conversation): Promise<number> {
    const { blockBytes } = this.#options;
    let wrong = 0;
    for (let at = 0; at < of.count; at += AT_ONCE) {
      const handles = await this.#acquire(of, at, 0);
      for (let i = 0; i < handles.count; i++) {
        if (handles.outcome[i] !== Outcome.ok || handles.bytes[i] !== blockBytes) wrong++;
        else if (!this.#isRight(handles, i, of.hashes[at + i])) wrong++;
      }
      this.#release(handles);
    }
    return wrong;
  }

  #isRight(handles: HandleBatch, i: number, seed: bigint): boolean {
    const { blockBytes } = this.#options;
    const offset = handles.offset[i];
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

/**
 * Tokens that RAM holds, in blocks of 64 tokens: the values of the first published measurement of
 * these depths.
 */
const CAPACITY_TOKENS = 42_816;

export const BLOCK_TOKENS = 64;

export const CAPACITY_BLOCKS = CAPACITY_TOKENS / BLOCK_TOKENS;

/**
 * Number of blocks on SSD. More than RAM and the longest conversation together, so that blocks that
 * RAM evicts are already on SSD and no restore waits for writes.
 */
const SSD_BLOCKS = Math.floor(CAPACITY_BLOCKS * 1.5);

/** A flood stores this many times the agent's capacity. */
const TURNS = 3;

const FLOOD_CHAIN = 64;

const WARM_UP_BLOCKS = 1_024;

const WARM_UP_PASSES = 8;

const OWNER = "bench";

const SETTLE_MS = 120_000;

interface FloodedAgentOptions {
  readonly blockBytes: number;
  /** Folder of the SSD tier; null for RAM alone. */
  readonly ssdDir: string | null;
  readonly policy: string;
  readonly signal: AbortSignal;
}

/** A temporary agent, with an engine and a client that sends control commands. */
export class FloodedAgent implements AsyncDisposable {
  readonly engine: PinEngine;
  /** Number of blocks that RAM and SSD hold together if no block is on both. */
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
          // Every block must be written to SSD even if that takes long, because the time is
          // measured.
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

  /** Returns whether the SSD tier bypasses the page cache (O_DIRECT); null without SSD. */
  async isDirect(): Promise<boolean | null> {
    return (await this.#agent.status()).ssd?.direct ?? null;
  }

  /** Stores a new conversation and waits until all its blocks are written to SSD. */
  async converse(blocks: number): Promise<Conversation> {
    const conversation = this.engine.name(this.#next++, blocks);
    await this.engine.store(conversation, true);
    await this.#settled();
    return conversation;
  }

  /**
   * Pins a conversation by its engine hashes, as a router does. Throws LIMIT if a block is not
   * pinned.
   */
  async pin({ hashes, count }: Conversation): Promise<void> {
    const command = pin(hashes, { owner: OWNER });
    const result = await this.#commands.send("", command, { signal: this.#signal });
    if (result.kind === "receipt" && result.receipt.counts.done === count) return;
    const why = result.kind === "receipt" ? JSON.stringify(result.receipt.counts) : result.why;
    throw new HearthError("LIMIT", `not all of ${count} blocks were pinned: ${why}`);
  }

  /**
   * Stores other blocks of three times the agent's capacity and returns their number. Throws LIMIT
   * if the agent's counters do not show that it stored all of them, wrote them to SSD and filled
   * its RAM.
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

  /** Waits until all pending writes to SSD are complete; returns the agent's status. */
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

/** A chain of blocks, each with the 64-bit hash that the engine uses for it. */
interface Conversation {
  readonly count: number;
  /** Digests of the blocks in order, 32 bytes each. */
  readonly digests: Uint8Array;
  /** Engine hashes of the blocks, as unsigned numbers; they are known before a block is stored. */
  readonly hashes: readonly bigint[];
}

/** Returns conversation `number`. No two conversations share a block. */
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
