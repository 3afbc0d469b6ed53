import { assert, HearthError, stringifyJson } from "../../../core/index.ts";
import type { Native } from "../../../native/index.ts";
import { createAddressBatch, createHandleBatch } from "../../../store/index.ts";
import { linesOf } from "../lines.ts";
import { quantile } from "../quantiles.ts";
import { BenchBlocks } from "./bench-blocks.ts";
import { BenchTier, CHAIN_BLOCKS, type DiskMethod } from "./bench-tier.ts";

export interface FilesChildOptions {
  readonly folder: string;
  readonly blockBytes: number;
  readonly blocksMax: number;
  readonly depth: number;
  readonly method: DiskMethod;
  readonly signal: AbortSignal;
}

/** What the child is told, a JSON document a line on its standard input; its end stops it. */
export type FilesOrder =
  | { readonly do: "create"; readonly first: number; readonly count: number }
  | { readonly do: "lookUp"; readonly count: number; readonly samples: number };

/** What the child says, likewise on standard output. */
export type FilesNews =
  | {
      readonly did: "open";
      readonly blocks: number;
      readonly adopted: number;
      readonly rssMb: number;
    }
  /** On its way: so many blocks are on SSD, of those that were to be created. */
  | { readonly did: "createSome"; readonly files: number }
  | {
      readonly did: "create";
      readonly perS: number;
      readonly firstPerS: number;
      readonly lastPerS: number;
    }
  | { readonly did: "lookUp"; readonly p99Us: number };

/** The share of the blocks at the beginning, and at the end, whose rates are compared. */
const EDGE = 0.1;
const NEWS_STEPS = 100;
const MIB = 2 ** 20;

/** A tier in a process of its own, so that it can be stopped, killed and started again. */
export async function serveFilesBench(native: Native, options: FilesChildOptions): Promise<void> {
  const { signal } = options;
  const tier = await BenchTier.open({ ...options, native });
  const blocks = new BenchBlocks(tier, signal);
  const rssMb = Math.round(process.memoryUsage.rss() / MIB);
  say({ did: "open", ...tier.found, rssMb });
  try {
    for await (const line of linesOf(Bun.stdin.stream())) {
      const order = JSON.parse(line) as FilesOrder;
      if (order.do === "create") say(await create(tier, blocks, order.first, order.count));
      else say(lookUp(tier, blocks, order.count, order.samples));
    }
  } finally {
    await tier.stop();
  }
}

function say(news: FilesNews): void {
  process.stdout.write(`${stringifyJson(news)}\n`);
}

async function create(
  tier: BenchTier,
  blocks: BenchBlocks,
  first: number,
  count: number,
): Promise<FilesNews> {
  const stats = tier.store.ssdStats;
  const before = stats.writtenBlocks;
  const edge = Math.max(CHAIN_BLOCKS, Math.floor(count * EDGE));
  const start = Bun.nanoseconds();
  /** When the first edge was there, and where the last one began: blocks and nanoseconds. */
  let early: { files: number; ns: number } | null = null;
  let late: { files: number; ns: number } | null = null;
  let told = 0;
  await blocks.write(first, count, () => {
    const files = stats.writtenBlocks - before;
    const now = { files, ns: Bun.nanoseconds() };
    if (files >= edge) early ??= now;
    if (files >= count - edge) late ??= now;
    const step = Math.floor((files * NEWS_STEPS) / count);
    if (step === told) return;
    told = step;
    say({ did: "createSome", files });
  });
  const end = Bun.nanoseconds();
  const whole = { files: count, ns: end };
  const origin = { files: 0, ns: start };
  return {
    did: "create",
    perS: rate(origin, whole),
    firstPerS: rate(origin, early ?? whole),
    lastPerS: rate(late ?? origin, whole),
  };
}

function rate(from: { files: number; ns: number }, to: { files: number; ns: number }): number {
  return ((to.files - from.files) * 1e9) / (to.ns - from.ns);
}

/**
 * Keys of a block and whether it is there, for blocks that are and blocks that are not; for these
 * an acquire too, which says so at once.
 */
function lookUp(tier: BenchTier, blocks: BenchBlocks, count: number, samples: number): FilesNews {
  const { holder, store } = tier;
  const batch = createAddressBatch(1);
  const handles = createHandleBatch(1);
  const best = new Uint8Array(1);
  const us: number[] = [];
  const stride = 7919;
  const acquire = { tiers: 0, deadlineMs: 0, stopAtMiss: false };
  for (let i = 0; i < samples; i++) {
    const isThere = i % 2 === 0;
    blocks.name(batch, ((i * stride) % count) + (isThere ? 0 : 2 ** 40), 1);
    const start = Bun.nanoseconds();
    store.deriveKeys(batch, false);
    const found = holder.match(batch, 0, best);
    const later = isThere ? null : holder.acquire(batch, acquire, handles);
    us.push((Bun.nanoseconds() - start) / 1_000);
    assert(later === null, "what is not there is a miss at once");
    if ((found === 1) !== isThere) throw new HearthError("INTERNAL", "a lookup was wrong");
  }
  return { did: "lookUp", p99Us: quantile(us, 0.99) };
}
