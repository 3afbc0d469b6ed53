import { existsSync, mkdirSync, writeFileSync } from "node:fs";
import { setPriority } from "node:os";
import { join } from "node:path";
import { AgentProcess, type ConfigKeys } from "../../app/agent-process.ts";
import { type TestCluster, waitFor } from "../../support/index.ts";
import { type Metrics, readMetrics } from "./metrics.ts";
import { processGroups } from "./process-groups.ts";
import { say } from "./say.ts";

/** A hang detector: an agent with 2 GiB of RAM is complete in a few seconds. */
const START_MS = 120_000;
/** `Nice=` of config/hearth.service; only root may set it. */
const UNIT_NICE = -5;
/** `CPUWeight=500` as the nice value of a session: the kernel's groups without a CPU controller. */
const SESSION_NICE = "-7";
/** An engine stores within this time after its answer. */
const QUIET_MS = 1_000;

export interface AgentOptions {
  readonly name: string;
  /** A folder of the caller's that the agent gets a folder in. */
  readonly folder: string;
  readonly ramMib: number;
  readonly ssdMib?: number;
  /** The folder of the SSD tier; one in the agent's folder by default. */
  readonly ssdFolder?: string;
  readonly config?: ConfigKeys;
}

/** As the systemd unit does: engines that poll must not keep the processor from the agent. */
function prefer(pid: number): void {
  setPriority(pid, UNIT_NICE);
  const session = `/proc/${pid}/autogroup`;
  // The file is missing where the kernel groups no sessions.
  if (existsSync(session)) writeFileSync(session, SESSION_NICE);
}

/** A real agent that can be killed, stopped and started again in the same place. */
export class Agent implements AsyncDisposable {
  readonly options: AgentOptions;
  readonly folder: string;
  #process: AgentProcess;

  private constructor(options: AgentOptions) {
    this.options = options;
    this.folder = join(options.folder, options.name);
    mkdirSync(this.folder, { recursive: true });
    this.#process = this.#spawn();
  }

  #spawn(): AgentProcess {
    const { name, ramMib, ssdMib, config = {} } = this.options;
    const ssd = { ssd_dir: this.ssdFolder, ssd_gib: (ssdMib ?? 0) / 1_024 };
    const kv = { ram_gib: ramMib / 1_024, ...(ssdMib === undefined ? {} : ssd), ...config.kv };
    const agent = new AgentProcess({
      folder: this.folder,
      config: { ...config, kv, node: { id: name, ...config.node } },
    });
    if (process.getuid?.() === 0) prefer(agent.process.pid);
    return agent;
  }

  get ssdFolder(): string {
    return this.options.ssdFolder ?? join(this.folder, "ssd");
  }

  get socket(): string {
    return this.#process.socketPath;
  }

  get pid(): number {
    return this.#process.process.pid;
  }

  get process(): AgentProcess {
    return this.#process;
  }

  static async start(options: AgentOptions): Promise<Agent> {
    const agent = new Agent(options);
    try {
      await agent.ready();
      return agent;
    } catch (error) {
      await agent[Symbol.asyncDispose]();
      throw error;
    }
  }

  async ready(): Promise<void> {
    const has = (text: string) => this.#process.log.some(({ message }) => message.startsWith(text));
    const isReady = () => {
      const { exitCode } = this.#process.process;
      if (exitCode !== null) throw new Error(this.#process.words.join("\n"));
      return has("api listening") && has("arena complete");
    };
    await waitFor(isReady, START_MS, `agent ${this.options.name} being ready`);
    processGroups.watchProcess(this.pid);
    say(`agent ${this.options.name} serves`);
  }

  async metrics(): Promise<Metrics> {
    const line = this.#process.log.find(({ message }) => message.startsWith("api listening"));
    return readMetrics(`${line!.url}/metrics`);
  }

  // biome-ignore lint/suspicious/noExplicitAny: callers look at the members they name
  async command(body: Readonly<Record<string, unknown>>): Promise<any> {
    const line = this.#process.log.find(({ message }) => message.startsWith("api listening"));
    const answer = await fetch(`${line!.url}/v1/commands`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
    });
    return answer.json();
  }

  /** Waits until no engine stores, and every block that goes to SSD is there. */
  async settled(): Promise<void> {
    let quietSince = performance.now();
    const isSettled = async () => {
      const { engine, ssd } = await this.#process.status();
      const isQuiet = engine.slots_held === 0 && (ssd?.queued_blocks ?? 0) === 0;
      if (!isQuiet) quietSince = performance.now();
      await Bun.sleep(50);
      return performance.now() - quietSince > QUIET_MS;
    };
    await waitFor(isSettled, START_MS, "blocks being stored and written to SSD");
  }

  signal(name: "SIGSTOP" | "SIGCONT"): void {
    process.kill(this.pid, name);
  }

  async kill(): Promise<void> {
    await this.end("SIGKILL");
  }

  async end(signal: "SIGKILL" | "SIGTERM"): Promise<void> {
    const { pid } = this;
    await this.#process.kill(signal);
    processGroups.forgetProcess(pid);
  }

  /** Starts a new process with the same configuration; the old one must have ended. */
  async start(): Promise<void> {
    this.#process = this.#spawn();
    await this.ready();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.end("SIGKILL");
  }
}

/** `[peers]` of an agent of the cluster that pulls over sealed TCP only. */
export function peerKeys(
  cluster: TestCluster,
  worker: string,
  port: number,
  others: readonly { readonly worker: string; readonly port: number }[],
): Record<string, unknown> {
  const { certFile, keyFile, caFile } = cluster.files(worker);
  const peers = others.map((other) => `${other.worker}@127.0.0.1:${other.port}`).join(",");
  return {
    ...{ cert_file: certFile, key_file: keyFile, ca_file: caFile, cluster: cluster.name },
    ...{ listen_stream: `127.0.0.1:${port}`, listen_quic: "127.0.0.1:0" },
    ...{ summaries: "200ms", transport: "stream" },
    ...(peers === "" ? {} : { peers }),
  };
}
