import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Subprocess } from "bun";
import { assert, HearthError, messageOf, selfCommand, sleep, systemClock } from "../core/index.ts";

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
    Record<"kv" | "control" | "node" | "nats" | "peers", Readonly<Record<string, string>>>
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

const START_MS = 30_000;
const GROW_MS = 300_000;
/** Longer than an agent takes at the most. */
const STOP_MS = 60_000;
const LOG_LINES_KEPT = 20;

/**
 * An agent of one's own: the same program in another process, with its socket and configuration in
 * a temporary folder that only this user can enter. Disposing stops it and leaves nothing behind.
 */
export class PrivateAgent implements AsyncDisposable {
  readonly socketPath: string;
  readonly #folder: string;
  readonly #hasSsd: boolean;
  readonly #lastLines: string[] = [];
  #process: Subprocess<"pipe", "ignore", "pipe">;
  #apiUrl: string | null = null;
  #logEnded: Promise<void>;

  private constructor(folder: string, options: PrivateAgentOptions) {
    this.#folder = folder;
    this.#hasSsd = options.ssdBytes !== null;
    this.socketPath = join(folder, "engine.sock");
    writeFileSync(join(folder, "hearth.toml"), configText(folder, this.socketPath, options));
    this.#process = this.#spawn();
    this.#logEnded = this.#readLog();
  }

  #spawn(): Subprocess<"pipe", "ignore", "pipe"> {
    const folder = this.#folder;
    const words = ["agent", "--config", join(folder, "hearth.toml"), "--private", folder];
    return Bun.spawn([...selfCommand(), ...words], {
      cwd: folder,
      // It ends when this pipe does: also when this process is killed.
      stdin: "pipe",
      stdout: "ignore",
      stderr: "pipe",
      // Its own group: Ctrl-C is ours to handle, so that it can drain.
      detached: true,
    });
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
    await this.#end(by);
    await this.#logEnded;
    this.#apiUrl = null;
    const startMs = systemClock.monotonicMs();
    this.#process = this.#spawn();
    this.#logEnded = this.#readLog();
    await this.#until(START_MS, "answer", signal, async () => this.#apiUrl !== null);
    const ms = systemClock.monotonicMs() - startMs;
    await this.#serves(signal);
    return ms;
  }

  /** As a host that loses power: nothing is said. It stays down. */
  async kill(): Promise<void> {
    await this.#end("SIGKILL");
  }

  async #serves(signal: AbortSignal | undefined): Promise<void> {
    await this.#until(START_MS, "answer", signal, async () => this.#apiUrl !== null);
    await this.#until(GROW_MS, "get its memory", signal, async () => {
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
    assert(this.#apiUrl !== null, "an agent that serves has said where");
    return this.#apiUrl;
  }

  /** Throws ENGINE_CLOSED where the agent does not answer. */
  status(): Promise<AgentStatus> {
    return this.get<AgentStatus>("/v1/status");
  }

  /** What the API has at this path. Throws ENGINE_CLOSED where the agent does not answer. */
  async get<T>(path: string): Promise<T> {
    return JSON.parse(await this.#read(path));
  }

  /** In Prometheus' text format. Throws ENGINE_CLOSED where the agent does not answer. */
  metrics(): Promise<string> {
    return this.#read("/metrics");
  }

  async #read(path: string): Promise<string> {
    try {
      return await (await fetch(`${this.#apiUrl}${path}`)).text();
    } catch (cause) {
      throw (await this.ended()) ?? new HearthError("ENGINE_CLOSED", "no answer", { cause });
    }
  }

  /** How the agent ended, with its last words; null while it runs. */
  async ended(): Promise<HearthError | null> {
    const { exitCode, signalCode } = this.#process;
    if (exitCode === null && signalCode === null) return null;
    await this.#logEnded;
    const how = signalCode === null ? `with code ${exitCode}` : `by ${signalCode}`;
    const words = this.#lastLines.map((line) => `\n  ${line}`).join("");
    return new HearthError("ENGINE_CLOSED", `the agent ended ${how}${words}`);
  }

  /** Reads the log, in which the agent says where its API listens. */
  async #readLog(): Promise<void> {
    let rest = "";
    for await (const chunk of this.#process.stderr.pipeThrough(new TextDecoderStream())) {
      const lines = (rest + chunk).split("\n");
      rest = lines.pop()!;
      for (const line of lines) this.#noteLine(line);
    }
  }

  #noteLine(line: string): void {
    this.#lastLines.push(line);
    if (this.#lastLines.length > LOG_LINES_KEPT) this.#lastLines.shift();
    this.#apiUrl ??= /"url":"(http:[^"]+)"/.exec(line)?.[1] ?? null;
  }

  async #until(
    ms: number,
    what: string,
    signal: AbortSignal | undefined,
    holds: () => Promise<boolean>,
  ): Promise<void> {
    const deadline = systemClock.monotonicMs() + ms;
    while (!(await holds())) {
      const ended = await this.ended();
      if (ended !== null) throw ended;
      if (systemClock.monotonicMs() > deadline) {
        throw new HearthError("DEADLINE", `the agent did not ${what} within ${ms / 1_000} s`);
      }
      await sleep(systemClock, 10, signal);
    }
  }

  async #end(by: "SIGTERM" | "SIGKILL"): Promise<void> {
    this.#process.kill(by);
    const forced = systemClock.after(STOP_MS, () => this.#process.kill("SIGKILL"));
    await this.#process.exited;
    forced[Symbol.dispose]();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    // Nothing of it is wanted any more: what RAM holds need not go to SSD first.
    await this.#end(this.#hasSsd ? "SIGKILL" : "SIGTERM");
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

/** The longest path a Unix socket may have. */
const SOCKET_PATH_BYTES_MAX = 107;

function makeFolder(): string {
  const parent = tmpdir();
  const fix = "set TMPDIR to a folder that is there, short and yours";
  let folder: string;
  try {
    folder = mkdtempSync(join(parent, "hearth-"));
  } catch (cause) {
    const text = `no temporary folder can be made in ${parent}: ${messageOf(cause)}`;
    throw new HearthError("UNSUPPORTED", text, { cause, fix });
  }
  if (Buffer.byteLength(join(folder, "engine.sock")) <= SOCKET_PATH_BYTES_MAX) return folder;
  rmSync(folder, { recursive: true });
  throw new HearthError("UNSUPPORTED", `a socket in ${parent} would have too long a name`, { fix });
}

function configText(folder: string, socketPath: string, options: PrivateAgentOptions): string {
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
    "[control]",
    ...more("control"),
    "[engine]",
    `socket = ${JSON.stringify(socketPath)}`,
    "gpu_window_blocks = 0",
    "[api]",
    'listen = "127.0.0.1:0"',
    "[log]",
    'format = "json"',
    "[node]",
    ...more("node"),
    "[nats]",
    ...more("nats"),
    "[peers]",
    ...more("peers"),
    "",
  ].join("\n");
}
