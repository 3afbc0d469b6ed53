import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Subprocess } from "bun";
import {
  assert,
  HearthError,
  messageOf,
  selfCommand,
  sleep,
  systemClock,
} from "../../core/index.ts";

const GIB = 2 ** 30;

export interface PrivateAgentOptions {
  readonly ramBytes: number;
  /** Number of blocks that the agent's table must hold. */
  readonly blocksMax: number;
  /** Maximum bytes of files on SSD; null for RAM alone. */
  readonly ssdBytes: number | null;
  /** Eviction policy of RAM: a value of `kv.policy`. */
  readonly policy: string;
  /** Folder of the SSD tier; default: a temporary folder. */
  readonly ssdDir?: string;
  /** Further configuration keys by section, with values as in a file: `"60s"`. */
  readonly settings?: Partial<
    Record<
      "kv" | "engine" | "gpu" | "control" | "node" | "nats" | "peers",
      Readonly<Record<string, string>>
    >
  >;
  readonly signal?: AbortSignal;
}

/** Members of `GET /v1/status` that a replay uses. */
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

interface PrivateProcessOptions {
  /** Name of the process in messages, such as `agent`. */
  readonly name: string;
  /** Working folder, removed when the process is disposed. */
  readonly folder: string;
  /** Arguments of the program, which must log JSON to standard error. */
  readonly words: readonly string[];
  /** Signal with which disposing ends the process. */
  readonly stopBy?: "SIGTERM" | "SIGKILL";
}

const START_MS = 30_000;
/** Milliseconds after which a clean stop counts as failed. */
const STOP_MS = 60_000;
const LOG_LINES_KEPT = 20;

/**
 * A child process of this program with an HTTP API and a temporary folder. Disposing stops it and
 * removes its files.
 */
class PrivateProcess implements AsyncDisposable {
  readonly #options: PrivateProcessOptions;
  readonly #lastLines: string[] = [];
  #process: Subprocess<"pipe", "ignore", "pipe">;
  #apiUrl: string | null = null;
  #logEnded: Promise<void>;

  constructor(options: PrivateProcessOptions) {
    this.#options = options;
    this.#process = this.#spawn();
    this.#logEnded = this.#readLog();
  }

