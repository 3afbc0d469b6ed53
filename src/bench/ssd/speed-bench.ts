import { join } from "node:path";
import { randomBelow, seededRandom } from "../../core/index.ts";
import { fileBytesOf } from "../../kvb/index.ts";
import type { Native } from "../../native/index.ts";
import { median, quantile } from "../quantiles.ts";
import { BenchBlocks } from "./bench-blocks.ts";
import { makeBenchFolder } from "./bench-folder.ts";
import { BenchTier, CHAIN_BLOCKS, type DiskMethod } from "./bench-tier.ts";
import { Fio } from "./fio.ts";

export interface SsdSpeedOptions {
  readonly dir: string;
  readonly blockBytes: number;
  /** Written, and then read, by each side in each round. */
  readonly bytes: number;
  readonly depth: number;
  readonly rounds: number;
  readonly method: DiskMethod;
  /** The program to compare with; null: no comparison. */
  readonly fio: string | null;
  readonly signal: AbortSignal;
  readonly onProgress: (text: string) => void;
}

/** Rates in 10^9 payload bytes a second; medians over the rounds; null without fio. */
export interface SsdSpeedResult {
  readonly block_bytes: number;
  /** `depth` acquires under way at once, each of one block that is on SSD alone. */
  readonly read_gbps: number;
  /** From the first reserve until the last block is on SSD. */
  readonly write_gbps: number;
  readonly fio_read_gbps: number | null;
  readonly fio_write_gbps: number | null;
  readonly read_ratio: number | null;
  readonly write_ratio: number | null;
  /** Acquires of one block, one at a time, in no order. */
  readonly read_p50_ms: number;
  readonly read_p99_ms: number;
  readonly fio_read_p50_ms: number | null;
  readonly fio_read_p99_ms: number | null;
  readonly single_read_ratio: number | null;
  readonly method: string;
  readonly direct: boolean;
  readonly registered: boolean;
  readonly fio_engine: string | null;
  readonly depth: number;
  readonly rounds: number;
  readonly bytes: number;
}

/** One round's figures of one side. */
interface Round {
  readonly writeGbps: number;
  readonly readGbps: number;
  readonly p50Ms: number;
  readonly p99Ms: number;
}

/** Single reads of one round. */
const SINGLE_READS = 200;
const NS_PER_MS = 1e6;

/**
 * Writes and reads blocks through the tier and the same amount with fio beside it, round after
 * round and in turn, so that a slow moment of the drive hits both.
 */
export async function benchSsdSpeed(
  native: Native,
  options: SsdSpeedOptions,
): Promise<SsdSpeedResult> {
  const { blockBytes, depth, method, fio: program, signal, rounds } = options;
  const count = Math.ceil(options.bytes / blockBytes / CHAIN_BLOCKS) * CHAIN_BLOCKS;
  const bytes = count * blockBytes;
  using folder = makeBenchFolder(options.dir, count * fileBytesOf(blockBytes) + bytes);
  const own = { folder: join(folder.path, "ssd"), blockBytes, blocksMax: 2 * count };
  const tier = await BenchTier.open({ ...own, depth, method, native });
  try {
    const { direct, registered } = tier.disk;
    const blocks = new BenchBlocks(tier, signal);
    const file = join(folder.path, "fio");
    options.onProgress("fio writes its file");
    const fio =
      program === null ? null : await Fio.layOut(program, { file, bytes, depth, direct, signal });
    const ours: Round[] = [];
    const theirs: Round[] = [];
    for (let round = 1; round <= rounds; round++) {
      options.onProgress(`${blockBytes} bytes, round ${round} of ${rounds}`);
      const run = new SpeedRound(tier, blocks, fio, count, depth);
      const { own: mine, peer } = await run.run(round % 2 === 0);
      ours.push(mine);
      if (peer !== null) theirs.push(peer);
    }
    const figures = figuresOf(ours, theirs);
    return {
      block_bytes: blockBytes,
      ...figures,
      method: tier.disk.method,
      direct,
      registered,
      fio_engine: fio?.engine ?? null,
      depth,
      rounds,
      bytes,
    };
  } finally {
    await tier.close();
  }
}

