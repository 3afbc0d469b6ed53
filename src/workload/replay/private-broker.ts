import { existsSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { HearthError, sleep, systemClock } from "../../core/index.ts";
import { makeFolder } from "./own-process.ts";

const START_MS = 10_000;
const STOP_MS = 5_000;
const LOOK_MS = 10;
/** Where Debian puts it, whatever the PATH says. */
const USUAL_PLACE = "/usr/sbin/nats-server";

/** A nats-server of one's own, on a port that the system chose. Disposing leaves nothing behind. */
export class PrivateBroker implements AsyncDisposable {
  readonly url: string;
  readonly #folder: string;
  readonly #process: Bun.Subprocess;

  private constructor(url: string, folder: string, process: Bun.Subprocess) {
    this.url = url;
    this.#folder = folder;
    this.#process = process;
  }

  /** The nats-server of this host; null where there is none. */
  static find(): string | null {
    return Bun.which("nats-server") ?? (existsSync(USUAL_PLACE) ? USUAL_PLACE : null);
  }

  /** Throws UNSUPPORTED where it does not start. */
  static async start(program: string, signal?: AbortSignal): Promise<PrivateBroker> {
    const folder = makeFolder();
    const config = join(folder, "nats.conf");
    const lines = ["host: 127.0.0.1", "port: -1", `ports_file_dir: ${JSON.stringify(folder)}`];
    writeFileSync(config, `${lines.join("\n")}\n`);
    const stdio = { stdin: "ignore", stdout: "ignore", stderr: "ignore" } as const;
    // Its own group: Ctrl-C is ours to handle, so that others may say goodbye through it first.
    const process = Bun.spawn([program, "-c", config], { cwd: folder, ...stdio, detached: true });
    const broker = (url: string) => new PrivateBroker(url, folder, process);
    try {
      return broker(await readUrl(join(folder, `nats-server_${process.pid}.ports`), signal));
    } catch (error) {
      await broker("")[Symbol.asyncDispose]();
      throw error;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#process.kill("SIGTERM");
    using _forced = systemClock.after(STOP_MS, () => this.#process.kill("SIGKILL"));
    await this.#process.exited;
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

async function readUrl(file: string, signal: AbortSignal | undefined): Promise<string> {
  const deadline = systemClock.monotonicMs() + START_MS;
  while (systemClock.monotonicMs() < deadline) {
    const url = urlIn(file);
    if (url !== null) return url;
    await sleep(systemClock, LOOK_MS, signal);
  }
  throw new HearthError("UNSUPPORTED", "nats-server does not start on this host");
}

/** Null: it is not written yet, or only half. */
function urlIn(file: string): string | null {
  try {
    return JSON.parse(readFileSync(file, "utf8")).nats[0];
  } catch {
    return null;
  }
}
