import { rmSync } from "node:fs";
import {
  type Config,
  formatProblem,
  loadConfig,
  type MachineFacts,
  readMachineFacts,
} from "../config/index.ts";
import { HearthError, messageOf, systemRandom } from "../core/index.ts";
import { crashPoint, loadNative } from "../native/index.ts";
import { createLogger, type Logger } from "../observability/index.ts";
import { Agent } from "./agent.ts";
import { type AgentApi, type AgentApiOptions, startApi } from "./agent-api.ts";
import { agentClock } from "./agent-clock.ts";
import { checkNatsFiles } from "./credentials.ts";
import {
  createServiceManager,
  END_OF_INPUT,
  reloadSignals,
  serviceEnvironment,
  stopSignals,
} from "./process.ts";

export interface RunAgentOptions {
  readonly configPath: string;
  /**
   * Stop when standard input closes, and then remove this folder. Null: run as an ordinary service.
   */
  readonly privateFolder: string | null;
  readonly version: string;
  readonly commit: string;
  /** Writes a log line. */
  write(line: string): void;
}

/** Reads a configuration. Throws CONFIG_INVALID listing all problems. */
export async function readConfig(path: string, facts = readMachineFacts()): Promise<Config> {
  const result = await loadConfig(path, facts);
  if (result.ok) return result.config;
  throw new HearthError("CONFIG_INVALID", result.problems.map(formatProblem).join("\n"));
}

/**
 * Runs the agent until SIGTERM or SIGINT; reloads on SIGHUP. A second SIGTERM stops without waiting
 * for engines.
 */
export async function runAgent(options: RunAgentOptions): Promise<void> {
  const config = await readConfig(options.configPath);
  await checkNatsFiles(config.nats);
  const native = loadNative();
  crashPoint("agent.begin");
  const clock = agentClock();
  using logger = createLogger({
    level: config.log.level,
    format: config.log.format,
    write: options.write,
    clock,
  });
  using service = createServiceManager(native, clock, serviceEnvironment());
  const { version, commit } = options;
  const parts = { config, native, clock, random: systemRandom, logger, service };
  const reloads = reloadSignals();
  const signals = stopSignals(options.privateFolder !== null);
  const { LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES } = process.env;
  const listening = { LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES };
  const agent = await Agent.start({ ...parts, version, commit, listening });
  await using api = await apiOf(agent, { native, logger, version, commit });
  reloads.begin(async () => {
    if (agent.state !== "ready") return;
    service.reloading();
    await reload(agent, options.configPath, logger);
    await agent.peers?.reload();
    await api.reload();
    service.ready("serving");
  });
  const { engine, kv, node } = config;
  logger.info("api listening", { url: api.url });
  logger.info("agent ready", { worker: node.id, socket: engine.socket, ram: kv.ramBytes });
  service.ready("serving while RAM is populated");
  const signal = await signals.first;
  logger.info("agent stopping", { signal });
  service.stopping();
  crashPoint("stop.asked");
  await agent.stop(signals.second);
  // After a signal the folder is kept, since the agent may be restarted on it.
  if (options.privateFolder !== null && signal === END_OF_INPUT) {
    rmSync(options.privateFolder, { recursive: true, force: true });
  }
  logger.info("agent stopped", {});
}

/** If the API cannot start, stops the agent and rethrows. */
async function apiOf(agent: Agent, options: AgentApiOptions): Promise<AgentApi> {
  try {
    return await startApi(agent, options);
  } catch (error) {
    await agent.stop(AbortSignal.abort());
    throw error;
  }
}

/** If the file is invalid, the agent keeps its current configuration. */
async function reload(agent: Agent, path: string, logger: Logger): Promise<void> {
  try {
    // Skip `statfs`: the folders cannot change on reload, and a hung disk would block the event
    // loop.
    const facts: MachineFacts = { ...readMachineFacts(), fileSystemBytes: () => null };
    agent.reload(await readConfig(path, facts));
  } catch (error) {
    logger.error(`configuration reload failed: ${messageOf(error)}`);
  }
}