  #spawn(): Subprocess<"pipe", "ignore", "pipe"> {
    const { folder, words } = this.#options;
    return Bun.spawn([...selfCommand(), ...words], {
      cwd: folder,
      // The child exits when this pipe closes, so it also stops if this process is killed.
      stdin: "pipe",
      stdout: "ignore",
      stderr: "pipe",
      // Start a separate process group, so that Ctrl-C reaches only this process and the child can
      // finish its work.
      detached: true,
    });
  }

  /** Id of the running process. */
  get pid(): number {
    return this.#process.pid;
  }

  /** URL at which the HTTP API listens. */
  get apiUrl(): string {
    assert(this.#apiUrl !== null, "a process that serves has said where");
    return this.#apiUrl;
  }

  /** Resolves when the API listens. Throws the error of the process if it ends before. */
  async answers(signal?: AbortSignal): Promise<void> {
    await this.until(START_MS, "answer", signal, async () => this.#apiUrl !== null);
  }

  /** Starts the process again after it has ended. */
  async startAgain(): Promise<void> {
    await this.#logEnded;
    this.#apiUrl = null;
    this.#process = this.#spawn();
    this.#logEnded = this.#readLog();
  }

  /** Sends an API request and returns the body. Throws ENGINE_CLOSED if nothing answers. */
  async read(path: string, init: RequestInit = {}): Promise<string> {
    try {
      return await (await fetch(`${this.#apiUrl}${path}`, init)).text();
    } catch (cause) {
      throw (await this.ended()) ?? new HearthError("ENGINE_CLOSED", "no answer", { cause });
    }
  }

  /** Returns the error of the ended process, with the end of its log; null while it runs. */
  async ended(): Promise<HearthError | null> {
    const { exitCode, signalCode } = this.#process;
    if (exitCode === null && signalCode === null) return null;
    await this.#logEnded;
    const how = signalCode === null ? `with code ${exitCode}` : `by ${signalCode}`;
    const words = this.#lastLines.map((line) => `\n  ${line}`).join("");
    return new HearthError("ENGINE_CLOSED", `the ${this.#options.name} ended ${how}${words}`);
  }

  /** Waits until the condition holds. Throws if the process ends before. */
  async until(
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
        const late = `the ${this.#options.name} did not ${what} within ${ms / 1_000} s`;
        throw new HearthError("DEADLINE", late);
      }
      await sleep(systemClock, 10, signal);
    }
  }

  /** Returns the document at this path of the API. Throws ENGINE_CLOSED if nothing answers. */
  async get<T>(path: string): Promise<T> {
    return JSON.parse(await this.read(path));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.end(this.#options.stopBy ?? "SIGTERM");
    rmSync(this.#options.folder, { recursive: true, force: true });
  }

  async end(by: "SIGTERM" | "SIGKILL"): Promise<void> {
    this.#process.kill(by);
    const forced = systemClock.after(STOP_MS, () => this.#process.kill("SIGKILL"));
    await this.#process.exited;
    forced[Symbol.dispose]();
  }

  /** Reads the log of the process, in which the address of the API appears. */
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
}

/** A temporary agent, with its socket and configuration in a private temporary folder. */
export class PrivateAgent extends PrivateProcess {
  readonly socketPath: string;

  private constructor(folder: string, options: PrivateAgentOptions) {
    const socketPath = join(folder, "engine.sock");
    const file = join(folder, "hearth.toml");
    writeFileSync(file, agentConfigText(folder, socketPath, options));
    const words = ["agent", "--config", file, "--private", folder];
    // The agent's blocks are not needed afterwards, so an agent with SSD is killed, because a clean
    // stop would first write RAM to SSD.
    const stopBy = options.ssdBytes === null ? "SIGTERM" : "SIGKILL";
    super({ name: "agent", folder, words, stopBy });
    this.socketPath = socketPath;
  }

  /**
   * Starts an agent. Resolves when it is ready and all its memory is allocated. Throws the agent's
   * error otherwise.
   */
  static async start(options: PrivateAgentOptions): Promise<PrivateAgent> {
    const agent = new PrivateAgent(makeFolder(), options);
    try {
      await agent.#serves(options.signal);
      return agent;
    } catch (error) {
      await agent[Symbol.asyncDispose]();
      throw error;
    }
  }

  /**
   * Ends the agent with this signal and restarts it on the same files. Returns the milliseconds
   * from its start until it is ready.
   */
  async restart(by: "SIGTERM" | "SIGKILL", signal?: AbortSignal): Promise<number> {
    await this.end(by);
    const startMs = systemClock.monotonicMs();
    await this.startAgain();
    await this.answers(signal);
    const ms = systemClock.monotonicMs() - startMs;
    await this.#serves(signal);
    return ms;
  }

  /** Kills the agent without notice, as a power loss would, and does not restart it. */
  async kill(): Promise<void> {
    await this.end("SIGKILL");
  }

  async #serves(signal: AbortSignal | undefined): Promise<void> {
    await this.answers(signal);
    await this.until(GROW_MS, "get its memory", signal, async () => {
      const { arena } = await this.status();
      return arena.ready_bytes === arena.bytes;
    });
  }

  /** Returns the agent's status. Throws ENGINE_CLOSED if the agent does not answer. */
  status(): Promise<AgentStatus> {
    return this.get<AgentStatus>("/v1/status");
  }

  /**
   * Returns the metrics in Prometheus text format. Throws ENGINE_CLOSED if the agent does not
   * answer.
   */
  metrics(): Promise<string> {
    return this.read("/metrics");
  }

  /** Removes all unprotected blocks. Throws ENGINE_CLOSED if the agent does not answer. */
  async flush(): Promise<void> {
    await this.read("/flush_cache", { method: "POST" });
  }
}

/** Returns the configuration file of a temporary agent. */
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
    `ram_gib = ${options.ramBytes / GIB}`,
    `blocks_max = ${options.blocksMax}`,
    `policy = "${options.policy}"`,
    ...(ssdBytes === null
      ? []
      : [`ssd_dir = ${JSON.stringify(ssdDir)}`, `ssd_gib = ${ssdBytes / GIB}`]),
    // A replay is compared with a cache of exactly this size, so nothing must be evicted before RAM
    // is full.
    "high_water = 1.0",
    'lock_memory = "off"',
    'huge_pages = "try"',
    ...more("kv"),
    "[gpu]",
    // Do not allocate GPU memory unless the benchmark uses a GPU.
    ...(settings.gpu === undefined ? ['enabled = "off"'] : more("gpu")),
    "[control]",
    ...more("control"),
    "[engine]",
    `socket = ${JSON.stringify(socketPath)}`,
    ...more("engine"),
    "[api]",
    'listen = "127.0.0.1:0"',
    // The role `purge` permits removing all blocks between runs.
    'loopback_role = "purge"',
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

/** Largest number of bytes in the path of a Unix socket. */
const SOCKET_PATH_BYTES_MAX = 107;

/**
 * Creates a temporary folder that only this user can access, with a path short enough for a socket
 * in it.
 */
export function makeFolder(): string {
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

const BROKER_START_MS = 10_000;
const BROKER_STOP_MS = 5_000;
const LOOK_MS = 10;
/** Path of nats-server on Debian, whose folder may be missing from PATH. */
const USUAL_PLACE = "/usr/sbin/nats-server";

/** Transport of NATS connections: TCP or WebSocket. */
export type Carrier = "tcp" | "ws";

/** A private nats-server on free ports. Disposing stops it and removes its files. */
export class PrivateBroker implements AsyncDisposable {
  readonly url: string;
  readonly #folder: string;
  readonly #process: Bun.Subprocess;

  private constructor(url: string, folder: string, process: Bun.Subprocess) {
    this.url = url;
    this.#folder = folder;
    this.#process = process;
  }

  /** Returns the path of nats-server; null if the host does not have it. */
  static find(): string | null {
    return Bun.which("nats-server") ?? (existsSync(USUAL_PLACE) ? USUAL_PLACE : null);
  }

  /**
   * Starts a nats-server. `url` of the result names the listener for `carrier`. Throws UNSUPPORTED
   * if it does not start.
   */
  static async start(
    program: string,
    signal?: AbortSignal,
    carrier: Carrier = "tcp",
  ): Promise<PrivateBroker> {
    const folder = makeFolder();
    const config = join(folder, "nats.conf");
    const listen = ["host: 127.0.0.1", "port: -1"];
    const ports = `ports_file_dir: ${JSON.stringify(folder)}`;
    const lines = [...listen, ports, "websocket {", ...listen, "no_tls: true", "}"];
    writeFileSync(config, `${lines.join("\n")}\n`);
    const stdio = { stdin: "ignore", stdout: "ignore", stderr: "ignore" } as const;
    // Start a separate process group, so that Ctrl-C reaches only this process and clients
    // disconnect before the server stops.
    const process = Bun.spawn([program, "-c", config], { cwd: folder, ...stdio, detached: true });
    const broker = (url: string) => new PrivateBroker(url, folder, process);
    try {
      const file = join(folder, `nats-server_${process.pid}.ports`);
      return broker(await readUrl(file, carrier, signal));
    } catch (error) {
      await broker("")[Symbol.asyncDispose]();
      throw error;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#process.kill("SIGTERM");
    using _forced = systemClock.after(BROKER_STOP_MS, () => this.#process.kill("SIGKILL"));
    await this.#process.exited;
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

async function readUrl(
  file: string,
  carrier: Carrier,
  signal: AbortSignal | undefined,
): Promise<string> {
  const deadline = systemClock.monotonicMs() + BROKER_START_MS;
  while (systemClock.monotonicMs() < deadline) {
    const url = urlIn(file, carrier);
    if (url !== null) return url;
    await sleep(systemClock, LOOK_MS, signal);
  }
  throw new HearthError("UNSUPPORTED", "nats-server does not start on this host");
}

/** Returns the URL of the listener for `carrier`; null if the file is missing or incomplete. */
function urlIn(file: string, carrier: Carrier): string | null {
  try {
    const { nats, websocket } = JSON.parse(readFileSync(file, "utf8"));
    return carrier === "tcp" ? nats[0] : websocket[0];
  } catch {
    return null;
  }
}

export interface PrivateRouterOptions {
  /** Configuration keys by section, with values as in a file: `"random"`. */
  readonly settings: Readonly<Record<string, Readonly<Record<string, string>>>>;
  readonly signal?: AbortSignal;
}

/** A temporary router, like `PrivateAgent`. */
export class PrivateRouter extends PrivateProcess {
  private constructor(folder: string, options: PrivateRouterOptions) {
    const file = join(folder, "router.toml");
    writeFileSync(file, routerConfigText(options));
    super({ name: "router", folder, words: ["router", "--config", file, "--private", folder] });
  }

  /** Starts a router. Resolves when its API listens. Throws the router's error otherwise. */
  static async start(options: PrivateRouterOptions): Promise<PrivateRouter> {
    const router = new PrivateRouter(makeFolder(), options);
    try {
      await router.answers(options.signal);
      return router;
    } catch (error) {
      await router[Symbol.asyncDispose]();
      throw error;
    }
  }

  /**
   * Sends a POST request and returns the parsed reply. Throws ENGINE_REFUSED with the router's
   * message if it answers with an error.
   */
  async post<T>(path: string, body: string): Promise<T> {
    const headers = { "content-type": "application/json" };
    const answer = JSON.parse(await this.read(path, { method: "POST", headers, body }));
    if (answer.code === undefined) return answer;
    throw new HearthError("ENGINE_REFUSED", `the router answers ${answer.code}: ${answer.detail}`);
  }
}

/** Returns the configuration file of a temporary router. */
export function routerConfigText({ settings }: Pick<PrivateRouterOptions, "settings">): string {
  const all = { api: { listen: '"127.0.0.1:0"' }, log: { format: '"json"' }, ...settings };
  const lines = Object.entries(all).flatMap(([section, keys]) => [
    `[${section}]`,
    ...Object.entries(keys).map(([key, value]) => `${key} = ${value}`),
  ]);
  return `${lines.join("\n")}\n`;
}
