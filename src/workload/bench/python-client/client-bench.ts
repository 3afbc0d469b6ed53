import { mkdirSync } from "node:fs";
import { join } from "node:path";
import type { Native } from "../../../native/index.ts";
import { connectEngineProbe, type EngineProbe } from "../engine-probe.ts";
import { startBenchServer } from "../engine-server.ts";
import { median } from "../quantiles.ts";
import { interpreterWithRedis } from "./interpreter.ts";
import { type DriverRun, type Moved, PythonDriver } from "./python-driver.ts";
import { startRedis } from "./redis-process.ts";

export interface ClientBenchOptions {
  /** Where sockets are made. */
  readonly folder: string;
  /** Of the large blocks. */
  readonly blockBytes: number;
  readonly rounds: number;
  /** Null: `python3`, with the client of Redis if that can be had. */
  readonly python: string | null;
  /** The folder of the Python packages. */
  readonly packages: string;
  readonly signal: AbortSignal;
  readonly onProgress: (text: string) => void;
  /** Takes the reason if Redis is not measured. */
  readonly onSkip: (why: string) => void;
}

/** Rates in 10^9 bytes a second, medians; a ratio is Python over its rival in the same run. */
export interface ClientBenchResult {
  readonly block_bytes: number;
  readonly python: string;
  readonly native: boolean;
  readonly typescript_put_gbps: number;
  readonly python_put_gbps: number;
  readonly put_ratio: number;
  readonly typescript_get_verified_gbps: number;
  readonly python_get_verified_gbps: number;
  readonly get_ratio: number;
  readonly small_block_bytes: number;
  /** 64 blocks in one call. */
  readonly small_put_gbps: number;
  readonly small_get_verified_gbps: number;
  /** Null: no Redis here. Redis verifies nothing. */
  readonly redis_put_gbps: number | null;
  readonly redis_get_gbps: number | null;
  readonly redis_put_ratio: number | null;
  readonly redis_get_ratio: number | null;
}

const SMALL_BYTES = 65_536;
/**
 * Turns that large puts and gets take in a round, which has one rate for each: a run of either
 * lasts a few milliseconds, and four puts in a row would evict what is read.
 */
const LARGE_TURNS = 4;
type TypescriptRun = "typescript put" | "typescript get";
type Run = DriverRun | TypescriptRun;
type Rates = Record<Run, number[]>;

/** A run of the Python client, and the rival that is measured right before or after it. */
const LARGE_PAIRS: readonly (readonly [Run, Run])[] = [
  ["large put", "typescript put"],
  ["large get", "typescript get"],
];
const SMALL_PAIRS: readonly (readonly [Run, Run])[] = [
  ["small put", "redis put"],
  ["small get", "redis get"],
];

/**
 * The Python client beside the TypeScript client and Redis: all in turn, round after round, so that
 * a slow moment of the host hits all of them. Each client has an agent of its own.
 */
export async function benchPythonClient(
  native: Native,
  options: ClientBenchOptions,
): Promise<ClientBenchResult> {
  const { blockBytes, packages, signal, onProgress } = options;
  onProgress("starting");
  const own = await startAgent(options, "own", blockBytes);
  await using _own = own;
  const large = await startAgent(options, "large", blockBytes);
  await using _large = large;
  const small = await startAgent(options, "small", SMALL_BYTES);
  await using _small = small;
  const redis = await startRedis(options.folder, signal);
  await using _redis = redis;
  const python = interpreterOf(options, redis !== null);
  await using driver = new PythonDriver({ python, packages, signal });
  const about = await driver.begin({
    large_socket: large.paths.enginePath,
    large_bytes: blockBytes,
    small_socket: small.paths.enginePath,
    small_bytes: SMALL_BYTES,
    redis_socket: redis?.socketPath ?? null,
  });
  if (redis === null) options.onSkip("no redis-server on the PATH (Debian: redis-server)");
  else if (about.why !== null) options.onSkip(about.why);
  const { client, probe } = await connectEngineProbe(native, {
    socketPath: own.paths.enginePath,
    blockBytes,
  });
  await using _client = client;
  await probe.fillResident();
  const rates = await interleaved(driver, probe, about.redis, options);
  return { block_bytes: blockBytes, python: about.python, native: about.native, ...summary(rates) };
}

