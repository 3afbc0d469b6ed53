import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { HearthError } from "../../core/index.ts";
import type { Native } from "../../native/index.ts";
import { fileBytesOf } from "../../store/kvb/index.ts";
import { connectEngineProbe, startBenchServer } from "./engine-bench.ts";
import { median, rounded } from "./measure.ts";
import { BLOCK_TOKENS, CAPACITY_BLOCKS, FloodedAgent, type PinEngine } from "./pin-engine.ts";
import { makeBenchFolder } from "./ssd/bench-tier.ts";
import { Fio, type FioOptions } from "./ssd/speed-bench.ts";

export const PIN_TIERS = ["ram", "ssd"] as const;

export type PinTier = (typeof PIN_TIERS)[number];

/** Depths that can be measured: turns of a conversation, and tokens of its prompt after them. */
const PROMPTS = [
  { depth: 0, tokens: 3_158 },
  { depth: 2, tokens: 4_810 },
  { depth: 6, tokens: 7_347 },
  { depth: 10, tokens: 10_826 },
  { depth: 16, tokens: 15_002 },
] as const;

export const PIN_DEPTHS: readonly number[] = PROMPTS.map(({ depth }) => depth);

/** Bytes of KV per token at scale 1. */
const TOKEN_BYTES = 160 * 1024;

const PAGE = 4096;

/** Concurrent operations on the SSD; the agent's default. */
const SSD_DEPTH = 64;

const NS_PER_MS = 1e6;

export interface PinBenchOptions {
  /** Folder of the SSD tier. */
  readonly dir: string;
  readonly tiers: readonly PinTier[];
  /** Turns of the conversations to measure; a subset of `PIN_DEPTHS`. */
  readonly depths: readonly number[];
  /** Factor on 160 KiB of KV per token. */
  readonly scale: number;
  readonly runs: number;
  /** Eviction policy of RAM: a value of `kv.policy`. */
  readonly policy: string;
  /** Path of fio, to compare with; null for no comparison on SSD. */
  readonly fio: string | null;
  readonly signal: AbortSignal;
  readonly onProgress: (text: string) => void;
}

/** Length of a block of 64 tokens, in whole pages. */
export function pinBlockBytes(scale: number): number {
  return Math.max(1, Math.round((BLOCK_TOKENS * TOKEN_BYTES * scale) / PAGE)) * PAGE;
}

const fullBlocks = (tokens: number) => Math.floor(tokens / BLOCK_TOKENS);

const BLOCKS_MAX = Math.max(...PROMPTS.map(({ tokens }) => fullBlocks(tokens)));

/**
 * Measures how much of a pinned and of an unpinned conversation is cached after a flood of three
 * times the agent's capacity, and how fast it is restored. Throws LIMIT if the flood did not evict
 * the unpinned blocks.
 */
export async function benchPin(native: Native, options: PinBenchOptions) {
  const rows = await Array.fromAsync(options.tiers, (tier) => benchTier(native, tier, options));
  return rows.flat();
}

async function benchTier(native: Native, tier: PinTier, options: PinBenchOptions) {
  const { runs, depths } = options;
  const blockBytes = pinBlockBytes(options.scale);
  const fileBytes = CAPACITY_BLOCKS * fileBytesOf(blockBytes);
  using folder = tier === "ram" ? null : makeBenchFolder(options.dir, 4 * fileBytes);
  await using ground = new PinGround(native, { ...options, blockBytes, dir: folder?.path ?? null });
  const prompts = PROMPTS.filter(({ depth }) => depths.includes(depth));
  const rows = prompts.map((each) => ({ ...each, samples: [] as Sample[] }));
  for (let run = 0; run < runs; run++) {
    for (const [at, { depth, tokens, samples }] of rows.entries()) {
      options.onProgress(`${tier}: run ${run + 1} of ${runs}, depth ${depth}`);
      samples.push(await ground.sample(fullBlocks(tokens), (run + at) % 2 === 0));
    }
  }
  return rows.map(({ depth, tokens, samples }) => {
    const blocks = fullBlocks(tokens);
    const what = { tier, depth, tokens, blocks, block_bytes: blockBytes };
    return { ...what, ...figuresOf(samples, blocks * blockBytes), runs };
  });
}

