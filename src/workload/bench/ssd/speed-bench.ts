import { rmSync } from "node:fs";
import { join } from "node:path";
import { formatBytes, HearthError, randomBelow, seededRandom } from "../../../core/index.ts";
import type { Native } from "../../../native/index.ts";
import { fileBytesOf } from "../../../store/kvb/index.ts";
import { median, quantile, rounded } from "../measure.ts";
import {
  BenchBlocks,
  BenchTier,
  CHAIN_BLOCKS,
  type DiskMethod,
  makeBenchFolder,
} from "./bench-tier.ts";

export interface SsdSpeedOptions {
  readonly dir: string;
  readonly blockBytes: number;
  /** Bytes that Hearth and fio each write and then read in each round. */
  readonly bytes: number;
  readonly depth: number;
  readonly rounds: number;
  readonly method: DiskMethod;
  /** Path of fio, to compare with; null for no comparison. */
  readonly fio: string | null;
  readonly signal: AbortSignal;
  readonly onProgress: (text: string) => void;
}

/** Results of Hearth or fio in one round. */
interface Round {
  readonly writeGbps: number;
  readonly overwriteGbps: number;
  readonly readGbps: number;
  readonly p50Ms: number;
  readonly p99Ms: number;
}

/** Number of single reads in one round. */
const SINGLE_READS = 200;
const NS_PER_MS = 1e6;

/**
 * Writes and reads blocks through the SSD tier, and the same number of bytes with fio, in turn and
 * round after round, so that a slow moment of the drive affects both.
 */
