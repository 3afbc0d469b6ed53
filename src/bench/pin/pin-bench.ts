import { join } from "node:path";
import { HearthError } from "../../core/index.ts";
import { fileBytesOf } from "../../kvb/index.ts";
import type { Native } from "../../native/index.ts";
import { median } from "../quantiles.ts";
import { makeBenchFolder } from "../ssd/index.ts";
import { BLOCK_TOKENS, CAPACITY_BLOCKS, FloodedAgent } from "./flooded-agent.ts";
import { openCopyOutLimit, openFioLimit, type RestoreLimit } from "./limits.ts";
import type { PinEngine } from "./pin-engine.ts";

export const PIN_TIERS = ["ram", "ssd"] as const;
export type PinTier = (typeof PIN_TIERS)[number];

/** Turns of a conversation, and tokens of the prompt at its end. */
const DEPTHS = [
  { depth: 0, tokens: 3_158 },
  { depth: 2, tokens: 4_810 },
  { depth: 6, tokens: 7_347 },
  { depth: 10, tokens: 10_826 },
  { depth: 16, tokens: 15_002 },
] as const;
/** Bytes of KV a token, at scale 1. */
const TOKEN_BYTES = 160 * 1024;
const PAGE = 4096;
/** The agent's default: operations on the SSD at the same time. */
const SSD_DEPTH = 64;
const NS_PER_MS = 1e6;

export interface PinBenchOptions {
  /** Where the SSD tier lies. */
  readonly dir: string;
  readonly tiers: readonly PinTier[];
  /** Of 160 KiB a token. */
  readonly scale: number;
  readonly runs: number;
  /** What leaves RAM first: a name of `kv.policy`. */
  readonly policy: string;
  /** The program to compare with; null: no comparison on SSD. */
  readonly fio: string | null;
  readonly signal: AbortSignal;
  readonly onProgress: (text: string) => void;
}

/** Rates in 10^9 bytes a second; medians over the runs; null without a limit. */
export interface PinRow {
  readonly tier: PinTier;
  readonly depth: number;
  readonly tokens: number;
  /** Full ones. */
  readonly blocks: number;
  readonly block_bytes: number;
  /** Share of the blocks that were there after the flood, the most of all runs. */
  readonly cached_share_unpinned: number;
  /** The same where they were pinned, the least of all runs. */
  readonly cached_share_pinned: number;
  /** From the first acquire until the last block was copied out. */
  readonly restore_ms: number;
  readonly restore_gbps: number;
  readonly limit_gbps: number | null;
  readonly ratio: number | null;
  /** Other blocks stored between pin and restore. */
  readonly flood_blocks: number;
  /** Blocks the agent holds, on all its tiers together. */
  readonly capacity_blocks: number;
  readonly runs: number;
}

/** Length of a block of 64 tokens, in whole pages. */
export function pinBlockBytes(scale: number): number {
  return Math.max(1, Math.round((BLOCK_TOKENS * TOKEN_BYTES * scale) / PAGE)) * PAGE;
}

const fullBlocks = (tokens: number) => Math.floor(tokens / BLOCK_TOKENS);
const BLOCKS_MAX = Math.max(...DEPTHS.map(({ tokens }) => fullBlocks(tokens)));

/**
 * What of a conversation is there after a flood of three times what an agent holds, with a pin and
 * without, and how fast it comes back. Throws LIMIT where the flood did not do what it is for.
 */
export async function benchPin(native: Native, options: PinBenchOptions): Promise<PinRow[]> {
  const rows: PinRow[] = [];
  for (const tier of options.tiers) rows.push(...(await benchTier(native, tier, options)));
  return rows;
}

