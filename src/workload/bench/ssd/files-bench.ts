import { join } from "node:path";
import {
  assert,
  HearthError,
  selfCommand,
  stringifyJson,
  systemClock,
} from "../../../core/index.ts";
import type { Native } from "../../../native/index.ts";
import { createAddressBatch, createHandleBatch } from "../../../store/index.ts";
import { fileBytesOf } from "../../../store/kvb/index.ts";
import { LineProcess, linesOf } from "../line-process.ts";
import { quantile, rounded } from "../measure.ts";
import { BenchBlocks, BenchTier, CHAIN_BLOCKS, makeBenchFolder } from "./bench-tier.ts";
import type { SsdSpeedOptions } from "./speed-bench.ts";

export interface SsdFilesOptions extends Omit<SsdSpeedOptions, "bytes" | "rounds" | "fio"> {
  readonly files: number;
}

/**
 * Number of files being written when the process is killed, as a share of the benchmark's files.
 */
const LOAD = 0.25;
/** The process is killed when this share of these files is on SSD. */
const LOAD_AT_KILL = 0.1;
const SAMPLES = 20_000;
/** Bytes per file of inode, directory entry and index row. */
const OVERHEAD_BYTES = 1024;

/** Creates many blocks and restarts on them, each time in a new process of this program. */
export async function benchSsdFiles(options: SsdFilesOptions) {
  const { dir, blockBytes, onProgress } = options;
  const files = wholeChains(options.files);
  const load = wholeChains(files * LOAD);
  const fileBytes = fileBytesOf(blockBytes) + OVERHEAD_BYTES;
  using own = makeBenchFolder(dir, (files + load) * fileBytes);
  const child = { ...options, folder: join(own.path, "ssd"), blocksMax: files + load };

  onProgress("starting");
  const made = await create(child, files, onProgress);
  onProgress("starting after a clean stop");
  const clean = await lookUpAndKill(child, files, load, onProgress);
  onProgress("starting after a kill");
  await using killed = await FilesProcess.start(child);
  mustHave(killed, files + clean.loaded);
  await killed.stop();
  return {
    files,
    block_bytes: blockBytes,
    /**
     * Files created per second, over all of them. The next members: over the first tenth, and over
     * the last.
     */
    create_per_s: Math.round(made.perS),
    create_first_per_s: Math.round(made.firstPerS),
    create_last_per_s: Math.round(made.lastPerS),
    last_over_first: rounded(made.lastPerS / made.firstPerS),
    /**
     * Seconds from the start of a process until its tier has recovered, after a clean stop. The
     * next member: after a kill.
     */
    open_ready_s: rounded(clean.readySeconds),
    open_ready_after_kill_s: rounded(killed.readySeconds),
    /** Number of files without an index row that recovery adopted after the kill. */
    adopted_after_kill: killed.found.adopted,
    /** 99th percentile, in microseconds, of computing a block's keys and looking it up. */
    lookup_p99_us: rounded(clean.p99Us),
    /** Resident memory of the process after recovery, in MB. */
    rss_mb: clean.rssMb,
  };
}

type ChildOptions = Parameters<typeof FilesProcess.start>[0];

async function create(child: ChildOptions, files: number, onProgress: (text: string) => void) {
  await using process = await FilesProcess.start(child);
  process.order({ do: "create", first: 0, count: files });
  const made = await process.hear("create", (news) => {
    if (news.did === "createSome") onProgress(`${news.files} of ${files} blocks`);
  });
  await process.stop();
  return made;
}

/** Starts after a clean stop, looks up blocks, and is killed while it writes more. */
async function lookUpAndKill(
  child: ChildOptions,
  files: number,
  load: number,
  onProgress: (text: string) => void,
) {
  await using process = await FilesProcess.start(child);
  mustHave(process, files);
  const { readySeconds, found } = process;
  process.order({ do: "lookUp", count: files, samples: SAMPLES });
  const { p99Us } = await process.hear("lookUp");
  onProgress("killing it at work");
  process.order({ do: "create", first: files, count: load });
  let loaded = 0;
  while (loaded < load * LOAD_AT_KILL) loaded = (await process.hear("createSome")).files;
  await process[Symbol.asyncDispose]();
  return { readySeconds, rssMb: found.rssMb, p99Us, loaded };
}

/** Throws unless all blocks that were on SSD were recovered. */
function mustHave({ found }: FilesProcess, files: number): void {
  if (found.blocks >= files) return;
  throw new HearthError(
    "INTERNAL",
    `${files - found.blocks} of ${files} blocks were not found again`,
  );
}

function wholeChains(blocks: number): number {
  return Math.ceil(blocks / CHAIN_BLOCKS) * CHAIN_BLOCKS;
}

