import {
  type Config,
  formatProblem,
  loadConfig,
  type MachineFacts,
  readMachineFacts,
} from "../config/index.ts";
import { HearthError, systemRandom } from "../core/index.ts";
import { crashPoint, loadNative } from "../native/index.ts";
import { createLogger } from "../observability/index.ts";
import { Agent } from "./agent.ts";
import { startApi } from "./agent-api.ts";
import { agentClock } from "./agent-clock.ts";
import { checkNatsFiles } from "./credentials.ts";
import { createServiceManager, serviceEnvironment } from "./process.ts";
import { type RunOptions, runService } from "./run-service.ts";

export interface RunAgentOptions extends RunOptions {
  readonly configPath: string;
}

/** Reads the agent's configuration file. Throws CONFIG_INVALID listing all problems. */
export async function readConfig(path: string, facts = readMachineFacts()): Promise<Config> {
  const result = await loadConfig(path, facts);
  if (result.ok) return result.config;
  throw new HearthError("CONFIG_INVALID", result.problems.map(formatProblem).join("\n"));
}

/** Runs the agent until a signal stops it. */
export async function runAgent(options: RunAgentOptions): Promise<void> {
  const { configPath, privateFolder, version, commit, write } = options;
  const config = await readConfig(configPath);
  await checkNatsFiles(config.nats);
  const native = loadNative();
  crashPoint("agent.begin");
  const clock = agentClock();
  using logger = createLogger({ ...config.log, write, clock });
  using manager = createServiceManager(native, clock, serviceEnvironment());
  const parts = { config, native, clock, random: systemRandom, logger, service: manager };
  const { LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES } = process.env;
  const listening = { LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES };
  const { engine, kv, node } = config;
  await runService<Agent>({
    ...{ kind: "agent", logger, manager, privateFolder },
    start: () => Agent.start({ ...parts, version, commit, listening }),
    serve: (agent) => startApi(agent, { native, logger, version, commit }),
    async reload(agent) {
      try {
        // Do not call `statfs`: a reload cannot change the folders, and a hung disk would block the
        // event loop.
        const facts: MachineFacts = { ...readMachineFacts(), fileSystemBytes: () => null };
        agent.reload(await readConfig(configPath, facts));
      } finally {
        await agent.peers?.reload();
      }
    },
    ready: { worker: node.id, socket: engine.socket, ram: kv.ramBytes },
    statuses: ["serving while RAM is populated", "serving"],
  });
}