type Sample = Awaited<ReturnType<typeof floodedSample>>;

interface GroundOptions extends Omit<PinBenchOptions, "dir"> {
  readonly blockBytes: number;
  /** Folder for SSD tiers and the files of the reference; null for RAM alone. */
  readonly dir: string | null;
}

/** Takes samples, each with a new agent, and measures the reference in between. */
class PinGround implements AsyncDisposable {
  readonly #native: Native;
  readonly #options: GroundOptions;
  readonly #opened = new AsyncDisposableStack();
  #limit: RestoreLimit | null = null;

  constructor(native: Native, options: GroundOptions) {
    this.#native = native;
    this.#options = options;
  }

  /**
   * Takes one sample with a new agent, because an agent that has seen conversations return learns
   * to keep the next one.
   */
  async sample(blocks: number, isLimitFirst: boolean): Promise<Sample> {
    const { dir } = this.#options;
    const ssdDir = dir === null ? null : join(dir, "ssd");
    try {
      await using agent = await FloodedAgent.start(this.#native, { ...this.#options, ssdDir });
      this.#limit ??= await this.#openLimit(agent);
      return await floodedSample(agent, this.#limit, blocks, isLimitFirst);
    } finally {
      if (ssdDir !== null) rmSync(ssdDir, { recursive: true, force: true });
    }
  }

  async #openLimit(agent: FloodedAgent): Promise<RestoreLimit | null> {
    const { blockBytes, dir, fio, signal } = this.#options;
    if (dir === null) {
      const own = { blockBytes, blocksMax: BLOCKS_MAX, signal };
      return this.#opened.use(await openCopyOutLimit(this.#native, own));
    }
    if (fio === null) return null;
    const direct = (await agent.isDirect()) ?? false;
    const bytes = agent.capacityBlocks * blockBytes;
    const file = { file: join(dir, "fio"), bytes, depth: SSD_DEPTH, direct, signal };
    return this.#opened.use(await openFioLimit(fio, file, blockBytes));
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#opened.disposeAsync();
  }
}

/** Stores a pinned conversation, a younger unpinned one of the same length, and then one flood. */
async function floodedSample(
  agent: FloodedAgent,
  limit: RestoreLimit | null,
  blocks: number,
  isLimitFirst: boolean,
) {
  const { engine, capacityBlocks } = agent;
  const pinned = await agent.converse(blocks);
  await agent.pin(pinned);
  const unpinned = await agent.converse(blocks);
  const floodBlocks = await agent.flood();
  await agent.warmUp();
  const { ram } = await engine.whereIs(pinned);
  if (agent.hasSsd && ram > 0) {
    const text = `${ram} of ${blocks} pinned blocks are in RAM still`;
    throw new HearthError("LIMIT", text, { fix: "a restore would not come from SSD" });
  }
  const unpinnedShare = (await engine.restore(unpinned)).present / blocks;
  if (unpinnedShare > 0) {
    const text = `${Math.round(unpinnedShare * 100)} % of the unpinned blocks survived the flood`;
    throw new HearthError("LIMIT", text, { fix: "the run cannot show the effect of pins" });
  }
  const early = isLimitFirst ? await limit?.gbps(blocks) : undefined;
  const { present, ns: restoreNs } = await engine.restore(pinned);
  const limitGbps = early ?? (await limit?.gbps(blocks)) ?? null;
  await mustBeRight(engine, pinned, blocks - present);
  const figures = { restoreNs, limitGbps, floodBlocks, capacityBlocks };
  return { unpinnedShare, pinnedShare: present / blocks, ...figures };
}

async function mustBeRight(
  engine: PinEngine,
  pinned: Parameters<PinEngine["wrongBlocks"]>[0],
  missing: number,
): Promise<void> {
  const wrong = (await engine.wrongBlocks(pinned)) - missing;
  if (wrong > 0) throw new HearthError("INTERNAL", `${wrong} blocks came back with wrong bytes`);
}

/** Rates in 10^9 bytes a second; medians over the runs; null without a limit. */
function figuresOf(samples: readonly Sample[], bytes: number) {
  const restoreNs = median(samples.map((each) => each.restoreNs));
  const limits = samples.flatMap((each) => each.limitGbps ?? []);
  const restoreGbps = bytes / restoreNs;
  const limitGbps = limits.length === 0 ? null : median(limits);
  return {
    /** Share of the blocks that were there after the flood, the most of all runs. */
    cached_share_unpinned: Math.max(...samples.map((each) => each.unpinnedShare)),
    /** The same where they were pinned, the least of all runs. */
    cached_share_pinned: Math.min(...samples.map((each) => each.pinnedShare)),
    /** From the first acquire until the last block was copied out. */
    restore_ms: rounded(restoreNs / NS_PER_MS),
    restore_gbps: rounded(restoreGbps),
    limit_gbps: limitGbps === null ? null : rounded(limitGbps),
    ratio: limitGbps === null ? null : rounded(restoreGbps / limitGbps),
    /** Other blocks stored between pin and restore. */
    flood_blocks: samples[0].floodBlocks,
    /** Blocks the agent holds, on all its tiers together. */
    capacity_blocks: samples[0].capacityBlocks,
  };
}

/** Measures the fastest possible restore, in the same run as the agent's. */
interface RestoreLimit extends AsyncDisposable {
  /** 10^9 bytes per second, for `blocks` blocks. */
  gbps(blocks: number): Promise<number>;
}

const WARM_UP_PASSES = 5;

interface CopyOutOptions {
  readonly blockBytes: number;
  /** Maximum number of blocks of a measurement. */
  readonly blocksMax: number;
  readonly signal: AbortSignal;
}

/**
 * Opens the reference for RAM: acquire, copy out and release between two processes, as in `bench
 * engine`.
 */
async function openCopyOutLimit(
  native: Native,
  { blockBytes, blocksMax, signal }: CopyOutOptions,
): Promise<RestoreLimit> {
  await using opened = new AsyncDisposableStack();
  const folder = mkdtempSync(join(tmpdir(), "hearth-bench-"));
  opened.defer(() => rmSync(folder, { recursive: true, force: true }));
  const server = opened.use(await startBenchServer({ folder, blockBytes, signal }));
  const { client, probe } = await connectEngineProbe(native, {
    socketPath: server.paths.enginePath,
    blockBytes,
    resident: blocksMax,
  });
  opened.use(client);
  await probe.fillResident();
  // The first passes cause page faults and JIT compilation, so they do not count.
  for (let pass = 0; pass < WARM_UP_PASSES; pass++) await probe.copyOutOnce(blocksMax);
  const held = opened.move();
  return {
    async gbps(blocks) {
      const start = Bun.nanoseconds();
      const bytes = await probe.copyOutOnce(blocks);
      return bytes / (Bun.nanoseconds() - start);
    },
    [Symbol.asyncDispose]: () => held.disposeAsync(),
  };
}

/**
 * Opens the reference for SSD: fio reads one large file in the same folder, with the same block
 * length and depth.
 */
async function openFioLimit(
  program: string,
  options: FioOptions,
  blockBytes: number,
): Promise<RestoreLimit> {
  const fio = await Fio.layOut(program, options, blockBytes);
  return {
    gbps: () => fio.gbps("read", blockBytes),
    [Symbol.asyncDispose]: async () => rmSync(options.file, { force: true }),
  };
}
