import { existsSync, mkdirSync, renameSync, rmSync } from "node:fs";
import { homedir } from "node:os";
import { dirname, join } from "node:path";
import { HearthError } from "../../core/index.ts";
import type { Native } from "../../native/index.ts";
import { connectEngineProbe, type EngineProbe, startBenchServer } from "./engine-bench.ts";
import { LineProcess, startServer } from "./line-process.ts";
import { median, rounded } from "./measure.ts";

export interface ClientBenchOptions {
  /** Folder for sockets. */
  readonly folder: string;
  /** Bytes of a large block. */
  readonly blockBytes: number;
  readonly rounds: number;
  /**
   * Path of the Python interpreter. Null: `python3`, with a Redis client if one can be installed.
   */
  readonly python: string | null;
  /** Folder of the Python packages. */
  readonly packages: string;
  readonly signal: AbortSignal;
  readonly onProgress: (text: string) => void;
  /** Called with the reason if Redis is not measured. */
  readonly onSkip: (why: string) => void;
}

const SMALL_BYTES = 65_536;
/**
 * Number of times that large puts and gets alternate in a round, which reports one rate for each.
 * One run takes a few milliseconds, and four puts in a row would evict the blocks to read.
 */
const LARGE_TURNS = 4;
type TypescriptRun = "typescript put" | "typescript get";
type Run = DriverRun | TypescriptRun;
type Rates = Record<Run, number[]>;

/**
 * Pairs of a run of the Python client and the reference that is measured right before or after it.
 */
const LARGE_PAIRS: readonly (readonly [Run, Run])[] = [
  ["large put", "typescript put"],
  ["large get", "typescript get"],
];
const SMALL_PAIRS: readonly (readonly [Run, Run])[] = [
  ["small put", "redis put"],
  ["small get", "redis get"],
];

/**
 * Measures the Python client, the TypeScript client and Redis in turn, round after round, so that a
 * slow moment of the host affects all of them. Each client has its own agent.
 */
export async function benchPythonClient(native: Native, options: ClientBenchOptions) {
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
  const words = [python, "-m", "hearth_bench.client"];
  await using driver = new PythonDriver(words, { env: { PYTHONPATH: packages }, signal });
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

/**
 * Returns the runs of one round in order. The two runs of a pair swap their order from round to
 * round.
 */
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
    // The first round causes page faults and does not count.
    if (round === 0) continue;
    for (const [run, { bytes, seconds }] of sums) rates[run].push(bytes / seconds / 1e9);
  }
  return rates;
}

const gbps = (values: number[]) => rounded(median(values));
const orNull = (values: number[]) => (values.length === 0 ? null : gbps(values));

/**
 * Returns the median over the rounds of `over` divided by `under`, which were measured at nearly
 * the same time.
 */
function ratio(over: number[], under: number[]): number {
  return rounded(median(over.map((value, round) => value / under[round])));
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
    /** Rate of puts of 64 small blocks in one call. */
    small_put_gbps: gbps(rates["small put"]),
    small_get_verified_gbps: gbps(rates["small get"]),
    /** Rate of Redis, which verifies no checksums; null if it was not measured. */
    redis_put_gbps: orNull(rates["redis put"]),
    redis_get_gbps: orNull(rates["redis get"]),
    redis_put_ratio: ratioOrNull(rates["small put"], rates["redis put"]),
    redis_get_ratio: ratioOrNull(rates["small get"], rates["redis get"]),
  };
}

const PACKAGES = ["redis==8.1.0", "hiredis==3.5.0"];
const INSTALL_MS = 120_000;

function cacheFolder(): string {
  const caches = process.env.XDG_CACHE_HOME ?? join(homedir(), ".cache");
  return join(caches, "hearth/client-bench");
}

/**
 * `python3` in a virtual environment with redis-py and hiredis, which is made once, from PyPI, in
 * the user's cache folder. Without a network or without venv: `python3` as it is, and `why`.
 */
function interpreterWithRedis() {
  const folder = cacheFolder();
  const own = join(folder, "bin/python");
  if (existsSync(own)) return { path: own, why: null };
  const unfinished = `${folder}.${process.pid}`;
  const run = (words: string[]) =>
    Bun.spawnSync(words, { stdout: "ignore", stderr: "pipe", timeout: INSTALL_MS });
  try {
    Bun.spawnSync(["mkdir", "-p", dirname(folder)]);
    const made = run(["python3", "-m", "venv", unfinished]);
    if (!made.success) return { path: "python3", why: lastLine(made.stderr) };
    const pip = [join(unfinished, "bin/python"), "-m", "pip", "install", "--quiet", ...PACKAGES];
    const installed = run(pip);
    if (!installed.success) return { path: "python3", why: lastLine(installed.stderr) };
    renameSync(unfinished, folder);
    return { path: own, why: null };
  } finally {
    rmSync(unfinished, { recursive: true, force: true });
  }
}

function lastLine(output: Buffer): string {
  return output.toString().trim().split("\n").at(-1) ?? "no output";
}

/** Names of the runs that the Python driver offers. */
type DriverRun = "large put" | "large get" | "small put" | "small get" | "redis put" | "redis get";

/** Number of bytes that one run moved, and its duration. */
interface Moved {
  readonly bytes: number;
  readonly seconds: number;
}

interface DriverPlan {
  readonly large_socket: string;
  readonly large_bytes: number;
  readonly small_socket: string;
  readonly small_bytes: number;
  readonly redis_socket: string | null;
}

/** Measurements that the Python driver can make on this host. */
interface DriverAbout {
  readonly python: string;
  /** Whether the driver has loaded the native client library. */
  readonly native: boolean;
  readonly redis: boolean;
  /** The reason if the driver cannot use Redis; else null. */
  readonly why: string | null;
}

/** The Python process that is the measured client: python/hearth_bench/client.py. */
class PythonDriver extends LineProcess {
  async #ask(line: string): Promise<unknown> {
    this.send(line);
    const answer = await this.nextOrEnd();
    if (answer !== undefined) return answer;
    throw new HearthError("UNSUPPORTED", "the Python client ended; its error is above");
  }

  /** Connects to agent and Redis, and stores the blocks to read. */
  async begin(plan: DriverPlan): Promise<DriverAbout> {
    return (await this.#ask(JSON.stringify(plan))) as DriverAbout;
  }

  /** Runs one measurement. */
  async run(run: DriverRun): Promise<Moved> {
    return (await this.#ask(run)) as Moved;
  }
}

/**
 * A redis-server of the benchmark's own that keeps everything in memory, on a Unix socket. Null:
 * this host has no redis-server on its PATH.
 */
async function startRedis(folder: string, signal: AbortSignal) {
  const program = Bun.which("redis-server");
  if (program === null) return null;
  const socketPath = join(folder, "redis.sock");
  const settings = ["--port", "0", "--unixsocket", socketPath, "--save", "", "--appendonly", "no"];
  const server = await startServer([program, ...settings, "--dir", folder], {
    ready: socketPath,
    stopBy: "SIGKILL",
    signal,
  });
  return { socketPath, [Symbol.asyncDispose]: () => server[Symbol.asyncDispose]() };
}
