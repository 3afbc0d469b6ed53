import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { EngineClient } from "../../src/engine/index.ts";
import { loadNative } from "../../src/native/index.ts";
import { manifestBytes } from "../engine/agent-kit.ts";
import { Engine } from "../engine/engine.ts";
import { waitFor } from "../support/index.ts";

const MAIN = join(import.meta.dir, "../../src/main.ts");
const START_MS = 15_000;

/** The words that start `hearth` from this checkout. */
export const FROM_CHECKOUT: readonly string[] = [process.execPath, MAIN];

export interface LogLine {
  readonly level: string;
  readonly message: string;
  readonly [field: string]: unknown;
}

export type ConfigKeys = Partial<
  Record<
    | ("node" | "kv" | "engine" | "gpu" | "rdma" | "peers" | "events")
    | ("control" | "nats" | "api" | "log"),
    Record<string, unknown>
  >
>;

export interface AgentProcessOptions {
  readonly command?: readonly string[];
  readonly config?: ConfigKeys;
  readonly environment?: Record<string, string>;
  /** Where to live; a folder of its own by default, which goes with it. */
  readonly folder?: string;
}

/** An agent as it ships: a process with its configuration, socket and log. */
export class AgentProcess implements AsyncDisposable {
  readonly folder: string;
  readonly socketPath: string;
  readonly configPath: string;
  readonly log: LogLine[] = [];
  /** Lines that are not JSON: last words on standard error. */
  readonly words: string[] = [];
  readonly process: Bun.Subprocess<"ignore", "ignore", "pipe">;
  readonly #ownsFolder: boolean;
  readonly #logEnded: Promise<void>;

  constructor(options: AgentProcessOptions = {}) {
    this.#ownsFolder = options.folder === undefined;
    this.folder = options.folder ?? mkdtempSync(join(tmpdir(), "hearth-"));
    this.socketPath = join(this.folder, "engine.sock");
    this.configPath = join(this.folder, "hearth.toml");
    this.configure(options.config ?? {});
    const command = options.command ?? FROM_CHECKOUT;
    this.process = Bun.spawn([...command, "agent", "--config", this.configPath], {
      cwd: this.folder,
      env: { ...process.env, ...options.environment },
      stdin: "ignore",
      stdout: "ignore",
      stderr: "pipe",
    });
    this.#logEnded = this.#readLog();
  }

  /** An agent that serves and has all its memory. */
  static async start(options: AgentProcessOptions = {}): Promise<AgentProcess> {
    const agent = new AgentProcess(options);
    try {
      await agent.logged("api listening");
      await agent.logged("arena complete");
      return agent;
    } catch (error) {
      await agent[Symbol.asyncDispose]();
      throw error;
    }
  }

  /** Writes the configuration anew. What it does not name is small and fit for any host. */
  configure(keys: ConfigKeys): void {
    const sections = {
      kv: { ram_gib: 16 / 1_024, lock_memory: "off", ...keys.kv },
      engine: { socket: this.socketPath, ...keys.engine },
      ...{ node: { ...keys.node }, control: { ...keys.control }, nats: { ...keys.nats } },
      ...{
        peers: { ...keys.peers },
        events: { ...keys.events },
        gpu: keys.gpu ?? { enabled: "off" },
      },
      ...(keys.rdma === undefined ? {} : { rdma: keys.rdma }),
      api: { listen: "127.0.0.1:0", ...keys.api },
      log: { format: "json", ...keys.log },
    };
    const lines = Object.entries(sections).flatMap(([name, values]) => [
      `[${name}]`,
      ...Object.entries(values).map(([key, value]) => `${key} = ${JSON.stringify(value)}`),
    ]);
    writeFileSync(this.configPath, `${lines.join("\n")}\n`);
  }

  async #readLog(): Promise<void> {
    let rest = "";
    for await (const chunk of this.process.stderr.pipeThrough(new TextDecoderStream())) {
      const lines = (rest + chunk).split("\n");
      rest = lines.pop()!;
      for (const line of lines) {
        if (line.startsWith("{")) this.log.push(JSON.parse(line));
        else this.words.push(line);
      }
    }
  }

  /** The first line with this message, from the `from`-th line on. */
  logged(message: string, from = 0): Promise<LogLine> {
    const find = () => {
      const { exitCode } = this.process;
      const found = this.log.slice(from).find((line) => line.message.startsWith(message));
      if (found === undefined && exitCode !== null) {
        throw new Error(`the agent ended with ${exitCode}: ${this.words.join("\n")}`);
      }
      return found;
    };
    return waitFor(find, START_MS, `the log line "${message}"`);
  }

  async get(path: string): Promise<Response> {
    const url = (await this.logged("api listening")).url as string;
    return fetch(url + path, { keepalive: false });
  }

  // biome-ignore lint/suspicious/noExplicitAny: tests look at what they name
  async status(): Promise<any> {
    return (await this.get("/v1/status")).json();
  }

  /** The sum of a metric's samples whose labels contain `labels`. */
  async metric(name: string, labels = ""): Promise<number> {
    const text = await (await this.get("/metrics")).text();
    const samples = text
      .split("\n")
      .filter((line) => line.startsWith(name) && /[ {]/.test(line[name.length]!))
      .filter((line) => line.includes(labels));
    if (samples.length === 0) throw new Error(`no metric ${name} {${labels}}`);
    return samples.reduce((sum, line) => sum + Number(line.split(" ").at(-1)), 0);
  }

  async connect(tenant = "test"): Promise<Engine> {
    const { socketPath } = this;
    const manifest = manifestBytes(tenant);
    const options = { socketPath, manifest, name: "test" };
    return new Engine(await EngineClient.connect(loadNative(), options));
  }

  /** Its exit code, after all it had to say was read. */
  async exited(): Promise<number> {
    const code = await this.process.exited;
    await this.#logEnded;
    return code;
  }

  async kill(signal: "SIGKILL" | "SIGTERM"): Promise<number> {
    this.process.kill(signal);
    return this.exited();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill("SIGKILL");
    if (this.#ownsFolder) rmSync(this.folder, { recursive: true, force: true });
  }
}
