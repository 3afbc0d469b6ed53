import { existsSync } from "node:fs";
import { join } from "node:path";
import { HearthError, sleep, systemClock } from "../../../core/index.ts";

const START_MS = 30_000;
const POLL_MS = 10;

/** A redis-server of the benchmark's own that keeps everything in memory, on a Unix socket. */
export interface RedisProcess extends AsyncDisposable {
  readonly socketPath: string;
}

/** Null: this host has no redis-server on its PATH. */
export async function startRedis(
  folder: string,
  signal: AbortSignal,
): Promise<RedisProcess | null> {
  const program = Bun.which("redis-server");
  if (program === null) return null;
  const socketPath = join(folder, "redis.sock");
  const settings = ["--port", "0", "--unixsocket", socketPath, "--save", "", "--appendonly", "no"];
  const server = Bun.spawn([program, ...settings, "--dir", folder], {
    stdin: "ignore",
    stdout: "ignore",
    stderr: "inherit",
  });
  const stop = async () => {
    server.kill("SIGKILL");
    await server.exited;
  };
  const deadline = systemClock.monotonicMs() + START_MS;
  while (!existsSync(socketPath)) {
    if (server.exitCode !== null || systemClock.monotonicMs() > deadline) {
      await stop();
      throw new HearthError("UNSUPPORTED", `${program} did not start`);
    }
    await sleep(systemClock, POLL_MS, signal);
  }
  return { socketPath, [Symbol.asyncDispose]: stop };
}
