import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Subprocess } from "bun";
import { HearthError, sleep, systemClock } from "../../../core/index.ts";

/** Debian's name of the package and of what is in it. */
const PACKAGE = "nats-server";
const DEBIAN_PATH = "/usr/sbin/nats-server";
const START_MS = 10_000;
const LOOK_MS = 5;

/** How the bytes of a bus travel. */
export type Carrier = "tcp" | "ws";

/** A nats-server of one's own, on ports that the system chose; disposing ends it. */
export class Broker implements AsyncDisposable {
  readonly #folder: string;
  readonly #process: Subprocess;

  private constructor(folder: string, process: Subprocess) {
    this.#folder = folder;
    this.#process = process;
  }

  /** Throws UNSUPPORTED where there is none on this host, DEADLINE where it does not come up. */
  static async start(
    carrier: Carrier,
    signal?: AbortSignal,
  ): Promise<{ broker: Broker; url: string }> {
    const program = findProgram();
    const folder = mkdtempSync(join(tmpdir(), "hearth-nats-"));
    const config = join(folder, "server.conf");
    writeFileSync(config, configText(folder));
    const process = Bun.spawn([program, "-c", config], {
      stdin: "ignore",
      stdout: "ignore",
      stderr: "ignore",
    });
    const broker = new Broker(folder, process);
    try {
      return { broker, url: await broker.#url(carrier, signal) };
    } catch (error) {
      await broker[Symbol.asyncDispose]();
      throw error;
    }
  }

  /** It writes its ports down when it listens on them. */
  async #url(carrier: Carrier, signal: AbortSignal | undefined): Promise<string> {
    const file = join(this.#folder, `nats-server_${this.#process.pid}.ports`);
    const deadlineMs = systemClock.monotonicMs() + START_MS;
    for (;;) {
      const port = portIn(file, carrier);
      if (port !== null) return `${carrier === "tcp" ? "nats" : "ws"}://127.0.0.1:${port}`;
      if (this.#process.exitCode !== null || systemClock.monotonicMs() > deadlineMs) {
        throw new HearthError("DEADLINE", `nats-server did not start:\n${this.#log()}`);
      }
      await sleep(systemClock, LOOK_MS, signal);
    }
  }

  #log(): string {
    const file = join(this.#folder, "log");
    return existsSync(file) ? readFileSync(file, "utf8") : "";
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#process.kill("SIGKILL");
    await this.#process.exited;
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

function findProgram(): string {
  const path = Bun.which(PACKAGE) ?? (existsSync(DEBIAN_PATH) ? DEBIAN_PATH : null);
  if (path !== null) return path;
  throw new HearthError("UNSUPPORTED", "there is no nats-server on this host", {
    fix: `apt-get install ${PACKAGE}, or name a server with --nats`,
  });
}

function configText(folder: string): string {
  return [
    "host: 127.0.0.1",
    "port: -1",
    `ports_file_dir: ${JSON.stringify(folder)}`,
    `log_file: ${JSON.stringify(join(folder, "log"))}`,
    "websocket {",
    "  host: 127.0.0.1",
    "  port: -1",
    "  no_tls: true",
    "}",
    "",
  ].join("\n");
}

/** Null while the file is not there, or not whole. */
function portIn(file: string, carrier: Carrier): number | null {
  try {
    const { nats, websocket } = JSON.parse(readFileSync(file, "utf8"));
    const [url] = carrier === "tcp" ? nats : websocket;
    return Number(/:([0-9]+)$/.exec(url)![1]);
  } catch {
    return null;
  }
}