interface FilesChildOptions
  extends Pick<SsdSpeedOptions, "blockBytes" | "depth" | "method" | "signal"> {
  readonly folder: string;
  readonly blocksMax: number;
}

/**
 * Orders to the child process, one JSON document per line on its standard input. The end of the
 * input stops it.
 */
type FilesOrder =
  | { readonly do: "create"; readonly first: number; readonly count: number }
  | { readonly do: "lookUp"; readonly count: number; readonly samples: number };

/** Messages from the child process, one JSON document per line on its standard output. */
type FilesNews =
  | {
      readonly did: "open";
      readonly blocks: number;
      readonly adopted: number;
      readonly rssMb: number;
    }
  /** Progress: number of created blocks that are on SSD. */
  | { readonly did: "createSome"; readonly files: number }
  | {
      readonly did: "create";
      readonly perS: number;
      readonly firstPerS: number;
      readonly lastPerS: number;
    }
  | { readonly did: "lookUp"; readonly p99Us: number };

/** Share of the blocks at the start, and at the end, whose creation rates are compared. */
const EDGE = 0.1;
const NEWS_STEPS = 100;
const MIB = 2 ** 20;

/** Runs a tier in this process, so that it can be stopped, killed and restarted. */
export async function serveFilesBench(native: Native, options: FilesChildOptions): Promise<void> {
  const { signal } = options;
  const tier = await BenchTier.open({ ...options, native });
  const blocks = new BenchBlocks(tier, signal);
  const rssMb = Math.round(process.memoryUsage.rss() / MIB);
  say({ did: "open", ...tier.found, rssMb });
  try {
    for await (const line of linesOf(Bun.stdin.stream())) {
      const order = JSON.parse(line) as FilesOrder;
      if (order.do === "create") say(await createFiles(tier, blocks, order.first, order.count));
      else say(lookUp(tier, blocks, order.count, order.samples));
    }
  } finally {
    await tier.stop();
  }
}

function say(news: FilesNews): void {
  process.stdout.write(`${stringifyJson(news)}\n`);
}

async function createFiles(
  tier: BenchTier,
  blocks: BenchBlocks,
  first: number,
  count: number,
): Promise<FilesNews> {
  const stats = tier.store.ssdStats;
  const before = stats.writtenBlocks;
  const edge = Math.max(CHAIN_BLOCKS, Math.floor(count * EDGE));
  const start = Bun.nanoseconds();
  /**
   * `early`: blocks and time at the end of the first share. The next variable: the same at the
   * start of the last share.
   */
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
 * Measures lookups (a block's keys and whether it is cached), of cached and of missing blocks. For
 * missing blocks also acquires, which reply at once.
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
    assert(later === null, "an absent block is a miss at once");
    if ((found === 1) !== isThere) throw new HearthError("INTERNAL", "a lookup was wrong");
  }
  return { did: "lookUp", p99Us: quantile(us, 0.99) };
}

interface FilesProcessOptions {
  readonly folder: string;
  readonly blocksMax: number;
  readonly blockBytes: number;
  readonly depth: number;
  readonly method: string;
  readonly signal: AbortSignal;
}

type News<Did extends FilesNews["did"]> = Extract<FilesNews, { did: Did }>;

/** A process of this program that runs `serveFilesBench`. Disposing kills it. */
class FilesProcess extends LineProcess {
  /** Seconds from the start of the process until its tier had recovered. */
  readySeconds = 0;
  found: News<"open"> = { did: "open", blocks: 0, adopted: 0, rssMb: 0 };

  static async start(options: FilesProcessOptions): Promise<FilesProcess> {
    const { folder, blocksMax, blockBytes, depth, method, signal } = options;
    const what = ["--serve", folder, "--files", `${blocksMax}`, "--block-bytes", `${blockBytes}B`];
    const how = ["--depth", `${depth}`, "--method", method];
    const startMs = systemClock.monotonicMs();
    const started = new FilesProcess([...selfCommand(), "bench", "ssd", ...what, ...how], {
      signal,
    });
    started.found = await started.hear("open");
    started.readySeconds = (systemClock.monotonicMs() - startMs) / 1_000;
    return started;
  }

  order(order: FilesOrder): void {
    this.send(stringifyJson(order));
  }

  /** Returns the next message of this kind. Calls `onOther` for the messages before it. */
  async hear<Did extends FilesNews["did"]>(
    did: Did,
    onOther: (news: FilesNews) => void = () => {},
  ): Promise<News<Did>> {
    while (true) {
      const news = (await this.next()) as FilesNews;
      if (news.did === did) return news as News<Did>;
      onOther(news);
    }
  }
}
