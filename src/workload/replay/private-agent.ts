import { rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { type HearthError, systemClock } from "../../core/index.ts";
import { makeFolder, OwnProcess } from "./own-process.ts";

export interface PrivateAgentOptions {
  readonly ramBytes: number;
  /** Blocks the table must know. */
  readonly blocksMax: number;
  /** Bytes of files on SSD, in the same folder; null: RAM alone. */
  readonly ssdBytes: number | null;
  /** What leaves RAM first: a name of `kv.policy`. */
  readonly policy: string;
  /** Where its files on SSD lie; a folder of its own that goes with it by default. */
  readonly ssdDir?: string;
  /** Further keys of its configuration, by section, written as in a file: `"60s"`. */
  readonly settings?: Partial<
    Record<
      "kv" | "gpu" | "control" | "node" | "nats" | "peers" | "events",
      Readonly<Record<string, string>>
    >
  >;
  readonly signal?: AbortSignal;
}

/** What `GET /v1/status` says, as far as a replay wants to know it. */
export interface AgentStatus {
  readonly arena: { readonly bytes: number; readonly ready_bytes: number };
  readonly ram: { readonly blocks: number; readonly bytes: number };
  readonly ssd: {
    readonly blocks: number;
    readonly used_bytes: number;
    readonly queued_blocks: number;
    readonly direct: boolean;
    readonly counters: Readonly<Record<string, number>>;
  } | null;
  readonly counters: Readonly<Record<string, number>>;
}

const GROW_MS = 300_000;

/**
 * An agent of one's own: the same program in another process, with its socket and configuration in
 * a temporary folder that only this user can enter. Disposing stops it and leaves nothing behind.
 */
export class PrivateAgent implements AsyncDisposable {
  readonly socketPath: string;
  readonly #folder: string;
  readonly #hasSsd: boolean;
  readonly #process: OwnProcess;

  private constructor(folder: string, options: PrivateAgentOptions) {
    this.#folder = folder;
    this.#hasSsd = options.ssdBytes !== null;
    this.socketPath = join(folder, "engine.sock");
    const file = join(folder, "hearth.toml");
    writeFileSync(file, agentConfigText(folder, this.socketPath, options));
    const words = ["agent", "--config", file, "--private", folder];
    this.#process = new OwnProcess({ name: "agent", folder, words });
  }

  /**
   * Resolves when the agent serves and all of its memory is there. Throws what it said where it
   * cannot.
   */
  static async start(options: PrivateAgentOptions): Promise<PrivateAgent> {
    const folder = makeFolder();
    const agent = new PrivateAgent(folder, options);
    try {
      await agent.#serves(options.signal);
      return agent;
    } catch (error) {
      await agent[Symbol.asyncDispose]();
      throw error;
    }
  }

  /**
   * Ends the agent by this signal and starts it again on what it left; milliseconds from its start
   * until it served.
   */
  async restart(by: "SIGTERM" | "SIGKILL", signal?: AbortSignal): Promise<number> {
    await this.#process.end(by);
    const startMs = systemClock.monotonicMs();
    await this.#process.startAgain();
    await this.#process.answers(signal);
    const ms = systemClock.monotonicMs() - startMs;
    await this.#serves(signal);
    return ms;
  }

  /** As a host that loses power: nothing is said. It stays down. */
  async kill(): Promise<void> {
    await this.#process.end("SIGKILL");
  }

  async #serves(signal: AbortSignal | undefined): Promise<void> {
    await this.#process.answers(signal);
    await this.#process.until(GROW_MS, "get its memory", signal, async () => {
      const { arena } = await this.status();
      return arena.ready_bytes === arena.bytes;
    });
  }

  /** Of the process that runs now. */
  get pid(): number {
    return this.#process.pid;
  }

  /** Where its HTTP API listens. */
  get apiUrl(): string {
    return this.#process.apiUrl;
  }

  /** Throws ENGINE_CLOSED where the agent does not answer. */
  status(): Promise<AgentStatus> {
    return this.get<AgentStatus>("/v1/status");
  }

  /** What the API has at this path. Throws ENGINE_CLOSED where the agent does not answer. */
  async get<T>(path: string): Promise<T> {
    return JSON.parse(await this.#process.read(path));
  }

  /** In Prometheus' text format. Throws ENGINE_CLOSED where the agent does not answer. */
  metrics(): Promise<string> {
    return this.#process.read("/metrics");
  }

  /** Drops all that nothing holds. Throws ENGINE_CLOSED where the agent does not answer. */
  async flush(): Promise<void> {
    await this.#process.read("/flush_cache", { method: "POST" });
  }

  /** How the agent ended, with its last words; null while it runs. */
  ended(): Promise<HearthError | null> {
    return this.#process.ended();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    // Nothing of it is wanted any more: what RAM holds need not go to SSD first.
    await this.#process.end(this.#hasSsd ? "SIGKILL" : "SIGTERM");
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

/** The configuration of an agent of one's own. */
export function agentConfigText(
  folder: string,
  socketPath: string,
  options: PrivateAgentOptions,
): string {
  const { ssdBytes, ssdDir = join(folder, "ssd"), settings = {} } = options;
  const more = (section: keyof typeof settings) =>
    Object.entries(settings[section] ?? {}).map(([key, value]) => `${key} = ${value}`);
  return [
    "[kv]",
    `ram = "${options.ramBytes}B"`,
    `blocks_max = ${options.blocksMax}`,
    `policy = "${options.policy}"`,
    ...(ssdBytes === null ? [] : [`ssd_dir = ${JSON.stringify(ssdDir)}`, `ssd = "${ssdBytes}B"`]),
    // A replay compares with a cache of exactly this size: nothing is evicted before it is full.
    "high_water = 1.0",
    "low_water = 0.99",
    'lock_memory = "off"',
    'huge_pages = "try"',
    ...more("kv"),
    "[gpu]",
    // Who does not ask for a GPU takes no memory of one.
    ...(settings.gpu === undefined ? ['enabled = "off"'] : more("gpu")),
    "[control]",
    ...more("control"),
    "[engine]",
    `socket = ${JSON.stringify(socketPath)}`,
    "gpu_window_blocks = 0",
    "[api]",
    'listen = "127.0.0.1:0"',
    // It is emptied between runs.
    'loopback_role = "purge"',
    "[log]",
    'format = "json"',
    "[node]",
    ...more("node"),
    "[nats]",
    ...more("nats"),
    "[peers]",
    ...more("peers"),
    "[events]",
    ...more("events"),
    "",
  ].join("\n");
}
