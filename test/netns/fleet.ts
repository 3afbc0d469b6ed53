import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { AgentProcess } from "../app/agent-process.ts";
import type { Engine } from "../engine/engine.ts";
import { makeCluster, type TestCluster, waitFor } from "../support/index.ts";
import type { Network } from "./network.ts";

export interface FleetOptions {
  readonly network: Network;
  readonly folder: string;
  /** The words that start `hearth`. */
  readonly command: readonly string[];
  /** `peers.transport` of all agents. */
  readonly transport: string;
}

/** What a breaker waits for at most, so that recovery has one bound. */
export const COOLDOWN_MS = 3_000;
const SUMMARIES = "200ms";
export const ACQUIRE_MS = 4_000;
const STREAM_PORT = 7172;
const QUIC_PORT = 7173;
const API_PORT = 7171;
const TOKEN = "netns-token-0123456789abcdef";
/** So long after a cut began or ended, a pull that it caught is given up. */
const PROGRESS = "1s";
/** Bytes of a block: some dozens of packets. */
const BLOCK_BYTES = 48 * 1024;
/** In one command of an engine. */
const BLOCKS_AT_ONCE = 16;

export function workerOf(host: number): string {
  return `node-${host}`;
}

/** One agent in a namespace, and the engine beside it. */
export interface NetHost {
  readonly host: number;
  readonly agent: AgentProcess;
  readonly engine: Engine;
  /** Family of the blocks that it was given; another one for each life. */
  readonly family: string;
}

/** Agents that know each other, one in each namespace. */
export class Fleet implements AsyncDisposable {
  readonly #options: FleetOptions;
  readonly #cluster: TestCluster;
  readonly #hosts = new Map<number, NetHost>();
  /** Of keys, the lines that nobody may log. */
  readonly #secrets: string[] = ["PRIVATE KEY"];
  #lives = 0;

  private constructor(options: FleetOptions) {
    this.#options = options;
    this.#cluster = makeCluster(options.folder);
  }

  static async start(options: FleetOptions): Promise<Fleet> {
    const fleet = new Fleet(options);
    try {
      for (let host = 0; host < options.network.hosts; host++) await fleet.start(host);
      return fleet;
    } catch (error) {
      await fleet[Symbol.asyncDispose]();
      throw error;
    }
  }

  get size(): number {
    return this.#options.network.hosts;
  }

  host(host: number): NetHost {
    return this.#hosts.get(host)!;
  }

  /** A new life of this host: new memory, new certificate, the same worker id. */
  async start(host: number): Promise<NetHost> {
    const { network, command, folder, transport } = this.#options;
    const life = `life-${this.#lives++}`;
    const home = join(folder, life);
    mkdirSync(home);
    const tokenFile = join(home, "token");
    writeFileSync(tokenFile, `${TOKEN}\n`, { mode: 0o600 });
    const files = this.#cluster.files(workerOf(host));
    const lines = readFileSync(files.keyFile, "utf8").split("\n");
    this.#secrets.push(...lines.filter((line) => line !== "" && !line.startsWith("-----")));
    const address = network.address(host);
    const agent = new AgentProcess({
      folder: home,
      command: [...network.within(host), ...command],
      config: {
        node: { id: workerOf(host) },
        kv: { ram_gib: 192 / 1_024 },
        engine: { acquire_deadline: `${ACQUIRE_MS}ms` },
        api: { listen: `${address}:${API_PORT}`, token_file: tokenFile },
        peers: {
          ...{ cluster: this.#cluster.name, advertise: address, peers: this.#others(host) },
          ...{ cert_file: files.certFile, key_file: files.keyFile, ca_file: files.caFile },
          ...{ listen_stream: `${address}:${STREAM_PORT}` },
          ...{ listen_quic: `${address}:${QUIC_PORT}`, summaries: SUMMARIES },
          ...{ cooldown_max: `${COOLDOWN_MS}ms`, progress: PROGRESS, transport },
        },
      },
    });
    await agent.logged("agent ready");
    await agent.logged("arena complete");
    const started = { host, agent, engine: await agent.connect("netns"), family: life };
    this.#hosts.set(host, started);
    return started;
  }

  /** As when its power goes. */
  async kill(host: number): Promise<void> {
    const { agent, engine } = this.host(host);
    this.#hosts.delete(host);
    await agent.kill("SIGKILL");
    await engine[Symbol.asyncDispose]();
  }

  /** Stores blocks at a host. */
  async fill(host: number, names: readonly string[]): Promise<void> {
    const { engine } = this.host(host);
    for (let at = 0; at < names.length; at += BLOCKS_AT_ONCE) {
      const some = names.slice(at, at + BLOCKS_AT_ONCE);
      const put = async () => {
        const outcomes = await engine.put(...some.map((name) => ({ name, bytes: BLOCK_BYTES })));
        return outcomes.every((outcome) => outcome === "ok" || outcome === "present");
      };
      await waitFor(put, 10_000, "room for blocks");
    }
  }

  /** Something of an agent's API. */
  async get<T>(host: number, path: string): Promise<T> {
    const url = `http://${this.#options.network.address(host)}:${API_PORT}${path}`;
    const headers = { authorization: `Bearer ${TOKEN}` };
    const response = await fetch(url, { headers, keepalive: false });
    if (!response.ok) throw new Error(`${path}: ${response.status}`);
    return (await response.json()) as T;
  }

  /** Agents that ended though nobody ended them, and errors that they logged. */
  problems(): string[] {
    return [...this.#hosts.values()].flatMap(({ host, agent }) => {
      const { exitCode, signalCode } = agent.process;
      const ended = exitCode === null && signalCode === null ? [] : [`ended: ${agent.words}`];
      const errors = agent.log.filter(({ level }) => level === "error");
      const said = [...agent.words, ...agent.log.map((line) => JSON.stringify(line))].join("\n");
      const leaks = this.#secrets.filter((secret) => said.includes(secret));
      const told = leaks.length === 0 ? [] : ["key material in its log"];
      return [...ended, ...told, ...errors.map((line) => JSON.stringify(line))].map(
        (text) => `${workerOf(host)}: ${text}`,
      );
    });
  }

  /** The latest that agents said, for a report of what went wrong. */
  lastLines(count: number): string[] {
    return [...this.#hosts.values()].flatMap(({ host, agent }) =>
      agent.log.slice(-count).map((line) => `${workerOf(host)} ${JSON.stringify(line)}`),
    );
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const { agent, engine } of this.#hosts.values()) {
      await agent[Symbol.asyncDispose]();
      await engine[Symbol.asyncDispose]();
    }
  }

  #others(host: number): string {
    const { network } = this.#options;
    return Array.from({ length: network.hosts }, (_, other) => other)
      .filter((other) => other !== host)
      .map((other) => `${workerOf(other)}@${network.address(other)}:${STREAM_PORT}/${QUIC_PORT}`)
      .join(",");
  }
}