async function benchTier(
  native: Native,
  tier: PinTier,
  options: PinBenchOptions,
): Promise<PinRow[]> {
  const { runs, policy, signal } = options;
  const blockBytes = pinBlockBytes(options.scale);
  const say = (text: string) => options.onProgress(`${tier}: ${text}`);
  const fileBytes = 2 * CAPACITY_BLOCKS * fileBytesOf(blockBytes);
  using folder = tier === "ram" ? null : makeBenchFolder(options.dir, 2 * fileBytes);
  const ssdDir = folder?.path ?? null;
  say("starting an agent");
  await using agent = await FloodedAgent.start(native, { blockBytes, ssdDir, policy, signal });
  await using limit = await openLimit(native, agent, ssdDir, { ...options, blockBytes });
  say("filling it");
  await agent.flood();
  const samples = DEPTHS.map((): Sample[] => []);
  for (let run = 0; run < runs; run++) {
    for (const [at, { depth, tokens }] of DEPTHS.entries()) {
      say(`run ${run + 1} of ${runs}, depth ${depth}`);
      const isLimitFirst = (run + at) % 2 === 0;
      samples[at]!.push(await sample(agent, tier, limit, fullBlocks(tokens), isLimitFirst));
    }
  }
  return DEPTHS.map(({ depth, tokens }, at) => {
    const blocks = fullBlocks(tokens);
    const what = { tier, depth, tokens, blocks, block_bytes: blockBytes };
    const { capacityBlocks: capacity_blocks } = agent;
    return { ...what, ...figuresOf(samples[at]!, blocks * blockBytes), capacity_blocks, runs };
  });
}

async function openLimit(
  native: Native,
  agent: FloodedAgent,
  ssdDir: string | null,
  { blockBytes, fio, signal }: PinBenchOptions & { readonly blockBytes: number },
): Promise<RestoreLimit | null> {
  if (ssdDir === null) {
    return openCopyOutLimit(native, { blockBytes, blocksMax: BLOCKS_MAX, signal });
  }
  if (fio === null) return null;
  const direct = (await agent.isDirect()) ?? false;
  const bytes = agent.capacityBlocks * blockBytes;
  const file = { file: join(ssdDir, "fio"), bytes, depth: SSD_DEPTH, direct, signal };
  return openFioLimit(fio, file, blockBytes);
}

interface Sample {
  readonly unpinnedShare: number;
  readonly pinnedShare: number;
  readonly restoreNs: number;
  readonly limitGbps: number | null;
  readonly floodBlocks: number;
}

async function sample(
  agent: FloodedAgent,
  tier: PinTier,
  limit: RestoreLimit | null,
  blocks: number,
  isLimitFirst: boolean,
): Promise<Sample> {
  const { engine } = agent;
  const unpinned = await agent.converse(blocks);
  await agent.flood();
  const unpinnedShare = (await engine.restore(unpinned)).present / blocks;
  if (unpinnedShare > 0) {
    const text = `${unpinnedShare * 100} % of an unpinned conversation survived the flood`;
    throw new HearthError("LIMIT", text, { fix: "what pins are worth cannot be told this way" });
  }
  const pinned = await agent.converse(blocks);
  await agent.pin(pinned);
  const floodBlocks = await agent.flood();
  const found = await engine.whereIs(pinned);
  if (tier === "ssd" && found.ram > 0) {
    const text = `${found.ram} of ${blocks} pinned blocks are in RAM still`;
    throw new HearthError("LIMIT", text, { fix: "a restore would not come from SSD" });
  }
  const early = isLimitFirst ? await limit?.gbps(blocks) : undefined;
  const { present, ns: restoreNs } = await engine.restore(pinned);
  const limitGbps = early ?? (await limit?.gbps(blocks)) ?? null;
  await mustBeRight(engine, pinned, blocks - present);
  await agent.unpin(pinned);
  return { unpinnedShare, pinnedShare: present / blocks, restoreNs, limitGbps, floodBlocks };
}

async function mustBeRight(
  engine: PinEngine,
  pinned: Parameters<PinEngine["wrongBlocks"]>[0],
  missing: number,
): Promise<void> {
  const wrong = (await engine.wrongBlocks(pinned)) - missing;
  if (wrong > 0) throw new HearthError("INTERNAL", `${wrong} blocks came back with wrong bytes`);
}

function figuresOf(samples: readonly Sample[], bytes: number) {
  const restoreNs = median(samples.map((each) => each.restoreNs));
  const limits = samples.flatMap((each) => each.limitGbps ?? []);
  const restoreGbps = bytes / restoreNs;
  const limitGbps = limits.length === 0 ? null : median(limits);
  return {
    cached_share_unpinned: Math.max(...samples.map((each) => each.unpinnedShare)),
    cached_share_pinned: Math.min(...samples.map((each) => each.pinnedShare)),
    restore_ms: rounded(restoreNs / NS_PER_MS),
    restore_gbps: rounded(restoreGbps),
    limit_gbps: limitGbps === null ? null : rounded(limitGbps),
    ratio: limitGbps === null ? null : rounded(restoreGbps / limitGbps),
    flood_blocks: samples[0]!.floodBlocks,
  };
}

const rounded = (value: number) => Number(value.toFixed(3));
