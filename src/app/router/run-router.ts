import { rmSync } from "node:fs";
import { type ApiServer, createRouterApi, readAccess } from "../../api/index.ts";
import {
  formatProblem,
  loadRouterConfig,
  type Overrides,
  parseRouterConfig,
  type RouterConfig,
  readMachineFacts,
} from "../../config/index.ts";
import { type Clock, HearthError, messageOf, systemClock, systemRandom } from "../../core/index.ts";
import { loadNative, type Native } from "../../native/index.ts";
import { createLogger, type Logger, watchDescriptors } from "../../observability/index.ts";
import type { Target } from "../../router/index.ts";
import { checkNatsFiles } from "../credentials.ts";
import {
  createServiceManager,
  END_OF_INPUT,
  reloadSignals,
  serviceEnvironment,
  stopSignals,
} from "../process.ts";
import { RouterService } from "./router-service.ts";

export interface RunRouterOptions {
  /** Null: defaults plus the command line. */
  readonly configPath: string | null;
  /** Command line overrides. They take precedence over the file, also on reload. */
  readonly overrides: Overrides;
  /**
   * Stop when standard input closes, and then remove this folder. Null: run as an ordinary service.
   */
  readonly privateFolder: string | null;
  readonly version: string;
  readonly commit: string;
  /** Writes a log line. */
  write(line: string): void;
}

/** Throws CONFIG_INVALID listing all problems. */
export async function readRouterConfig(
  path: string | null,
  overrides: Overrides = {},
): Promise<RouterConfig> {
  const facts = readMachineFacts();
  const result =
    path === null
      ? parseRouterConfig("", "command line", facts, overrides)
      : await loadRouterConfig(path, facts, overrides);
  if (result.ok) return result.config;
  throw new HearthError("CONFIG_INVALID", result.problems.map(formatProblem).join("\n"));
}

/** Runs the router until SIGTERM or SIGINT; reloads on SIGHUP. */
export async function runRouter(options: RunRouterOptions): Promise<void> {
  const { version, commit, configPath, overrides } = options;
  const config = await readRouterConfig(configPath, overrides);
  await checkNatsFiles(config.nats);
  const native = loadNative();
  const clock = systemClock;
  using logger = createLogger({ ...config.log, write: options.write, clock });
  using manager = createServiceManager(native, clock, serviceEnvironment());
  const reloads = reloadSignals();
  const signals = stopSignals(options.privateFolder !== null);
  const parts = { config, native, clock, random: systemRandom, logger, version, commit };
  const service = await RouterService.start(parts);
  await using http = await httpOf(service, { native, clock, logger, version });
  reloads.begin(async () => {
    if (service.state !== "ready" || configPath === null) return;
    manager.reloading();
    await reload(service, configPath, overrides, logger);
    await http.reload();
    manager.ready("routing");
  });
  logger.info("api listening", { url: http.url });
  logger.info("router ready", { router: config.router.id, mode: config.router.mode });
  manager.ready("routing");
  const signal = await signals.first;
  logger.info("router stopping", { signal });
  manager.stopping();
  await service.stop(signals.second);
  if (options.privateFolder !== null && signal === END_OF_INPUT) {
    rmSync(options.privateFolder, { recursive: true, force: true });
  }
  logger.info("router stopped", {});
}

/** If the API cannot start, stops the router and rethrows. */
async function httpOf(service: RouterService, options: RouterHttpOptions): Promise<RouterHttp> {
  try {
    return await startRouterHttp(service, options);
  } catch (error) {
    await service.stop(AbortSignal.abort());
    throw error;
  }
}

/** If the file is invalid, the router keeps its current configuration. */
async function reload(
  service: RouterService,
  path: string,
  overrides: Overrides,
  logger: Logger,
): Promise<void> {
  try {
    await service.reload(await readRouterConfig(path, overrides));
  } catch (error) {
    logger.error(`configuration reload failed: ${messageOf(error)}`);
  }
}

interface RouterHttpOptions {
  readonly native: Native;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly version: string;
}

export interface RouterHttp extends ApiServer {
  /** Rereads the token files. If one is invalid, the previous tokens stay in force. */
  reload(): Promise<void>;
}

/** Bytes of all request bodies together: prompts as tokens are longer than commands of agents. */
const BODY_BUDGET_BYTES = 256 * 2 ** 20;

/** Starts the HTTP server of a running router. */
export async function startRouterHttp(
  service: RouterService,
  { native, clock, logger, version }: RouterHttpOptions,
): Promise<RouterHttp> {
  const { listen, busyStatus } = service.config.api;
  const { access, warnings, reload } = await readAccess(service.config.api);
  const warn = (lines: readonly string[]) => {
    for (const line of lines) logger.warn(line, {});
  };
  warn(warnings);
  const { router, table, load, index, metrics, health } = service;
  const unreached = () => [...service.unreached];
  const services = {
    ...{ router, table, load, index, marks: service.marks },
    readiness: () => {
      const reasons = service.notReady;
      return { ready: reasons.length === 0, reasons: reasons.length ? reasons : unreached() };
    },
    pending: () => service.pendingWorkers,
    engine: (worker: Target["worker"], rank: number) => service.engine(worker, rank),
    health: () => health.list(),
    metricsText: () => metrics.text(),
    metricsContentType: metrics.contentType,
    register: (worker: Parameters<RouterService["register"]>[0]) => service.register(worker),
    unregister: (worker: Parameters<RouterService["unregister"]>[0]) => service.unregister(worker),
  };
  const api = createRouterApi(services, {
    ...{ version, clock, access, busyStatus },
    ...{ bodyBudgetBytes: BODY_BUDGET_BYTES, native },
    onFault: (path, thrown) => logger.error("API request failed", { path, reason: String(thrown) }),
    onRefused: ({ code, address, count }) =>
      logger.warn("API callers rejected", { code, address, count }),
  });
  metrics.observeApi(() => api.refusals());
  const server = api.listen({ host: listen.host, port: listen.port });
  const descriptors = watchDescriptors(clock, health);
  return {
    ...server,
    [Symbol.asyncDispose]() {
      descriptors[Symbol.dispose]();
      return server[Symbol.asyncDispose]();
    },
    async reload() {
      try {
        warn(await reload());
      } catch (error) {
        logger.error(`token reload failed: ${messageOf(error)}`);
      }
    },
  };
}