export async function benchSsdSpeed(native: Native, options: SsdSpeedOptions) {
  const { blockBytes, depth, method, fio: program, signal, rounds } = options;
  const count = Math.ceil(options.bytes / blockBytes / CHAIN_BLOCKS) * CHAIN_BLOCKS;
  const bytes = count * blockBytes;
  // The blocks of each round, the blocks that follow in the full tier, and two files of fio.
  const blocks = (rounds + 1) * count;
  using folder = makeBenchFolder(options.dir, blocks * fileBytesOf(blockBytes) + 2 * bytes);
  const own = { folder: join(folder.path, "ssd"), blockBytes, blocksMax: 3 * blocks };
  const tier = await BenchTier.open({ ...own, depth, method, native });
  try {
    const { direct, registered } = tier.disk;
    const say = (what: string) => options.onProgress(`${formatBytes(blockBytes)}: ${what}`);
    say("laying out");
    const peer = { file: join(folder.path, "fio"), bytes, depth, direct, signal };
    const fio = program === null ? null : await Fio.layOut(program, peer, blockBytes);
    const race = new SpeedRace(tier, new BenchBlocks(tier, signal), fio, count);
    for (let round = 0; round < rounds; round++) {
      say(`round ${round + 1} of ${rounds}`);
      await race.round(round);
    }
    tier.holdOnly(rounds * count);
    for (let round = 0; round < rounds; round++) {
      say(`full, round ${round + 1} of ${rounds}`);
      await race.overwrite(rounds + round);
    }
    return {
      block_bytes: blockBytes,
      ...figuresOf(race.ours, race.theirs),
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

/**
 * Runs a round: Hearth and fio write, then read, then read one by one. The first one alternates
 * from round to round.
 */
class SpeedRace {
  readonly ours: Partial<Round>[] = [];
  readonly theirs: Partial<Round>[] = [];
  readonly #tier: BenchTier;
  readonly #blocks: BenchBlocks;
  readonly #fio: Fio | null;
  readonly #count: number;

  constructor(tier: BenchTier, blocks: BenchBlocks, fio: Fio | null, count: number) {
    this.#tier = tier;
    this.#blocks = blocks;
    this.#fio = fio;
    this.#count = count;
  }

  /** Writes blocks to a full tier, and overwrites fio's file. */
  async overwrite(number: number): Promise<void> {
    const { blockBytes } = this.#tier;
    const [overwriteGbps, fio] = await inTurn(
      number % 2 === 0,
      () => this.#gbps(() => this.#blocks.write(number * this.#count, this.#count)),
      async () => this.#fio?.gbps("write", blockBytes),
    );
    this.#tier.emptyRam();
    this.ours.push({ overwriteGbps });
    if (fio !== undefined) this.theirs.push({ overwriteGbps: fio });
  }

  async round(number: number): Promise<void> {
    const { blockBytes, disk } = this.#tier;
    const fio = this.#fio;
    const fioFirst = number % 2 === 0;
    const first = number * this.#count;
    const all = Array.from({ length: this.#count }, (_, i) => first + i);
    const some = someOf(all, Math.min(SINGLE_READS, this.#count));
    const [writeGbps, fioWrite] = await inTurn(
      fioFirst,
      () => this.#gbps(() => this.#blocks.write(first, this.#count)),
      async () => fio?.makesGbps(blockBytes),
    );
    this.#tier.emptyRam();
    const [readGbps, fioRead] = await inTurn(
      fioFirst,
      () => this.#gbps(() => this.#blocks.read(all, disk.depth)),
      async () => fio?.gbps("read", blockBytes),
    );
    this.#tier.emptyRam();
    const [ns, fioSingle] = await inTurn(
      fioFirst,
      () => this.#blocks.read(some, 1),
      async () => fio?.singleReads(blockBytes, some.length),
    );
    // A block that is only in RAM, because its file was evicted, would be written again.
    this.#tier.emptyRam();
    const p50Ms = median(ns) / NS_PER_MS;
    this.ours.push({ writeGbps, readGbps, p50Ms, p99Ms: quantile(ns, 0.99) / NS_PER_MS });
    if (fioWrite === undefined || fioRead === undefined || fioSingle === undefined) return;
    this.theirs.push({ writeGbps: fioWrite, readGbps: fioRead, ...fioSingle });
  }

  async #gbps(run: () => Promise<unknown>): Promise<number> {
    const start = Bun.nanoseconds();
    await run();
    return (this.#count * this.#tier.blockBytes) / (Bun.nanoseconds() - start);
  }
}

async function inTurn<T, U>(
  fioFirst: boolean,
  ours: () => Promise<T>,
  fio: () => Promise<U>,
): Promise<readonly [T, U]> {
  if (fioFirst) {
    const theirs = await fio();
    return [await ours(), theirs];
  }
  const own = await ours();
  return [own, await fio()];
}

/** Returns a random sample of `count` elements, without repetition. */
function someOf(all: readonly number[], count: number): number[] {
  const random = seededRandom(count);
  const left = [...all];
  for (let i = 0; i < count; i++) {
    const at = i + randomBelow(random, left.length - i);
    [left[i], left[at]] = [left[at], left[i]];
  }
  return left.slice(0, count);
}

function figuresOf(ours: readonly Partial<Round>[], theirs: readonly Partial<Round>[]) {
  const of = (rounds: readonly Partial<Round>[], name: keyof Round) => {
    const values = rounds.flatMap((round) => round[name] ?? []);
    return values.length === 0 ? null : rounded(median(values));
  };
  const ratio = (name: keyof Round) => {
    const peer = of(theirs, name);
    return peer === null ? null : rounded(of(ours, name)! / peer);
  };
  return {
    /** Rate of `depth` concurrent acquires, each of one block that is only on SSD. */
    read_gbps: of(ours, "readGbps")!,
    /**
     * Rate from the first reserve until the last block is on SSD, in new files; fio also writes a
     * new file.
     */
    write_gbps: of(ours, "writeGbps")!,
    fio_read_gbps: of(theirs, "readGbps"),
    fio_write_gbps: of(theirs, "writeGbps"),
    read_ratio: ratio("readGbps"),
    write_ratio: ratio("writeGbps"),
    /** Rate of writes to a full tier: each block replaces an older one and overwrites its file. */
    overwrite_gbps: of(ours, "overwriteGbps")!,
    /** Rate at which fio overwrites an existing file. */
    fio_overwrite_gbps: of(theirs, "overwriteGbps"),
    overwrite_ratio: ratio("overwriteGbps"),
    /** Milliseconds of one acquire of a block on SSD, one at a time, in random order. */
    read_p50_ms: of(ours, "p50Ms")!,
    read_p99_ms: of(ours, "p99Ms")!,
    fio_read_p50_ms: of(theirs, "p50Ms"),
    fio_read_p99_ms: of(theirs, "p99Ms"),
    single_read_ratio: ratio("p50Ms"),
  };
}

export interface FioOptions {
  /** Path of the file that fio reads and overwrites; `Fio.layOut` creates it. */
  readonly file: string;
  readonly bytes: number;
  readonly depth: number;
  readonly direct: boolean;
  readonly signal: AbortSignal;
}

interface FioJob {
  readonly rw: "read" | "write" | "randread";
  readonly blockBytes: number;
  readonly depth: number;
  /** Number of blocks; default: the whole file. */
  readonly count?: number;
  /** Path of a new file, which fio creates while writing; default: overwrite `file`. */
  readonly makes?: string;
}

/** Members used of one direction (read or write) in fio's JSON report. */
interface FioFigures {
  readonly bw_bytes: number;
  readonly lat_ns: { readonly percentile?: Readonly<Record<string, number>> };
}

/** fio's I/O engines, fastest first. `psync` uses `depth` threads with one call each. */
const ENGINES = [
  { name: "io_uring, registered", words: ["--ioengine=io_uring", "--fixedbufs=1"] },
  { name: "io_uring", words: ["--ioengine=io_uring"] },
  { name: "libaio", words: ["--ioengine=libaio"] },
  { name: "psync", words: ["--ioengine=psync"] },
] as const;
type Engine = (typeof ENGINES)[number];

/** Runs fio as the reference, with one large file, so that no file system metadata is involved. */
export class Fio {
  readonly #program: string;
  readonly #options: FioOptions;
  readonly #engine: Engine;
  private constructor(program: string, options: FioOptions, engine: Engine) {
    this.#program = program;
    this.#options = options;
    this.#engine = engine;
  }

  /** Returns the path of fio; null if the host does not have it. */
  static find(): string | null {
    return Bun.which("fio");
  }

  /**
   * Writes the file once from start to end, so that later writes allocate nothing. Uses the first
   * of fio's engines that works on this host; throws UNSUPPORTED if none does.
   */
  static async layOut(program: string, options: FioOptions, blockBytes: number): Promise<Fio> {
    let refusal = "";
    for (const engine of ENGINES) {
      const fio = new Fio(program, options, engine);
      const { depth } = options;
      const answer = await fio.#run({ rw: "write", blockBytes, depth });
      if (answer.ok) return fio;
      refusal = answer.why;
    }
    throw refused(refusal);
  }

  get engine(): string {
    return this.#engine.name;
  }

  /** Returns the rate over the whole file, in 10^9 bytes per second. */
  async gbps(rw: "read" | "write", blockBytes: number): Promise<number> {
    const figures = await this.#figures({ rw, blockBytes, depth: this.#options.depth });
    return figures.bw_bytes / 1e9;
  }

  /**
   * Returns the rate of writing a new file of the same length, in 10^9 bytes per second. Removes
   * the file afterwards.
   */
  async makesGbps(blockBytes: number): Promise<number> {
    const makes = `${this.#options.file}-new`;
    const { depth } = this.#options;
    const figures = await this.#figures({ rw: "write", blockBytes, depth, makes });
    rmSync(makes, { force: true });
    return figures.bw_bytes / 1e9;
  }

  /**
   * Reads `count` blocks at random positions, one at a time. Returns milliseconds from submission
   * to completion.
   */
  async singleReads(blockBytes: number, count: number): Promise<{ p50Ms: number; p99Ms: number }> {
    const figures = await this.#figures({ rw: "randread", blockBytes, depth: 1, count });
    const ms = (name: string) => (figures.lat_ns.percentile?.[name] ?? Number.NaN) / NS_PER_MS;
    return { p50Ms: ms("50.000000"), p99Ms: ms("99.000000") };
  }

  async #figures(job: FioJob): Promise<FioFigures> {
    const answer = await this.#run(job);
    if (answer.ok) return answer.figures;
    throw refused(answer.why);
  }

  async #run(job: FioJob): Promise<{ ok: true; figures: FioFigures } | { ok: false; why: string }> {
    const { signal } = this.#options;
    const fio = Bun.spawn([this.#program, ...this.#words(job)], {
      stdin: "ignore",
      stdout: "pipe",
      stderr: "pipe",
      signal,
    });
    const [out, err] = await Promise.all([fio.stdout.text(), fio.stderr.text()]);
    const code = await fio.exited;
    signal.throwIfAborted();
    // fio may print warnings before the JSON document.
    const start = out.indexOf("{\n");
    if (code !== 0 || start < 0) {
      return {
        ok: false,
        why: (err || out).trim().split("\n")[0] || `fio ended with code ${code}`,
      };
    }
    const report = JSON.parse(out.slice(start)) as {
      jobs: [{ error: number; read: FioFigures; write: FioFigures }];
    };
    const [{ error, read, write }] = report.jobs;
    if (error !== 0) return { ok: false, why: `fio met errno ${error}` };
    return { ok: true, figures: job.rw === "write" ? write : read };
  }

  #words({ rw, blockBytes, depth, count, makes }: FioJob): string[] {
    const { file, bytes, direct } = this.#options;
    const isSync = this.#engine.name === "psync";
    const share = Math.floor(bytes / depth / blockBytes) * blockBytes;
    const parallel = isSync
      ? [`--numjobs=${depth}`, `--size=${share}`, `--offset_increment=${share}`]
      : [`--iodepth=${depth}`, `--size=${bytes}`];
    return [
      "--name=hearth",
      `--filename=${makes ?? file}`,
      `--rw=${rw}`,
      `--bs=${blockBytes}`,
      `--direct=${direct ? 1 : 0}`,
      ...this.#engine.words,
      ...parallel,
      ...(count === undefined ? [] : [`--io_size=${count * blockBytes}`]),
      // Shared memory, as the arena has: physically adjacent pages need fewer disk requests.
      "--mem=mmapshared",
      ...(makes === undefined ? ["--overwrite=1"] : ["--overwrite=0", "--fallocate=none"]),
      "--thread",
      "--group_reporting",
      "--lat_percentiles=1",
      "--clat_percentiles=0",
      "--percentile_list=50:99",
      "--output-format=json",
    ];
  }
}

function refused(why: string): HearthError {
  const fix = "give --without-fio for Hearth's own figures alone";
  return new HearthError("UNSUPPORTED", `fio cannot measure this folder (${why})`, { fix });
}