function startAgent({ folder, signal }: ClientBenchOptions, name: string, blockBytes: number) {
  const path = join(folder, name);
  mkdirSync(path);
  return startBenchServer({ folder: path, blockBytes, signal });
}

function interpreterOf({ python, onSkip }: ClientBenchOptions, hasRedis: boolean): string {
  if (python !== null || !hasRedis) return python ?? "python3";
  const found = interpreterWithRedis();
  if (found.why !== null) onSkip(`redis-py and hiredis cannot be installed: ${found.why}`);
  return found.path;
}

/** The runs of one round in order; the sides of each pair take turns in being the first. */
function runsOf(round: number, hasRedis: boolean): Run[] {
  const large = Array.from({ length: LARGE_TURNS }, () => LARGE_PAIRS).flat();
  return [...large, ...SMALL_PAIRS].flatMap((pair, at) => {
    const present = pair.filter((run) => hasRedis || !run.startsWith("redis"));
    return (round + at) % 2 === 0 ? present : present.toReversed();
  });
}

async function interleaved(
  driver: PythonDriver,
  probe: EngineProbe,
  hasRedis: boolean,
  { rounds, onProgress }: ClientBenchOptions,
): Promise<Rates> {
  const own = async (run: () => Promise<number>): Promise<Moved> => {
    const start = Bun.nanoseconds();
    return { bytes: await run(), seconds: (Bun.nanoseconds() - start) / 1e9 };
  };
  const movedBy = (run: Run): Promise<Moved> => {
    if (run === "typescript put") return own(() => probe.put());
    if (run === "typescript get") return own(() => probe.copyOut(true));
    return driver.run(run);
  };
  const all = [...LARGE_PAIRS, ...SMALL_PAIRS].flat();
  const rates = Object.fromEntries(all.map((run) => [run, []])) as unknown as Rates;
  for (let round = 0; round <= rounds; round++) {
    onProgress(`round ${round} of ${rounds}`);
    const sums = new Map<Run, Moved>();
    for (const run of runsOf(round, hasRedis)) {
      const { bytes, seconds } = await movedBy(run);
      const before = sums.get(run) ?? { bytes: 0, seconds: 0 };
      sums.set(run, { bytes: before.bytes + bytes, seconds: before.seconds + seconds });
    }
    // The first round touches every page for the first time.
    if (round === 0) continue;
    for (const [run, { bytes, seconds }] of sums) rates[run].push(bytes / seconds / 1e9);
  }
  return rates;
}

const rounded = (value: number) => Number(value.toFixed(3));
const gbps = (values: number[]) => rounded(median(values));
const orNull = (values: number[]) => (values.length === 0 ? null : gbps(values));

/** The median of the ratios of each round: both sides of a ratio saw the same moment. */
function ratio(over: number[], under: number[]): number {
  return rounded(median(over.map((value, round) => value / under[round]!)));
}

function ratioOrNull(over: number[], under: number[]): number | null {
  return under.length === 0 ? null : ratio(over, under);
}

function summary(rates: Rates) {
  return {
    typescript_put_gbps: gbps(rates["typescript put"]),
    python_put_gbps: gbps(rates["large put"]),
    put_ratio: ratio(rates["large put"], rates["typescript put"]),
    typescript_get_verified_gbps: gbps(rates["typescript get"]),
    python_get_verified_gbps: gbps(rates["large get"]),
    get_ratio: ratio(rates["large get"], rates["typescript get"]),
    small_block_bytes: SMALL_BYTES,
    small_put_gbps: gbps(rates["small put"]),
    small_get_verified_gbps: gbps(rates["small get"]),
    redis_put_gbps: orNull(rates["redis put"]),
    redis_get_gbps: orNull(rates["redis get"]),
    redis_put_ratio: ratioOrNull(rates["small put"], rates["redis put"]),
    redis_get_ratio: ratioOrNull(rates["small get"], rates["redis get"]),
  };
}
