import { readFileSync } from "node:fs";
import {
  BlockFlag,
  DIGEST_BYTES,
  HearthError,
  LAYER_ALL,
  sleep,
  systemClock,
} from "../../../core/index.ts";
import { EngineClient, Outcome, outcomeName } from "../../../engine/index.ts";
import { encodeManifest } from "../../../identity/index.ts";
import type { Native } from "../../../native/index.ts";
import { createAddressBatch, createHandleBatch, type HandleBatch } from "../../../store/index.ts";
import { PrivateAgent } from "../../replay/index.ts";
import { BENCH_MANIFEST } from "../bench-store.ts";

export interface ControlHostOptions {
  readonly natsUrl: string;
  readonly workerId: string;
  readonly blocksMax: number;
  readonly ramBytes: number;
  /** Bytes of the SSD tier; null for RAM alone, without the control ledger. */
  readonly ssdBytes: number | null;
  readonly signal: AbortSignal;
}

export interface StoreOptions {
  /** Number of blocks to store, numbered from 0; each follows its parent in this order. */
  readonly count: number;
  /** Returns the number of the block's parent; null if it has none. */
  readonly parentOf: (block: number) => number | null;
  readonly blockBytes: number;
  readonly onProgress: (stored: number) => void;
}

const MANIFEST = encodeManifest(BENCH_MANIFEST);
const AT_ONCE = 1_024;
const PROGRESS_EVERY = 65_536;
const ON_SSD_MS = 300_000;
const WORDS_PER_DIGEST = DIGEST_BYTES / 4;
/** Odd multipliers that turn block numbers into distinct engine hashes. */
const LOW_FACTOR = 0x9e37_79b1;
const HIGH_FACTOR = 0x85eb_ca6b;

/** Returns the engine's 64-bit hash of a block. */
export function hashOf(block: number): bigint {
  return (BigInt(highOf(block)) << 32n) | BigInt(lowOf(block));
}

const lowOf = (block: number) => Math.imul(block + 1, LOW_FACTOR) >>> 0;
const highOf = (block: number) => Math.imul(block + 1, HIGH_FACTOR) >>> 0;

/** A temporary agent that executes control commands, and an engine that stores blocks in it. */
export class ControlHost implements AsyncDisposable {
  readonly agent: PrivateAgent;
  readonly #engine: EngineClient;
  readonly #signal: AbortSignal;
  readonly #blocks = createAddressBatch(AT_ONCE);
  readonly #handles = createHandleBatch(AT_ONCE);
  readonly #written = createHandleBatch(AT_ONCE);
  readonly #digests: Uint32Array;
  readonly #parents: Uint32Array;

  private constructor(agent: PrivateAgent, engine: EngineClient, signal: AbortSignal) {
    this.agent = agent;
    this.#engine = engine;
    this.#signal = signal;
    this.#blocks.layer = LAYER_ALL;
    this.#digests = new Uint32Array(this.#blocks.digests.buffer);
    this.#parents = new Uint32Array(this.#blocks.parents.buffer);
  }

  static async start(native: Native, options: ControlHostOptions): Promise<ControlHost> {
    const { natsUrl, workerId, blocksMax, ramBytes, ssdBytes, signal } = options;
    const agent = await PrivateAgent.start({
      ramBytes,
      blocksMax,
      ssdBytes,
      policy: "hearth",
      settings: {
        node: { id: JSON.stringify(workerId) },
        // The role `purge` permits prune commands.
        nats: { url: JSON.stringify(natsUrl), role: '"purge"' },
      },
      signal,
    });
    try {
      const { socketPath } = agent;
      const name = "bench";
      const engine = await EngineClient.connect(native, { socketPath, manifest: MANIFEST, name });
      return new ControlHost(agent, engine, signal);
    } catch (error) {
      await agent[Symbol.asyncDispose]();
      throw error;
    }
  }