/** Both sides write, both read, both read one by one; who begins changes from round to round. */
class SpeedRound {
  readonly #tier: BenchTier;
  readonly #blocks: BenchBlocks;
  readonly #fio: Fio | null;
  readonly #count: number;
  readonly #depth: number;

  constructor(tier: BenchTier, blocks: BenchBlocks, fio: Fio | null, count: number, depth: number) {
    this.#tier = tier;
    this.#blocks = blocks;
    this.#fio = fio;
    this.#count = count;
    this.#depth = depth;
  }

  async run(fioFirst: boolean): Promise<{ own: Round; peer: Round | null }> {
    const { blockBytes } = this.#tier;
    const fio = this.#fio;
    const count = Math.min(SINGLE_READS, this.#count);
    const inTurn = async <T, U>(ours: () => Promise<T>, theirs: () => Promise<U>) => {
      const early = fioFirst ? await theirs() : null;
      const own = await ours();
      return [own, early ?? (await theirs())] as const;
    };
    const [writeGbps, fioWrite] = await inTurn(
      () => this.#gbps(() => this.#blocks.write(0, this.#count)),
      async () => fio?.gbps("write", blockBytes),
    );
    const all = Array.from({ length: this.#count }, (_, i) => i);
    this.#tier.emptyRam();
    const [readGbps, fioRead] = await inTurn(
      () => this.#gbps(() => this.#blocks.read(all, this.#depth)),
      async () => fio?.gbps("read", blockBytes),
    );
    this.#tier.emptyRam();
    const [ns, fioSingle] = await inTurn(
      () => this.#blocks.read(someOf(all, count), 1),
      async () => fio?.singleReads(blockBytes, count),
    );
    await this.#tier.emptySsd();
    const p50Ms = median(ns) / NS_PER_MS;
    const own = { writeGbps, readGbps, p50Ms, p99Ms: quantile(ns, 0.99) / NS_PER_MS };
    if (fioWrite === undefined || fioRead === undefined || fioSingle === undefined) {
      return { own, peer: null };
    }
    return { own, peer: { writeGbps: fioWrite, readGbps: fioRead, ...fioSingle } };
  }

  async #gbps(run: () => Promise<unknown>): Promise<number> {
    const start = Bun.nanoseconds();
    await run();
    return (this.#count * this.#tier.blockBytes) / (Bun.nanoseconds() - start);
  }
}

/** So many of them, each at most once, in no order. */
function someOf(all: readonly number[], count: number): number[] {
  const random = seededRandom(count);
  const left = [...all];
  for (let i = 0; i < count; i++) {
    const at = i + randomBelow(random, left.length - i);
    [left[i], left[at]] = [left[at]!, left[i]!];
  }
  return left.slice(0, count);
}

function figuresOf(ours: readonly Round[], theirs: readonly Round[]) {
  const of = (rounds: readonly Round[], name: keyof Round) =>
    rounds.length === 0 ? null : rounded(median(rounds.map((round) => round[name])));
  const ratio = (name: keyof Round) => {
    const peer = of(theirs, name);
    return peer === null ? null : rounded(of(ours, name)! / peer);
  };
  return {
    read_gbps: of(ours, "readGbps")!,
    write_gbps: of(ours, "writeGbps")!,
    fio_read_gbps: of(theirs, "readGbps"),
    fio_write_gbps: of(theirs, "writeGbps"),
    read_ratio: ratio("readGbps"),
    write_ratio: ratio("writeGbps"),
    read_p50_ms: of(ours, "p50Ms")!,
    read_p99_ms: of(ours, "p99Ms")!,
    fio_read_p50_ms: of(theirs, "p50Ms"),
    fio_read_p99_ms: of(theirs, "p99Ms"),
    single_read_ratio: ratio("p50Ms"),
  };
}

const rounded = (value: number) => Number(value.toFixed(3));
