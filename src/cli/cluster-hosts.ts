import { rmSync } from "node:fs";
import { Agent, createServiceManager, RouterService, startRouterHttp } from "../app/index.ts";
import { type Bus, createLocalBus, LocalHub } from "../bus/index.ts";
import { parseConfig, parseRouterConfig } from "../config/index.ts";
import { assert, HearthError, systemClock, systemRandom } from "../core/index.ts";
import { loadNative } from "../native/index.ts";
import { createLogger } from "../observability/index.ts";
import {
  agentConfigText,
  type Dispatcher,
  makeFolder,
  type PrivateAgent,
  PrivateBroker,
  PrivateRouter,
  type RoutedPrompt,
  routerConfigText,
} from "../workload/replay/index.ts";
import { openOwnAgent, tableSize } from "./commands/replay.ts";

/** A temporary router with an HTTP API. */
export interface ClusterRouter extends AsyncDisposable {
  get<T>(path: string): Promise<T>;
  /**
   * Sends a POST request and returns the parsed reply. Throws ENGINE_REFUSED if the router answers
   * with an error.
   */
  post<T>(path: string, body: string): Promise<T>;
}

/** Temporary agents and an optional router. Disposing stops them and removes their files. */
export interface ClusterHosts extends AsyncDisposable {
  /** The message bus between agents and router: a nats-server or a bus inside this process. */
  readonly over: "nats" | "in-process";
  /** Path of each agent's engine socket, by worker id. */
  readonly sockets: ReadonlyMap<string, string>;
  /** Removes all blocks from every agent. */
  flush(): Promise<void>;
  openRouter(mode: string): Promise<ClusterRouter>;
}

export interface HostsOptions {
  readonly workers: number;
  readonly ramBlocks: number;
  readonly blockBytes: number;
  /** Tokens in one block of the trace. */
  readonly blockTokens: number;
  readonly signal: AbortSignal;
}

/**
 * Returns the router's configuration keys. Mock engines read blocks from all tiers at the same
 * speed and generate no tokens, so a cached block counts fully on every tier and outweighs load.
 */
export function routerSettings(mode: string, blockTokens: number) {
  const cost = { prefill_load_scale: "8", host_credit: "1" };
  return { id: '"demo"', mode: JSON.stringify(mode), block_tokens: String(blockTokens), ...cost };
}

/** Returns a dispatcher that asks the router for a worker over HTTP, as a client does. */
export function dispatcherOf(router: ClusterRouter): Dispatcher {
  return {
    async route({ requestId, model, hashes, blockTokens, promptTokens }: RoutedPrompt) {
      const body =
        `{"model":${JSON.stringify(model)},"request_id":"${requestId}",` +
        `"block_tokens":${blockTokens},"prompt_tokens":${promptTokens},` +
        `"block_hashes":[${hashes.join(",")}]}`;
      return (await router.post<{ readonly worker: string }>("/v1/route", body)).worker;
    },
    async ended(requestId) {
      await router.post(`/v1/requests/${requestId}/prefill-complete`, "{}");
      await router.post(`/v1/requests/${requestId}/free`, "{}");
    },
  };
}

const PAGE = 4096;
const BUS_CLOSE_MS = 100;

/**
 * Starts all agents and the router in this process, over an in-process bus. Used on hosts without a
 * nats-server.
 */
export async function openLocalHosts(options: HostsOptions): Promise<ClusterHosts> {
  const { workers, blockTokens } = options;
  await using opening = new AsyncDisposableStack();
  const hub = new LocalHub();
  const openBus = () => {
    const bus = createLocalBus(hub, { clock: systemClock, random: systemRandom });
    opening.defer(() => bus.close(BUS_CLOSE_MS));
    return bus;
  };
  const agents = new Map<string, LocalAgent>();
  for (let at = 1; at <= workers; at++) {
    const worker = `w-${at}`;
    agents.set(worker, opening.use(await LocalAgent.open(worker, openBus(), options)));
  }
  const bus = openBus();
  const all = opening.move();
  return {
    over: "in-process",
    sockets: new Map([...agents].map(([worker, { socketPath }]) => [worker, socketPath])),
    async flush() {
      for (const agent of agents.values()) await agent.flush();
    },
    openRouter: (mode) => openLocalRouter(routerSettings(mode, blockTokens), bus),
    [Symbol.asyncDispose]: () => all.disposeAsync(),
  };
}

const PARTS = { clock: systemClock, random: systemRandom, version: "demo", commit: "" };

function quietLogger() {
  return createLogger({ level: "error", format: "text", write: () => {}, clock: systemClock });
}

class LocalAgent implements AsyncDisposable {
  readonly socketPath: string;
  readonly #folder: string;
  readonly #agent: Agent;

