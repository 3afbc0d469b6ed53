import { rmSync } from "node:fs";
import { Agent, createServiceManager, RouterService, startRouterHttp } from "../../app/index.ts";
import { type Bus, createLocalBus, LocalHub } from "../../bus/index.ts";
import { parseConfig, parseRouterConfig } from "../../config/index.ts";
import { assert, HearthError, systemClock, systemRandom } from "../../core/index.ts";
import { loadNative } from "../../native/index.ts";
import { createLogger } from "../../observability/index.ts";
import { agentConfigText, makeFolder, routerConfigText } from "../../workload/replay/index.ts";
import { tableSize } from "../run-replay.ts";
import {
  type ClusterHosts,
  type ClusterRouter,
  EVENTS_SETTINGS,
  type HostsOptions,
  routerSettings,
} from "./hosts.ts";

const PAGE = 4096;
const BUS_CLOSE_MS = 100;

/** All of them in this process, over a bus inside it: for hosts without a nats-server. */
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
      settings: { node: { id: JSON.stringify(worker) }, events: EVENTS_SETTINGS },
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
      throw new HearthError("ENGINE_REFUSED", `the router answers: ${answer.detail}`);
    },
    async [Symbol.asyncDispose]() {
      await http[Symbol.asyncDispose]();
      await service.stop(AbortSignal.abort());
    },
  };
}