  /**
   * Stores the blocks under their engine hashes. Blocks that are already cached are not changed.
   */
  async store({ count, parentOf, blockBytes, onProgress }: StoreOptions): Promise<void> {
    for (let first = 0; first < count; first += AT_ONCE) {
      if (this.#signal.aborted) throw new HearthError("ABORTED", "the benchmark was aborted");
      const some = Math.min(AT_ONCE, count - first);
      for (let i = 0; i < some; i++) this.#name(i, first + i, parentOf(first + i), blockBytes);
      this.#blocks.count = some;
      await this.#write();
      if (first % PROGRESS_EVERY === 0) onProgress(first);
    }
  }

  /** Resolves when `count` blocks are on SSD. */
  async onSsd(count: number): Promise<void> {
    const { agent } = this;
    await agent.until(ON_SSD_MS, `write ${count} blocks to SSD`, this.#signal, async () => {
      return ((await agent.status()).ssd?.blocks ?? 0) >= count;
    });
  }

  /**
   * Acquires and releases one block that is in RAM: one round trip through the agent's event loop.
   */
  async touch(block: number): Promise<void> {
    this.#name(0, block, null, 0);
    this.#blocks.count = 1;
    const options = { tiers: 0, deadlineMs: 0, stopAtMiss: true };
    await this.#engine.acquire(this.#blocks, options, this.#handles);
    must(this.#handles, 0);
    this.#engine.release(this.#handles);
  }

  #name(at: number, block: number, parent: number | null, blockBytes: number): void {
    const blocks = this.#blocks;
    this.#digests.fill(block + 1, at * WORDS_PER_DIGEST, (at + 1) * WORDS_PER_DIGEST);
    const parentWord = parent === null ? 0 : parent + 1;
    this.#parents.fill(parentWord, at * WORDS_PER_DIGEST, (at + 1) * WORDS_PER_DIGEST);
    blocks.aliasLo[at] = lowOf(block);
    blocks.aliasHi[at] = highOf(block);
    blocks.flags[at] = BlockFlag.aliasGiven;
    blocks.bytes[at] = blockBytes;
  }

  /** Commits the reserved slots without writing their bytes, which are never read. */
  async #write(): Promise<void> {
    const [handles, written] = [this.#handles, this.#written];
    await this.#engine.reserve(this.#blocks, 0n, handles);
    written.count = 0;
    for (let i = 0; i < handles.count; i++) {
      if (handles.outcome[i] === Outcome.present) continue;
      must(handles, i);
      const next = written.count++;
      written.slot[next] = handles.slot[i];
      written.generation[next] = handles.generation[i];
      written.flags[next] = 0;
    }
    if (written.count === 0) return;
    await this.#engine.commit(written);
    for (let i = 0; i < written.count; i++) must(written, i);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#engine[Symbol.asyncDispose]();
    await this.agent[Symbol.asyncDispose]();
  }
}

function must(handles: HandleBatch, at: number): void {
  const outcome = handles.outcome[at];
  if (outcome === Outcome.ok) return;
  throw new HearthError("LIMIT", `a block of the benchmark is ${outcomeName(outcome)}`);
}

/** Returns the microseconds of processor time that the agent's event loop has used so far. */
export function loopUsOf({ pid }: PrivateAgent): number {
  // The main thread's id equals the process id. The first number is its processor time in
  // nanoseconds.
  return Number.parseInt(readFileSync(`/proc/${pid}/task/${pid}/schedstat`, "utf8"), 10) / 1_000;
}

const REST_MS = 1;

/**
 * Measures stalls of another event loop: sends it requests until disposed, each a millisecond after
 * the previous reply. A request is nearly always pending, so the longest response time is the
 * longest stall, within a millisecond, plus delays of the host's scheduler. `busyUs` returns the
 * loop's processor time so far, which does not include these delays.
 */
export class LoopWatch implements AsyncDisposable {
  longestMs = 0;
  longestBusyMs = 0;
  readonly #over: Promise<void>;
  #isEnding = false;

  constructor(ask: () => Promise<void>, busyUs: () => number) {
    this.#over = this.#run(ask, busyUs);
    // `Symbol.asyncDispose` reports the error.
    this.#over.catch(() => undefined);
  }

  async #run(ask: () => Promise<void>, busyUs: () => number): Promise<void> {
    while (!this.#isEnding) {
      const busyBeforeUs = busyUs();
      const startMs = systemClock.monotonicMs();
      await ask();
      this.longestMs = Math.max(this.longestMs, systemClock.monotonicMs() - startMs);
      this.longestBusyMs = Math.max(this.longestBusyMs, (busyUs() - busyBeforeUs) / 1_000);
      await sleep(systemClock, REST_MS);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#isEnding = true;
    await this.#over;
  }
}