  private constructor(folder: string, agent: Agent) {
    this.#folder = folder;
    this.#agent = agent;
    this.socketPath = agent.config.engine.socket;
  }

  static async open(worker: string, bus: Bus, options: HostsOptions): Promise<LocalAgent> {
    const { ramBlocks, blockBytes } = options;
    const folder = makeFolder();
    const text = agentConfigText(folder, `${folder}/engine.sock`, {
      ramBytes: ramBlocks * Math.ceil(blockBytes / PAGE) * PAGE,
      ...{ ssdBytes: null, policy: "hearth", blocksMax: tableSize(ramBlocks) },
      settings: { node: { id: JSON.stringify(worker) } },
    });
    const read = parseConfig(text, "demo", { hostname: null, memoryBytes: null });
    assert(read.ok, "the demo's own configuration is right");
    const native = loadNative();
    const service = createServiceManager(native, systemClock, {});
    const parts = { ...PARTS, native, service, bus, listening: {} };
    const logger = quietLogger();
    try {
      const agent = await Agent.start({ ...parts, config: read.config, logger });
      return new LocalAgent(folder, agent);
    } catch (error) {
      rmSync(folder, { recursive: true, force: true });
      throw error;
    }
  }

  async flush(): Promise<void> {
    const who = { via: "http", name: "demo", from: "demo", role: "purge" } as const;
    await this.#agent.control.plane.flush({ ...who, broadcast: false });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#agent.stop(AbortSignal.abort());
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

async function openLocalRouter(
  settings: Readonly<Record<string, string>>,
  bus: Bus,
): Promise<ClusterRouter> {
  const text = routerConfigText({ settings: { router: settings } });
  const read = parseRouterConfig(text, "demo", { hostname: null, memoryBytes: null });
  assert(read.ok, "the demo's own configuration is right");
  const logger = quietLogger();
  const parts = { ...PARTS, native: loadNative(), config: read.config, logger, bus };
  const service = await RouterService.start(parts);
  const http = await startRouterHttp(service, { ...PARTS, native: parts.native, logger });
  const ask = async (path: string, init: RequestInit = {}) =>
    JSON.parse(await (await fetch(`${http.url}${path}`, init)).text());
  return {
    get: (path) => ask(path),
    async post(path, body) {
      const answer = await ask(path, { method: "POST", body });
      if (answer.code === undefined) return answer;
      throw new HearthError("ENGINE_REFUSED", `the router answered: ${answer.detail}`);
    },
    async [Symbol.asyncDispose]() {
      await http[Symbol.asyncDispose]();
      await service.stop(AbortSignal.abort());
    },
  };
}

/**
 * Starts each agent and the router in a separate process, with a private nats-server between them.
 */
export async function openProcessHosts(
  natsServer: string,
  options: HostsOptions,
): Promise<ClusterHosts> {
  const { workers, ramBlocks, blockBytes, blockTokens, signal } = options;
  await using opening = new AsyncDisposableStack();
  const broker = opening.use(await PrivateBroker.start(natsServer, signal));
  const nats = { url: JSON.stringify(broker.url) };
  const agents = new Map<string, PrivateAgent>();
  const opened = Array.from({ length: workers }, async (_, at) => {
    const worker = `w-${at + 1}`;
    const settings = { node: { id: JSON.stringify(worker) }, nats };
    const own = { ramBlocks, ssdBlocks: 0, blockBytes, policy: "hearth", settings };
    agents.set(worker, opening.use(await openOwnAgent(own, signal)));
  });
  // Wait for all processes, so that those that started are stopped if another one failed.
  const failed = (await Promise.allSettled(opened)).find(({ status }) => status === "rejected");
  if (failed?.status === "rejected") throw failed.reason;
  const all = opening.move();
  return {
    over: "nats",
    sockets: new Map([...agents].map(([worker, { socketPath }]) => [worker, socketPath])),
    async flush() {
      await Promise.all([...agents.values()].map((agent) => agent.flush()));
    },
    openRouter: (mode) =>
      PrivateRouter.start({
        settings: { router: routerSettings(mode, blockTokens), nats },
        signal,
      }),
    [Symbol.asyncDispose]: () => all.disposeAsync(),
  };
}

/**
 * Starts the agents and the router over a private nats-server, or over an in-process bus if
 * `isLocal` is set or the host has no nats-server.
 */
export function openHosts(options: HostsOptions, isLocal: boolean): Promise<ClusterHosts> {
  const natsServer = isLocal ? null : PrivateBroker.find();
  return natsServer === null ? openLocalHosts(options) : openProcessHosts(natsServer, options);
}
