import { existsSync } from "node:fs";
import { join } from "node:path";
import { HearthError, selfCommand, sleep, systemClock, systemRandom } from "../../core/index.ts";
import { ENGINE_LIMITS, EngineServer } from "../../engine/index.ts";
import { type Native, Queue } from "../../native/index.ts";
import { createFrameCounts } from "../../observability/index.ts";
import { ArenaGrowth, createArena, Namespaces, TieredStore } from "../../store/index.ts";
import { listenEcho } from "./echo.ts";

/**
 * Blocks the arena has room for: the resident ones and those that writes push through, with a key
 * and without.
 */
const ARENA_BLOCKS = 512;
const TABLE_BLOCKS = 65_536;
const START_MS = 60_000;

export interface BenchServerOptions {
  readonly folder: string;
  readonly blockBytes: number;
  readonly signal: AbortSignal;
}

function pathsIn(folder: string) {
  return {
    enginePath: join(folder, "engine.sock"),
    echoPath: join(folder, "echo.sock"),
    readyPath: join(folder, "ready"),
  };
}

/**
 * The agent's side of the engine benchmark: a RAM store behind its socket, and an echo beside it.
 */
export async function serveEngineBench(native: Native, options: BenchServerOptions): Promise<void> {
  const paths = pathsIn(options.folder);
  const bytes = ARENA_BLOCKS * Math.ceil(options.blockBytes / 4096) * 4096;
  const arena = { bytes, hugePages: "try", lockMemory: "off", sliceBytes: 2 ** 26 } as const;
  const region = createArena(native, arena);
  await using queue = new Queue(native, { entries: 1024, threads: 1, watches: 64 });
  await using store = new TieredStore({
    native,
    region,
    queue,
    clock: systemClock,
    random: systemRandom,
    blocksMax: TABLE_BLOCKS,
    gpuWindowBlocks: 0,
    policy: "lru",
    marks: { high: 0.95, low: 0.9 },
  });
  const growth = new ArenaGrowth(region, queue, arena, (ready) =>
    store.slots.addReady(ready - store.slots.readyBytes),
  );
  await growth.first();
  await growth.rest((short) => {
    throw short;
  });
  store.evictor.start(1_000);
  await using engine = new EngineServer({
    socketPath: paths.enginePath,
    socketGroup: null,
    limits: ENGINE_LIMITS,
    store,
    namespaces: new Namespaces(),
    native,
    hashing: native,
    queue,
    clock: systemClock,
    incarnation: 1n,
    frames: createFrameCounts(),
    lookedUp: () => undefined,
    log: () => undefined,
  });
  await engine.start();
  const echo = listenEcho(paths.echoPath);
  await Bun.write(paths.readyPath, "ready");
  await until(options.signal);
  echo.stop(true);
}

function until(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener("abort", () => resolve(), { once: true });
  });
}

export interface BenchServer extends AsyncDisposable {
  readonly paths: { readonly enginePath: string; readonly echoPath: string };
}

/** Starts `serveEngineBench` in another process of this same program. */
export async function startBenchServer(options: BenchServerOptions): Promise<BenchServer> {
  const { folder, blockBytes, signal } = options;
  const paths = pathsIn(folder);
  const words = ["bench", "engine", "--serve", folder, "--block-bytes", `${blockBytes}B`];
  const server = Bun.spawn([...selfCommand(), ...words], {
    stdin: "ignore",
    stdout: "ignore",
    stderr: "inherit",
  });
  const stop = async () => {
    server.kill("SIGTERM");
    await server.exited;
  };
  const deadline = systemClock.monotonicMs() + START_MS;
  while (!existsSync(paths.readyPath)) {
    if (server.exitCode !== null || systemClock.monotonicMs() > deadline) {
      await stop();
      throw new HearthError("UNSUPPORTED", "the benchmark's other process did not start");
    }
    await sleep(systemClock, 10, signal);
  }
  return { paths, [Symbol.asyncDispose]: stop };
}
